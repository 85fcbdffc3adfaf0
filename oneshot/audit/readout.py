"""The scores and the result of an audit, after the last step."""

from typing import Any

import jax
import numpy as np

from oneshot import inputs
from oneshot.audit.attacks import read_scores
from oneshot.audit.canaries import Dirac
from oneshot.audit.misuse import forbid_reused_coins
from oneshot.audit.score import SCORES
from oneshot.audit.state import Audited, check_tree
from oneshot.plan.score_law import Scoring
from oneshot.results.methods import METHODS
from oneshot.results.result import AuditResult
from oneshot.scores.front_door import audit_scores, pool

PyTree = Any


def scores(audited: Audited, params: PyTree) -> dict[str, np.ndarray]:
    """The scores of every canary by name, after a check that the loop made no mistake.

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
    audited.counts.raise_mistakes(params, settings.expected_batch_size, deviation, settings.in_data)

    def read(audited: Audited, params: PyTree) -> dict[str, jax.Array]:
        return read_scores(settings.attacks(audited.canaries), audited.attacks, params)

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

    Raises:
        ValueError: the loop makes a mistake, or its coins were those of another run.
    """
    values, settings = scores(audited, params), audited.settings
    method = METHODS.get(options.get('method'))
    threshold = method is not None and method.needs == 'confusion'
    if score is None:
        names = ('residual_llr', 'residual', 'iterates', 'gradient', *values)[threshold:]
        score = next(name for name in names if name in values)
    else:
        inputs.choice('score', score, list(values))
    steps = np.unique(audited.counts.updated).tolist()
    if steps != [settings.claim.steps]:
        raise ValueError(
            f'The claim is of {settings.claim.steps} steps, but the audit has seen {steps[-1]}.'
        )
    coins = np.asarray(audited.included).reshape(-1, audited.included.shape[-1])
    for run, fingerprint in zip(coins, np.ravel(audited.counts.first_fingerprint), strict=True):
        forbid_reused_coins(run, int(fingerprint))
    mechanism = None
    if isinstance(audited.canaries, Dirac):  # of norm c
        sizes = settings.clipping.clip_norm, settings.expected_batch_size
        mechanism = SCORES[score].scoring(settings.claim, *sizes)
        # A threshold is in units of the scores; numbers of guesses do not depend on the scale.
        if mechanism is None and not threshold:
            mechanism = Scoring(settings.claim, SCORES[score].weighing)
    if eps_claimed is None and inputs.delta(delta) > 0.0:
        eps_claimed = settings.claim.eps(delta)
    return audit_scores(
        *pool(list(zip(values[score].reshape(coins.shape), coins, strict=True))),
        delta=delta,
        mechanism=mechanism,
        eps_claimed=eps_claimed,
        **options,
    )
