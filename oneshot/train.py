"""One audited run, from config to report: the only room that knows all others."""

import json
import math
import pathlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax
from flax import nnx
from rich.console import Console

from oneshot import accounting, audit, canaries, data, dpsgd, models, report
from oneshot.bounds import _check
from oneshot.clipping import STRATEGIES, Clipping, choose
from oneshot.gradients import LossFn
from oneshot.scores import AuditResult, audit_scores

# The methods that a run reports; with pairs, the one that knows of them.
_METHODS = ('one_run', 'adaptive', 'hoeffding')
_PAIRED = ('replacement',)


class Run(NamedTuple):
    """Everything that a run needs, made from the config and checked."""

    config: ml_collections.ConfigDict
    directory: pathlib.Path | None
    noise_multiplier: float
    clipping: Clipping
    eps_ub: float
    dataset: data.Dataset
    apply: Any  # logits of one image
    attacks: dict[str, dpsgd.Attack]
    step: Any
    state: dpsgd.State
    key: jax.Array
    population: Any
    canaries: Any
    coins: jax.Array  # one for each canary, or for each pair
    included: jax.Array  # one for each canary


def prepare(config: ml_collections.ConfigDict, workdir: str | None = None) -> Run:
    """Makes the run that a config describes; whatever is wrong with it is said here.

    Args:
        config: as in `configs/`.
        workdir: where the results go; nothing is written without it.

    Raises:
        ValueError: the config is wrong, in one sentence.
        OSError: the workdir cannot be made.
    """
    _check_values(config)
    dp, options = config.dp, config.audit
    number = 2 * options.m if options.pairs else options.m  # of canaries

    # One key for each purpose, by a number that never changes.
    seed = jax.random.key(config.seed)
    model_key, canary_key, coin_key, run_key = (jax.random.fold_in(seed, i) for i in range(4))
    dataset = data.digits(config.data.n, config.seed)
    model = models.make(
        config.model.name,
        dataset.train.images.shape[1:],
        dataset.classes,
        nnx.Rngs(model_key),
        hidden=config.model.hidden,
        conv=config.model.conv,
        dtype=config.model.dtype,
    )
    apply, params = models.split(model)
    loss_fn = models.cross_entropy(apply)
    batch = dp.sampling_prob * (config.data.n + number / 2)  # as expected
    clipping = _clipping(config, loss_fn, params, dataset, batch)

    chosen, dataset = _canaries(options.canaries, canary_key, number, params, dataset)
    coins = canaries.flip_coins(coin_key, options.m)
    included = canaries.pair_up(coins) if options.pairs else coins
    attacks = _attacks(config, chosen, loss_fn, clipping)
    sigma = dp.noise_multiplier
    if sigma is None:
        sigma = accounting.calibrate_noise(dp.eps, dp.sampling_prob, config.steps, dp.delta)
    init, step = dpsgd.make_step(
        loss_fn,
        optax.sgd(config.learning_rate),
        noise_multiplier=sigma,
        sampling_prob=dp.sampling_prob,
        expected_batch_size=batch,
        attacks=attacks,
        **clipping._asdict(),
    )
    directory = None if workdir is None else pathlib.Path(workdir)
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
    return Run(
        config=config,
        directory=directory,
        noise_multiplier=sigma,
        clipping=clipping,
        eps_ub=accounting.eps_upper_bound(sigma, dp.sampling_prob, config.steps, dp.delta),
        dataset=dataset,
        apply=apply,
        attacks=attacks,
        step=step,
        state=init(params),
        key=run_key,
        population=jax.tree.map(jnp.asarray, tuple(dataset.train)),
        canaries=chosen,
        coins=coins,
        included=included,
    )


def _check_values(config: ml_collections.ConfigDict) -> None:
    """What is out of range by itself; the rest is found by what takes the value."""
    dp, options = config.dp, config.audit
    _check.count('config.seed', config.seed, 0, 2**32 - 1)  # JAX takes no more bits
    _check.real('config.learning_rate', config.learning_rate, 0.0, math.inf, open_high=True)
    for size in config.model.hidden:
        _check.count('a size in config.model.hidden', size, 1)
    for name in ('steps', 'chunk'):
        _check.count(f'config.{name}', config[name], 1)
    if config.microbatch_size is not None:
        _check.count('config.microbatch_size', config.microbatch_size, 1)
    _check.choice('config.strategy', config.strategy, ('auto', *STRATEGIES))
    _check.choice('config.model.name', config.model.name, models.MODELS)
    _check.choice('config.model.conv', config.model.conv, models.CONVS)
    _check.choice('config.model.dtype', config.model.dtype, models.DTYPES)
    _check.real('config.dp.sampling_prob', dp.sampling_prob, 0.0, 1.0, open_low=True)
    dirac = options.canaries == 'dirac'  # c·e_j needs a finite c
    _check.real('config.dp.clip_norm', dp.clip_norm, 0.0, open_low=True, open_high=dirac)
    if dp.noise_multiplier is not None:
        _check.real('config.dp.noise_multiplier', dp.noise_multiplier, 0.0, open_high=True)
    _check.real('config.dp.delta', dp.delta, 0.0, 1.0, open_high=True)
    _check.confidence(options.confidence)
    allowed = _PAIRED if options.pairs else _METHODS
    _check.choice('config.audit.method', options.method, allowed)
    m = _check.count('config.audit.m', options.m, 1)
    k_plus = _check.count('config.audit.k_plus', options.k_plus, 0, m)
    _check.count('config.audit.k_minus', options.k_minus, 0 if k_plus else 1, m - k_plus)


def _clipping(
    config: ml_collections.ConfigDict,
    loss_fn: LossFn,
    params: Any,
    dataset: data.Dataset,
    batch: float,
) -> Clipping:
    """What the config leaves open is chosen by the rule."""
    example = jax.tree.map(lambda x: x[0], tuple(dataset.train))
    strategy, size = choose(loss_fn, params, example, batch=batch, strategy=config.strategy)
    return Clipping(config.dp.clip_norm, config.microbatch_size or size, strategy)


def _canaries(kind: str, key: jax.Array, m: int, params: Any, dataset: data.Dataset):
    """The canaries, and the data set without the held-out examples that became some."""
    _check.choice('config.audit.canaries', kind, ('dirac', 'mislabeled', 'in_distribution'))
    if kind == 'dirac':
        return canaries.dirac(key, m, params), dataset
    images, labels = dataset.test
    _check.count('The number of held-out examples used as canaries', m, 1, len(labels) - 1)
    rest = dataset._replace(test=data.Split(images[m:], labels[m:]))
    if kind == 'mislabeled':
        return canaries.mislabeled(key, m, images[:m], labels[:m], dataset.classes), rest
    return canaries.in_distribution(key, m, images[:m], labels[:m]), rest


def _attacks(config: ml_collections.ConfigDict, chosen: Any, loss_fn: LossFn, clipping: Clipping):
    options, names = config.audit, ()
    signals = tuple(dict.fromkeys(('iterates', *options.signals)))  # the paper's is always there
    attacks = {}
    for name in options.attacks:
        _check.choice('config.audit.attacks', name, ('white_box', 'black_box'))
        if name == 'white_box':
            attacks[name] = audit.white_box(
                chosen, signals=signals, loss_fn=loss_fn, **clipping._asdict()
            )
            names += signals
        else:
            attacks[name] = audit.black_box(
                chosen, loss_fn=loss_fn, microbatch_size=clipping.microbatch_size
            )
            names += ('loss',)
    _check.choice('config.audit.headline', options.headline, names)
    return attacks


def run(prepared: Run) -> AuditResult:
    """Trains, audits and reports. Returns the headline that the config names."""
    config = prepared.config
    start = time.perf_counter()
    with report.Log(prepared.directory, config.steps) as log:
        state = train(prepared, log.write)
    accuracy = test_accuracy(prepared, state.params)
    scores = collect_scores(prepared, state)
    results = audit_all(prepared, scores)
    seconds = time.perf_counter() - start
    headline = results[config.audit.headline, config.audit.method]

    about = _about(prepared, accuracy, seconds)
    report.show(Console(), about, headline, results)
    if prepared.directory is not None:
        coins = np.asarray(prepared.coins)
        record = _record(prepared, accuracy, seconds, headline, results)
        report.write(prepared.directory, json.loads(config.to_json()), record, scores, coins)
        report.write_html(prepared.directory, about, headline, results, scores, coins)
        print(f'Written to {prepared.directory}; open {prepared.directory}/report.html.')
    return headline


def train(
    prepared: Run, log: Callable[[int, dpsgd.Stats], None] = lambda step, stats: None
) -> dpsgd.State:
    """Runs all steps, a chunk at a time; `log` is called after each with its stats."""
    config, state = prepared.config, jax.tree.map(jnp.copy, prepared.state)  # it is donated
    chunk = dpsgd.make_chunk(prepared.step, config.chunk)
    given = prepared.population, prepared.canaries, prepared.included
    last = jnp.int32(config.steps)
    for first in range(0, config.steps, config.chunk):
        state, stats = chunk(state, last, prepared.key, *given)
        done = min(config.steps, first + config.chunk)
        log(done, jax.tree.map(lambda x, made=done - first: np.asarray(x)[:made], stats))
    return state


def test_accuracy(prepared: Run, params: Any) -> float:
    """The share of held-out examples that the model gets right."""
    images, labels = prepared.dataset.test
    logits = jax.vmap(prepared.apply, (None, 0))(params, images)
    return float(np.mean(np.argmax(logits, axis=1) == labels))


def collect_scores(prepared: Run, state: dpsgd.State) -> dict[str, np.ndarray]:
    """The scores of every attack by name, one for each coin."""
    scores = {}
    for name, attack in prepared.attacks.items():
        for signal, values in attack.scores(state.audits[name], state.params).items():
            values = np.asarray(values)
            scores[signal] = canaries.pair_scores(values) if prepared.config.audit.pairs else values
    return scores


def audit_all(prepared: Run, scores: dict[str, np.ndarray]) -> dict[tuple[str, str], AuditResult]:
    """Every score by every method. The coins are looked at here, and only here."""
    options = prepared.config.audit
    return {
        (name, method): audit_scores(
            values,
            np.asarray(prepared.coins),
            delta=prepared.config.dp.delta,
            confidence=options.confidence,
            method=method,
            guesses=(options.k_plus, options.k_minus),
            eps_claimed=prepared.eps_ub,
        )
        for name, values in scores.items()
        for method in (_PAIRED if options.pairs else _METHODS)
    }


def _about(prepared: Run, accuracy: float, seconds: float) -> dict[str, str]:
    config, dp = prepared.config, prepared.config.dp
    return {
        'audited': f'DP-SGD, {config.steps:,} steps, q = {dp.sampling_prob:g}, '
        f'σ = {prepared.noise_multiplier:.4g}, c = {dp.clip_norm:g}',
        'data': f'digits, n = {config.data.n:,}',
        'test accuracy': f'{accuracy:.1%}',
        'headline': f'{config.audit.canaries} canaries, scored by {config.audit.headline}',
        'seed': str(config.seed),
        'time': f'{seconds:.1f} s',
    }


def _record(
    prepared: Run,
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
            'score': prepared.config.audit.headline,
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
