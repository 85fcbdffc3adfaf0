"""Exact checks: with the same key the noise is the same, and a difference has none of it."""

import math
from typing import NamedTuple

import jax
import numpy as np

from oneshot.check.runner import Finding, Runner
from oneshot.check.step import PLACES, Example

_OTHERS = 16  # in a batch beside the example that is left out
_HUGE = 1e6  # in units of c
_ROUNDING = 1e-2  # what a norm may be off by, in units of c, however precise gradients are


class _Kind(NamedTuple):
    """An example to leave out, and how it is made, in units of c."""

    name: str
    weight: float = 0.0  # of the natural gradient
    size: float = 0.0
    spread: bool = False  # a coordinate in each of many leaves, in place of one in all
    dense: float = 0.0  # the norm of a gradient with the same value on all coordinates
    scaled: float = 1.0  # the natural input is multiplied by it


_NATURAL = _Kind('a natural gradient', weight=1.0)
_ONE = _Kind('a gradient of 10⁶·c on one coordinate', size=_HUGE)
_SEVERAL = _Kind('a gradient of 10⁶·c in each of several leaves', size=_HUGE, spread=True)
_KINDS = (
    _NATURAL,
    _Kind('a natural gradient, 10⁶ times as long', weight=_HUGE),
    _Kind('the gradient of a natural input, 1000 times as large', weight=1.0, scaled=1e3),
    _ONE,
    _Kind('a gradient of -10⁶·c on one coordinate', size=-_HUGE),
    _SEVERAL,
    _Kind('a gradient of 10·c over all coordinates', dense=10.0),
    _Kind('a gradient of 1.5·c over all coordinates', dense=1.5),
    _Kind('a gradient of 0.5·c over all coordinates', dense=0.5),
    _Kind('a gradient of 10⁻²⁰·c over all coordinates', dense=1e-20),
    _Kind('a gradient of 10²⁵·c over all coordinates', dense=1e25),
)
_NOT_FINITE = (
    _Kind('a gradient of NaN on one coordinate', size=math.nan),
    _Kind('a gradient of ∞ on one coordinate', size=math.inf),
    _Kind('a gradient of ∞ over all coordinates', dense=math.inf),
    _Kind('the gradient of an input that is NaN', weight=1.0, scaled=math.nan),
)


class _LeaveOneOut:
    """Batches for leaving one out."""

    def __init__(self, runner: Runner, key: jax.Array) -> None:
        self.runner, self.key = runner, key
        self.c, self.rows = runner.step.clip_norm, np.arange(runner.step.rows)
        # The coordinate is the same for all, so that examples can be against each other.
        large = sorted(runner.leaves, key=lambda leaf: -leaf.size)[:PLACES]
        self.places = np.array([leaf.first + leaf.size // 2 for leaf in large], np.int32)
        # What may be seen of nothing, in units of c, if gradients are rounded as they are.
        noise = runner.step.noise_multiplier * math.sqrt(runner.size)
        self.rounding = _ROUNDING + 2.0 * runner.rounding * noise

    def batch(self, others: str, kind: _Kind, position: int) -> Example:
        """A batch of others, with an example of this kind among them."""
        batch = self.runner.zero_gradient_examples(self.rows.size)
        if others == 'natural':
            batch.weight[:_OTHERS] = 1.0
        elif others == 'huge':
            batch.size[:_OTHERS] = _HUGE * self.c
            batch.places[:_OTHERS, 0] = self.places[0]
        batch.weight[position] = kind.weight
        batch.size[position] = kind.size * self.c
        batch.dense[position] = kind.dense * self.c / math.sqrt(self.runner.size)
        batch.places[position] = -1
        shown = self.places.size if kind.spread else 1
        batch.places[position, :shown] = self.places[:shown]
        for leaf in jax.tree.leaves(batch.natural):
            if np.issubdtype(leaf.dtype, np.floating):
                leaf[position] *= kind.scaled
        return batch

    def moved(self, others: str, kind: _Kind, count: int, position: int) -> float:
        """How far the example at a position moves the sum, one of so many real ones."""
        batch, real = self.batch(others, kind, position), self.rows < count
        return self.distance((batch, real), (batch, real & (self.rows != position)))

    def gradient(self, batch: Example, real: np.ndarray, key: jax.Array | None = None):
        """The gradient of a batch of which some rows are real, with the same noise every time."""
        return self.runner.first_gradient(self.key if key is None else key, batch, real)

    def distance(self, *pair: tuple[Example, np.ndarray]) -> float:
        """Of the sums of two batches with the same key, in units of c; ∞ if it is NaN."""
        first, second = (self.gradient(*batch).astype(np.float64) for batch in pair)
        with np.errstate(invalid='ignore'):  # ∞ − ∞
            moved = (first - second) * (self.runner.step.expected_batch_size / self.c)
        norm = float(np.linalg.norm(moved))
        return norm if math.isfinite(norm) else math.inf


def examine(runner: Runner, key: jax.Array) -> list[Finding]:
    """All that can be said without statistics."""
    bench = _LeaveOneOut(runner, key)
    batch_size = _batch_size(bench)
    key, sensitivity = _deterministic(bench), _sensitivity(bench, batch_size)
    return [key, sensitivity, _not_finite(bench), batch_size, _padding(bench)]


def _deterministic(bench: _LeaveOneOut) -> Finding:
    batch = bench.batch('natural', _NATURAL, 0)
    keys, real = (None, None, jax.random.fold_in(bench.key, 1)), bench.rows < _OTHERS
    first, again, other = (bench.gradient(batch, real, key) for key in keys)
    same, differs = np.array_equal(first, again, equal_nan=True), not np.array_equal(first, other)
    return Finding(
        'key',
        'one key, one gradient; another key, another one',
        f'one key, {"one gradient" if same else "two gradients"}; '
        f'another key, {"another one" if differs else "the same one"}',
        wrong=not (same and differs),
        cause='The noise does not come from the key: it is missing, has a seed of its own, or '
        'comes from NumPy, which JAX calls once, when it compiles.',
    )


def _sensitivity(bench: _LeaveOneOut, batch_size: Finding) -> Finding:
    norms: dict[tuple[str, str], float] = {}
    for kind in _KINDS:
        for others in ('none', 'natural', 'huge'):
            count = 1 if others == 'none' else _OTHERS
            norms[kind.name, others] = bench.moved(others, kind, count, 0)
    ends = {0, 1, _OTHERS // 2, _OTHERS - 1, bench.rows.size - 1}
    for position in sorted(ends):  # a remainder may be treated in another way
        moved = bench.moved('natural', _ONE, position + 1, position)
        norms[_ONE.name, f'natural, at row {position}'] = moved
    (kind, others), worst = max(norms.items(), key=lambda item: item[1])
    allowed = 1.0 + bench.rounding
    beside = '' if others == 'none' else f', beside others ({others})'
    return Finding(
        'sensitivity',
        'one example moves the sum by at most c',
        f'{worst:.4g}·c, by {kind}{beside}',
        wrong=worst > allowed,
        cause=batch_size.cause if batch_size.wrong else _cause(bench, norms, allowed),
    )


def _cause(bench: _LeaveOneOut, norms: dict[tuple[str, str], float], allowed: float) -> str:
    """By what shows it and what does not."""
    alone = {kind: norm for (kind, others), norm in norms.items() if others == 'none'}
    spike = alone[_ONE.name]
    if max(alone.values()) <= allowed:
        return (
            'Examples are bound together: the sum or mean of several is clipped and not each of '
            'them, or BatchNorm lets one change the gradients of others.'
        )
    if spike <= allowed and alone[_SEVERAL.name] > allowed:
        return 'Each layer is clipped on its own, and the noise is for one.'
    if spike <= allowed:
        return 'The norm is too small: squares underflow in float16, or a part is not counted.'
    if abs(spike / bench.runner.step.expected_batch_size - 1.0) < 0.02:
        return 'The mean is clipped, and not each example.'
    if spike > 1e3:
        return 'The gradient is not clipped, or a raw one is added to the clipped ones.'
    return (
        'An example counts several times: its views are clipped one by one, or a shared '
        'parameter counts once in the norm and several times in the gradient.'
    )


def _not_finite(bench: _LeaveOneOut) -> Finding:
    norms = {kind: bench.moved('natural', kind, _OTHERS, 0) for kind in _NOT_FINITE}
    kind, worst = max(norms.items(), key=lambda item: item[1])
    by = kind.name if worst > 0.0 else 'any that was tried'
    seen = 'a gradient that is not finite' if math.isinf(worst) else f'{worst:.4g}·c'
    return Finding(
        'not finite',
        'an example that is not finite moves the sum by at most c',
        f'{seen}, by {by}',
        wrong=worst > 1.0 + bench.rounding,
        cause='A gradient of NaN or ∞ is multiplied by its clip factor and stays what it is: who '
        'sees it knows that the example was in.',
    )


def _batch_size(bench: _LeaveOneOut) -> Finding:
    """The share of one example, beside few and beside many that have a gradient of 0."""
    counts = 2, bench.rows.size // 2, bench.rows.size
    shares = [bench.moved('none', _ONE, count, 0) for count in counts]
    low, high = min(shares), max(shares)
    return Finding(
        'batch size',
        'one example moves the sum as much in a small batch as in a large one',
        ', '.join(f'{s:.4g}·c of {n}' for n, s in zip(counts, shares, strict=True)),
        wrong=not high - low <= 2.0 * bench.rounding * max(1.0, low),
        cause='The sum is divided by the number of drawn examples, which is not public, in '
        'place of the expected one.',
    )


def _padding(bench: _LeaveOneOut) -> Finding:
    batch = bench.batch('natural', _NATURAL, 0)
    changed = jax.tree.map(np.copy, batch)
    changed.size[_OTHERS:] = _HUGE * bench.c
    changed.places[_OTHERS:, 0] = bench.places[0]
    real = bench.rows < _OTHERS
    share = bench.distance((batch, real), (changed, real))
    return Finding(
        'padding',
        'rows that are not real move nothing',
        f'{share:.4g}·c',
        wrong=share > bench.rounding,
        cause='The mask is not looked at, or too late.',
    )
