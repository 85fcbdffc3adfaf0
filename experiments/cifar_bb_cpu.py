"""The black-box audit of CIFAR-10 on two cores by the number of canaries (figure bb_diff_m).

    python -m experiments.cifar_bb_cpu --data_dir=DIR           # 14 minutes
    python -m experiments.cifar_bb_cpu --data_dir=DIR --quick   # seconds, nothing is written

`configs/cifar_bb.py:cpu` at ε_UB = 16 with m = n = 100 to 3,000 canaries, mislabeled and
in-distribution, three seeds each: one run, k = m/20 of each kind but at least 10, fixed
before it. Writes results/cifar_bb_cpu.csv and results/cifar_bb_cpu.png.
"""

import argparse
import io
import pathlib
import time
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track
from rich.table import Table

from configs import cifar_bb
from experiments import csv_files
from experiments.csv_files import Row
from oneshot import train

RESULTS = pathlib.Path(__file__).parent / 'results'
KINDS = {'mislabeled': '', 'in_distribution': ',in_distribution'}
CANARIES = (100, 300, 1_000, 3_000)
SEEDS = (0, 1, 2)
WORDS = ('canaries',)
NUMBERS = ('m', 'seed', 'eps_ub', 'noise_multiplier', 'guesses', 'correct', 'eps_lb', 'seconds')


def measure(kind: str, m: int, seed: int, data_dir: str | None, quick: bool) -> Row:
    config = cifar_bb.get_config(('smoke' if quick else 'cpu') + KINDS[kind])
    config.seed, config.data_dir, config.audit.m = seed, data_dir, m
    config.audit.k_plus = config.audit.k_minus = max(10, m // 20)
    start = time.perf_counter()
    run = train.prepare(config)
    result = train.audit_all(run, train.collect_scores(run, train.train(run)))['loss', 'one_run']
    return {
        'canaries': kind,
        'm': m,
        'seed': seed,
        'eps_ub': run.eps_ub,
        'noise_multiplier': run.noise_multiplier,
        'guesses': result.guesses,
        'correct': result.correct,
        'eps_lb': result.eps_lb,
        'seconds': time.perf_counter() - start,
    }


def found(rows: list[Row], kind: str, m: int, name: str = 'eps_lb') -> list[float]:
    return [row[name] for row in rows if (row['canaries'], row['m']) == (kind, m)]


def show(rows: list[Row]) -> None:
    title = f'CIFAR-10, black-box, ε_UB = {rows[0]["eps_ub"]:.3g}: means over seeds'
    table = Table(title=title, title_justify='left')
    for name in ('canaries', 'm = n', 'ε_LB', 'least', 'most', 'right', 'seconds'):
        table.add_column(name, justify='left' if name == 'canaries' else 'right')
    for kind, m in dict.fromkeys((row['canaries'], row['m']) for row in rows):
        eps = found(rows, kind, m)
        right = np.sum(found(rows, kind, m, 'correct')) / np.sum(found(rows, kind, m, 'guesses'))
        numbers = [f'{x:.2f}' for x in (np.mean(eps), min(eps), max(eps))]
        seconds = np.mean(found(rows, kind, m, 'seconds'))
        table.add_row(kind, f'{m:,.0f}', *numbers, f'{right:.1%}', f'{seconds:.0f}')
    Console().print(table)


def plot(rows: list[Row], file: Any) -> None:
    figure = Figure(figsize=(6.4, 4.0), layout='constrained')
    ax = figure.subplots()
    for kind, color in zip(KINDS, ('#1b5e20', '#0d47a1'), strict=True):
        own = [row for row in rows if row['canaries'] == kind]
        sizes = sorted({row['m'] for row in own})
        ax.semilogx([row['m'] for row in own], [row['eps_lb'] for row in own], '.', color=color)
        means = [np.mean(found(rows, kind, m)) for m in sizes]
        ax.semilogx(sizes, means, color=color, label=f'{kind}, mean of {len(SEEDS)} seeds')
    ax.set(xlabel='m = n', ylabel=f'ε_LB at ε_UB = {rows[0]["eps_ub"]:.3g}', ylim=(0, None))
    ax.set_title('CIFAR-10, black-box, k fixed before the run', loc='left')
    ax.spines[['top', 'right']].set_visible(False)
    ax.legend(frameon=False)
    figure.savefig(file, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--data_dir', help='where TFDS keeps its data sets')
    parser.add_argument('--quick', action='store_true', help='tiny runs; nothing is written')
    args = parser.parse_args()
    planned = [(kind, m, seed) for kind in KINDS for m in CANARIES for seed in SEEDS]
    if args.quick:
        planned = [(kind, 100, 0) for kind in KINDS]
    rows = [
        measure(*one, args.data_dir, args.quick) for one in track(planned, description='auditing')
    ]
    show(rows)
    plot(rows, io.BytesIO() if args.quick else RESULTS / 'cifar_bb_cpu.png')
    if not args.quick:
        csv_files.write(RESULTS / 'cifar_bb_cpu.csv', rows, WORDS, NUMBERS)
        print(f'Written to {RESULTS.name}/cifar_bb_cpu.csv and cifar_bb_cpu.png.')


if __name__ == '__main__':
    main()
