"""Norms, sums and inner products of per-example gradients, without the gradients.

The gradients of a layer's kernel follow from its inputs and output gradients
(`oneshot.dpsgd.gradients.layers`); both come out of one backward pass for all examples
("book-keeping", Bu et al. 2023).

The layers are found in the loss function itself, as JAX traces it, whatever library the model is
of: a parameter that is used once, as the kernel of a matrix product or convolution, is a site.
All other parameters (biases, scales of norms, what is used twice) have their per-example
gradients by vmap, side by side with the sites.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from oneshot.dpsgd.gradients.layers import Site, find_sites
from oneshot.dpsgd.gradients.strategy import (
    Gradients,
    LossFn,
    Strategy,
    at_least_float32,
    dot,
    squared_norms,
    weighted_sum,
    zero_unscaled,
    zeros,
)
from oneshot.dpsgd.gradients.traced_loss import Program, Slot, trace

PyTree = Any


def ghost(loss_fn: LossFn, params: PyTree, example: PyTree) -> Strategy:
    """The strategy of this file. `example` is one example, or its shapes."""
    program = trace(loss_fn, params, example)
    leaves, tree = jax.tree.flatten(params)
    sites = list(find_sites(program, params))
    others = sorted(set(range(len(leaves))) - {site.leaf for site in sites})
    kernels = [leaves[site.leaf] for site in sites]
    loss_with_taps = _loss_with_taps(program, sites, kernels, others)

    def gradients(examples: PyTree, mask: jax.Array) -> Gradients:
        taps = [jnp.zeros(site.output.shape, site.output.dtype) for site in sites]
        differentiate = jax.value_and_grad(loss_with_taps, argnums=(0, 1), has_aux=True)
        (losses, passed), (grads, deltas) = jax.vmap(differentiate, (None, None, 0))(
            [leaves[i] for i in others], taps, examples
        )
        sides = [s.sides(x, delta) for s, (x, _), delta in zip(sites, passed, deltas, strict=True)]
        factors = [site.factors(*pair) for site, pair in zip(sites, sides, strict=True)]
        kernel_grads = _kernel_grads(sites, factors, mask)
        layers = list(zip(sites, sides, factors, kernel_grads, strict=True))
        squares = squared_norms(grads) if grads else 0.0
        for (site, (x, delta), _, v), kernel, (_, y) in zip(layers, kernels, passed, strict=True):
            by_channel = site.squares(x, delta, v, mask.size)
            if site.standardized:
                by_channel = site.destandardized(kernel, by_channel, x, y, delta)
            squares += jnp.sum(by_channel, axis=1)
        norms = jnp.sqrt(jnp.maximum(squares, 0.0))

        def weighted(scale: jax.Array, safe: bool) -> PyTree:
            def at_site(site: Site, sides: Any, factors: Any, v: Any) -> list[jax.Array]:
                if safe:
                    factors = site.factors(*(zero_unscaled(scale, side) for side in sides))
                elif v is not None:
                    return weighted_sum(scale, v, safe=False)
                return site.grad(scale, *factors)

            sums = [at_site(*layer) for layer in layers]
            return weighted_sum(scale, grads, safe), sums

        def total(scale: jax.Array) -> PyTree:
            # A gradient that is not finite is rare, and leaving it out takes time.
            branches = [functools.partial(weighted, safe=safe) for safe in (False, True)]
            return jax.lax.cond(jnp.all(jnp.isfinite(norms)), *branches, scale)

        def along(direction: PyTree) -> jax.Array:
            others_direction, coordinates = direction
            product = dot(grads, others_direction) if grads else 0.0
            for (site, (x, delta), *_), d in zip(layers, coordinates, strict=True):
                product += site.along(x, delta, d, mask.size)
            return product

        return Gradients(losses, norms, total, along)

    def coordinates(kernels: list[jax.Array]) -> list[list[jax.Array]]:
        return [site.coordinates(kernel) for site, kernel in zip(sites, kernels, strict=True)]

    in_float32 = [kernel.astype(at_least_float32(kernel)) for kernel in kernels]

    def finish(total: PyTree) -> PyTree:
        other_sums, sums = total
        (kernel_sums,) = jax.vjp(coordinates, in_float32)[1](sums)
        whole = dict(zip(others, other_sums, strict=True))
        whole |= {site.leaf: grad for site, grad in zip(sites, kernel_sums, strict=True)}
        return tree.unflatten([whole[i] for i in range(len(leaves))])

    def prepare(direction: PyTree) -> PyTree:
        parts = jax.tree.leaves(direction)
        pairs = zip(sites, in_float32, strict=True)
        tangents = [parts[site.leaf].astype(kernel.dtype) for site, kernel in pairs]
        along = jax.jvp(coordinates, (in_float32,), (tangents,))[1]
        return [parts[i] for i in others], along

    nothing = zeros([leaves[i] for i in others]), zeros(jax.eval_shape(coordinates, in_float32))
    return Strategy(gradients, nothing, finish, prepare)


def _loss_with_taps(
    program: Program, sites: list[Site], kernels: list[jax.Array], others: list[int]
) -> Callable[..., tuple[jax.Array, list[Any]]]:
    """The loss of one example as a function of the other leaves and of taps.

    A tap is added to the output of a site, so that its gradient is δ. The function also gives
    the input and the output of every site.
    """
    # Made once, not once a microbatch.
    operands = [site.operand(kernel) for site, kernel in zip(sites, kernels, strict=True)]
    number_of = {site.op.outs[0]: number for number, site in enumerate(sites)}
    hidden = {op.outs[0] for site in sites for op in site.between}

    def loss(other_leaves: list[jax.Array], taps: list[jax.Array], example: PyTree):
        values = {program.leaves[i]: x for i, x in zip(others, other_leaves, strict=True)}
        values |= dict(zip(program.inputs, jax.tree.leaves(example), strict=True))
        passed: list[Any] = [None] * len(sites)

        def read(place: Any) -> Any:
            return values[place] if isinstance(place, Slot) else place

        for op in program.ops:
            out = op.outs[0] if op.outs else None  # jax.debug.print has no result
            if out in hidden:
                continue
            if out in number_of:
                number = number_of[out]
                site = sites[number]
                x = read(op.ins[1 - site.position])
                y = site.product(x, operands[number])
                passed[number] = x, y
                values[out] = y + taps[number]
            else:
                values |= dict(zip(op.outs, op(*map(read, op.ins)), strict=True))
        return read(program.loss), passed

    return loss


def _kernel_grads(sites: list[Site], factors: list[Any], mask: jax.Array) -> list[Any]:
    """v of the sites whose norm is not had by a Gram matrix, if an example counts."""

    def grads(factors: list[Any]) -> list[Any]:
        pairs = zip(sites, factors, strict=True)
        return [None if pair is None else site.grads(*pair, mask.size) for site, pair in pairs]

    def nothing(factors: list[Any]) -> list[Any]:
        return zeros(jax.eval_shape(grads, factors))

    needed = [None if s.by_gram else pair for s, pair in zip(sites, factors, strict=True)]
    # A branch is also a border for XLA: it would fuse the factors into these products
    # and into the passes, twice, and start the products of one layer after another's.
    return jax.lax.cond(jnp.any(mask), grads, nothing, needed)
