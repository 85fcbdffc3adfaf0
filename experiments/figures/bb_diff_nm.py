"""Figure bb_diff_nm: black-box ε_LB by the number of other examples."""

import sys

import matplotlib.figure

from experiments.csv_files import Row
from experiments.figures import bb_diff_m, figure, style, training
from experiments.figures.figure import Claim
from experiments.figures.sweep import Sweep
from experiments.figures.training import Change

TITLE = 'black-box ε_LB by the number of other examples'
PAPER_SAYS = 'with additional examples the result is significantly looser; no number is given.'

M = 1_000
CPU_OTHERS = 0, 300, 1_000, 3_000, 10_000
FEWER = {'seeds': 8}


def sweep(full: bool, data_dir: str | None) -> Sweep:
    sizes = bb_diff_m.FULL if full else bb_diff_m.CPU
    kinds = {'canaries': bb_diff_m.KINDS, 'm': (M,)}
    planned = training.settings(others=CPU_OTHERS, **kinds, **sizes | ({} if full else FEWER))
    also = ('bb_diff_m',)  # has those without others
    return training.make_sweep(planned, training.BLACK_BOX, full, data_dir, also)


def draw(rows: list[Row]) -> matplotlib.figure.Figure:
    labels = 'other examples n − m', 'ε_LB at δ = 1e-5'
    drawn, axes = style.figure('Black-box, m = 1,000 canaries, ε_UB = 8', *labels)
    training.draw_black_box(axes, rows, 'others')
    axes.set_xscale('symlog', linthresh=300)
    axes.set_ylim(0, None)
    style.ticks(axes, CPU_OTHERS)
    return drawn


def measured(rows: list[Row]) -> list[str]:
    return bb_diff_m.measured(rows, 'others')


def claims(rows: list[Row]) -> list[Claim]:
    found = []
    for kind in bb_diff_m.KINDS:
        groups = training.by(rows, 'others', canaries=kind, rule='preset')
        change = Change.of(list(groups.values()))
        weaker = change.seen and change.difference < 0
        found.append(Claim(f'extra examples weaken the bound ({kind})', weaker, str(change)))
    return found


def differs(rows: list[Row]) -> str:
    return 'The same.'


if __name__ == '__main__':
    sys.exit(figure.main('bb_diff_nm'))
