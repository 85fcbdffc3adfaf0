"""The attacks, which watch a run and score every canary (Algorithm audit).

An attack is given the canaries and what the adversary sees, and never the coins.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from oneshot import inputs
from oneshot.audit.canaries import Dirac, Inputs
from oneshot.audit.score import LOSS, SCORES, Score
from oneshot.audit.sharded_canaries import ShardedDirac
from oneshot.dpsgd import sharding
from oneshot.dpsgd.clipping import Clipping
from oneshot.dpsgd.gradients.strategy import LossFn
from oneshot.dpsgd.step import Attack, Observation

PyTree = Any


class Accumulator(NamedTuple):
    """A running sum in float32 that does not drift: total + lost is the sum (Neumaier)."""

    total: jax.Array
    lost: jax.Array  # what rounding took from the total

    def add(self, value: jax.Array) -> 'Accumulator':
        """The accumulator with `value` added."""
        total = self.total + value
        larger = jnp.abs(self.total) >= jnp.abs(value)
        lost = jnp.where(larger, (self.total - total) + value, (value - total) + self.total)
        return Accumulator(total, self.lost + lost)

    def sum(self) -> jax.Array:
        """The sum so far."""
        return self.total + self.lost


def white_box(
    canaries: Dirac | ShardedDirac | Inputs,
    scores: Sequence[Score] = (Score('iterates'),),
    *,
    clipping: Clipping,
    noise_multiplier: float | None = None,
    sampling_prob: float | None = None,
    expected_batch_size: float | None = None,
    loss_fn: LossFn | None = None,
) -> Attack:
    """The white-box attack of Algorithm audit: a sum over the steps for every canary.

    ĝ_i^t is the canary's clipped gradient at w_{t−1}. The score `dot` is the paper's,
    Σ_t ⟨signal_t, ĝ_i^t⟩. The score `llr` is the log-likelihood ratio of "in" to "out",

        Σ_t log(1 − q + q·exp((2⟨x_t, ĝ_i^t⟩ − ‖ĝ_i^t‖²) / (2σ²c²))),

    with x_t the signal in units of the sum of gradients. Of a canary that is out, x_t shows
    nothing but noise N(0, σ²c²I); of one that is in, also ĝ_i^t, with probability q. Where
    that is all, as with Dirac canaries and `residual`, no test beats this score
    (Neyman–Pearson). Where other data or canaries interfere, it knows nothing of them. For
    `iterates`, x_t is that of `gradient`: who sees the iterates and knows the optimizer knows
    it too.

    For Dirac canaries the update is a gather of m coordinates; for input canaries it is
    one directional derivative for each. All scores share the gradients.

    Args:
        canaries: the canaries, included and excluded alike.
        scores: any but `loss`; see `oneshot.dpsgd.Observation` for their signals.
        clipping: that of the training.
        noise_multiplier: σ of the training, for `llr`. It may be traced.
        sampling_prob: q of the training, for `llr`.
        expected_batch_size: what the training divides the noisy sum by, for `llr` of
            signals other than `residual`.
        loss_fn: loss_fn(params, example), for input canaries.

    Returns:
        An `Attack` whose scores have a vector of m for each score, by its name.
    """
    if isinstance(canaries, Inputs) and loss_fn is None:
        raise ValueError('loss_fn must be given for input canaries, but None was given.')
    clip_norm = clipping.validate().clip_norm
    _check(scores, clip_norm, noise_multiplier, sampling_prob, expected_batch_size)
    # What of an observation the canaries' gradients are multiplied with.
    direction_of = {score: score.signal for score in scores}
    if (llr_of_iterates := Score('iterates', 'llr')) in direction_of:
        direction_of[llr_of_iterates] = 'gradient'
    shape = len(scores), canaries.num_rows

    def weigh(score: Score, products: jax.Array, squares: jax.Array) -> jax.Array:
        if score.weighing == 'dot':
            return products
        unit = 1.0 if score.signal == 'residual' else expected_batch_size
        deviation = noise_multiplier * clip_norm
        exponent = (2.0 * unit * products - squares) / (2.0 * deviation * deviation)
        return _log_mixture(exponent, sampling_prob)

    def init(params: PyTree) -> Accumulator:
        # Two arrays: donated buffers must not be shared.
        return Accumulator(jnp.zeros(shape), jnp.zeros(shape))

    def update(state: Accumulator, seen: Observation) -> Accumulator:
        directions = list(dict.fromkeys(direction_of.values()))
        selected = [seen.signal(direction, canaries.select) for direction in directions]
        products, squares = canaries.gradient_dots(loss_fn, seen.params, selected, clipping)
        along = dict(zip(directions, products, strict=True))
        values = [weigh(score, along[direction_of[score]], squares) for score in scores]
        return state.add(jnp.stack(values))

    def read(state: Accumulator, params: PyTree) -> dict[str, jax.Array]:
        return dict(zip((score.name for score in scores), state.sum(), strict=True))

    return Attack(init, update, read)


def _check(
    scores: Sequence[Score], clip_norm: float, sigma: Any, q: float | None, batch: float | None
) -> None:
    """Raises a ValueError where a score is not of this attack, or lacks what it needs."""
    for score in scores:
        inputs.choice('score', score.name, [name for name in SCORES if name != LOSS.name])
    if all(score.weighing == 'dot' for score in scores):
        return
    positive = {'clip_norm': clip_norm}
    if not isinstance(sigma, jax.core.Tracer):
        positive['noise_multiplier'] = sigma
    if any(score.signal != 'residual' for score in scores):
        positive['expected_batch_size'] = batch
    for name, value in positive.items():
        inputs.real(f'{name}, which llr needs,', value, 0.0, math.inf, ends='()')
    inputs.real('sampling_prob, which llr needs,', q, 0.0, 1.0, ends='(]')


def _log_mixture(exponent: jax.Array, q: float) -> jax.Array:
    """log(1 − q + q·exp(exponent)), without overflow; the exponent itself if q = 1."""
    log_not_drawn = math.log1p(-q) if q < 1.0 else -math.inf
    return jnp.logaddexp(log_not_drawn, math.log(q) + exponent)


def black_box(canaries: Inputs, *, loss_fn: LossFn, microbatch_size: int = 32) -> Attack:
    """The black-box attack of Algorithm audit: loss at w_0 minus loss at w_ℓ, score `loss`.

    It looks at the first and the last model only. Dirac canaries have no loss.
    """
    if not isinstance(canaries, Inputs):
        raise ValueError(
            'canaries must be examples for the black-box attack, '
            f'but {type(canaries).__name__} were given.'
        )

    def losses(params: PyTree) -> jax.Array:
        def local(params: PyTree, examples: PyTree) -> jax.Array:
            loss = functools.partial(loss_fn, params)
            return jax.lax.map(loss, examples, batch_size=microbatch_size)

        return sharding.map_rows(local, [params], canaries.examples)

    def read(state: jax.Array, params: PyTree) -> dict[str, jax.Array]:
        return {LOSS.name: state - losses(params)}

    return Attack(losses, lambda state, seen: state, read)


def attacks_for(
    scores: Sequence[Score],
    canaries: Dirac | ShardedDirac | Inputs,
    *,
    clipping: Clipping,
    loss_fn: LossFn | None,
    **training: Any,
) -> dict[str, Attack]:
    """The attacks that give these scores, by name.

    `training` is noise_multiplier, sampling_prob and expected_batch_size, as in `white_box`.
    """
    attacks = {}
    if seen_in_steps := [score for score in scores if score != LOSS]:
        attacks['white_box'] = white_box(
            canaries, seen_in_steps, clipping=clipping, loss_fn=loss_fn, **training
        )
    if LOSS in scores:
        size = clipping.microbatch_size
        attacks['black_box'] = black_box(canaries, loss_fn=loss_fn, microbatch_size=size)
    return attacks


def read_scores(
    attacks: Mapping[str, Attack], states: Mapping[str, PyTree], params: PyTree
) -> dict[str, jax.Array]:
    """The scores of all attacks by name, from their states and the parameters at the end."""
    scores = {}
    for name, attack in attacks.items():
        scores |= attack.scores(states[name], params)
    return scores
