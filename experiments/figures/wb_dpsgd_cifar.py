"""Figure wb_dpsgd_cifar: the audit of CIFAR-10, theoretical ε against every method."""

import itertools
import sys

import matplotlib.figure
import numpy as np

from experiments import cifar_wb_cpu, csv_files
from experiments.csv_files import Row
from experiments.figures import figure, style, training
from experiments.figures.figure import Claim
from experiments.figures.sweep import Sweep
from experiments.figures.training import OURS, PAPERS
from oneshot.results.methods import METHODS
from oneshot.results.result import ASSUMPTIONS

TITLE = 'the audit of CIFAR-10, theoretical ε against every method'
PAPER_SAYS = '0.7, 1.2, 1.8 and 3.5 at ε = 1, 2, 4 and 8, with 76 % test accuracy at ε = 8.'

PAPER = {1.0: 0.7, 2.0: 1.2, 4.0: 1.8, 8.0: 3.5}
BOTH = {'others': (50_000,), 'm': (5_000,), 'q': 0.08192, 'eps': tuple(PAPER), 'seeds': 3}
CPU = {'model': 'cnn', 'steps': (200,)} | BOTH
FULL = {'model': 'wrn', 'steps': (2_000,)} | BOTH


def sweep(full: bool, data_dir: str | None) -> Sweep:
    planned = training.settings(**(FULL if full else CPU))
    return training.make_sweep(planned, training.EVERY_METHOD, full, data_dir)


def draw(rows: list[Row]) -> matplotlib.figure.Figure:
    labels = 'theoretical ε (ε_UB)', 'ε_LB at δ = 1e-5'
    drawn, axes = style.figure('CIFAR-10, m = 5,000 canaries', *labels, xscale='log')
    eps = list(PAPER)
    axes.plot(eps, eps, **style.TRUTH, label='ε_UB')
    found = training.by(rows, 'eps', score=OURS, rule='best_of_all')
    label = 'residual_llr, best of all k: no guarantee'
    means = [np.mean(one) for one in found.values()]
    axes.plot(list(found), means, '--', color=style.OURS, label=label)
    training.draw_white_box(axes, rows, 'eps')
    axes.plot(eps, list(PAPER.values()), **style.PAPER, label='paper: best of all k')
    axes.set(yscale='log', ylim=(0.15, 9))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks([0.2, 0.5, 1, 2, 4, 8], ['0.2', '0.5', '1', '2', '4', '8'])
        axis.set_ticks([], minor=True)
    axes.set_xlim(0.9, 8.9)
    return drawn


def lines(rows: list[Row]) -> list[tuple[str, str, list[float]]]:
    """What was audited and how, what it assumes, and the mean ε_LB at every theoretical ε."""
    found = []
    for score, method, rule in dict.fromkeys(
        (row['score'], row['method'], row['rule']) for row in rows
    ):
        means = [
            training.mean(rows, eps=eps, score=score, method=method, rule=rule) for eps in PAPER
        ]
        own = METHODS[method]
        assumes = ASSUMPTIONS[own.assumptions]
        if rule == 'best_of_all':
            assumes = 'no guarantee'
        elif own.kind == 'estimate':
            assumes = f'an estimate; {assumes}'
        how = 'best of all k' if rule == 'best_of_all' else 'k planned'
        found.append((f'`{score}`, `{method}`, {how}', assumes, means))
    return found


def longer() -> list[Row]:
    """The means of ten-minute runs, which `experiments.cifar_wb_cpu` has made."""
    path = cifar_wb_cpu.RESULTS / 'cifar_wb_cpu.csv'
    return cifar_wb_cpu.summary(csv_files.read(path, cifar_wb_cpu.NUMBERS))


def headline(rows: list[Row]) -> str:
    """The table at the head of the page."""
    columns = ' | '.join(f'{eps:g}' for eps in PAPER)
    paper = ' | '.join(f'**{one:g}**' for one in PAPER.values())
    table = [
        f'| theoretical ε | {columns} | assumes |',
        f'|---|{"---|" * len(PAPER)}---|',
        f'| the paper: WRN-16-4, best of all k | {paper} | no guarantee |',
    ]
    for name, assumes, means in lines(rows):
        table.append(f'| {name} | {" | ".join(f"{one:.2f}" for one in means)} | {assumes} |')
    for score in ('iterates', 'residual'):
        numbers = ' | '.join(f'{one[score]:.2f}' for one in longer())
        words = f'`{score}`, `one_run`, k fixed; 800 steps, at ε = 8 2,000 (`cifar_wb_cpu`)'
        table.append(f'| {words} | {numbers} | {ASSUMPTIONS["none"]} |')
    expected = training.by(rows, 'eps', 'predicted', score=OURS, method='one_run', rule='planned')
    numbers = ' | '.join(f'{one[0]:.2f}' for one in expected.values())
    table.append(f'| `{OURS}`, `one_run`, as the planner expects | {numbers} | |')
    return '\n'.join(table)


def measured(rows: list[Row]) -> list[str]:
    accuracy = training.by(rows, 'eps', 'test_accuracy')
    shown = ', '.join(f'{np.mean(one):.1%} (ε = {eps:g})' for eps, one in accuracy.items())
    what = [
        (f'{score}, {rule.replace("_", " ")}', {'score': score, 'method': 'one_run', 'rule': rule})
        for score, rule in ((PAPERS, 'best_of_all'), (PAPERS, 'planned'), (OURS, 'planned'))
    ]
    return [*training.table(rows, 'eps', what), f'Test accuracy: {shown}.']


def claims(rows: list[Row]) -> list[Claim]:
    bounds = [row for row in rows if row['kind'] == 'bound']
    above = sum(row['eps_lb'] > row['eps_ub'] for row in bounds)
    chosen = {'score': OURS, 'method': 'one_run', 'rule': 'planned'}
    own = [training.mean(rows, eps=eps, **chosen) for eps in PAPER]
    text = 'no valid bound of any run exceeds the theoretical ε'
    rising = all(a < b for a, b in itertools.pairwise(own))
    shown = ', '.join(f'{one:.2f}' for one in own)
    return [
        Claim(text, above == 0, f'{above} of {len(bounds)}'),
        Claim('ε_LB is above 0, and rises with ε', own[0] > 0 and rising, shown),
    ]


def differs(rows: list[Row]) -> str:
    expected = training.by(rows, 'eps', 'predicted', score=OURS, method='one_run', rule='planned')
    most = longer()[-1]
    best = training.by(rows, 'eps', score=OURS, rule='best_of_all')
    found = ', '.join(f'{np.mean(one):.2f}' for one in best.values())
    return (
        f'By the same protocol, the best of all k, our score finds {found}. '
        "The paper's figures are the best of all k, which gains by luck as well: its 0.7 at ε = 1 "
        f'is above the {expected[1.0][0]:.2f} that the best number of guesses is expected to show '
        'of an attack that no other beats. Here the model is a small CNN, not a WRN-16-4, with '
        'fewer parameters to share the gradients of 50,000 others and a larger learning rate, so '
        'that these disturb the iterates more; and it is 200 steps, where `llr` makes more of '
        'little noise than `dot` does. With 2,000 steps, in ten minutes a run, '
        f'`python -m experiments.cifar_wb_cpu` finds {most["residual"]:.2f} in the residual and '
        f'{most["iterates"]:.2f} in the iterates at ε = 8, by valid bounds, with '
        f'{most["test_accuracy"]:.1%} test accuracy.'
    )


if __name__ == '__main__':
    sys.exit(figure.main('wb_dpsgd_cifar'))
