"""Figure wb_diff_nm: white-box ε_LB by the number of other examples."""

import sys

import matplotlib.figure
import numpy as np

from experiments.csv_files import Row
from experiments.figures import figure, style, training
from experiments.figures.figure import Claim
from experiments.figures.sweep import Sweep

TITLE = 'white-box ε_LB by the number of other examples'
PAPER_SAYS = 'adding examples that are no canaries does not change the result; no number is given.'

CPU = {'model': 'mlp-64', 'm': (5_000,), 'steps': (300,), 'q': 0.08192, 'seeds': 12}
CPU_OTHERS = 0, 500, 2_000, 8_000, 20_000, 50_000
# Eight times the parameters, for why the iterates change.
LARGER = CPU | {'model': 'mlp-512', 'others': CPU_OTHERS[-1:], 'seeds': 6}
PARAMETERS = {'mlp-64': 197_322, 'mlp-512': 1_578_506}
FULL = {'model': 'wrn', 'm': (5_000,), 'steps': (2_000,), 'q': 0.08192, 'seeds': 3}
FULL_OTHERS = 0, 5_000, 15_000, 50_000


def sweep(full: bool, data_dir: str | None) -> Sweep:
    sizes, others = (FULL, FULL_OTHERS) if full else (CPU, CPU_OTHERS)
    planned = training.settings(others=others, **sizes)
    if not full:
        planned += training.settings(**LARGER)
    return training.make_sweep(planned, training.WHITE_BOX, full, data_dir)


def of_model(rows: list[Row], larger: bool = False) -> list[Row]:
    return [row for row in rows if (row['model'] == LARGER['model']) == larger]


def draw(rows: list[Row]) -> matplotlib.figure.Figure:
    labels = 'other examples n − m', 'ε_LB at δ = 1e-5'
    drawn, axes = style.figure('White-box, m = 5,000 canaries, ε_UB = 8', *labels)
    training.draw_white_box(axes, of_model(rows), 'others')
    found = training.by(
        of_model(rows, larger=True), 'others', score=training.PAPERS, rule='planned'
    )
    for others, values in found.items():
        ends = [[np.mean(values) - min(values)], [max(values) - np.mean(values)]]
        given = {'fmt': 's', 'markersize': 9, 'color': style.PAPERS_SCORE, 'capsize': 5}
        label = 'iterates, k planned, 8 times the parameters'
        axes.errorbar([others], [np.mean(values)], ends, **given, label=label)
    axes.set_xscale('symlog', linthresh=500)
    axes.set_ylim(0, None)
    style.ticks(axes, training.by(rows, 'others'))
    return drawn


def measured(rows: list[Row]) -> list[str]:
    what = [(score, {'score': score, 'rule': 'planned'}) for score in (training.OURS, 'iterates')]
    chosen = {'score': training.PAPERS, 'rule': 'best_of_all'}
    what.append(('iterates, best of all k', chosen))
    found = training.table(of_model(rows), 'others', what)
    if larger := of_model(rows, larger=True):
        words = f'iterates of {PARAMETERS[LARGER["model"]]:,} parameters'
        found += training.table(larger, 'others', [(words, what[1][1])])
    return found


def by_seed(rows: list[Row]) -> dict[float, dict[float, float]]:
    """ε_LB of the residual: of each seed, by the number of others."""
    found: dict[float, dict[float, float]] = {}
    for row in of_model(rows):
        if row['score'] == training.OURS and row['rule'] == 'planned':
            found.setdefault(row['seed'], {})[row['others']] = row['eps_lb']
    return found


def claims(rows: list[Row]) -> list[Claim]:
    """A seed has the same coins and noise with any others, so that nothing is left to chance."""
    seeds = by_seed(rows)
    same = sum(len(set(one.values())) == 1 for one in seeds.values())
    text = 'extra examples do not change the bound (residual_llr): for each seed it is the same'
    return [Claim(text, same == len(seeds), f'{same} of {len(seeds)} seeds')]


def differs(rows: list[Row]) -> str:
    lost, kept = (
        training.by(of_model(rows, larger), 'others', score=training.PAPERS, rule='planned')
        for larger in (False, True)
    )
    alone, most = np.mean(lost[0]), max(lost)
    said = (
        'The residual does not change at all. The iterates, which the paper scores, do here, '
        f'where others are many: ε_LB falls from {alone:.2f} to {np.mean(lost[most]):.2f} at '
        f'{most:,.0f}. '
        'Others add their gradients to the coordinate of a canary, and the more parameters share a '
        'gradient, the less of it falls on one.'
    )
    if most in kept:
        said += (
            f' With 8 times the parameters it is {np.mean(kept[most]):.2f}; the WRN-16-4 of the '
            'paper has 14 times as many.'
        )
    return said


if __name__ == '__main__':
    sys.exit(figure.main('wb_diff_nm'))
