"""Validity by simulation: how often is a 95 % lower bound above the true ε?

    python -m experiments.coverage            # 4 minutes on two cores

Every bound on every mechanism whose ε is known exactly. A bound that is valid is
above the true ε in at most 5 % of runs; for randomized response it is tight, so
that the share comes close to 5 %. The controls that forget δ are wrong on purpose.
Writes results/coverage.csv and results/coverage.png.
"""

import argparse
import concurrent.futures
import csv
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterator

import numpy as np
import scipy.stats
from rich.console import Console
from rich.progress import track
from rich.table import Table

from oneshot import bounds, guess
from oneshot.mechanisms import Gaussian, Laplace, Mechanism, Pathological, RandomizedResponse

RESULTS = pathlib.Path(__file__).parent / 'results'
CONFIDENCE = 0.95
DELTA = 1e-5

# A bound takes the guesses T and the coins S in ±1 to ε_LB.
Bound = Callable[[np.ndarray, np.ndarray], float]


@dataclasses.dataclass(frozen=True)
class Setting:
    """One line of the table."""

    name: str
    mechanism: Mechanism
    delta: float
    bound: Bound
    guesses: Callable[[np.ndarray], np.ndarray] = np.sign
    runs: int = 20_000
    coin: float = 0.5
    valid: bool = True


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
        guesses = setting.guesses(mechanism.scores(rng, signs))
        eps_lb = setting.bound(guesses, signs)
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
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 0.22 * len(rows) + 1.2), layout='constrained')
    labels = [
        f'{row.mechanism}, ε = {row.eps:.3g}, δ = {row.delta:g}, m = {row.m:,}: {row.bound}'
        for row in rows
    ]
    colors = ['tab:blue' if row.valid else 'tab:red' for row in rows]
    axes.barh(labels, [100 * row.share for row in rows], color=colors, height=0.7)
    axes.axvline(100 * (1 - CONFIDENCE), color='black', linewidth=1, linestyle='--')
    axes.invert_yaxis()
    axes.margins(y=0.01)
    axes.set_xlabel('runs with ε_LB above the true ε, in %  (dashed: the promised 5 %)')
    axes.set_title('95 % lower bounds, and in red one that forgets δ', loc='left', fontsize=10)
    axes.spines[['top', 'right']].set_visible(False)
    axes.tick_params(axis='y', labelsize=8)
    figure.savefig(RESULTS / 'coverage.png', dpi=120)


def show(rows: list[Row]) -> None:
    table = Table(title='share of runs with ε_LB above the true ε', title_justify='left')
    for name in ('mechanism', 'ε', 'δ', 'm', 'bound', 'runs', 'above', 'mean ε_LB'):
        table.add_column(name, justify='left' if name in ('mechanism', 'bound') else 'right')
    for row in rows:
        bound = row.bound if row.valid else f'{row.bound} (wrong on purpose)'
        numbers = f'{row.eps:.3g}', f'{row.delta:g}', f'{row.m:,}'
        results = f'{row.runs:,}', f'{row.share:.2%}', f'{row.mean_eps_lb:.3f}'
        table.add_row(row.mechanism, *numbers, bound, *results)
    Console(width=110).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--runs', type=int, help='runs of each setting; nothing is written then')
    runs = parser.parse_args().runs
    count = len(list(settings()))
    with concurrent.futures.ProcessPoolExecutor() as pool:
        futures = [pool.submit(simulate, index, runs) for index in range(count)]
        finished = concurrent.futures.as_completed(futures)
        for _ in track(finished, description='simulating', total=count):
            pass
    rows = [future.result() for future in futures]
    show(rows)
    if runs is None:
        write(rows)
        plot(rows)
        print(f'Written to {RESULTS.name}/coverage.csv and coverage.png.')


if __name__ == '__main__':
    main()
