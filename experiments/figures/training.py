"""One audited training run on CIFAR-10 for the training figures, as rows of a CSV."""

import functools
import json
import math
import pathlib
import time
import warnings
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import ml_collections
import numpy as np
import scipy.stats
from matplotlib.axes import Axes

from configs import cifar_bb, cifar_wb
from experiments import csv_files
from experiments.csv_files import Row
from experiments.figures import style, sweep
from oneshot import audit_scores
from oneshot.data import datasets
from oneshot.plan.expected import AuditSetting
from oneshot.plan.search import plan_guesses
from oneshot.results.methods import METHODS
from oneshot.run import Run, training
from oneshot.run.preparation import Program

# The columns of a setting: all that a run depends on. `others` are the n − m examples that
# are no canaries, as the paper counts n.
SETTING = ('canaries', 'model', 'others', 'm', 'steps', 'q', 'eps', 'seed')
WORDS = ('canaries', 'model', 'score', 'method', 'rule', 'kind')
NUMBERS = (
    *SETTING[2:],
    'noise_multiplier',
    'eps_ub',
    'test_accuracy',
    'seconds',
    'guesses',
    'correct',
    'eps_lb',
    'predicted',
)
MODELS = {
    'mlp-64': {'model.name': 'mlp', 'model.hidden': (64,), 'learning_rate': 2.0},
    'mlp-512': {'model.name': 'mlp', 'model.hidden': (512,), 'learning_rate': 2.0},
    'mlp-256': {},  # as in configs/cifar_bb.py:cpu
    'cnn': {},  # as in configs/cifar_wb.py:cpu
    'wrn': {},  # WRN-16-4, as in the configs
}
ALARM = 1e-6  # how often settings that are alike are taken for different
RUNS = pathlib.Path('runs/figures')  # of the paper's size, which may be stopped on the way

PAPERS, OURS, LOSS = 'iterates', 'residual_llr', 'loss'  # scores
_PROGRAMS: dict[str, Program] = {}  # that this process has compiled


class Audited(NamedTuple):
    """How the scores of a run are audited."""

    score: str
    method: str = 'one_run'
    rule: str = 'planned'


WHITE_BOX = tuple(
    Audited(score, rule=rule) for score in (PAPERS, OURS) for rule in ('planned', 'best_of_all')
)
BLACK_BOX = Audited(LOSS, rule='preset'), Audited(LOSS, rule='best_of_all')
EVERY_METHOD = (
    *WHITE_BOX,
    *(Audited(OURS, method) for method in list(METHODS)[1:] if not METHODS[method].pairs),
)


def settings(
    *,
    canaries: Sequence[str] = ('dirac',),
    model: str,
    others: Sequence[int],
    m: Sequence[int],
    steps: Sequence[int],
    q: float,
    eps: Sequence[float] = (8.0,),
    seeds: int,
) -> list[Row]:
    """Every combination, with so many seeds each."""
    return [
        dict(zip(SETTING, (kind, model, *sizes, q, one, seed), strict=True))
        for kind in canaries
        for sizes in ((a, b, c) for a in others for b in m for c in steps)
        for one in eps
        for seed in range(seeds)
    ]


def make_sweep(
    planned: list[Row],
    audits: Sequence[Audited],
    full: bool,
    data_dir: str | None,
    also: Sequence[str] = (),
) -> sweep.Sweep:
    """Runs on CPU take a core each; those of the paper's size all devices, one after another."""
    return sweep.Sweep(
        planned,
        functools.partial(measure, audits=audits, full=full, data_dir=data_dir),
        WORDS,
        NUMBERS,
        _shape,
        0 if full else sweep.CORES,
        functools.partial(check_data, data_dir),
        also,
    )


def _shape(setting: Row) -> Hashable:
    """What has the same shapes is compiled once: σ, canaries and seed are arguments."""
    return tuple(setting[name] for name in ('model', 'others', 'm', 'q'))


def check_data(data_dir: str | None) -> None:
    """CIFAR-10 has to be there, before anything is trained on it.

    Raises:
        ValueError: it is not, with a sentence that says what would help.
    """
    datasets.describe('cifar10', 0, data_dir=data_dir, download=False)


def config(setting: Row, full: bool, data_dir: str | None) -> ml_collections.ConfigDict:
    """The config of a setting, from those of the configs folder."""
    eps, kind = setting['eps'], setting['canaries']
    size = f'eps={eps:g}' if full else f'cpu,eps={eps:g}'
    if kind == 'dirac':
        found = cifar_wb.get_config(size)
    else:
        found = cifar_bb.get_config(size + (',in_distribution' if kind != 'mislabeled' else ''))
    found.update_from_flattened_dict(MODELS[setting['model']])
    found.seed, found.data_dir = setting['seed'], data_dir
    found.data.n, found.audit.m = setting['others'], setting['m']
    found.steps, found.dp.sampling_prob = setting['steps'], setting['q']
    found.audit.headline = OURS if kind == 'dirac' else LOSS
    found.audit.k_plus = found.audit.k_minus = None  # planned
    if not full:
        found.chunk, found.evaluate_every = 50, 0
    return found


def measure(
    setting: Row, *, audits: Iterable[Audited], full: bool, data_dir: str | None
) -> list[Row]:
    """Trains once, and audits the scores in every way that is asked for."""
    start = time.perf_counter()
    given = config(setting, full, data_dir)
    run, scores, accuracy = (_kept if full else _trained)(setting, given)
    about = {
        'noise_multiplier': run.spec.noise_multiplier,
        'eps_ub': run.spec.eps_ub,
        'test_accuracy': accuracy,
        'seconds': time.perf_counter() - start,
    }
    return [about | _audit(run, scores, *one) for one in audits]


def _trained(setting: Row, given: ml_collections.ConfigDict) -> tuple[Any, Any, float]:
    run = training.prepare(given, programs=_PROGRAMS)
    state = training.train(run)
    return run, training.collect_scores(run, state), training.test_accuracy(run, state)


def _kept(setting: Row, given: ml_collections.ConfigDict) -> tuple[Any, Any, float]:
    """With checkpoints, so that a run that was stopped goes on."""
    folder = RUNS / '-'.join(f'{setting[name]}' for name in SETTING)
    run = training.prepare(given, folder)
    if not (folder / 'result.json').exists():
        training.audit_run(run)
    record = json.loads((folder / 'result.json').read_text())
    with np.load(folder / 'scores.npz') as scores:
        return run, dict(scores), record['test_accuracy']


def _audit(run: Run, scores: Any, score: str, method: str, rule: str) -> Row:
    m, delta = run.spec.config.audit.m, run.spec.config.dp.delta
    known = run.spec.mechanisms.get(score)
    with warnings.catch_warnings():
        if rule == 'best_of_all':  # which is what the figure shows
            warnings.filterwarnings('ignore', 'The best of all numbers of guesses')
        result = audit_scores(
            scores[score],
            np.asarray(run.canaries.coins),
            delta=delta,
            method=method,
            guesses=rule,
            mechanism=known,
        )
    plan = (
        None if known is None or rule != 'planned' else AuditSetting(known, m, delta, method=method)
    )
    return {
        'score': score,
        'method': method,
        'rule': rule,
        'kind': result.kind,
        'guesses': result.guesses,
        'correct': result.correct,
        'eps_lb': result.eps_lb,
        'predicted': math.nan if plan is None else plan_guesses(plan).eps_lb,
    }


def mean(rows: Sequence[Row], **chosen: Any) -> float:
    """Of ε_LB, over the rows with these columns."""
    return float(np.mean(csv_files.column(rows, 'eps_lb', **chosen)))


class Change(NamedTuple):
    """How the mean of seeds changes from the first setting to the last.

    All settings have the same seeds, and chance in common with them: their means differ by
    chance no more than those of other seeds would, which is what the test asks.

    Attributes:
        difference: the last mean less the first.
        p_value: of no difference, by Student's t with the deviation of all settings.
        noticed: the least difference that has a p-value of at most `ALARM`.
    """

    difference: float
    p_value: float
    noticed: float

    @classmethod
    def of(cls, groups: Sequence[Sequence[float]]) -> 'Change':
        first, *_, last = groups
        free = sum(len(one) - 1 for one in groups)
        variance = sum((len(one) - 1) * np.var(one, ddof=1) for one in groups) / free
        error = math.sqrt(variance * (1.0 / len(first) + 1.0 / len(last)))
        difference = float(np.mean(last) - np.mean(first))
        p_value = 2.0 * scipy.stats.t.sf(abs(difference) / error, free)
        return cls(difference, float(p_value), float(scipy.stats.t.isf(ALARM / 2, free) * error))

    def __str__(self) -> str:
        return f'a change of {self.difference:+.2f}, p = {self.p_value:.1e}'

    @property
    def seen(self) -> bool:
        return self.p_value < ALARM


def by(rows: list[Row], column: str, name: str = 'eps_lb', **chosen: Any) -> dict[float, list]:
    """What the seeds have, by the values of a column."""
    found: dict[float, list] = {}
    for row in rows:
        if all(row[key] == one for key, one in chosen.items()):
            found.setdefault(row[column], []).append(row[name])
    return found


def draw_white_box(axes: Axes, rows: list[Row], column: str) -> None:
    """Both scores by valid guesses, the paper's by the best of all, and what is predicted."""
    lines = (
        (OURS, 'planned', 'residual_llr, k planned', style.OURS, '-'),
        (PAPERS, 'best_of_all', 'iterates, best of all k: no guarantee', style.CHOSEN, '--'),
        (PAPERS, 'planned', 'iterates, k planned', style.PAPERS_SCORE, '-'),
    )
    for score, rule, label, color, dashes in lines:
        found = by(rows, column, score=score, rule=rule, method='one_run')
        given = {'color': color, 'label': label, 'linestyle': dashes}
        style.band(axes, list(found), list(found.values()), **given)
    chosen = {'score': OURS, 'rule': 'planned', 'method': 'one_run'}
    expected = by(rows, column, 'predicted', **chosen)
    label = 'residual_llr, expected by the planner'
    axes.plot(list(expected), [one[0] for one in expected.values()], **style.EXPECTED, label=label)


def draw_black_box(axes: Axes, rows: list[Row], column: str) -> None:
    """Both kinds of canaries by valid guesses, and by the best of all."""
    kinds = ('mislabeled', style.OURS), ('in_distribution', style.PAPERS_SCORE)
    rules = ('preset', 'k from m alone', '-'), ('best_of_all', 'best of all k: no guarantee', '--')
    for kind, color in kinds:
        for rule, words, dashes in rules:
            found = by(rows, column, canaries=kind, rule=rule)
            label = f'{kind.replace("_", "-")}, {words}'
            given = {'color': color, 'label': label, 'linestyle': dashes}
            if rule == 'preset':
                style.band(axes, list(found), list(found.values()), **given)
            else:
                means = [np.mean(one) for one in found.values()]
                axes.plot(list(found), means, marker='.', **given)


def table(rows: list[Row], column: str, what: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
    """A sentence for each kind of row: its mean ε_LB by the values of a column."""
    found = []
    for name, chosen in what:
        means = [f'{np.mean(one):.2f} ({x:,g})' for x, one in by(rows, column, **chosen).items()]
        found.append(f'{name}: {", ".join(means)}.')
    return found
