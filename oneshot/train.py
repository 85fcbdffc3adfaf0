"""One audited run, from config to report."""

import dataclasses
import functools
import json
import pathlib
import time
from collections.abc import Callable
from typing import Any

import ml_collections
import numpy as np
from rich.console import Console

from oneshot import mechanisms, report
from oneshot.bounds import _check
from oneshot.scores import METHODS, AuditResult, audit_scores


def prepare(
    config: ml_collections.ConfigDict, workdir: str | None = None
) -> Callable[[], AuditResult]:
    """Checks everything that a config can get wrong, before anything runs.

    Args:
        config: as in `configs/`.
        workdir: where `config.json`, `result.json`, `scores.npz` and `coins.npz`
            go; nothing is written without it.

    Returns:
        The run. It prints the table and gives the headline, by the method that
        the config names.

    Raises:
        ValueError: the config is wrong, in one sentence.
        OSError: the workdir cannot be made.
    """
    mechanism = _mechanism(config)
    _check.count('config.seed', config.seed, 0)
    _check.delta(config.dp.delta)
    _check.confidence(config.audit.confidence)
    _check.choice('config.audit.method', config.audit.method, list(METHODS))
    k_plus = _check.count('config.audit.k_plus', config.audit.k_plus, 0, mechanism.m)
    _check.count('config.audit.k_minus', config.audit.k_minus, 0, mechanism.m - k_plus)
    directory = None if workdir is None else pathlib.Path(workdir)
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
    return functools.partial(_run, config, mechanism, directory)


def _run(
    config: ml_collections.ConfigDict,
    mechanism: mechanisms.Mechanism,
    directory: pathlib.Path | None,
) -> AuditResult:
    start = time.perf_counter()
    sample = mechanism.sample(np.random.default_rng(config.seed))
    # The headline is named before the coins are seen; the other methods stand beside it.
    names = [config.audit.method, *(name for name in METHODS if name != config.audit.method)]
    results = [
        audit_scores(
            sample.scores,
            sample.included,
            delta=config.dp.delta,
            confidence=config.audit.confidence,
            method=name,
            guesses=(config.audit.k_plus, config.audit.k_minus),
            eps_claimed=mechanism.eps(config.dp.delta),
        )
        for name in names
    ]
    seconds = time.perf_counter() - start
    about = {'audited': str(mechanism), 'seed': str(config.seed), 'time': f'{seconds:.2f} s'}
    report.show(Console(), report.headline(results[0], about), results)
    if directory is not None:
        report.write_scores(directory, *sample)
        report.write_json(directory / 'config.json', json.loads(config.to_json()))
        report.write_json(directory / 'result.json', _record(results, config.seed, seconds))
        print(f'Written to {directory}.')
    return results[0]


def _mechanism(config: ml_collections.ConfigDict) -> mechanisms.Mechanism:
    classes = {one.__name__: one for one in mechanisms.Mechanism.__subclasses__()}
    parameters = config.mechanism.to_dict()
    name = parameters.pop('name')
    mechanism = classes[_check.choice('config.mechanism.name', name, list(classes))]
    known = [field.name for field in dataclasses.fields(mechanism) if field.name != 'm']
    if not set(parameters) <= set(known):
        raise ValueError(
            f'config.mechanism must be made of {", ".join(known)} for {name}, '
            f'but {", ".join(parameters)} were given.'
        )
    return mechanism(m=config.audit.m, **parameters)


def _record(results: list[AuditResult], seed: int, seconds: float) -> dict[str, Any]:
    headline = results[0].as_dict()
    headline['eps_ub'] = headline.pop('eps_claimed')
    rows = [result.as_dict() for result in results]
    return headline | {'seed': seed, 'seconds': seconds} | report.provenance() | {'rows': rows}
