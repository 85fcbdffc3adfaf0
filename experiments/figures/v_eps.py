"""Figure v_eps: ε_LB by the number of right guesses, of 100."""

import sys

import matplotlib.figure
import numpy as np
import scipy.special

from experiments.csv_files import Row, column
from experiments.figures import figure, style
from experiments.figures.figure import Claim
from experiments.figures.sweep import Sweep
from oneshot import bounds

TITLE = 'ε_LB by the number of right guesses, of 100'
PAPER_SAYS = 'ε ≥ 0.702 for 75 right guesses and δ = 0, and 0.699 for δ = 1e-4.'

M = 100
DELTAS = (0.0, 1e-4, 1e-2)
PAPER = {0.0: 0.702, 1e-4: 0.699}  # of 75, in the appendix on the implementation


def sweep(full: bool, data_dir: str | None) -> Sweep:
    numbers = 'delta', 'v', 'ideal', 'eps_lb'
    return Sweep([{'delta': delta} for delta in DELTAS], measure, (), numbers)


def measure(setting: Row) -> list[Row]:
    """From 50 right guesses on: below, ε_LB is 0."""
    return [
        {
            'v': v,
            'ideal': float(scipy.special.logit(v / M)) if v < M else np.nan,
            'eps_lb': bounds.eps_lower_bound(M, M, v, setting['delta']),
        }
        for v in range(M // 2, M + 1)
    ]


def draw(rows: list[Row]) -> matplotlib.figure.Figure:
    labels = 'right guesses v, of r = m = 100', 'ε'
    drawn, axes = style.figure('What v right guesses show, with 95 % confidence', *labels)
    v = column(rows, 'v', delta=0.0)
    axes.plot(
        v, column(rows, 'ideal', delta=0.0), **style.TRUTH, label='ideal: v = 100·e^ε/(e^ε + 1)'
    )
    for delta, color in zip(DELTAS, style.COLORS, strict=False):
        axes.plot(v, column(rows, 'eps_lb', delta=delta), color=color, label=f'ε_LB, δ = {delta:g}')
    marked = list(PAPER.values())
    axes.plot([75] * 2, marked, **style.PAPER, label='paper: 0.702 and 0.699 at v = 75')
    axes.set(xlim=(50, 100), ylim=(0, 5))
    return drawn


def measured(rows: list[Row]) -> list[str]:
    found = [f'{column(rows, "eps_lb", delta=d)[25]:.4f} at δ = {d:g}' for d in DELTAS]
    most = column(rows, 'eps_lb', delta=0.0)[-1]
    return [
        f'75 right guesses show ε_LB = {", ".join(found)}; ideal is ln 3 = 1.0986.',
        f'100 of 100 show {most:.2f}, the most that 100 guesses can.',
    ]


def claims(rows: list[Row]) -> list[Claim]:
    found = {delta: float(column(rows, 'eps_lb', delta=delta)[25]) for delta in PAPER}
    right = all(abs(found[delta] - PAPER[delta]) < 1e-3 for delta in PAPER)
    evidence = ', '.join(f'{one:.6f}' for one in found.values())
    return [Claim('75 right of 100 show 0.702, and 0.699 at δ = 1e-4', right, evidence)]


def differs(rows: list[Row]) -> str:
    return 'Nothing.'


if __name__ == '__main__':
    sys.exit(figure.main('v_eps'))
