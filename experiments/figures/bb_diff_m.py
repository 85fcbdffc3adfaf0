"""Figure bb_diff_m: black-box ε_LB by the number of canaries, with nobody else in the data."""

import sys

import matplotlib.figure

from experiments.csv_files import Row
from experiments.figures import figure, style, training
from experiments.figures.figure import Claim
from experiments.figures.sweep import Sweep
from experiments.figures.training import Change

TITLE = 'black-box ε_LB by the number of canaries, with nobody else in the data'
PAPER_SAYS = (
    'not monotonic: few canaries are too few to count, and many are more than the model '
    'memorizes; no number is given.'
)

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


def turn(rows: list[Row], kind: str) -> tuple[float, Change, Change, float]:
    """The best m but the ends, the changes up to it and beyond, and the p-value of no turn there.

    That m is found in the data, which is paid for (Bonferroni).
    """
    groups = training.by(rows, 'm', canaries=kind, rule='preset')
    inner = list(groups)[1:-1]
    best = max(inner, key=lambda m: sum(groups[m]))
    before = Change.of([one for m, one in groups.items() if m <= best])
    after = Change.of([one for m, one in groups.items() if m >= best])
    turns = before.difference > 0 > after.difference
    p_value = len(inner) * max(before.p_value, after.p_value) if turns else 1.0
    return best, before, after, min(1.0, p_value)


def claims(rows: list[Row]) -> list[Claim]:
    """Of one of the kinds, which is paid for as well."""
    found = {kind: turn(rows, kind)[-1] for kind in KINDS}
    kind = min(found, key=found.get)
    best, before, after, p_value = turn(rows, kind)
    p_value = min(1.0, len(KINDS) * p_value)
    words = kind.replace('_', '-')
    text = f'the bound is not monotonic: it rises up to m = {best:,g}, and falls beyond ({words})'
    evidence = f'{before.difference:+.2f}, then {after.difference:+.2f}, p = {p_value:.1e}'
    return [Claim(text, p_value < training.ALARM, evidence)]


def differs(rows: list[Row]) -> str:
    best, before, after, p_value = turn(rows, 'mislabeled')
    return (
        'The same shape, for both kinds of canaries; of mislabeled ones the changes are '
        f'{before.difference:+.2f} up to m = {best:,g} and {after.difference:+.2f} beyond, with '
        f'p = {p_value:.1e}, where claims on this page ask for less than 1e-6. Here it is an MLP '
        'with 789,258 parameters and 100 steps at q = ½. No law of such scores is known '
        'beforehand, so that there is no plan: the number of guesses is fixed by m alone.'
    )


if __name__ == '__main__':
    sys.exit(figure.main('bb_diff_m'))
