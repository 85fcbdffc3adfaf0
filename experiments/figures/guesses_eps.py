"""Figure guesses_eps: ε_LB of the Gaussian mechanism by the number of guesses."""

import math
import sys

import matplotlib.figure
import numpy as np
import scipy.optimize
import scipy.special

from experiments.csv_files import Row, column
from experiments.figures import figure, style
from experiments.figures.figure import Claim
from experiments.figures.sweep import CORES, Sweep
from experiments.mechanisms import Gaussian
from oneshot import bounds
from oneshot.results import guess

TITLE = 'ε_LB of the Gaussian mechanism by the number of guesses'
PAPER_SAYS = (
    'at best ε ≥ 2.675, by 1,439 right guesses of 1,510; ε ≤ 4.38, and 2.675 takes δ = 0.0039334.'
)

M, DELTA, SIGMA = 100_000, 1e-5, 2.0
SEEDS = 20
EVERY = np.arange(10, 10_001, 10)
SOME = np.unique(2 * (np.geomspace(20, 10_000, 30) / 2).astype(int))  # of audits, and by f-DP
PAPER = 1_510, 2.675, 4.38  # the best number of guesses, its ε_LB, and ε_UB


def sweep(full: bool, data_dir: str | None) -> Sweep:
    """The paper's line, the same by f-DP, and audits of scores that are drawn."""
    settings = [{'curve': curve, 'seed': 0} for curve in ('one_run', 'fdp')]
    settings += [{'curve': 'audit', 'seed': seed} for seed in range(SEEDS)]
    numbers = 'seed', 'r', 'v', 'eps_lb'
    by_curve = lambda setting: setting['curve']  # noqa: E731
    return Sweep(settings, measure, ('curve',), numbers, by_curve, CORES)


def right(r: int) -> int:
    """⌈r · P[S = +1 | S + ξ > c]⌉ with P[S + ξ > c] = r/2m, the paper's number."""

    def share(c: float, sign: int) -> float:
        return 0.5 * scipy.special.ndtr((sign - c) / SIGMA)

    c = scipy.optimize.brentq(
        lambda c: share(c, 1) + share(c, -1) - r / (2 * M), -50.0, 50.0, xtol=1e-13
    )
    return math.ceil(r * share(c, 1) / (share(c, 1) + share(c, -1)))


def measure(setting: Row) -> list[Row]:
    curve = setting['curve']
    if curve == 'audit':
        rng = np.random.default_rng([2305, 8846, setting['seed']])
        scores, included = Gaussian(M, SIGMA, sensitivity=2.0).sample(rng)
        signs = np.where(included, 1, -1)[guess.order(scores)]
        counts = [int(np.sum(signs[-r // 2 :] > 0) + np.sum(signs[: r // 2] < 0)) for r in SOME]
        numbers = SOME
    else:
        numbers = EVERY if curve == 'one_run' else SOME
        counts = [right(r) for r in numbers.tolist()]
    bound = bounds.fdp_eps_lower_bound if curve == 'fdp' else bounds.eps_lower_bound
    return [
        {'r': int(r), 'v': v, 'eps_lb': bound(M, int(r), v, DELTA)}
        for r, v in zip(numbers, counts, strict=True)
    ]


def best(rows: list[Row], curve: str = 'one_run') -> Row:
    return max((row for row in rows if row['curve'] == curve), key=lambda row: row['eps_lb'])


def draw(rows: list[Row]) -> matplotlib.figure.Figure:
    labels = 'guesses r, of m = 100,000', 'ε at δ = 1e-5'
    drawn, axes = style.figure('The Gaussian mechanism N(±1, 4)', *labels)
    axes.axhline(bounds.gaussian_eps(DELTA, SIGMA, 2.0), **style.TRUTH, label='ε_UB (Lemma gauss)')
    color = style.COLORS[0]
    axes.plot(
        EVERY, column(rows, 'eps_lb', curve='one_run'), color=color, label='ε_LB, as in the paper'
    )
    seeds = column(rows, 'eps_lb', curve='audit').reshape(SEEDS, -1)
    edges = seeds.min(0), seeds.max(0)
    axes.fill_between(SOME, *edges, color=color, alpha=0.15, label=f'{SEEDS} audits, all of them')
    axes.plot(
        SOME,
        column(rows, 'eps_lb', curve='fdp'),
        '-.',
        color=style.OURS,
        label='the same by f-DP (ours)',
    )
    axes.plot(*PAPER[:2], **style.PAPER, label='paper: 2.675 at r = 1,510')
    axes.set(xscale='log', xlim=(20, 10_000), ylim=(0, 4.7))
    return drawn


def measured(rows: list[Row]) -> list[str]:
    ours, fdp = best(rows), best(rows, 'fdp')
    eps_ub = bounds.gaussian_eps(DELTA, SIGMA, 2.0)
    delta = bounds.gaussian_delta(ours['eps_lb'], SIGMA, 2.0)
    return [
        f'ε_LB = {ours["eps_lb"]:.4f} at r = {ours["r"]:,.0f}, of which {ours["v"]:,.0f} are '
        f'right, is the best; ε_UB = {eps_ub:.4f}.',
        f'To be at most that, ε takes δ = {delta:.5f}, {delta / DELTA:.0f} times as much.',
        f'By f-DP, {fdp["eps_lb"]:.2f} at r = {fdp["r"]:,.0f}.',
    ]


def claims(rows: list[Row]) -> list[Claim]:
    found = best(rows)
    right = found['r'] == PAPER[0] and abs(found['eps_lb'] - PAPER[1]) < 1e-3
    evidence = f'{found["eps_lb"]:.6f} at r = {found["r"]:.0f}'
    return [Claim('the best is 2.675, at r = 1,510', right, evidence)]


def differs(rows: list[Row]) -> str:
    return (
        'Nothing: 2.6759 is 2.675 cut off after three digits. The band shows audits of scores '
        'that are drawn: the best of all r of one of them is above the line, by luck.'
    )


if __name__ == '__main__':
    sys.exit(figure.main('guesses_eps'))
