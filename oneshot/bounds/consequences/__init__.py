"""What (ε, δ)-DP implies: generalization, little information, and few right guesses."""
