"""Figure guesses_eps_pure: ε_LB of guesses that are right as often as (4, 0)-DP allows."""

import sys

import matplotlib.figure
import numpy as np
import scipy.special
import scipy.stats

from experiments.csv_files import Row, column
from experiments.figures import figure, style
from experiments.figures.figure import Claim
from experiments.figures.sweep import Sweep
from oneshot import bounds

TITLE = 'ε_LB of guesses that are right as often as (4, 0)-DP allows'
PAPER_SAYS = 'ε ≥ 3.87 with 10,000 guesses, and more guesses show more.'

EPS = 4.0
GUESSES = np.unique(np.append(np.geomspace(10, 10_000, 300).astype(int), (1_000, 10_000)))
PAPER = 10_000, 3.87


def sweep(full: bool, data_dir: str | None) -> Sweep:
    return Sweep([{'eps': EPS}], measure, (), ('eps', 'r', 'v', 'eps_lb', 'low', 'high'))


def measure(setting: Row) -> list[Row]:
    """The paper's number of right guesses, and where 90 % of runs of randomized response lie."""
    rows, rate = [], scipy.special.expit(setting['eps'])
    for r in GUESSES.tolist():
        counts = [int(r * rate), *scipy.stats.binom.ppf((0.05, 0.95), r, rate).astype(int).tolist()]
        found = [bounds.eps_lower_bound(r, r, v, 0.0) for v in counts]
        names = 'eps_lb', 'low', 'high'
        rows.append({'r': r, 'v': counts[0]} | dict(zip(names, found, strict=True)))
    return rows


def draw(rows: list[Row]) -> matplotlib.figure.Figure:
    labels = 'guesses r = m, of which 98.2 % are right', 'ε'
    drawn, axes = style.figure('Guesses that are right as often as ε = 4 allows', *labels)
    r, color = column(rows, 'r'), style.COLORS[0]
    axes.axhline(EPS, **style.TRUTH, label='ε = 4, the upper bound')
    axes.plot(r, column(rows, 'eps_lb'), color=color, label='ε_LB, 95 % confidence')
    edges = column(rows, 'low'), column(rows, 'high')
    axes.fill_between(r, *edges, color=color, alpha=0.15, label='90 % of runs')
    axes.plot(*PAPER, **style.PAPER, clip_on=False, label='paper: 3.87 at r = 10,000')
    axes.set(xscale='log', xlim=(10, 10_000), ylim=(0, 4.5))
    return drawn


def at(rows: list[Row], r: int) -> float:
    return next(row['eps_lb'] for row in rows if row['r'] == r)


def measured(rows: list[Row]) -> list[str]:
    return [f'{at(rows, 10_000):.4f} with 10,000 guesses, {at(rows, 1_000):.2f} with 1,000.']


def claims(rows: list[Row]) -> list[Claim]:
    found = at(rows, 10_000)
    text = '10,000 guesses at the perfect rate give 3.87'
    return [Claim(text, abs(found - PAPER[1]) < 5e-3, f'{found:.6f}')]


def differs(rows: list[Row]) -> str:
    return 'Nothing. The band is ours.'


if __name__ == '__main__':
    sys.exit(figure.main('guesses_eps_pure'))
