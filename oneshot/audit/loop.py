"""The audit in any training loop: a pair of pure functions, `insert` and `update`.

What they carry is a pytree, `Audited`: it goes through `jit`, `scan`, `vmap` and sharding like
any other. Mistakes of the loop raise an error when the scores are read (`oneshot.audit.misuse`).
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from oneshot import inputs
from oneshot.audit.canaries import Dirac, Inputs, dirac, flip_coins
from oneshot.audit.misuse import Counts
from oneshot.audit.score import LOSS, white_box_scores
from oneshot.audit.state import Audited, SeenAtCanaries, Settings, check_tree, gathered, spread_like
from oneshot.claims.claim import DPSGD
from oneshot.dpsgd import sampling
from oneshot.dpsgd.clipping import Clipping
from oneshot.dpsgd.gradients.strategy import LossFn
from oneshot.dpsgd.step import Observation, check_coins

PyTree = Any


def flip(key: jax.Array, m: int, params: PyTree, claim: DPSGD, **options: Any) -> Audited:
    """Makes m Dirac canaries, flips a coin for each, and starts the audit.

    Args:
        key: for the canaries and the coins, used for nothing else. A fresh one for every run.
        m: the number of canaries, at most that of the parameters.
        params: w_0, any pytree.
        claim: `oneshot.DPSGD(noise_multiplier, sampling_prob, steps)`.
        **options: clip_norm, expected_batch_size and the other options of `start`.
    """
    canary_key, coin_key = jax.random.split(key)
    return start(dirac(canary_key, m, params), flip_coins(coin_key, m), params, claim, **options)


def start(
    canaries: Dirac | Inputs,
    included: jax.Array,
    params: PyTree,
    claim: DPSGD,
    *,
    clip_norm: float,
    expected_batch_size: float,
    in_data: bool = False,
    signals: Sequence[str] | None = None,
    scores: Sequence[str] = ('dot', 'llr'),
    loss_fn: LossFn | None = None,
    microbatch_size: int = 32,
    strategy: str = 'vmap',
) -> Audited:
    """Starts the audit of one run with canaries and coins of one's own.

    Dirac canaries join the run by `insert`, at every step, or with the data. Canaries
    that are examples join with the data: `canaries.join(population, included)` is the
    data set to train on then, and `insert` is not called (`in_data`).

    With `insert` a canary enters as a clipped gradient, drawn with the claimed q: the loop's
    noise, division, optimizer and accounting are audited. With the data, its sampling and
    clipping are audited too (`oneshot.audit.canaries.with_dirac` makes examples of Dirac
    canaries).

    Args:
        canaries: the canaries, included and excluded alike; none at all changes nothing.
        included: the coins, bools, one for each. Flip fresh ones for every run.
        params: w_0, any pytree.
        claim: `oneshot.DPSGD(noise_multiplier, sampling_prob, steps)`.
        clip_norm: c of the training.
        expected_batch_size: what the loop divides the noisy sum by. If it divides first,
            so that its noise is σc/B, say clip_norm=c/B and expected_batch_size=1.
        in_data: whether the canaries come with the data.
        signals: any of `iterates` (the paper's), `gradient`, for optimizers other than plain
            SGD, and `residual`, which only `insert` can give. By default `iterates` and, where
            there is one, `residual`. None of them, `()`, leaves the black-box score `loss` of
            canaries that are examples.
        scores: how signals are weighed, any of `dot` and `llr`; see `white_box`.
        loss_fn: loss_fn(params, example), for canaries that are examples.
        microbatch_size: how many such canaries are differentiated at once.
        strategy: how, 'vmap' or 'ghost'.

    Returns:
        An `Audited`, for `insert` and `update`.
    """
    included = jnp.asarray(included)
    if signals is None:
        signals = ('iterates',) if in_data else ('iterates', 'residual')
    attacked = white_box_scores(signals, scores)
    leaves, tree = jax.tree.flatten(params)
    settings = Settings(
        claim=claim,
        clipping=Clipping(clip_norm, microbatch_size, strategy).validate(),
        expected_batch_size=expected_batch_size,
        in_data=in_data,
        scores=attacked if isinstance(canaries, Dirac) else (*attacked, LOSS),
        loss_fn=loss_fn,
        tree=tree,
        shapes=tuple(jnp.shape(leaf) for leaf in leaves),
    )
    _check(settings, canaries, included)
    attacks = settings.attacks(canaries)
    return Audited(
        canaries=jax.tree.map(jnp.copy, canaries),
        included=jnp.copy(included),
        attacks={name: attack.init(params) for name, attack in attacks.items()},
        sum_without_canaries=jnp.zeros(included.size),
        counts=Counts.start(params, included.size),
        settings=settings,
    )


def _check(settings: Settings, canaries: Dirac | Inputs, included: jax.Array) -> None:
    """Raises a ValueError where the arguments of `start` do not go together."""
    check_coins(canaries, included)
    in_data, scores = settings.in_data, [score for score in settings.scores if score != LOSS]
    signals = tuple(dict.fromkeys(score.signal for score in scores))
    if isinstance(canaries, Inputs) and not in_data:
        raise ValueError(
            'Canaries that are examples join with the data: train on '
            'canaries.join(population, included), and say in_data=True.'
        )
    if in_data and 'residual' in signals:
        raise ValueError(
            'The residual is known where canaries are inserted by audit.insert, but '
            f'signals = {signals!r} was given with in_data=True.'
        )
    if isinstance(canaries, Dirac) and not signals:
        raise ValueError('Dirac canaries have no loss, so that signals must name one or more.')
    if isinstance(canaries, Inputs) and settings.loss_fn is None:
        raise ValueError('loss_fn must be given for canaries that are examples, but None was.')
    if not isinstance(settings.claim, DPSGD):
        raise ValueError(
            'claim must be oneshot.DPSGD(noise_multiplier, sampling_prob, steps), '
            f'but {settings.claim!r} was given.'
        )
    batch = 'expected_batch_size', settings.expected_batch_size, 0.0, math.inf
    inputs.real(*batch, ends='()')


def insert(audited: Audited, summed: PyTree, key: jax.Array) -> tuple[PyTree, Audited]:
    """Adds the included canaries to the sum of clipped gradients, before the noise.

    Each joins with the claimed q, independently at every step.

    Args:
        audited: the audit.
        summed: Σ of the clipped gradients of the drawn examples, like the parameters.
        key: a key for this step, used for nothing else.

    Returns:
        The sum with the canaries in it, and the audit.
    """
    settings, canaries = audited.settings, audited.canaries
    if settings.in_data:
        raise ValueError(
            'The canaries of this audit come with the data (in_data=True): do not insert them.'
        )
    check_tree('summed', summed, settings)
    if audited.included.size == 0:
        return summed, dataclasses.replace(audited, counts=audited.counts.called_insert())
    drawn = sampling.poisson(key, settings.claim.sampling_prob, audited.included)
    whole = gathered(summed)
    more = canaries.gradient_sum(whole, drawn, settings.clipping.clip_norm)
    joined = jax.tree.map(lambda g, c: g + spread_like(c.astype(g.dtype), g), summed, more)
    with_canaries = canaries.select(gathered(joined)).astype(jnp.float32)
    audited = dataclasses.replace(
        audited,
        sum_without_canaries=canaries.select(whole).astype(jnp.float32),
        counts=audited.counts.insert(key, with_canaries),
    )
    return joined, audited


def update(
    audited: Audited, params: PyTree, new_params: PyTree, gradient: PyTree | None = None
) -> Audited:
    """Scores every canary by what one step showed. Call it once a step.

    Args:
        audited: the audit.
        params: w_{t−1}, what the step began with.
        new_params: w_t, what it gave.
        gradient: the privatized gradient that the optimizer was given, like the
            parameters. It may be left out if only `dot` of `iterates` is scored.
    """
    settings, canaries = audited.settings, audited.canaries
    trees = {'params': params, 'new_params': new_params}
    for name, tree in (trees if gradient is None else trees | {'gradient': gradient}).items():
        check_tree(name, tree, settings)
    counts = audited.counts
    if audited.included.size == 0:
        return dataclasses.replace(audited, counts=counts.called_update())
    names = [score.name for score in settings.scores if score != LOSS]
    if gradient is None and set(names) - {'iterates'}:
        raise ValueError(
            f'gradient must be given for the scores {", ".join(names)}, but None was given.'
        )
    seen = Observation(*map(gathered, (params, new_params, gradient)), None)
    if not settings.in_data:
        after = seen.signal('iterates' if gradient is None else 'gradient', canaries.select)
        after = after.astype(jnp.float32)
        counts = counts.compare(after, is_gradient=gradient is not None)
        residual = settings.expected_batch_size * after - audited.sum_without_canaries
        seen = SeenAtCanaries(*seen[:3], residual)
    attacks = settings.attacks(canaries)
    return dataclasses.replace(
        audited,
        attacks={name: a.update(audited.attacks[name], seen) for name, a in attacks.items()},
        counts=counts.update(params, new_params),
    )
