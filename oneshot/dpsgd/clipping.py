"""The clipped sum: per-example clip and masked, microbatched sum of Algorithm dpsgd."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from oneshot import inputs
from oneshot.dpsgd import sampling, sharding
from oneshot.dpsgd.gradients import ghost
from oneshot.dpsgd.gradients.layers import find_sites
from oneshot.dpsgd.gradients.strategy import LossFn, Strategy, vmap
from oneshot.dpsgd.gradients.traced_loss import trace

PyTree = Any
Augment = Callable[[jax.Array, PyTree], PyTree]  # of indices and their examples
STRATEGIES = ('ghost', 'vmap')

# What a microbatch may hold, in float32 values.
_CACHED = 2**20  # so much stays in the cache of a CPU
_FILLED = 2**26  # so much fills an accelerator


class Stats(NamedTuple):
    """What happened to the examples of a clipped sum."""

    examples: jax.Array  # how many there were
    loss: jax.Array  # the sum of their losses
    clipped: jax.Array  # how many had a gradient longer than the clip norm
    nonfinite: jax.Array  # how many had a gradient that was not finite, and counted as 0

    @classmethod
    def none(cls) -> 'Stats':
        """Of no example at all."""
        return cls(jnp.int32(0), jnp.float32(0), jnp.int32(0), jnp.int32(0))


class Clipping(NamedTuple):
    """How gradients are clipped, and in which way that is computed.

    The strategy 'vmap' has every gradient of a microbatch in memory, 'ghost' none of those of
    dense and convolutional kernels (`oneshot.dpsgd.gradients.ghost`). Both serve any loss, and
    give the same sums up to rounding.
    """

    clip_norm: float  # c > 0, the largest global norm of a gradient; ∞ clips nothing
    microbatch_size: int  # how many examples are differentiated at once
    strategy: str = 'vmap'

    def validate(self) -> 'Clipping':
        """Itself; raises a ValueError where a value is wrong."""
        inputs.real('clip_norm', self.clip_norm, 0.0, ends='(]')
        inputs.count('microbatch_size', self.microbatch_size, 1)
        inputs.choice('strategy', self.strategy, STRATEGIES)
        return self

    def strategy_for(self, loss_fn: LossFn, params: PyTree, examples: PyTree) -> Strategy:
        """The strategy for examples like these, which have a leading axis."""
        if self.strategy == 'vmap':
            return vmap(loss_fn, params)
        example = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), examples)
        return ghost.ghost(loss_fn, params, example)

    def scale(self, norms: jax.Array) -> jax.Array:
        """min(1, c / ‖g_i‖), and 0 for a gradient that is not finite."""
        factor = jnp.minimum(1.0, self.clip_norm / norms)
        return jnp.where(jnp.isfinite(norms), factor, 0.0)


def choose_strategy(
    loss_fn: LossFn,
    params: PyTree,
    example: PyTree,
    *,
    batch: float = math.inf,
    strategy: str = 'auto',
    backend: str | None = None,
) -> tuple[str, int]:
    """The strategy and the microbatch size for a loss, by a fixed rule.

    It knows shapes and the kind of device, and no stopwatch: the same run has the same bits.

    Args:
        loss_fn: loss_fn(params, example), the loss of one example.
        params: the parameters, or their shapes.
        example: one example, or its shapes.
        batch: the expected batch, if known. Its last microbatch is half empty in the mean.
        strategy: 'ghost' or 'vmap'; 'auto' leaves the choice to the rule.
        backend: 'cpu', 'gpu' or 'tpu'; that of JAX by default.

    Returns:
        'ghost' if it spares the gradients of most parameters, else 'vmap'; and a power of
        two. On CPU the values of a microbatch should stay in the cache; elsewhere a
        microbatch should fill the device.
    """
    backend = jax.default_backend() if backend is None else backend
    total = sum(leaf.size for leaf in jax.tree.leaves(params))
    values = total / 2
    if strategy != 'vmap':
        sites = list(find_sites(trace(loss_fn, params, example), params))
        spared = sum(math.prod(site.kernel) for site in sites)
        if strategy == 'ghost' or 2 * spared > total:
            strategy, values = 'ghost', max((site.width for site in sites), default=1)
        else:
            strategy = 'vmap'
    room = _CACHED if backend == 'cpu' else _FILLED
    size = min(room / values, batch / 4)
    return strategy, 2 ** int(np.clip(math.log2(size), 0, 10))


def clipped_grad_sum(
    loss_fn: LossFn,
    params: PyTree,
    batch: PyTree,
    mask: jax.Array,
    *,
    clip_norm: float,
    microbatch_size: int,
    strategy: str = 'vmap',
) -> tuple[PyTree, Stats]:
    """Σ over the masked batch of per-example gradients, each clipped to global norm c.

    Adding or removing one example changes the sum by at most c in global norm, whatever its
    gradient is: one that is not finite counts as 0. The options are the fields of `Clipping`.

    Args:
        loss_fn: loss_fn(params, example), the loss of one example.
        params: any pytree of float arrays.
        batch: a pytree of examples along the leading axis.
        mask: bools, which of them count.

    Returns:
        The sum, a pytree like `params` in float32 or better, and `Stats`.
    """
    clipping = Clipping(clip_norm, microbatch_size, strategy).validate()
    microbatches = split_microbatches((batch, mask), microbatch_size)

    def fetch(trip: jax.Array) -> tuple[PyTree, jax.Array]:
        return jax.tree.map(lambda x: x[trip], microbatches)

    return _sum_microbatches(loss_fn, params, fetch, len(microbatches[1]), clipping)


class ExampleGroup(NamedTuple):
    """Examples of which some are drawn."""

    examples: PyTree  # along the leading axis
    drawn: jax.Array  # bools, which of them
    augment: Augment | None = None


def poisson_clipped_grad_sums(
    loss_fn: LossFn, params: PyTree, groups: Sequence[ExampleGroup], clipping: Clipping
) -> tuple[list[PyTree], Stats]:
    """`clipped_grad_sum` over the drawn members of each group, and only over them.

    The number of microbatches is a dynamic trip count: as many as the drawn examples need, so
    that none is ever cut off and at most one is padded. An example is augmented by its own
    index in the group. Each of several devices sums over its own part of the groups.
    """
    if not groups:
        return [], Stats.none()
    size = clipping.microbatch_size
    rows = [
        (group.examples, group.drawn, jnp.arange(group.drawn.size, dtype=jnp.int32))
        for group in groups
    ]

    def sum_group(params: PyTree, rows: Any, augment: Augment | None) -> tuple[PyTree, Stats]:
        examples, drawn, indices = rows
        microbatches = sampling.microbatches(drawn, size)

        def fetch(trip: jax.Array) -> tuple[PyTree, jax.Array]:
            chosen, mask = microbatches.get(trip, size)
            batch = jax.tree.map(lambda x: jnp.asarray(x)[chosen], examples)
            return batch if augment is None else augment(indices[chosen], batch), mask

        return _sum_microbatches(loss_fn, params, fetch, microbatches.trips, clipping)

    def local(params: PyTree, rows: list[Any]) -> tuple[list[PyTree], Stats]:
        sums, total = [], Stats.none()
        for part, group in zip(rows, groups, strict=True):
            summed, stats = sum_group(params, part, group.augment)
            sums.append(summed)
            total = jax.tree.map(jnp.add, total, stats)
        return sums, total

    return sharding.gradient_sums(local, params, rows)


def _sum_microbatches(
    loss_fn: LossFn,
    params: PyTree,
    fetch: Callable[[jax.Array], tuple[PyTree, jax.Array]],
    trips: int | jax.Array,
    clipping: Clipping,
) -> tuple[PyTree, Stats]:
    shapes, _ = jax.eval_shape(fetch, jnp.int32(0))
    strategy = clipping.strategy_for(loss_fn, params, shapes)

    def add(trip: jax.Array, total: tuple[PyTree, Stats]) -> tuple[PyTree, Stats]:
        examples, mask = fetch(trip)
        gradients = strategy.gradients(examples, mask)
        losses, norms = gradients.losses, gradients.norms
        finite = jnp.isfinite(norms)
        stats = Stats(
            examples=jnp.sum(mask),
            loss=jnp.sum(jnp.where(mask & jnp.isfinite(losses), losses, 0.0)),
            clipped=jnp.sum(mask & finite & (norms > clipping.clip_norm)),
            nonfinite=jnp.sum(mask & ~finite),
        )
        summed = gradients.sum(jnp.where(mask, clipping.scale(norms), 0.0))
        return jax.tree.map(lambda a, b: a + b.astype(a.dtype), total, (summed, stats))

    total, stats = jax.lax.fori_loop(0, trips, add, (strategy.zeros, Stats.none()))
    return strategy.finish(total), stats


def split_microbatches(batch: PyTree, size: int) -> PyTree:
    """Cuts the leading axis into microbatches of `size`; the last is filled with zeros."""

    def leaf(x: jax.Array) -> jax.Array:
        trips = -(-x.shape[0] // size)
        return sharding.pad_rows(jnp.asarray(x), trips * size).reshape(trips, size, *x.shape[1:])

    return jax.tree.map(leaf, batch)
