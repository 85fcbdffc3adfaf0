"""Figure eps_eps: ε_LB of 1,000 guesses by the ε that makes so many of them right."""

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

TITLE = 'ε_LB of 1,000 guesses by the ε that makes so many of them right'
PAPER_SAYS = 'no number is given; the bound is below the ideal ε, and close to it.'

M = 1_000
DELTAS = (0.0, 1e-5, 1e-4)
IDEAL = np.linspace(0.0, 6.0, 121)
NAMES = 'eps_lb', 'low', 'high'  # at the mean number of right guesses, and where 90 % of runs lie


def sweep(full: bool, data_dir: str | None) -> Sweep:
    numbers = 'delta', 'ideal', 'v', 'eps_lb', 'low', 'high'
    return Sweep([{'delta': delta} for delta in DELTAS], measure, (), numbers)


def measure(setting: Row) -> list[Row]:
    """The mean number of right guesses is rounded down."""
    rows = []
    for ideal in IDEAL.tolist():
        rate = scipy.special.expit(ideal)
        counts = [int(M * rate), *scipy.stats.binom.ppf((0.05, 0.95), M, rate).astype(int).tolist()]
        found = [bounds.eps_lower_bound(M, M, v, setting['delta']) for v in counts]
        rows.append({'ideal': ideal, 'v': counts[0]} | dict(zip(NAMES, found, strict=True)))
    return rows


def draw(rows: list[Row]) -> matplotlib.figure.Figure:
    labels = 'ideal ε: 1,000·e^ε/(e^ε + 1) guesses are right', 'ε_LB, 95 % confidence'
    drawn, axes = style.figure('What 1,000 guesses show of randomized response', *labels)
    axes.plot(IDEAL, IDEAL, **style.TRUTH, label='ε itself')
    for delta, color in zip(DELTAS, style.COLORS, strict=False):
        given = {'color': color, 'label': f'ε_LB, δ = {delta:g}'}
        axes.plot(IDEAL, column(rows, 'eps_lb', delta=delta), **given)
    edges = column(rows, 'low', delta=0.0), column(rows, 'high', delta=0.0)
    color = style.COLORS[0]
    axes.fill_between(IDEAL, *edges, color=color, alpha=0.15, label='90 % of runs, δ = 0')
    axes.set(xlim=(0, 6), ylim=(0, 6))
    return drawn


def measured(rows: list[Row]) -> list[str]:
    at = {eps: int(np.argmin(abs(IDEAL - eps))) for eps in (1.0, 2.0, 4.0)}
    found = [f'{column(rows, "eps_lb", delta=0.0)[i]:.2f} of {eps:g}' for eps, i in at.items()]
    lost = [f'{column(rows, "eps_lb", delta=1e-4)[i]:.2f} of {eps:g}' for eps, i in at.items()]
    return [
        f'At δ = 0, 1,000 guesses show {", ".join(found)}; at δ = 1e-4, {", ".join(lost)}.',
    ]


def claims(rows: list[Row]) -> list[Claim]:
    """In 5 % of runs the bound is above ε, no more: its 95 % quantile is ε, but for rounding."""
    excess = float(np.max(column(rows, 'high', delta=0.0) - IDEAL))
    below = bool(np.all(column(rows, 'eps_lb', delta=0.0) <= IDEAL))
    text = 'at the mean number of right guesses ε_LB is below ε, in the best 5 % of runs it is ε'
    return [Claim(text, below and excess < 1e-9, f'the 95 % quantile exceeds ε by {excess:.1e}')]


def differs(rows: list[Row]) -> str:
    return 'Nothing that the text lets one see. The band is ours.'


if __name__ == '__main__':
    sys.exit(figure.main('eps_eps'))
