"""Real training on CIFAR-10 by every score and method, guesses planned before the run.

    python -m experiments.cifar_tight --data_dir=DIR      # half an hour on two cores
    python -m experiments.cifar_tight --data_dir=DIR --quick   # seconds, nothing is written

`configs/cifar_wb.py:cpu` at ε_UB = 8 with three seeds. A run leaves its scores and coins in
--workdir (runs/cifar_tight), and one that is there is audited and not made again. Beside it
what the planner says of independent scores. Writes results/cifar_tight.csv and
results/cifar_tight.png.
"""

import argparse
import json
import pathlib
import tempfile

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from configs import cifar_wb
from experiments import csv_files
from experiments.csv_files import Row
from oneshot import DPSGD, audit_scores
from oneshot.plan import Scoring
from oneshot.plan.expected import AuditSetting
from oneshot.plan.search import plan_guesses
from oneshot.results.methods import METHODS
from oneshot.results.result import ASSUMPTIONS
from oneshot.run import training

RESULTS = pathlib.Path(__file__).parent / 'results'
SEEDS = (0, 1, 2)
NEEDED = {('residual_llr', 'fdp'): 4.4, ('residual_llr', 'cp_gdp'): 6.4}
WORDS = ('score', 'method', 'kind')
NUMBERS = ('eps_ub', 'seed', 'test_accuracy', 'guesses', 'correct', 'eps_lb', 'predicted')


def run(directory: pathlib.Path, seed: int, data_dir: str | None, quick: bool) -> None:
    """Trains with one seed, if that has not been done."""
    if (directory / 'result.json').exists():
        return
    config = cifar_wb.get_config('smoke' if quick else 'cpu')
    config.seed, config.data_dir = seed, data_dir
    training.run(config, str(directory))


def audit(directory: pathlib.Path) -> list[Row]:
    """Every score of a run by every method, from the files that it left."""
    record = json.loads((directory / 'result.json').read_text())
    config = json.loads((directory / 'config.json').read_text())
    scores = np.load(directory / 'scores.npz')
    coins = np.load(directory / 'coins.npz')
    rows = []
    for score in ('iterates', 'iterates_llr', 'residual', 'residual_llr'):
        claim = DPSGD(record['noise_multiplier'], config['dp']['sampling_prob'], config['steps'])
        scoring = Scoring(claim, 'llr' if score.endswith('llr') else 'dot')
        independent = score.startswith('residual')
        for method in METHODS:
            if METHODS[method].pairs or (METHODS[method].needs == 'confusion' and not independent):
                continue
            result = audit_scores(
                scores[score],
                coins['included'],
                ids=scores['ids'],
                included_ids=coins['ids'],
                delta=config['dp']['delta'],
                method=method,
                mechanism=scoring,
            )
            plan = AuditSetting(scoring, coins['ids'].size, config['dp']['delta'], method=method)
            rows.append(
                {
                    'score': score,
                    'method': method,
                    'kind': result.kind,
                    'eps_ub': record['eps_ub'],
                    'seed': config['seed'],
                    'test_accuracy': record['test_accuracy'],
                    'guesses': result.guesses,
                    'correct': result.correct,
                    'eps_lb': result.eps_lb,
                    'predicted': plan_guesses(plan).eps_lb,
                }
            )
    return rows


def means(rows: list[Row]) -> dict[tuple[str, str], tuple[float, float]]:
    """The mean over the seeds, and the prediction, by score and method."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row['score'], row['method']), []).append(row)
    return {
        key: (float(np.mean([row['eps_lb'] for row in own])), own[0]['predicted'])
        for key, own in found.items()
    }


def show(rows: list[Row]) -> None:
    accuracy = np.mean([row['test_accuracy'] for row in rows])
    title = f'CIFAR-10 at ε_UB = {rows[0]["eps_ub"]:.3g}, test accuracy {accuracy:.1%}'
    table = Table(title=f'{title}: means of {len({row["seed"] for row in rows})} seeds')
    for name in ('score', 'method', 'ε_LB', 'predicted', 'needed', 'kind', 'assumes'):
        table.add_column(name)
    for (score, method), (mean, predicted) in means(rows).items():
        own = METHODS[method]
        needed = NEEDED.get((score, method), '')
        words = f'{mean:.2f}', f'{predicted:.2f}', f'{needed}', own.kind
        table.add_row(score, method, *words, ASSUMPTIONS[own.assumptions])
    Console(width=120).print(table)


def plot(rows: list[Row], path: pathlib.Path) -> None:
    figure = Figure(figsize=(7.5, 4.6), layout='constrained')
    axes, found = figure.subplots(), means(rows)
    methods = [method for score, method in found if score == 'residual_llr']
    for place, score in enumerate(('iterates', 'iterates_llr', 'residual', 'residual_llr')):
        color = ('tab:blue', 'tab:cyan', 'tab:olive', 'tab:green')[place]
        for line, method in enumerate(methods):
            own = [
                row['eps_lb'] for row in rows if (row['score'], row['method']) == (score, method)
            ]
            if own:
                y = line + 0.18 * (place - 1.5)
                axes.plot(own, [y] * len(own), '.', color=color, markersize=4)
                axes.plot(np.mean(own), y, 'D', color=color, markersize=6)
        axes.plot([], [], 'D', color=color, label=score)
    axes.axvline(rows[0]['eps_ub'], color='0.6', linestyle='--', label='ε_UB')
    labels = [f'{one} (estimate)' if METHODS[one].kind == 'estimate' else one for one in methods]
    axes.set_yticks(range(len(methods)), labels)
    axes.invert_yaxis()
    axes.set(xlabel='ε_LB: three seeds, and their mean', xlim=(0, None))
    axes.spines[['top', 'right']].set_visible(False)
    axes.set_title('CIFAR-10, m = 5,000 Dirac canaries, guesses planned', loc='left', fontsize=10)
    axes.legend(frameon=False, fontsize=8, loc='lower left')
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--data_dir', help='where TFDS keeps its data sets')
    parser.add_argument('--workdir', type=pathlib.Path, default='runs/cifar_tight')
    parser.add_argument('--quick', action='store_true', help='tiny runs; nothing is kept')
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch) if args.quick else args.workdir
        rows = []
        for seed in SEEDS:
            run(folder / f'seed{seed}', seed, args.data_dir, args.quick)
            rows += audit(folder / f'seed{seed}')
        show(rows)
        if args.quick:
            plot(rows, folder / 'cifar_tight.png')
        else:
            csv_files.write(RESULTS / 'cifar_tight.csv', rows, WORDS, NUMBERS)
            plot(rows, RESULTS / 'cifar_tight.png')


if __name__ == '__main__':
    main()
