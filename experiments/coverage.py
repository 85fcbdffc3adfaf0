"""Validity by simulation: how often is a 95 % lower bound above the true ε?

    python -m experiments.coverage            # half an hour on two cores

Every bound on every mechanism of the class that it assumes, with 200, 1,000 and 5,000
canaries, and every way to choose guesses. A bound that is valid is above the true ε in at
most 5 % of runs; for randomized response it is tight, so that the share comes close to 5 %.
Beside them stand those that are not: one that forgets δ, the best of all numbers of guesses,
and a peer's correction by the number of thresholds that its scores happened to give
(jax_privacy, of the extra `bench`). Writes results/coverage.csv and results/coverage.png.
"""

import argparse
import csv
import dataclasses
import functools
import pathlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.stats
from rich.console import Console
from rich.table import Table

from experiments import parallel
from experiments.mechanisms import (
    Gaussian,
    Laplace,
    Mechanism,
    Pathological,
    RandomizedResponse,
    SubsampledGaussian,
)
from oneshot import DPSGD, audit_scores, bounds
from oneshot.plan import Scoring
from oneshot.results import guess

RESULTS = pathlib.Path(__file__).parent / 'results'
CONFIDENCE = 0.95
DELTA = 1e-5

# A bound takes the guesses T and the coins S in ±1 to ε_LB, an audit the scores and the coins.
Bound = Callable[[np.ndarray, np.ndarray], float]
Audit = Callable[[np.ndarray, np.ndarray], float]


@dataclasses.dataclass(frozen=True)
class Setting:
    """One line of the table."""

    name: str
    mechanism: Mechanism
    delta: float
    bound: Bound | None = None
    guesses: Callable[[np.ndarray], np.ndarray] = np.sign
    runs: int = 20_000
    coin: float = 0.5
    valid: bool = True
    audit: Audit | None = None  # in the place of guesses and bound

    def eps_lb(self, scores: np.ndarray, signs: np.ndarray) -> float:
        if self.audit is not None:
            return self.audit(scores, signs)
        return self.bound(self.guesses(scores), signs)


@functools.cache
def _one_run(m: int, r: int, v: int, delta: float) -> float:
    return bounds.eps_lower_bound(m, r, v, delta, CONFIDENCE)


@functools.cache
def _adaptive(m: int, r: int, v: int, delta: float) -> float:
    return bounds.adaptive_eps_lower_bound(m, r, v, delta, CONFIDENCE)


@functools.cache
def _hoeffding(m: int, r: int, v: int, delta: float) -> float:
    return bounds.hoeffding_eps_lower_bound(m, r, r**0.5, v, delta, CONFIDENCE)


@functools.cache
def _replacement(m: int, r: int, v: int, delta: float) -> float:
    return bounds.replacement_eps_lower_bound(m, r, v, delta, CONFIDENCE)


@functools.cache
def _fdp(m: int, r: int, v: int, delta: float) -> float:
    return bounds.fdp_eps_lower_bound(m, r, v, delta, CONFIDENCE)


def _counting(bound: Callable[[int, int, int, float], float], delta: float) -> Bound:
    def eps_lb(guesses: np.ndarray, signs: np.ndarray) -> float:
        right = int(np.sum(guesses * signs > 0))
        return bound(guesses.size, int(np.count_nonzero(guesses)), right, delta)

    return eps_lb


def _approx(coin: float, delta: float) -> Bound:
    @functools.cache
    def bound(m: int, k_plus: int, k_minus: int, v: int) -> float:
        return bounds.approx_eps_lower_bound(m, k_plus, k_minus, v, delta, CONFIDENCE, coin)

    def eps_lb(guesses: np.ndarray, signs: np.ndarray) -> float:
        k_plus, k_minus = int(np.sum(guesses > 0)), int(np.sum(guesses < 0))
        return bound(guesses.size, k_plus, k_minus, int(np.sum(guesses * signs > 0)))

    return eps_lb


def _weighted(delta: float) -> Bound:
    @functools.cache
    def bound(weights: tuple[float, ...], v: float) -> float:
        return bounds.weighted_eps_lower_bound(weights, v, delta, CONFIDENCE)

    def eps_lb(guesses: np.ndarray, signs: np.ndarray) -> float:
        weights = tuple(np.sort(np.abs(guesses)).tolist())
        return bound(weights, float(np.sum(np.maximum(0.0, guesses * signs))))

    return eps_lb


def _top(scores: np.ndarray) -> np.ndarray:
    return guess.top_k(scores, *guess.preset(scores.size))


def _beyond(threshold: float) -> Callable[[np.ndarray], np.ndarray]:
    """Guesses where the score is large: how often, depends on the scores."""
    return lambda scores: np.sign(scores) * (np.abs(scores) > threshold)


def _by_rank(scores: np.ndarray) -> np.ndarray:
    """Weights from −1 for the smallest score to +1 for the largest, in steps of 1/4."""
    ranks = np.empty(scores.size)
    ranks[np.argsort(scores)] = np.linspace(-1.0, 1.0, scores.size)
    return np.trunc(4.0 * ranks) / 4.0


def settings() -> Iterator[Setting]:
    m = 1000
    # Many runs where a bound is tight, so that chance does not carry it over 5 %.
    for eps in (0.0, 0.5, 1.0, 2.0, 4.0):
        mechanism = RandomizedResponse(m, eps)
        yield Setting('one_run', mechanism, 0.0, _counting(_one_run, 0.0), runs=400_000)
    tight = RandomizedResponse(10_000, 2.0)
    yield Setting('one_run', tight, 0.0, _counting(_one_run, 0.0), runs=100_000)
    for eps in (1.0, 2.0):
        mechanism = RandomizedResponse(m, eps)
        yield Setting('hoeffding', mechanism, 0.0, _counting(_hoeffding, 0.0))
        yield Setting('approx, p = 0.3', mechanism, 0.0, _approx(0.3, 0.0), np.sign, 100_000, 0.3)
        yield Setting('replacement', mechanism, 0.0, _counting(_replacement, 0.0))
    for eps in (1.0, 2.0, 4.0):
        mechanism = Gaussian(m, 1.0 / bounds.gaussian_mu(eps, DELTA))
        beyond = _beyond(1.5 * mechanism.sigma)
        yield Setting('one_run', mechanism, DELTA, _counting(_one_run, DELTA), _top)
        yield Setting('adaptive', mechanism, DELTA, _counting(_adaptive, DELTA), beyond)
        yield Setting('weighted', mechanism, DELTA, _weighted(DELTA), _by_rank)
    for eps in (1.0, 2.0):
        mechanism = Laplace(m, 1.0 / eps)
        yield Setting('one_run', mechanism, 0.0, _counting(_one_run, 0.0), _top, 100_000)
        yield Setting('weighted', mechanism, 0.0, _weighted(0.0), _by_rank, 100_000)
    for eps in (0.5, 1.0, 2.0, 4.0):
        delta = 2e-4
        mechanism = Pathological(m, r=500, claimed_eps=eps, claimed_delta=delta)
        for name, bound in (('one_run', _one_run), ('adaptive', _adaptive)):
            yield Setting(name, mechanism, delta, _counting(bound, delta), runs=100_000)
    for eps in (0.5, 1.0, 2.0):  # so much δ that it must not be forgotten
        delta = 5e-3
        mechanism = Pathological(m, r=500, claimed_eps=eps, claimed_delta=delta)
        for name, used in (('one_run', delta), ('δ forgotten', 0.0)):
            bound = _counting(_one_run, used)
            yield Setting(name, mechanism, delta, bound, runs=100_000, valid=used > 0)
    flips = RandomizedResponse(m, 0.0)  # which are Gaussian with μ = 0
    yield Setting('fdp', flips, DELTA, _counting(_fdp, DELTA), runs=400_000)
    for eps in (1.0, 2.0, 4.0):
        mechanism = Gaussian(m, 1.0 / bounds.gaussian_mu(eps, DELTA))
        yield Setting('fdp', mechanism, DELTA, _counting(_fdp, DELTA), _top)
    for m in (200, 1_000, 5_000):
        yield from _more_settings(m)


def _audit(method: str, delta: float, guesses: Any, known: Scoring | None = None) -> Audit:
    """By the front door."""

    def eps_lb(scores: np.ndarray, signs: np.ndarray) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')  # that the best of all has no guarantee
            return audit_scores(
                scores, signs, delta=delta, method=method, guesses=guesses, mechanism=known
            ).eps_lb

    return eps_lb


def _bonferroni_of_a_peer(delta: float) -> Audit:
    """jax_privacy's one-run bound with its default choice of a threshold."""

    def eps_lb(scores: np.ndarray, signs: np.ndarray) -> float:
        from jax_privacy import auditing

        auditor = auditing.CanaryScoreAuditor(scores[signs > 0], scores[signs < 0])
        return auditor.epsilon_one_run(1.0 - CONFIDENCE, max(delta, 1e-12))

    return eps_lb


def _mechanisms(m: int) -> dict[str, tuple[Mechanism, float, guess.Threshold]]:
    """A mechanism of every class, its δ, and a threshold for its scores."""
    pathological = Pathological(m, r=m // 2, claimed_eps=1.0, claimed_delta=2e-3)
    scoring = Scoring(DPSGD(1.2, sampling_prob=0.2, steps=20))
    gaussian = Gaussian(m, 1.0 / bounds.gaussian_mu(2.0, DELTA))
    zero = guess.Threshold(0.0)
    return {
        'coin flips': (Gaussian(m, 1.0, sensitivity=0.0), DELTA, zero),
        'randomized response': (RandomizedResponse(m, 1.0), 0.0, zero),
        'gaussian': (gaussian, DELTA, zero),
        'laplace': (Laplace(m, 0.5), 0.0, zero),
        'pathological': (pathological, 2e-3, zero),
        'subsampled': (SubsampledGaussian(m, scoring), DELTA, guess.Threshold(2.0)),
    }


# The ways to choose guesses, with the methods that are valid for them under (ε, δ)-DP alone.
_WAYS = {
    'one_run': ('preset', 'grid'),
    'adaptive': ('beyond', 'split'),
    'weighted': ('by rank',),
    'hoeffding': ('preset',),
}
# The methods that assume more, and the mechanisms of which it is true.
_CLASSES = {
    'fdp': ('coin flips', 'gaussian'),
    'fdp_dpsgd': ('coin flips', 'subsampled'),
    'clopper_pearson': (
        'coin flips',
        'randomized response',
        'gaussian',
        'laplace',
        'subsampled',
    ),
    'cp_gdp': ('coin flips', 'gaussian'),
}


def _more_settings(m: int) -> Iterator[Setting]:
    """Every method × every mechanism of its class, and what is not valid beside it."""
    mechanisms, runs = _mechanisms(m), 2_000
    ranks = tuple(_by_rank(np.arange(m, dtype=float)).tolist())
    for mechanism, delta, _ in mechanisms.values():
        high = 1.5 * getattr(mechanism, 'sigma', 0.5)
        rules = {'beyond': guess.Beyond(-high, high), 'by rank': guess.Ranked(ranks)}
        for method, ways in _WAYS.items():
            for way in ways:
                audit = _audit(method, delta, rules.get(way, way))
                name = method if way == 'preset' else f'{method}, {way}'
                yield Setting(name, mechanism, delta, audit=audit, runs=runs)
    for method, names in _CLASSES.items():
        for name in names:
            mechanism, delta, threshold = mechanisms[name]
            by_threshold = method in ('clopper_pearson', 'cp_gdp')
            known = mechanisms['subsampled'][0].scoring if method == 'fdp_dpsgd' else None
            audit = _audit(method, delta, threshold if by_threshold else 'preset', known)
            yield Setting(method, mechanism, delta, audit=audit, runs=runs)
    for name in ('coin flips', 'randomized response', 'gaussian'):
        mechanism, delta, _ = mechanisms[name]
        best = _audit('one_run', delta, 'best_of_all')
        yield Setting('best_of_all', mechanism, delta, audit=best, runs=runs, valid=False)
        peer = _bonferroni_of_a_peer(delta)
        yield Setting('peer, Bonferroni', mechanism, delta, audit=peer, runs=runs, valid=False)


@dataclasses.dataclass(frozen=True)
class Row:
    """What came out of a setting."""

    mechanism: str
    eps: float
    delta: float
    m: int
    bound: str
    valid: bool
    runs: int
    above: int
    mean_eps_lb: float

    @property
    def share(self) -> float:
        return self.above / self.runs

    @property
    def p_value(self) -> float:
        """Of "at most 5 % of runs are above", exact and one-sided."""
        return float(scipy.stats.binom.sf(self.above - 1, self.runs, 1.0 - CONFIDENCE))


def simulate(index: int, runs: int | None = None) -> Row:
    """Runs the setting with this index; its random numbers depend on nothing else."""
    setting = list(settings())[index]
    mechanism, runs = setting.mechanism, runs or setting.runs
    truth = mechanism.eps(setting.delta)
    rng = np.random.default_rng([2305, 8846, index])
    total, above = 0.0, 0
    for _ in range(runs):
        signs = np.where(rng.random(mechanism.m) < setting.coin, 1, -1)
        eps_lb = setting.eps_lb(mechanism.scores(rng, signs), signs)
        total += eps_lb
        above += eps_lb > truth
    return Row(
        mechanism=type(mechanism).__name__,
        eps=truth,
        delta=setting.delta,
        m=mechanism.m,
        bound=setting.name,
        valid=setting.valid,
        runs=runs,
        above=int(above),
        mean_eps_lb=total / runs,
    )


def write(rows: list[Row]) -> None:
    with (RESULTS / 'coverage.csv').open('w', newline='') as file:
        writer = csv.writer(file, lineterminator='\n')
        writer.writerow([*(field.name for field in dataclasses.fields(Row)), 'share', 'p_value'])
        for row in rows:
            cells = [*dataclasses.astuple(row), row.share, row.p_value]
            writer.writerow(f'{cell:.6g}' if isinstance(cell, float) else cell for cell in cells)


def plot(rows: list[Row]) -> None:
    """A line for each bound, a point for each mechanism and number of canaries."""
    from matplotlib.figure import Figure

    bounds_shown = list(dict.fromkeys(row.bound for row in rows))
    bounds_shown.sort(key=lambda name: not next(row.valid for row in rows if row.bound == name))
    figure = Figure(figsize=(9, 0.3 * len(bounds_shown) + 1.4), layout='constrained')
    axes = figure.subplots()
    markers = {200: '^', 1_000: 'o', 5_000: 's', 10_000: 'D'}
    for row in rows:
        axes.plot(
            100 * row.share,
            bounds_shown.index(row.bound),
            marker=markers[row.m],
            color='tab:blue' if row.valid else 'tab:red',
            markersize=6,
            alpha=0.6,
        )
    for m, marker in markers.items():
        axes.plot([], [], marker, color='0.4', label=f'm = {m:,}')
    axes.axvline(100 * (1 - CONFIDENCE), color='black', linewidth=1, linestyle='--')
    axes.set_yticks(range(len(bounds_shown)), bounds_shown, fontsize=9)
    axes.invert_yaxis()
    axes.set_xlabel('runs with ε_LB above the true ε, in %  (dashed: the promised 5 %)')
    title = 'A point for each mechanism; in red those without a guarantee'
    axes.set_title(title, loc='left', fontsize=10)
    axes.spines[['top', 'right']].set_visible(False)
    axes.legend(frameon=False, loc='lower right', bbox_to_anchor=(1.0, 0.2))
    figure.savefig(RESULTS / 'coverage.png', dpi=120)


def show(rows: list[Row]) -> None:
    table = Table(title='share of runs with ε_LB above the true ε', title_justify='left')
    for name in ('mechanism', 'ε', 'δ', 'm', 'bound', 'runs', 'above', 'mean ε_LB'):
        table.add_column(name, justify='left' if name in ('mechanism', 'bound') else 'right')
    for row in rows:
        bound = row.bound if row.valid else f'{row.bound} (no guarantee)'
        numbers = f'{row.eps:.3g}', f'{row.delta:g}', f'{row.m:,}'
        results = f'{row.runs:,}', f'{row.share:.2%}', f'{row.mean_eps_lb:.3f}'
        table.add_row(row.mechanism, *numbers, bound, *results)
    Console(width=110).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--runs', type=int, help='runs of each setting; nothing is written then')
    runs = parser.parse_args().runs
    count = len(list(settings()))
    rows = parallel.simulate(simulate, count, runs)
    show(rows)
    if runs is None:
        write(rows)
        plot(rows)
        print(f'Written to {RESULTS.name}/coverage.csv and coverage.png.')


if __name__ == '__main__':
    main()
