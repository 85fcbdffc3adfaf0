"""From the scores of a run to its outcome: every score by every method, and the headline.

Here coins meet scores, and nowhere else in a run: a report is given what is computed here.
"""

import dataclasses
import functools
import importlib.metadata
import pathlib
import platform
import shutil
import subprocess
from typing import Any, NamedTuple

import jax
import numpy as np

from oneshot.report.plots import Curves
from oneshot.report.words import Results
from oneshot.results.methods import METHODS
from oneshot.results.result import AuditResult
from oneshot.run.preparation import Run
from oneshot.scores.front_door import audit_scores

_PACKAGES = 'oneshot', 'jax', 'jaxlib', 'flax', 'optax', 'dp-accounting', 'numpy', 'scipy'


class Outcome(NamedTuple):
    """What came out of a run."""

    score: str  # of the headline
    headline: AuditResult
    results: Results
    curves: Curves  # of the headline's score


def judge(run: Run, scores: dict[str, np.ndarray]) -> Outcome:
    """The outcome of a run with these scores."""
    results = audit_all(run, scores)
    score, result = headline(run, results)
    return Outcome(score, result, results, _curves(run, scores[score], result))


def audit_all(run: Run, scores: dict[str, np.ndarray]) -> Results:
    """Every score by every method, with the guesses that were planned before the run.

    Where the headline is the best of all scores, they share the confidence: each bound may
    fail with an equal part of what is left to 1 (Bonferroni), so that all of them hold
    together, the best among them.
    """
    spec, coins, results = run.spec, np.asarray(run.canaries.coins), {}
    claim = {'delta': spec.config.dp.delta, 'eps_claimed': spec.eps_ub}
    for score, values in scores.items():
        options = claim | {'confidence': spec.confidence, 'mechanism': spec.mechanisms.get(score)}
        for method in spec.selection.methods[score]:
            rule, guesses = spec.plan[score, method]
            result = audit_scores(values, coins, method=method, guesses=guesses, **options)
            results[score, method] = dataclasses.replace(result, rule=rule)
    return results


def headline(run: Run, results: Results) -> tuple[str, AuditResult]:
    """The score that the config names before the run, or the best of all, and its result.

    The best holds with the confidence of the config, and its p-value is that of all.
    """
    selected, options = run.spec.selection, run.spec.config.audit
    if selected.headline != 'best':
        return selected.headline, results[selected.headline, options.method]
    score = max(selected.names, key=lambda name: results[name, options.method].eps_lb)
    result = results[score, options.method]
    p_value = min(1.0, len(selected.names) * result.p_value)
    return score, dataclasses.replace(result, confidence=options.confidence, p_value=p_value)


def _curves(run: Run, scores: np.ndarray, result: AuditResult) -> Curves:
    """What the plots show of the headline's scores."""
    coins, half = np.asarray(run.canaries.coins), scores.size // 2
    most_in, least_in = np.argsort(-scores, kind='stable'), np.argsort(scores, kind='stable')
    right = coins[most_in[:half]].astype(int) + ~coins[least_in[:half]]
    by_number = METHODS[result.method].needs is None and not METHODS[result.method].by_weights
    method = result.method if by_number else 'one_run'
    options = {'delta': result.delta, 'confidence': result.confidence, 'method': method}
    halves = np.unique(np.geomspace(min(5, half), half, 40).astype(int)).tolist() if half else []
    bounds = [audit_scores(scores, coins, guesses=(k, k), **options).eps_lb for k in halves]
    return Curves(
        scores_in=scores[coins],
        scores_out=scores[~coins],
        right_share=np.cumsum(right) / (2 * np.arange(1, half + 1)),
        method=method,
        bounds={2 * k: bound for k, bound in zip(halves, bounds, strict=True)},
    )


def record(run: Run, outcome: Outcome, accuracy: float, seconds: float) -> dict[str, Any]:
    """All that is known of a finished run, as result.json has it."""
    spec, headline = run.spec, outcome.headline.as_dict()
    headline['eps_ub'] = headline.pop('eps_claimed')
    rows = [{'score': name} | result.as_dict() for (name, _), result in outcome.results.items()]
    return {
        **headline,
        'score': outcome.score,
        'noise_multiplier': spec.noise_multiplier,
        'strategy': spec.clipping.strategy,
        'microbatch_size': spec.clipping.microbatch_size,
        'n': spec.n,
        'test_accuracy': accuracy,
        'steps': spec.config.steps,
        'seconds': seconds,
        'devices': [str(device) for device in run.layout.devices],
        'mesh': run.layout.shape,
        'processes': jax.process_count(),
        'seed': spec.config.seed,
        **provenance(),
        'rows': rows,
    }


@functools.cache
def provenance() -> dict[str, Any]:
    """Which code and which libraries make a result."""
    commit = None
    if shutil.which('git'):
        line = ['git', 'describe', '--always', '--dirty', '--abbrev=12']
        folder = pathlib.Path(__file__).parent
        done = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)
        commit = done.stdout.strip() or None  # None where this is not a checkout
    versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
    return {'git': commit, 'versions': versions | {'python': platform.python_version()}}


def read(record: dict[str, Any]) -> tuple[AuditResult, Results]:
    """The headline and every result of a record."""
    rows = {(row['score'], row['method']): AuditResult.from_dict(row) for row in record['rows']}
    return AuditResult.from_dict(record | {'eps_claimed': record['eps_ub']}), rows
