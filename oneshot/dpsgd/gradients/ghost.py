"""Norms, sums and inner products of per-example gradients, without the gradients.

What a layer's inputs and output gradients say of its kernel's gradients is in
`oneshot.dpsgd.gradients.layers`; here, both come out of one backward pass for all examples
("book-keeping", Bu et al. 2023).

The layers are found in the loss function itself, as JAX sees it (`oneshot.dpsgd.gradients.traced_loss`): a
parameter that is used once, as the kernel of a matrix product or convolution, is a site.
This serves any model, of any library. All other parameters (biases, scales of norms, what
is used twice) have their per-example gradients by vmap, side by side with the sites.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from oneshot.dpsgd.gradients.layers import Site, find_sites
from oneshot.dpsgd.gradients.strategy import (
    Gradients,
    LossFn,
    Strategy,
    dot,
    leave_out,
    precise,
    square,
    weighted_sum,
    zeros,
)
from oneshot.dpsgd.gradients.traced_loss import Slot, trace

PyTree = Any


def ghost(loss_fn: LossFn, params: PyTree, example: PyTree) -> Strategy:
    """The strategy of this file. `example` is one example, or its shapes."""
    program = trace(loss_fn, params, example)
    leaves, tree = jax.tree.flatten(params)
    sites = list(find_sites(program, params))
    rest = sorted(set(range(len(leaves))) - {site.leaf for site in sites})
    kernels = [leaves[site.leaf] for site in sites]
    # Made once, not once a microbatch.
    operands = [site.operand(kernel) for site, kernel in zip(sites, kernels, strict=True)]
    at = {site.op.outs[0]: number for number, site in enumerate(sites)}
    hidden = {op.outs[0] for site in sites for op in site.between}

    def run(others: list[jax.Array], taps: list[jax.Array], example: PyTree):
        """The loss of one example with `taps` added to the outputs of the sites."""
        values = {program.leaves[i]: x for i, x in zip(rest, others, strict=True)}
        values |= dict(zip(program.inputs, jax.tree.leaves(example), strict=True))
        seen: list[Any] = [None] * len(sites)

        def read(place: Any) -> Any:
            return values[place] if isinstance(place, Slot) else place

        for op in program.ops:
            first = op.outs[0] if op.outs else None  # jax.debug.print has no result
            if first in hidden:
                continue
            if first in at:
                number = at[first]
                site = sites[number]
                x = read(op.ins[1 - site.position])
                y = site.product(x, operands[number])
                seen[number] = x, y
                values[first] = y + taps[number]
            else:
                values |= dict(zip(op.outs, op(*map(read, op.ins)), strict=True))
        return read(program.loss), seen

    def make(factors: list[Any], mask: jax.Array) -> list[Any]:
        """v of the sites whose factors are given, if an example counts."""

        def grads(factors: list[Any]) -> list[Any]:
            pairs = zip(sites, factors, strict=True)
            return [None if pair is None else site.grads(*pair, mask.size) for site, pair in pairs]

        def nothing(factors: list[Any]) -> list[Any]:
            return zeros(jax.eval_shape(grads, factors))

        # A branch is also a border for XLA: it would fuse the factors into these products
        # and into the passes, twice, and start the products of one layer after another's.
        return jax.lax.cond(jnp.any(mask), grads, nothing, factors)

    def gradients(examples: PyTree, mask: jax.Array) -> Gradients:
        others = [leaves[i] for i in rest]
        taps = [jnp.zeros(site.output.shape, site.output.dtype) for site in sites]
        differentiate = jax.value_and_grad(run, argnums=(0, 1), has_aux=True)
        (losses, seen), (grads, deltas) = jax.vmap(differentiate, (None, None, 0))(
            others, taps, examples
        )
        found = [
            (*site.sides(x, delta), y)
            for site, (x, y), delta in zip(sites, seen, deltas, strict=True)
        ]
        factors = [site.factors(*pair) for site, (*pair, _) in zip(sites, found, strict=True)]
        pairs = zip(sites, factors, strict=True)
        made = make([None if site.by_gram else pair for site, pair in pairs], mask)
        squares = square(grads) if grads else 0.0
        for site, kernel, (x, delta, y), v in zip(sites, kernels, found, made, strict=True):
            by_channel = site.squares(x, delta, v, mask.size)
            if site.standardized:
                by_channel = site.destandardized(kernel, by_channel, x, y, delta)
            squares += jnp.sum(by_channel, axis=1)

        norms = jnp.sqrt(jnp.maximum(squares, 0.0))

        def weigh(scale: jax.Array, safe: bool) -> PyTree:
            def one(site: Site, x: jax.Array, delta: jax.Array, pair: Any, v: Any):
                if safe:
                    pair = site.factors(leave_out(scale, x), leave_out(scale, delta))
                elif v is not None:
                    return site.weighted(scale, v)
                return site.grad(scale, *pair)

            sums = [
                one(site, x, delta, pair, v)
                for site, (x, delta, _), pair, v in zip(sites, found, factors, made, strict=True)
            ]
            return weighted_sum(scale, grads, safe), sums

        def total(scale: jax.Array) -> PyTree:
            # A gradient that is not finite is rare, and leaving it out takes time.
            branches = functools.partial(weigh, safe=False), functools.partial(weigh, safe=True)
            return jax.lax.cond(jnp.all(jnp.isfinite(norms)), *branches, scale)

        def along(direction: PyTree) -> jax.Array:
            others, coordinates = direction
            product = dot(grads, others) if grads else 0.0
            for site, (x, delta, _), d in zip(sites, found, coordinates, strict=True):
                product += site.along(x, delta, d, mask.size)
            return product

        return Gradients(losses, norms, total, along)

    def coordinates(kernels: list[jax.Array]) -> list[list[jax.Array]]:
        return [site.coordinates(kernel) for site, kernel in zip(sites, kernels, strict=True)]

    precisely = [kernel.astype(precise(kernel)) for kernel in kernels]

    def finish(total: PyTree) -> PyTree:
        others, sums = total
        (found,) = jax.vjp(coordinates, precisely)[1](sums)
        whole = dict(zip(rest, others, strict=True))
        whole |= {site.leaf: grad for site, grad in zip(sites, found, strict=True)}
        return tree.unflatten([whole[i] for i in range(len(leaves))])

    def prepare(direction: PyTree) -> PyTree:
        parts = jax.tree.leaves(direction)
        tangents = [
            parts[site.leaf].astype(kernel.dtype)
            for site, kernel in zip(sites, precisely, strict=True)
        ]
        along = jax.jvp(coordinates, (precisely,), (tangents,))[1]
        return [parts[i] for i in rest], along

    nothing = zeros([leaves[i] for i in rest]), zeros(jax.eval_shape(coordinates, precisely))
    return Strategy(gradients, nothing, finish, prepare)
