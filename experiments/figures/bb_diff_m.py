"""Figure bb_diff_m: black-box ε_LB by the number of canaries, with nobody else in the data."""

import sys

import matplotlib.figure

from experiments.csv_files import Row
from experiments.figures import figure, style, training
from experiments.figures.figure import Claim, Figure
from experiments.figures.sweep import Sweep
from experiments.figures.training import Change

KINDS = 'mislabeled', 'in_distribution'
CPU = {'model': 'mlp-256', 'steps': (100,), 'q': 0.5, 'seeds': 12}
CPU_M = 100, 300, 1_000, 3_000, 9_000
FULL = {'model': 'wrn', 'steps': (100,), 'q': 0.5, 'seeds': 3}


def sweep(full: bool, data_dir: str | None) -> Sweep:
    sizes = FULL if full else CPU
    planned = training.settings(canaries=KINDS, others=(0,), m=CPU_M, **sizes)
    return training.make_sweep(planned, training.BLACK_BOX, full, data_dir)


def draw(rows: list[Row]) -> matplotlib.figure.Figure:
    title = 'Black-box, nobody but canaries, ε_UB = 8'
    drawn, axes = style.figure(title, 'canaries m = n', 'ε_LB at δ = 1e-5', xscale='log')
    training.draw_black_box(axes, rows, 'm')
    axes.set_ylim(0, None)
    style.ticks(axes, CPU_M)
    return drawn


def measured(rows: list[Row], column: str = 'm') -> list[str]:
    what = [
        (f'{kind}, {words}', {'canaries': kind, 'rule': rule})
        for kind in KINDS
        for rule, words in (('preset', 'k from m alone'), ('best_of_all', 'best of all k'))
    ]
    return training.table(rows, column, what)


def claims(rows: list[Row]) -> list[Claim]:
    """Up to the best m it rises, and then it falls; m is found in the data, which is paid for."""
    found = []
    for kind in KINDS:
        groups = training.by(rows, 'm', canaries=kind, rule='preset')
        inner = list(groups)[1:-1]
        best = max(inner, key=lambda m: sum(groups[m]))
        before = Change.of([one for m, one in groups.items() if m <= best])
        after = Change.of([one for m, one in groups.items() if m >= best])
        p_value = len(inner) * max(before.p_value, after.p_value)
        turns = before.difference > 0 > after.difference and p_value < training.ALARM
        text = f'the bound rises up to m = {best:,g}, and falls beyond ({kind.replace("_", "-")})'
        words = f'{before}, then {after}, before the choice of m is paid for'
        found.append(Claim(text, turns, words))
    return found


FIGURE = Figure(
    name='bb_diff_m',
    title='black-box ε_LB by the number of canaries, with nobody else in the data',
    paper='not monotonic: few canaries are too few to count, and many are more than the model '
    'memorizes; no number is given.',
    sweep=sweep,
    draw=draw,
    measured=measured,
    claims=claims,
    differs=lambda rows: (
        'The same shape, for both kinds of canaries. Here it is an MLP with 789,258 parameters '
        'and 100 steps at q = ½. No law of such scores is known beforehand, so that there is no '
        'plan: the number of guesses is fixed by m alone.'
    ),
)

if __name__ == '__main__':
    sys.exit(figure.main(FIGURE))
