"""Figure v_p: the p-value of ε = ln 3 by the number of right guesses, of 100."""

import math
import sys

import matplotlib.figure
import numpy as np

from experiments.csv_files import Row, column
from experiments.figures import figure, style
from experiments.figures.figure import Claim
from experiments.figures.sweep import Sweep
from oneshot import bounds

TITLE = 'the p-value of ε = ln 3 by the number of right guesses, of 100'
PAPER_SAYS = '0.553 for 75 right guesses, which is what randomized response expects.'

M, EPS = 100, math.log(3.0)
DELTAS = (0.0, 1e-3, 1e-2)
PAPER = 75, 0.553  # at δ = 0, in the appendix on the implementation


def sweep(full: bool, data_dir: str | None) -> Sweep:
    return Sweep([{'delta': delta} for delta in DELTAS], measure, (), ('delta', 'v', 'p_value'))


def measure(setting: Row) -> list[Row]:
    v = np.arange(M + 1)
    found = bounds.p_value(M, M, v, EPS, setting['delta'])
    return [{'v': int(a), 'p_value': float(b)} for a, b in zip(v, found, strict=True)]


def draw(rows: list[Row]) -> matplotlib.figure.Figure:
    labels = 'right guesses v, of r = m = 100', 'p-value of ε ≤ ln 3'
    drawn, axes = style.figure('How surprising are v right guesses?', *labels, xlim=(50, 100))
    for delta, color in zip(DELTAS, style.COLORS, strict=False):
        axes.plot(column(rows, 'p_value', delta=delta), color=color, label=f'δ = {delta:g}')
    axes.axhline(0.05, **style.TRUTH, label='0.05: rejected with 95 % confidence below')
    axes.plot(*PAPER, **style.PAPER, label='paper: 0.553 at v = 75, δ = 0')
    return drawn


def measured(rows: list[Row]) -> list[str]:
    found = {delta: np.flatnonzero(column(rows, 'p_value', delta=delta) < 0.05) for delta in DELTAS}
    first = [f'{one[0] if one.size else "none"} at δ = {delta:g}' for delta, one in found.items()]
    return [
        f'p = {column(rows, "p_value", delta=0.0)[75]:.4f} at v = 75 and δ = 0.',
        f'Right guesses from which ε = ln 3 is rejected with 95 % confidence: {", ".join(first)}.',
    ]


def claims(rows: list[Row]) -> list[Claim]:
    found = column(rows, 'p_value', delta=0.0)[PAPER[0]]
    return [Claim('75 right of 100 have p = 0.553', abs(found - PAPER[1]) < 1e-3, f'{found:.6f}')]


def differs(rows: list[Row]) -> str:
    return (
        'Nothing. The lines for δ > 0 are ours; 75 guesses are what ε = ln 3 makes likely, so that '
        'p is near ½.'
    )


if __name__ == '__main__':
    sys.exit(figure.main('v_p'))
