"""The white-box audit of CIFAR-10 on two cores, beside the paper's figure wb_dpsgd_cifar.

    python -m experiments.cifar_wb_cpu --data_dir=DIR      # what is not measured yet
    python -m experiments.cifar_wb_cpu --data_dir=DIR --quick   # seconds, nothing is written

`configs/cifar_wb.py:cpu` at ε_UB = 1, 2, 4 and 8 with three seeds each: one run, k fixed
before it. At ε_UB = 8 also without canaries, for what they cost in test accuracy. Each run
takes about five minutes; one that is in results/cifar_wb_cpu.csv is not made again.
Writes that file and results/cifar_wb_cpu.png after every run.
"""

import argparse
import csv
import io
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from configs import cifar_wb
from oneshot import report, train

RESULTS = pathlib.Path(__file__).parent / 'results'
PAPER = {1.0: 0.7, 2.0: 1.2, 4.0: 1.8, 8.0: 3.5}  # the best of all k, without guarantee
NEEDED = {1.0: 0.3, 2.0: 0.75, 4.0: 1.7, 8.0: 3.1}
SEEDS = (0, 1, 2)
NUMBERS = (
    'eps_ub',
    'seed',
    'canaries',
    'steps',
    'noise_multiplier',
    'guesses',
    'residual',
    'iterates',
    'test_accuracy',
    'seconds',
)

Row = dict[str, float]


def planned() -> Iterator[tuple[float, int, int]]:
    """ε_UB, seed, and whether there are canaries."""
    yield from ((eps, seed, 1) for seed in SEEDS for eps in reversed(PAPER))
    yield from ((8.0, seed, 0) for seed in SEEDS)


def measure(eps: float, seed: int, canaries: int, data_dir: str | None, quick: bool) -> Row:
    config = cifar_wb.get_config(f'{"smoke" if quick else "cpu"},eps={eps}')
    config.seed, config.data_dir = seed, data_dir
    run = train.prepare(config)
    if not canaries:
        run = run._replace(included=jnp.zeros_like(run.included))
    start = time.perf_counter()
    with report.Log(None, config.steps) as log:
        state = train.train(run, log.write)
    accuracy = train.test_accuracy(run, state)
    results = train.audit_all(run, train.collect_scores(run, state))
    found = {name: results[name, 'one_run'].eps_lb for name in run.scores if canaries}
    return {
        'eps_ub': eps,
        'seed': seed,
        'canaries': canaries,
        'steps': config.steps,
        'noise_multiplier': run.noise_multiplier,
        'guesses': config.audit.k_plus + config.audit.k_minus,
        'residual': found.get('residual', np.nan),
        'iterates': found.get('iterates', np.nan),
        'test_accuracy': accuracy,
        'seconds': time.perf_counter() - start,
    }


def summary(rows: list[Row]) -> list[dict[str, Any]]:
    """Means over the seeds."""
    means = []
    for eps in PAPER:
        own = [row for row in rows if row['eps_ub'] == eps and row['canaries']]
        if own:
            names = ('residual', 'iterates', 'test_accuracy', 'seconds')
            mean = {name: float(np.mean([row[name] for row in own])) for name in names}
            means.append({'eps_ub': eps, 'seeds': len(own)} | mean)
    return means


def show(rows: list[Row]) -> None:
    table = Table(title='CIFAR-10, white-box, one run: means over seeds', title_justify='left')
    for name in ('ε_UB', 'seeds', 'residual', 'needed', 'iterates', 'paper', 'accuracy', 'minutes'):
        table.add_column(name, justify='right')
    for mean in summary(rows):
        eps = mean['eps_ub']
        table.add_row(
            f'{eps:g}',
            str(mean['seeds']),
            f'{mean["residual"]:.2f}',
            f'{NEEDED[eps]:g}',
            f'{mean["iterates"]:.2f}',
            f'{PAPER[eps]:g}',
            f'{mean["test_accuracy"]:.1%}',
            f'{mean["seconds"] / 60:.1f}',
        )
    Console().print(table)
    at_eight = [row for row in rows if row['eps_ub'] == 8.0]
    for canaries, title in ((1, 'with'), (0, 'without')):
        found = [row['test_accuracy'] for row in at_eight if row['canaries'] == canaries]
        if found:
            print(f'Test accuracy at ε_UB = 8 {title} canaries: {np.mean(found):.1%}.')


def plot(rows: list[Row], file: Any) -> None:
    figure = Figure(figsize=(6.4, 4.4), layout='constrained')
    ax, means = figure.subplots(), summary(rows)
    eps = [mean['eps_ub'] for mean in means]
    ax.plot([0, 8], [0, 8], color='0.7', linestyle='--', label='ε_UB')
    ax.plot(list(PAPER), list(PAPER.values()), 'o-', color='0.5', label='paper, best of all k')
    for name, color in (('residual', '#1b5e20'), ('iterates', '#0d47a1')):
        own = [row for row in rows if row['canaries']]
        ax.plot([row['eps_ub'] for row in own], [row[name] for row in own], '.', color=color)
        values = [mean[name] for mean in means]
        ax.plot(eps, values, color=color, label=f'{name}, k fixed before the run')
    ax.set(xlabel='ε_UB', ylabel='ε_LB', title='CIFAR-10, m = 5,000 Dirac canaries, two cores')
    ax.spines[['top', 'right']].set_visible(False)
    ax.legend(frameon=False)
    figure.savefig(file, dpi=120)


def read(path: pathlib.Path) -> list[Row]:
    if not path.exists():
        return []
    with path.open(newline='') as file:
        rows = list(csv.DictReader(file))
    return [{name: float(row[name] or 'nan') for name in NUMBERS} for row in rows]


def write(path: pathlib.Path, rows: list[Row]) -> None:
    with path.open('w', newline='') as file:
        writer = csv.DictWriter(file, NUMBERS, lineterminator='\n')
        writer.writeheader()
        for row in rows:
            writer.writerow({k: f'{row[k]:.9g}'.replace('nan', '') for k in NUMBERS})
    plot(rows, path.with_suffix('.png'))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--data_dir', help='where TFDS keeps its data sets')
    parser.add_argument('--quick', action='store_true', help='tiny runs; nothing is written')
    args = parser.parse_args()
    path = RESULTS / 'cifar_wb_cpu.csv'
    rows = [] if args.quick else read(path)
    done = {(row['eps_ub'], row['seed'], row['canaries']) for row in rows}
    for eps, seed, canaries in planned():
        if (eps, seed, canaries) in done:
            continue
        print(f'ε_UB = {eps:g}, seed {seed}, {"with" if canaries else "without"} canaries')
        rows.append(measure(eps, seed, canaries, args.data_dir, args.quick))
        if not args.quick:
            write(path, rows)
    show(rows)
    if args.quick:
        plot(rows, io.BytesIO())


if __name__ == '__main__':
    main()
