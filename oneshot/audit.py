"""The fused audit: attacks that watch the run and score every canary (Algorithm audit).

An attack is a triple of pure functions, `init(params)`, `update(state, observation)` and
`scores(state, params)`. It is given what the adversary sees and the canaries, and
never the coins.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from oneshot.bounds import _check
from oneshot.canaries import Dirac, Inputs
from oneshot.clipping import Clipping
from oneshot.dpsgd import Attack, Observation
from oneshot.gradients import LossFn

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


def white_box(
    canaries: Dirac | Inputs,
    *,
    clip_norm: float,
    signals: Sequence[str] = ('iterates',),
    loss_fn: LossFn | None = None,
    microbatch_size: int = 32,
    strategy: str = 'vmap',
) -> Attack:
    """The white-box attack of Algorithm audit: Σ_t ⟨signal_t, ĝ_i^t⟩, score `dot`.

    ĝ_i^t is the canary's clipped gradient at w_{t−1}. For Dirac canaries the update is a
    gather of m coordinates; for input canaries it is one directional derivative for each.

    Args:
        canaries: the canaries, included and excluded alike.
        clip_norm: c of the training.
        signals: what the adversary sees of a step, any of `iterates` (the paper's
            w_{t−1} − w_t), `gradient` (the privatized gradient, for optimizers other
            than plain SGD) and `residual`; see `oneshot.dpsgd.Observation`. All of
            them share the gradients.
        loss_fn: loss_fn(params, example), for input canaries.
        microbatch_size: how many input canaries are differentiated at once.
        strategy: how, 'vmap' or 'ghost'; see `oneshot.clipping.Clipping`.

    Returns:
        An `Attack` whose scores have a vector of m for each signal.
    """
    for signal in signals:
        _check.choice('signal', signal, SIGNALS)
    if isinstance(canaries, Inputs) and loss_fn is None:
        raise ValueError('loss_fn must be given for input canaries, but None was given.')
    clipping = Clipping(clip_norm, microbatch_size, strategy).check()
    m = jax.tree.leaves(canaries)[0].shape[0]

    def init(params: PyTree) -> Accumulator:
        # Two arrays: donated buffers must not be shared.
        return Accumulator(jnp.zeros((len(signals), m)), jnp.zeros((len(signals), m)))

    def update(state: Accumulator, seen: Observation) -> Accumulator:
        picked = [seen.signal(signal, canaries.pick) for signal in signals]
        return state.add(canaries.dots(loss_fn, seen.params, picked, clipping))

    def scores(state: Accumulator, params: PyTree) -> dict[str, jax.Array]:
        return dict(zip(signals, state.sum(), strict=True))

    return Attack(init, update, scores)


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
        return jax.lax.map(
            lambda example: loss_fn(params, example), canaries.examples, batch_size=microbatch_size
        )

    def update(state: jax.Array, seen: Observation) -> jax.Array:
        return state

    def scores(state: jax.Array, params: PyTree) -> dict[str, jax.Array]:
        return {'loss': state - losses(params)}

    return Attack(losses, update, scores)
