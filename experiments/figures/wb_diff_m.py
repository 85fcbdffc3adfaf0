"""Figure wb_diff_m: white-box ε_LB by the number of canaries."""

import itertools
import sys

import matplotlib.figure
import numpy as np

from experiments.csv_files import Row
from experiments.figures import figure, style, training
from experiments.figures.figure import Claim
from experiments.figures.sweep import Sweep
from experiments.figures.training import Change

TITLE = 'white-box ε_LB by the number of canaries'
PAPER_SAYS = 'more canaries give tighter bounds, with diminishing returns; no number is given.'

CPU = {'model': 'mlp-64', 'others': (10_000,), 'steps': (300,), 'q': 0.08192, 'seeds': 8}
CPU_M = 100, 300, 1_000, 3_000, 10_000, 30_000
FULL = {'model': 'wrn', 'others': (50_000,), 'steps': (2_000,), 'q': 0.08192, 'seeds': 3}
FULL_M = 100, 1_000, 5_000, 50_000


def sweep(full: bool, data_dir: str | None) -> Sweep:
    planned = training.settings(m=FULL_M, **FULL) if full else training.settings(m=CPU_M, **CPU)
    return training.make_sweep(planned, training.EVERY_METHOD, full, data_dir)


def draw(rows: list[Row]) -> matplotlib.figure.Figure:
    title = f'White-box, {rows[0]["others"]:,.0f} other examples, ε_UB = 8'
    drawn, axes = style.figure(title, 'canaries m', 'ε_LB at δ = 1e-5', xscale='log')
    training.draw_white_box(axes, rows, 'm')
    axes.set_ylim(0, None)
    style.ticks(axes, training.by(rows, 'm'))
    return drawn


def measured(rows: list[Row]) -> list[str]:
    one_run = {'method': 'one_run', 'rule': 'planned'}
    what = [(score, one_run | {'score': score}) for score in (training.OURS, training.PAPERS)]
    chosen = {'score': training.PAPERS, 'rule': 'best_of_all'}
    return training.table(rows, 'm', [*what, ('iterates, best of all k', chosen)])


def claims(rows: list[Row]) -> list[Claim]:
    found = []
    for score in (training.PAPERS, training.OURS):
        chosen = {'score': score, 'rule': 'planned', 'method': 'one_run'}
        groups = training.by(rows, 'm', **chosen)
        change = Change.of(list(groups.values()))
        tighter = change.seen and change.difference > 0
        m, means = list(groups), [np.mean(one) for one in groups.values()]
        gains = (1_000 * np.diff(means) / np.diff(m)).tolist()
        falling = all(a > b for a, b in itertools.pairwise(gains))
        evidence = ', '.join(f'{gain:.3f}' for gain in gains)
        found += [
            Claim(f'more canaries tighten the bound ({score})', tighter, str(change)),
            Claim(
                f'with diminishing returns ({score})',
                falling,
                f'ε for 1,000 canaries more: {evidence}',
            ),
        ]
    return found


def differs(rows: list[Row]) -> str:
    return (
        'The same. In the paper it is a WRN-16-4, here an MLP with 197,322 parameters and 300 '
        'steps. What the residual shows does not depend on the model, because the coordinate of a '
        'canary sees noise and the canary alone; the iterates let in a part of the others.'
    )


if __name__ == '__main__':
    sys.exit(figure.main('wb_diff_m'))
