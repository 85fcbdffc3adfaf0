"""The attacks, which watch a run and score every canary (Algorithm audit).

An attack is a triple of pure functions, `init(params)`, `update(state, observation)` and
`scores(state, params)`. It is given what the adversary sees and the canaries, and
never the coins.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from oneshot import inputs
from oneshot.audit.canaries import Dirac, Inputs
from oneshot.audit.sharded_canaries import ShardedDirac
from oneshot.dpsgd import sharding
from oneshot.dpsgd.clipping import Clipping
from oneshot.dpsgd.gradients.strategy import LossFn
from oneshot.dpsgd.step import Attack, Observation
from oneshot.plan.score_law import WEIGHINGS

PyTree = Any
SIGNALS = ('iterates', 'gradient', 'residual')


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


def score_names(signals: Sequence[str], scores: Sequence[str]) -> tuple[str, ...]:
    """The names of a white-box attack's scores: the signal for `dot`, signal_llr for `llr`."""
    return tuple(
        signal if score == 'dot' else f'{signal}_{score}' for score in scores for signal in signals
    )


def white_box(
    canaries: Dirac | ShardedDirac | Inputs,
    *,
    clip_norm: float,
    signals: Sequence[str] = ('iterates',),
    scores: Sequence[str] = ('dot',),
    noise_multiplier: float | None = None,
    sampling_prob: float | None = None,
    expected_batch_size: float | None = None,
    loss_fn: LossFn | None = None,
    microbatch_size: int = 32,
    strategy: str = 'vmap',
) -> Attack:
    """The white-box attack of Algorithm audit: a sum over the steps for every canary.

    ĝ_i^t is the canary's clipped gradient at w_{t−1}. The score `dot` is the paper's,
    Σ_t ⟨signal_t, ĝ_i^t⟩. The score `llr` is the log-likelihood ratio of "in" to "out",

        Σ_t log(1 − q + q·exp((2⟨x_t, ĝ_i^t⟩ − ‖ĝ_i^t‖²) / (2σ²c²))),

    with x_t the signal in units of the sum of gradients. Of a canary that is out, x_t shows
    nothing but noise N(0, σ²c²I); of one that is in, also ĝ_i^t, with probability q. Where
    that is all, as with Dirac canaries and `residual`, no test beats this score
    (Neyman–Pearson). Elsewhere other data or other canaries interfere, and it knows
    nothing of them.

    For `iterates`, x_t is the privatized gradient, times the expected batch size, as for
    `gradient`: who sees the iterates and knows the optimizer knows it too. Hence no
    learning rate is asked for, whatever the optimizer.

    For Dirac canaries the update is a gather of m coordinates; for input canaries it is
    one directional derivative for each. All signals and scores share the gradients.

    Args:
        canaries: the canaries, included and excluded alike.
        clip_norm: c of the training.
        signals: what the adversary sees of a step, any of `iterates` (the paper's
            w_{t−1} − w_t), `gradient` (the privatized gradient, for optimizers other
            than plain SGD) and `residual`; see `oneshot.dpsgd.Observation`.
        scores: how a signal is weighed, any of `dot` and `llr`.
        noise_multiplier: σ of the training, for `llr`. It may be traced.
        sampling_prob: q of the training, for `llr`.
        expected_batch_size: what the training divides the noisy sum by, for `llr` of
            signals other than `residual`.
        loss_fn: loss_fn(params, example), for input canaries.
        microbatch_size: how many input canaries are differentiated at once.
        strategy: how, 'vmap' or 'ghost'; see `oneshot.dpsgd.clipping.Clipping`.

    Returns:
        An `Attack` whose scores have a vector of m for each score and signal, by
        `score_names`.
    """
    for signal in signals:
        inputs.choice('signal', signal, SIGNALS)
    for score in scores:
        inputs.choice('score', score, WEIGHINGS)
    if isinstance(canaries, Inputs) and loss_fn is None:
        raise ValueError('loss_fn must be given for input canaries, but None was given.')
    clipping = Clipping(clip_norm, microbatch_size, strategy).check()
    if 'llr' in scores:
        known = {'clip_norm': clip_norm}
        if not isinstance(noise_multiplier, jax.core.Tracer):
            known['noise_multiplier'] = noise_multiplier
        if set(signals) != {'residual'}:
            known['expected_batch_size'] = expected_batch_size
        for name, value in known.items():
            inputs.real(
                f'{name}, which llr needs,', value, 0.0, math.inf, open_low=True, open_high=True
            )
        inputs.real('sampling_prob, which llr needs,', sampling_prob, 0.0, 1.0, open_low=True)
    names = score_names(signals, scores)
    weighed = [(score, _direction(signal, score)) for score in scores for signal in signals]
    directions = tuple(dict.fromkeys(direction for _, direction in weighed))
    m = canaries.size

    def weigh(score: str, direction: str, dots: jax.Array, squares: jax.Array) -> jax.Array:
        if score == 'dot':
            return dots
        unit = 1.0 if direction == 'residual' else expected_batch_size
        deviation = noise_multiplier * clip_norm
        exponent = (2.0 * unit * dots - squares) / (2.0 * deviation * deviation)
        return _log_mixture(exponent, sampling_prob)

    def init(params: PyTree) -> Accumulator:
        # Two arrays: donated buffers must not be shared.
        return Accumulator(jnp.zeros((len(names), m)), jnp.zeros((len(names), m)))

    def update(state: Accumulator, seen: Observation) -> Accumulator:
        picked = [seen.signal(direction, canaries.pick) for direction in directions]
        dots, squares = canaries.dots(loss_fn, seen.params, picked, clipping)
        along = dict(zip(directions, dots, strict=True))
        return state.add(
            jnp.stack([weigh(score, one, along[one], squares) for score, one in weighed])
        )

    def scored(state: Accumulator, params: PyTree) -> dict[str, jax.Array]:
        return dict(zip(names, state.sum(), strict=True))

    return Attack(init, update, scored)


def _direction(signal: str, score: str) -> str:
    """What of an observation the canaries' gradients are multiplied with."""
    return 'gradient' if (signal, score) == ('iterates', 'llr') else signal


def _log_mixture(exponent: jax.Array, q: float) -> jax.Array:
    """log(1 − q + q·exp(exponent)), without overflow; the exponent itself if q = 1."""
    rest = math.log1p(-q) if q < 1.0 else -math.inf
    return jnp.logaddexp(rest, math.log(q) + exponent)


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
            return jax.lax.map(
                lambda example: loss_fn(params, example), examples, batch_size=microbatch_size
            )

        return sharding.by_row(local, [params], canaries.examples)

    def update(state: jax.Array, seen: Observation) -> jax.Array:
        return state

    def scores(state: jax.Array, params: PyTree) -> dict[str, jax.Array]:
        return {'loss': state - losses(params)}

    return Attack(losses, update, scores)
