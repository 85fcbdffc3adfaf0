"""One audited run, from config to report."""

import dataclasses
import functools
import json
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from oneshot import canaries, dpsgd, report
from oneshot.methods import METHODS, AuditResult
from oneshot.prepare import Run, prepare
from oneshot.scores import audit_scores

__all__ = ['Run', 'audit_all', 'best', 'collect_scores', 'prepare', 'run', 'test_accuracy', 'train']

_EVALUATED = 500  # images at once


def run(prepared: Run) -> AuditResult:
    """Trains, audits and reports. Returns the headline that the config names."""
    config = prepared.config
    start = time.perf_counter()
    with report.Log(prepared.directory, config.steps) as log:
        state = train(prepared, log.write)
    accuracy = test_accuracy(prepared, state)
    scores = collect_scores(prepared, state)
    results = audit_all(prepared, scores)
    seconds = time.perf_counter() - start
    score, headline = best(prepared, results)

    about = _about(prepared, score, accuracy, seconds)
    report.show(Console(), about, score, headline, results)
    if prepared.directory is not None:
        coins = np.asarray(prepared.coins)
        record = _record(prepared, score, accuracy, seconds, headline, results)
        report.write(prepared.directory, json.loads(config.to_json()), record, scores, coins)
        report.write_html(prepared.directory, about, headline, results, scores[score], coins)
        print(f'Written to {prepared.directory}; open {prepared.directory}/report.html.')
    return headline


def train(
    prepared: Run,
    log: Callable[[int, dpsgd.Stats, float | None], None] = lambda step, stats, accuracy: None,
) -> dpsgd.State:
    """Runs all steps, a chunk at a time.

    `log` is called after each with its stats and, where it is time for that, with the
    test accuracy.
    """
    config, state = prepared.config, jax.tree.map(jnp.copy, prepared.state)  # it is donated
    chunk = dpsgd.make_chunk(prepared.step, config.chunk)
    given = prepared.population, prepared.canaries, prepared.included
    last = jnp.int32(config.steps)
    for first in range(0, config.steps, config.chunk):
        state, stats = chunk(state, last, prepared.key, *given)
        done = min(config.steps, first + config.chunk)
        stats = jax.tree.map(lambda x, made=done - first: np.asarray(x)[:made], stats)
        every, accuracy = config.evaluate_every, None
        if every and done // every > first // every:
            accuracy = test_accuracy(prepared, state)
        log(done, stats, accuracy)
    return state


def test_accuracy(prepared: Run, state: dpsgd.State) -> float:
    """The share of held-out examples that the model, or its average, gets right."""
    images, labels = prepared.dataset.test
    params = state.params if prepared.config.ema_decay is None else state.average
    right = _right(prepared.apply, params, jnp.asarray(images), jnp.asarray(labels))
    return int(right) / len(labels)


@functools.partial(jax.jit, static_argnums=0)
def _right(apply: Callable[..., jax.Array], params: Any, images: Any, labels: Any) -> jax.Array:
    """How many the model gets right, some at a time."""
    logits = jax.lax.map(lambda image: apply(params, image), images, batch_size=_EVALUATED)
    return jnp.sum(jnp.argmax(logits, axis=1) == labels)


def collect_scores(prepared: Run, state: dpsgd.State) -> dict[str, np.ndarray]:
    """The scores of every attack by name, one for each coin."""
    scores = {}
    for name, attack in prepared.attacks.items():
        for signal, values in attack.scores(state.audits[name], state.params).items():
            values = np.asarray(values)
            scores[signal] = canaries.pair_scores(values) if prepared.config.audit.pairs else values
    return scores


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


def _about(prepared: Run, score: str, accuracy: float, seconds: float) -> dict[str, str]:
    config, dp = prepared.config, prepared.config.dp
    headline = f'{config.audit.canaries} canaries, scored by {score}'
    if prepared.headline == 'best':
        headline += f', the best of {", ".join(prepared.scores)}, which share the confidence'
    return {
        'audited': f'DP-SGD, {config.steps:,} steps, q = {dp.sampling_prob:g}, '
        f'σ = {prepared.noise_multiplier:.4g}, c = {dp.clip_norm:g}',
        'data': f'{config.data.name}, n = {len(prepared.dataset.train.labels):,}',
        'test accuracy': f'{accuracy:.1%}',
        'headline': headline,
        'seed': str(config.seed),
        'time': f'{seconds:.1f} s',
    }


def _record(
    prepared: Run,
    score: str,
    accuracy: float,
    seconds: float,
    headline: AuditResult,
    results: dict[tuple[str, str], AuditResult],
) -> dict[str, Any]:
    record = headline.as_dict()
    record['eps_ub'] = record.pop('eps_claimed')
    rows = [{'score': name} | result.as_dict() for (name, _), result in results.items()]
    return (
        record
        | {
            'score': score,
            'noise_multiplier': prepared.noise_multiplier,
            'strategy': prepared.clipping.strategy,
            'microbatch_size': prepared.clipping.microbatch_size,
            'test_accuracy': accuracy,
            'steps': prepared.config.steps,
            'seconds': seconds,
            'devices': [str(device) for device in jax.devices()],
            'processes': jax.process_count(),
            'seed': prepared.config.seed,
        }
        | report.provenance()
        | {'rows': rows}
    )
