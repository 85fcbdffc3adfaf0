"""Figure price_of_audit: what an audit costs by the number of canaries, fused and replayed."""

import sys

import matplotlib.figure
import numpy as np

from experiments import bench_audit
from experiments.csv_files import Row, column
from experiments.figures import figure, style
from experiments.figures.figure import Claim
from experiments.figures.sweep import Sweep

TITLE = 'what an audit costs by the number of canaries, fused and replayed'
PAPER_SAYS = 'the paper has no figure of costs. What does an audit add to a training run?'
LEGEND = 3

CPU, FULL = ('mlp', 1_000, 0.1, 50), ('cnn', 1_000, 0.1, 200)  # model, n, q, steps
CANARIES = {'dirac': (100, 1_000, 10_000, 100_000), 'mislabeled': (10, 100, 1_000)}
METHODS = 'plain', 'fused', 'replay'
REPEATS = 3


def sweep(full: bool, data_dir: str | None) -> Sweep:
    """One after another, with nothing beside them: the seconds are compared."""
    sizes = FULL if full else CPU
    settings = [
        {'canaries': kind, 'model': sizes[0], 'steps': sizes[3], 'm': m}
        for kind, numbers in CANARIES.items()
        for m in numbers
    ]

    def measure(setting: Row) -> list[Row]:
        chosen = ((setting['canaries'], setting['m'], REPEATS),)
        given = bench_audit.Sizes(replay=sizes, replay_m=chosen)
        found = bench_audit.measure_replay(given)
        disk = {'fused': 'scores', 'replay': 'iterates'}
        stored = {row['method']: row['bytes'] for row in found}
        return [
            {
                'method': row['method'],
                'seconds': row['seconds'],
                'bytes': stored.get(disk.get(row['method']), np.nan),
            }
            for row in found
            if row['method'] in METHODS
        ]

    numbers = 'steps', 'm', 'seconds', 'bytes'
    return Sweep(settings, measure, ('canaries', 'model', 'method'), numbers)


def draw(rows: list[Row]) -> matplotlib.figure.Figure:
    steps = f'{rows[0]["steps"]:.0f} steps of an MLP with 197,322 parameters'
    if rows[0]['model'] != 'mlp':
        steps = f'{rows[0]["steps"]:.0f} steps of a CNN with 402,986 parameters'
    labels = [('Dirac canaries m', 'seconds'), ('canaries m that are examples', 'seconds')]
    drawn, both = style.panels(f'What the audit adds to {steps}', labels)
    looks = {
        'plain': ('the steps themselves', style.TRUTH),
        'fused': ('scored in the step', {'color': style.OURS, 'marker': 'o'}),
        'replay': ('iterates stored, then replayed', {'color': style.CHOSEN, 'marker': 'o'}),
    }
    for axes, kind in zip(both, CANARIES, strict=True):
        for method, (label, look) in looks.items():
            seconds = np.maximum(column(rows, 'seconds', canaries=kind, method=method), 1e-4)
            axes.plot(CANARIES[kind], seconds, label=label, **look)
        axes.set(xscale='log', yscale='log')
        style.ticks(axes, CANARIES[kind])
    low = min(axes.get_ylim()[0] for axes in both)
    high = max(axes.get_ylim()[1] for axes in both)
    for axes in both:
        axes.set_ylim(low, high)
    return drawn


def measured(rows: list[Row]) -> list[str]:
    found = []
    for kind, numbers in CANARIES.items():
        fused, replay, plain = (
            column(rows, 'seconds', canaries=kind, method=one)
            for one in ('fused', 'replay', 'plain')
        )
        shares = [f'{a / b:.1%} ({m:,})' for a, b, m in zip(fused, plain, numbers, strict=True)]
        ratios = [
            f'{b / max(a, 1e-9):.1f} ({m:,})'
            for a, b, m in zip(fused, replay, numbers, strict=True)
        ]
        found.append(
            f'{kind}: scoring in the step adds {", ".join(shares)} to the steps; storing and '
            f'replaying takes {", ".join(ratios)} times as long.'
        )
    disk = (
        column(rows, 'bytes', canaries='dirac', method='replay')[0],
        column(rows, 'bytes', canaries='dirac', method='fused')[0],
    )
    found.append(f'On disk, {disk[0] / 1e6:.0f} MB of iterates against {disk[1]:,.0f} bytes.')
    return found


def claims(rows: list[Row]) -> list[Claim]:
    fused, plain = (
        column(rows, 'seconds', canaries='dirac', method=one)[1] for one in ('fused', 'plain')
    )
    text = '1,000 Dirac canaries, scored in the step, add less than 5 % to it'
    return [Claim(text, fused < 0.05 * plain, f'{fused / plain:.2%}')]


def differs(rows: list[Row]) -> str:
    return (
        'Timed alone, without the rest of a step, in one run; absolute seconds are of two shared '
        'cores. Canaries that are examples cost a forward and a backward pass each, fused or not: '
        'there, what replaying costs more are the iterates, and gradients that are made one by '
        'one.'
    )


if __name__ == '__main__':
    sys.exit(figure.main('price_of_audit'))
