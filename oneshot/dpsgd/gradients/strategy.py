"""The gradients of single examples: their norms, weighted sums and inner products.

A strategy gives these three, which is all that clipping and scoring ask for. `vmap` is the
general one. That of `oneshot.dpsgd.gradients.ghost` makes no gradient of a single example where
the layers allow it.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

PyTree = Any
LossFn = Callable[[PyTree, PyTree], jax.Array]  # loss_fn(params, example) of ONE example


class Gradients(NamedTuple):
    """What there is to know of the gradients g_i of a microbatch.

    `sum` gives Σ_i scale_i·g_i in the strategy's own coordinates, where scale_i = 0 leaves g_i out
    even if it is not finite. `dot` gives ⟨direction, g_i⟩ for a direction that was prepared.
    """

    losses: jax.Array
    norms: jax.Array  # ‖g_i‖, in float32; not finite where g_i is not
    sum: Callable[[jax.Array], PyTree]
    dot: Callable[[PyTree], jax.Array]


class Strategy(NamedTuple):
    """A way to differentiate a loss at given parameters, one example at a time.

    `gradients` takes a microbatch and its mask. If the mask is all False, they are undefined.
    """

    gradients: Callable[[PyTree, jax.Array], Gradients]
    zeros: PyTree  # the sum of no gradients, in the strategy's coordinates, float32 or better
    finish: Callable[[PyTree], PyTree]  # from these coordinates to a pytree like the parameters
    prepare: Callable[[PyTree], PyTree]  # of a pytree like the parameters, for `Gradients.dot`


def zeros(params: PyTree) -> PyTree:
    """Zeros like the parameters, in float32 or better.

    Sums and noise are kept in it: in bfloat16 a sum of many gradients stands still,
    a clipped gradient is longer than c, and noise has no tails.
    """
    return jax.tree.map(lambda x: jnp.zeros(jnp.shape(x), at_least_float32(x)), params)


def at_least_float32(x: jax.Array) -> jnp.dtype:
    """The dtype of x, or float32 if that is better."""
    return jnp.promote_types(jnp.result_type(x), jnp.float32)


def full_precision(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, its products of float32 made in float32.

    Accelerators round the factors by default: norms, sums and scores would not be of one gradient.
    """

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with jax.default_matmul_precision('float32'):
            return function(*args, **kwargs)

    return wrapped


def squared_norms(grads: PyTree) -> jax.Array:
    """‖g_i‖² of gradients along a leading axis."""

    def leaf(g: jax.Array) -> jax.Array:
        flat = g.reshape(g.shape[0], -1).astype(jnp.float32)  # float16 would underflow
        return jnp.sum(jnp.square(flat), axis=1)

    return sum(leaf(g) for g in jax.tree.leaves(grads))


@full_precision
def weighted_sum(scale: jax.Array, grads: PyTree, safe: bool = True) -> PyTree:
    """Σ_i scale_i·g_i; if safe, scale_i = 0 leaves g_i out even if it is not finite."""

    def leaf(g: jax.Array) -> jax.Array:
        g = zero_unscaled(scale, g) if safe else g
        return jnp.tensordot(scale, g.astype(at_least_float32(g)), axes=1)

    return jax.tree.map(leaf, grads)


def zero_unscaled(scale: jax.Array, x: jax.Array) -> jax.Array:
    """x with 0 for the examples whose scale is 0."""
    return jnp.where(per_example(scale, x) != 0.0, x, 0.0)


def per_example(scale: jax.Array, x: jax.Array) -> jax.Array:
    """One number for each example, against x with one or several rows for each."""
    return jnp.repeat(scale, x.shape[0] // scale.size).reshape(-1, *[1] * (x.ndim - 1))


@full_precision
def dot(grads: PyTree, direction: PyTree) -> jax.Array:
    """⟨direction, g_i⟩ of gradients along a leading axis."""
    products = jax.tree.map(
        lambda g, d: jnp.tensordot(g.astype(d.dtype), d, d.ndim), grads, direction
    )
    return sum(jax.tree.leaves(products))


def vmap(loss_fn: LossFn, params: PyTree) -> Strategy:
    """The general strategy: every gradient of a microbatch is there."""

    def gradients(examples: PyTree, mask: jax.Array) -> Gradients:
        losses, grads = jax.vmap(jax.value_and_grad(loss_fn), (None, 0))(params, examples)
        return Gradients(
            losses,
            jnp.sqrt(squared_norms(grads)),
            lambda scale: weighted_sum(scale, grads),
            lambda direction: dot(grads, direction),
        )

    return Strategy(gradients, zeros(params), lambda total: total, lambda tree: tree)
