"""The audit in any training loop: a pair of pure functions, `insert` and `update`.

    audited = audit.flip(key, m, params, claim, clip_norm=c, expected_batch_size=B)
    ...
    summed, audited = audit.insert(audited, summed, key)  # before the noise
    audited = audit.update(audited, params, new_params, gradient)  # after the step
    ...
    result = audit.result(audited, params, delta=1e-5)

What they carry is a pytree, `Audited`: it goes through `jit`, `scan`, `vmap` and sharding
like any other. It counts what is done with it, and what was done wrong is said when the
scores are read.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from oneshot import inputs
from oneshot.audit.attacks import black_box, score_names, white_box
from oneshot.audit.canaries import Dirac, Inputs, dirac, flip_coins
from oneshot.audit.misuse import Counts, spend
from oneshot.audit.state import (
    Audited,
    SeenAtCanaries,
    Settings,
    attacks_of,
    check_tree,
    gathered,
    spread_like,
)
from oneshot.claims import accounting
from oneshot.claims.claim import DPSGD
from oneshot.dpsgd import sampling
from oneshot.dpsgd.clipping import Clipping
from oneshot.dpsgd.gradients.strategy import LossFn
from oneshot.dpsgd.step import Observation, check_coins
from oneshot.plan.score_law import Scoring
from oneshot.results.methods import METHODS
from oneshot.results.result import AuditResult
from oneshot.scores.front_door import audit_scores, pool

__all__ = [
    'Audited',
    'black_box',
    'flip',
    'insert',
    'result',
    'score_names',
    'scores',
    'start',
    'update',
    'white_box',
]

PyTree = Any


def flip(key: jax.Array, m: int, params: PyTree, claim: DPSGD, **options: Any) -> Audited:
    """Makes m Dirac canaries, flips a coin for each, and starts the audit.

    Args:
        key: for the canaries and the coins, used for nothing else. A fresh one for every run.
        m: the number of canaries, at most that of the parameters.
        params: w_0, any pytree.
        claim: `oneshot.DPSGD(noise_multiplier, sampling_prob, steps)`.
        **options: clip_norm, expected_batch_size and what else `start` takes.

    Returns:
        An `Audited`, for `insert` and `update`.
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

    With `insert` a canary enters as a clipped gradient, drawn with the claimed q: noise,
    division, optimizer and accounting are audited, and the loop's own sampling and
    clipping are not. With the data, they are (`oneshot.audit.canaries.with_dirac` makes
    examples of Dirac canaries).

    Args:
        canaries: the canaries, included and excluded alike; none at all changes nothing.
        included: the coins, bools, one for each. Flip fresh ones for every run.
        params: w_0, any pytree.
        claim: `oneshot.DPSGD(noise_multiplier, sampling_prob, steps)`.
        clip_norm: c of the training.
        expected_batch_size: what the loop divides the noisy sum by. If it divides first,
            so that its noise is σc/B, say clip_norm=c/B and expected_batch_size=1.
        in_data: whether the canaries come with the data.
        signals: what is scored, any of `iterates` (the paper's), `gradient`, for
            optimizers other than plain SGD, and `residual`, which only `insert` can give.
            By default `iterates` and, where there is one, `residual`. None of them, `()`,
            leaves the black-box score `loss` of canaries that are examples.
        scores: how signals are weighed, any of `dot` and `llr`; see `white_box`.
        loss_fn: loss_fn(params, example), for canaries that are examples.
        microbatch_size: how many such canaries are differentiated at once.
        strategy: how, 'vmap' or 'ghost'.

    Returns:
        An `Audited`, for `insert` and `update`.
    """
    included = jnp.asarray(included)
    check_coins(canaries, included)
    if isinstance(canaries, Inputs) and not in_data:
        raise ValueError(
            'Canaries that are examples join with the data: train on '
            'canaries.join(population, included), and say in_data=True.'
        )
    if signals is None:
        signals = ('iterates',) if in_data else ('iterates', 'residual')
    if in_data and 'residual' in signals:
        raise ValueError(
            'The residual is known where canaries are inserted by audit.insert, but '
            f'signals = {tuple(signals)!r} was given with in_data=True.'
        )
    if isinstance(canaries, Dirac) and not signals:
        raise ValueError('Dirac canaries have no loss, so that signals must name one or more.')
    if isinstance(canaries, Inputs) and loss_fn is None:
        raise ValueError('loss_fn must be given for canaries that are examples, but None was.')
    if not isinstance(claim, DPSGD):
        raise ValueError(
            'claim must be oneshot.DPSGD(noise_multiplier, sampling_prob, steps), '
            f'but {claim!r} was given.'
        )
    batch = 'expected_batch_size', expected_batch_size, 0.0, math.inf
    inputs.real(*batch, open_low=True, open_high=True)
    leaves, tree = jax.tree.flatten(params)
    settings = Settings(
        claim=claim,
        clipping=Clipping(clip_norm, microbatch_size, strategy).check(),
        expected_batch_size=expected_batch_size,
        in_data=in_data,
        signals=tuple(signals),
        scores=tuple(scores),
        loss_fn=loss_fn,
        tree=tree,
        shapes=tuple(jnp.shape(leaf) for leaf in leaves),
    )
    attacks = attacks_of(settings, canaries)
    m = included.shape[0]
    return Audited(
        canaries=jax.tree.map(jnp.copy, canaries),
        included=jnp.copy(included),
        attacks={name: attack.init(params) for name, attack in attacks.items()},
        others=jnp.zeros(m),
        counts=Counts.start(params, m),
        settings=settings,
    )


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
    placed = canaries.pick(gathered(joined)).astype(jnp.float32)
    audited = dataclasses.replace(
        audited,
        others=canaries.pick(whole).astype(jnp.float32),
        counts=audited.counts.insert(key, placed),
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

    Returns:
        The audit.
    """
    settings, canaries = audited.settings, audited.canaries
    for name, tree in (('params', params), ('new_params', new_params), ('gradient', gradient)):
        if tree is not None or name != 'gradient':
            check_tree(name, tree, settings)
    counts = audited.counts
    if audited.included.size == 0:
        return dataclasses.replace(audited, counts=counts.called_update())
    named = score_names(settings.signals, settings.scores)
    if gradient is None and set(named) - {'iterates'}:
        raise ValueError(
            f'gradient must be given for the scores {", ".join(named)}, but None was given.'
        )
    seen = Observation(*map(gathered, (params, new_params, gradient)), None)
    if not settings.in_data:
        after = seen.signal('iterates' if gradient is None else 'gradient', canaries.pick)
        after = after.astype(jnp.float32)
        counts = counts.compare(after, is_gradient=gradient is not None)
        seen = SeenAtCanaries(seen, settings.expected_batch_size * after - audited.others)
    attacks = attacks_of(settings, canaries)
    return dataclasses.replace(
        audited,
        attacks={name: one.update(audited.attacks[name], seen) for name, one in attacks.items()},
        counts=counts.update(params, new_params),
    )


def scores(audited: Audited, params: PyTree) -> dict[str, np.ndarray]:
    """The scores of every canary by name, after a look at whether they mean anything.

    Args:
        audited: the audit, or several of them along leading axes, as `jax.vmap` gives.
        params: the parameters after the last update, along the same axes.

    Returns:
        A vector of m for each score, after those axes.

    Raises:
        ValueError: the loop makes a mistake, and which.
    """
    settings, updated = audited.settings, audited.counts.updated
    if isinstance(updated, jax.core.Tracer):
        raise ValueError('Scores are read outside of jit, where what was counted can be looked at.')
    check_tree('params', params, settings, updated.shape)
    if audited.included.shape[-1] == 0:
        raise ValueError('There are no scores, because the audit was started with no canaries.')
    deviation = settings.claim.noise_multiplier * settings.clipping.clip_norm
    audited.counts.check(params, settings.expected_batch_size, deviation, settings.in_data)

    def read(audited: Audited, params: PyTree) -> dict[str, jax.Array]:
        found = {}
        for name, attack in attacks_of(settings, audited.canaries).items():
            found |= attack.scores(audited.attacks[name], params)
        return found

    for _ in range(updated.ndim):
        read = jax.vmap(read)
    return {name: np.asarray(values) for name, values in read(audited, params).items()}


def result(
    audited: Audited,
    params: PyTree,
    *,
    delta: float,
    score: str | None = None,
    eps_claimed: float | None = None,
    **options: Any,
) -> AuditResult:
    """The lower bound on ε that the audit found.

    Guarantee: that of `oneshot.audit_scores`. Score, method and guesses have to be chosen
    before the coins are looked at; guesses are planned from the claim by default.

    Args:
        audited: the audit after the last step. Several of them along leading axes, each
            with coins of its own, are one audit of all their canaries (`oneshot.pool`).
        params: the parameters after the last step.
        delta: δ of the claim.
        score: which; by default `residual_llr`, for methods with a threshold `residual`, and
            where there is no residual, `iterates`. A threshold for `llr` is for noise as it is
            claimed, and goes blind where there is far less.
        eps_claimed: the claimed ε; by default what `oneshot.claims` proves of the claim.
        **options: confidence, method and guesses, as in `oneshot.audit_scores`.

    Returns:
        An `AuditResult`.

    Raises:
        ValueError: the loop makes a mistake, or its coins were those of another run.
    """
    found, settings = scores(audited, params), audited.settings
    method = METHODS.get(options.get('method'))
    threshold = method is not None and method.takes == 'cells'
    score = (
        _headline(found, threshold) if score is None else inputs.choice('score', score, list(found))
    )
    steps = np.unique(audited.counts.updated).tolist()
    if steps != [settings.claim.steps]:
        raise ValueError(
            f'The claim is of {settings.claim.steps} steps, but the audit has seen {steps[-1]}.'
        )
    coins = np.asarray(audited.included).reshape(-1, audited.included.shape[-1])
    for run, first in zip(coins, np.ravel(audited.counts.first), strict=True):
        spend(run, int(first))
    if eps_claimed is None and inputs.delta(delta) > 0.0:
        claim = settings.claim
        sizes = claim.noise_multiplier, claim.sampling_prob, claim.steps
        eps_claimed = accounting.eps_upper_bound(*sizes, delta)
    values = found[score].reshape(coins.shape)
    return audit_scores(
        *pool(list(zip(values, coins, strict=True))),
        delta=delta,
        mechanism=_mechanism(settings, audited.canaries, score, threshold),
        eps_claimed=eps_claimed,
        **options,
    )


def _headline(found: dict[str, np.ndarray], threshold: bool) -> str:
    first = () if threshold else ('residual_llr',)
    names = (*first, 'residual', 'iterates', 'gradient', *found)
    return next(name for name in names if name in found)


def _mechanism(
    settings: Settings, canaries: Dirac | Inputs, score: str, threshold: bool
) -> Scoring | None:
    """The claim as the score measures it, where that is known: Dirac canaries are of norm c."""
    signal, _, weighed = score.partition('_')
    if not isinstance(canaries, Dirac):
        return None
    c = settings.clipping.clip_norm
    scales = {'residual': c * c, 'gradient': c * c / settings.expected_batch_size}
    scale = 1.0 if weighed else scales.get(signal)
    if scale is None:  # that of the iterates is the learning rate's; a number of guesses has none
        if threshold:
            return None
        scale = 1.0
    return Scoring(settings.claim, weighed or 'dot', scale=scale)
