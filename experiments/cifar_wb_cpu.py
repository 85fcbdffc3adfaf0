"""The white-box audit of CIFAR-10 on two cores, beside the paper's figure wb_dpsgd_cifar.

    python -m experiments.cifar_wb_cpu --data_dir=DIR      # what is not measured yet
    python -m experiments.cifar_wb_cpu --data_dir=DIR --quick   # seconds, nothing is written
    python -m experiments.cifar_wb_cpu --guesses     # how the numbers of guesses were found

`configs/cifar_wb.py:cpu` at ε_UB = 1, 2, 4 and 8 with three seeds each: one run, k fixed
before it. At ε_UB = 8 also without canaries, for what they cost in test accuracy. A run
takes four to ten minutes, all of them an hour and a half; one that is in
results/cifar_wb_cpu.csv is not made again. (The seconds there are of two cores that had
other work beside.) Writes that file and results/cifar_wb_cpu.png after every run. The
prediction is that of independent scores, as in `experiments/default_audit.py`; `--guesses`
has it for many numbers of guesses, and needs neither data nor training.
"""

import argparse
import functools
import io
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track
from rich.table import Table

from configs import cifar_wb
from experiments import csv_files
from experiments.csv_files import Row
from experiments.default_audit import predict
from oneshot.claims import accounting
from oneshot.run import outcome, training
from oneshot.run.progress import Log

RESULTS = pathlib.Path(__file__).parent / 'results'
PAPER = {1.0: 0.7, 2.0: 1.2, 4.0: 1.8, 8.0: 3.5}  # the best of all k, without guarantee
NEEDED = {1.0: 0.3, 2.0: 0.75, 4.0: 1.7, 8.0: 3.1}
SEEDS = (0, 1, 2)
# Guesses "in" and as many "out". Found by simulating the scores of Dirac canaries, without
# any coins of a run: where the mean of ε_LB less its standard deviation is about largest.
FIXED = {1.0: 200, 2.0: 150, 4.0: 100, 8.0: 150}
GUESSES = (25, 50, 75, 100, 150, 200, 300, 400)  # of each kind
SIMULATIONS = 300
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


def planned() -> Iterator[tuple[float, int, int]]:
    """ε_UB, seed, and whether there are canaries."""
    yield from ((eps, seed, 1) for seed in SEEDS for eps in reversed(PAPER))
    yield from ((8.0, seed, 0) for seed in SEEDS)


def measure(eps: float, seed: int, canaries: int, data_dir: str | None, quick: bool) -> Row:
    config = cifar_wb.get_config(f'{"smoke" if quick else "cpu"},eps={eps}')
    config.seed, config.data_dir = seed, data_dir
    config.audit.scores, config.audit.headline = ('dot',), 'residual'
    config.audit.k_plus = config.audit.k_minus = FIXED[eps]
    run = training.prepare(config)
    if not canaries:
        nobody = jnp.zeros_like(run.canaries.included)
        run = run._replace(canaries=run.canaries._replace(included=nobody))
    start = time.perf_counter()
    with Log(None, config.steps) as log:
        state = training.train(run, log.write)
    accuracy = training.test_accuracy(run, state)
    results = outcome.audit_all(run, training.collect_scores(run, state))
    names = run.spec.selection.names if canaries else ()
    found = {name: results[name, 'one_run'].eps_lb for name in names}
    return {
        'eps_ub': eps,
        'seed': seed,
        'canaries': canaries,
        'steps': config.steps,
        'noise_multiplier': run.spec.noise_multiplier,
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
    columns = 'seeds', 'residual', 'needed', 'predicted', 'iterates', 'paper', 'accuracy', 'minutes'
    for name in ('ε_UB', *columns):
        table.add_column(name, justify='right')
    for mean in summary(rows):
        eps = mean['eps_ub']
        predicted = simulated(eps, FIXED[eps])
        table.add_row(
            f'{eps:g}',
            str(mean['seeds']),
            f'{mean["residual"]:.2f}',
            f'{NEEDED[eps]:g}',
            f'{predicted.mean():.2f}',
            f'{mean["iterates"]:.2f}',
            f'{PAPER[eps]:g}',
            f'{mean["test_accuracy"]:.1%}',
            f'{mean["seconds"] / 60:.1f}',
        )
    Console(width=100).print(table)
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


def show_guesses() -> None:
    """The simulated mean and deviation of ε_LB, by the number of guesses of each kind."""
    title = f'ε_LB of {SIMULATIONS} simulated audits: mean ± standard deviation'
    table = Table(title=title, title_justify='left')
    for name in ('k', *(f'ε_UB = {eps:g}' for eps in PAPER)):
        table.add_column(name, justify='right')
    for k in track(GUESSES, description='simulating'):
        cells = []
        for eps in PAPER:
            mark = '*' if FIXED[eps] == k else ' '
            found = simulated(eps, k)
            cells.append(f'{found.mean():.2f} ± {found.std():.2f} {mark}')
        table.add_row(str(k), *cells)
    Console().print(table)
    print('* what is taken here')


@functools.cache
def calibrated(*given: float) -> float:
    return accounting.calibrate_noise(*given)


def simulated(eps: float, k: int) -> np.ndarray:
    """ε_LB of independent scores, in the place of those of runs, with k guesses each way."""
    config = cifar_wb.get_config(f'cpu,eps={eps}')
    config.audit.k_plus = config.audit.k_minus = k
    dp = config.dp
    sigma = calibrated(dp.eps, dp.sampling_prob, config.steps, dp.delta)
    return predict(config, sigma, SIMULATIONS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--data_dir', help='where TFDS keeps its data sets')
    parser.add_argument('--quick', action='store_true', help='tiny runs; nothing is written')
    parser.add_argument('--guesses', action='store_true', help='simulates, and trains nothing')
    args = parser.parse_args()
    if args.guesses:
        return show_guesses()
    path = RESULTS / 'cifar_wb_cpu.csv'
    rows = [] if args.quick else csv_files.read(path, NUMBERS)
    done = {(row['eps_ub'], row['seed'], row['canaries']) for row in rows}
    for eps, seed, canaries in planned():
        if (eps, seed, canaries) in done:
            continue
        print(f'ε_UB = {eps:g}, seed {seed}, {"with" if canaries else "without"} canaries')
        rows.append(measure(eps, seed, canaries, args.data_dir, args.quick))
        if not args.quick:
            csv_files.write(path, rows, (), NUMBERS)
            plot(rows, path.with_suffix('.png'))
    show(rows)
    if args.quick:
        plot(rows, io.BytesIO())


if __name__ == '__main__':
    main()
