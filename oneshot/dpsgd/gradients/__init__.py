"""The gradients of single examples: norms, weighted sums and inner products, in two ways."""
