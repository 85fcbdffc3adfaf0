"""Poisson sampling on the device, into fixed shapes, with nothing dropped."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Microbatches(NamedTuple):
    """The drawn examples, in order, cut into microbatches of one size.

    The shapes are those of the whole population. Padding fills at most the last microbatch.
    """

    indices: jax.Array  # int32: the drawn examples, then padding
    count: jax.Array  # the number of drawn examples
    trips: jax.Array  # the number of microbatches that hold them

    def get(self, trip: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
        """Indices and mask of one microbatch of `size`, the size it was cut to."""
        start = trip * size
        indices = jax.lax.dynamic_slice(self.indices, (start,), (size,))
        return indices, start + jnp.arange(size) < self.count


def poisson(key: jax.Array, sampling_prob: float, eligible: jax.Array) -> jax.Array:
    """Draws each eligible example independently with probability q.

    Compares 32 random bits with q·2³², so that the probability is q to 2.4e-10; a
    float32 uniform would round it to 1.2e-7. The key is used for nothing else.
    """
    if sampling_prob >= 1.0:
        return eligible
    bits = jax.random.bits(key, eligible.shape, jnp.uint32)
    return eligible & (bits < jnp.uint32(min(round(sampling_prob * 2**32), 2**32 - 1)))


def microbatches(drawn: jax.Array, size: int) -> Microbatches:
    """Cuts the drawn examples into microbatches of `size`."""
    (indices,) = jnp.nonzero(drawn, size=drawn.size, fill_value=0)
    count = jnp.sum(drawn, dtype=jnp.int32)
    # A slice beyond the end would be moved back, not cut: make room for the last one.
    return Microbatches(jnp.pad(indices, (0, size)).astype(jnp.int32), count, -(-count // size))
