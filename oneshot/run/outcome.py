"""From the scores of a run to its verdict: every score by every method, and the headline."""

import dataclasses
from typing import Any

import jax
import numpy as np

from oneshot.report import provenance, words
from oneshot.results.methods import METHODS
from oneshot.results.result import AuditResult
from oneshot.run.preparation import Run
from oneshot.scores.front_door import audit_scores


def audit_all(prepared: Run, scores: dict[str, np.ndarray]) -> dict[tuple[str, str], AuditResult]:
    """Every score by every method. The coins are looked at here, and only here.

    Where the headline is the best of all scores, they share the confidence: each bound may
    fail with an equal part of what is left to 1 (Bonferroni), so that all of them hold
    together, the best among them.
    """
    options = prepared.config.audit
    confidence = options.confidence
    if prepared.headline == 'best':
        confidence = 1.0 - (1.0 - confidence) / len(scores)
    return {
        (name, method): audit_scores(
            values,
            np.asarray(prepared.coins),
            delta=prepared.config.dp.delta,
            confidence=confidence,
            method=method,
            guesses=_guesses(options, method),
            mechanism=prepared.mechanisms.get(name),
            eps_claimed=prepared.eps_ub,
        )
        for name, values in scores.items()
        for method in prepared.methods[name]
    }


def _guesses(options: Any, method: str) -> str | tuple[int, int]:
    """The numbers of guesses that the config gives, for methods that have any, or its rule."""
    if METHODS[method].takes == 'cells' or method == 'weighted':
        return 'planned'
    return options.guesses if options.k_plus is None else (options.k_plus, options.k_minus)


def best(prepared: Run, results: dict[tuple[str, str], AuditResult]) -> tuple[str, AuditResult]:
    """The score that the config names before the run, or the best of all, and its result.

    The best holds with the confidence of the config, and its p-value is that of all.
    """
    options, scores = prepared.config.audit, prepared.scores
    if prepared.headline != 'best':
        return prepared.headline, results[prepared.headline, options.method]
    score = max(scores, key=lambda name: results[name, options.method].eps_lb)
    result = results[score, options.method]
    p_value = min(1.0, len(scores) * result.p_value)
    return score, dataclasses.replace(result, confidence=options.confidence, p_value=p_value)


def record(
    prepared: Run,
    score: str,
    accuracy: float,
    seconds: float,
    headline: AuditResult,
    results: words.Results,
) -> dict[str, Any]:
    """All that is known of a finished run, as result.json has it."""
    found = headline.as_dict()
    found['eps_ub'] = found.pop('eps_claimed')
    rows = [{'score': name} | result.as_dict() for (name, _), result in results.items()]
    return (
        found
        | {
            'score': score,
            'noise_multiplier': prepared.noise_multiplier,
            'strategy': prepared.clipping.strategy,
            'microbatch_size': prepared.clipping.microbatch_size,
            'n': prepared.n,
            'test_accuracy': accuracy,
            'steps': prepared.config.steps,
            'seconds': seconds,
            'devices': [str(device) for device in prepared.layout.devices],
            'mesh': prepared.layout.shape,
            'processes': jax.process_count(),
            'seed': prepared.config.seed,
        }
        | provenance.provenance()
        | {'rows': rows}
    )


def read(found: dict[str, Any]) -> tuple[AuditResult, words.Results]:
    """The headline and every result of a record."""
    rows = {(row['score'], row['method']): AuditResult.from_dict(row) for row in found['rows']}
    return AuditResult.from_dict(found | {'eps_claimed': found['eps_ub']}), rows
