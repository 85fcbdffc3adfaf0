"""The default audit over 40 seeds, beside what independent scores would give.

    python -m experiments.default_audit       # 6 minutes on two cores

Runs configs/digits_wb.py with seeds 0 to 39: real training, real canaries. The
prediction simulates the scores of Dirac canaries directly, all of them independent
(`oneshot.plan.score_law`). Writes results/default_audit.csv and results/default_audit.png.
"""

import argparse
import concurrent.futures
import csv
import multiprocessing
import pathlib

import ml_collections
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from configs import digits_wb
from experiments.mechanisms import draw_scores
from oneshot import DPSGD, audit_scores
from oneshot.plan import Scoring
from oneshot.run import outcome, training

RESULTS = pathlib.Path(__file__).parent / 'results'
SEEDS = 40
SIMULATIONS = 1000
SCORES = ('residual_llr', 'residual', 'iterates')


def one(seed: int) -> dict[str, float]:
    """One run of the default config."""
    config = digits_wb.get_config()
    config.seed = seed
    run = training.prepare(config)
    state = training.train(run)
    results = outcome.audit_all(run, training.collect_scores(run, state))
    return {
        'seed': seed,
        'eps_ub': run.spec.eps_ub,
        'noise_multiplier': run.spec.noise_multiplier,
        'test_accuracy': training.test_accuracy(run, state),
    } | {name: results[name, 'one_run'].eps_lb for name in SCORES}


def predict(
    config: ml_collections.ConfigDict, sigma: float, simulations: int, score: str = 'dot'
) -> np.ndarray:
    """ε_LB of `simulations` audits of independent scores, as a run of the config has them."""
    rng, m = np.random.default_rng(0), config.audit.m
    scoring = Scoring(DPSGD(sigma, config.dp.sampling_prob, config.steps), score)
    guesses = config.audit.k_plus, config.audit.k_minus
    options = (
        {'guesses': 'planned', 'mechanism': scoring} if None in guesses else {'guesses': guesses}
    )
    found = []
    for _ in range(simulations):
        included = rng.random(m) < 0.5
        scores = draw_scores(scoring, rng, included)
        found.append(audit_scores(scores, included, delta=config.dp.delta, **options).eps_lb)
    return np.array(found)


def plot(rows: list[dict[str, float]], predicted: np.ndarray) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.6), layout='constrained')
    axes = figure.subplots()
    shown = {
        'independent llr': (predicted, 'lightgray', 0.0),
        'residual_llr': (np.array([row['residual_llr'] for row in rows]), 'tab:orange', 0.006),
        'iterates': (np.array([row['iterates'] for row in rows]), 'tab:blue', -0.006),
    }
    for name, (values, color, shift) in shown.items():
        # A count of right guesses, so that there are few values.
        found, counts = np.unique(values, return_counts=True)
        width = 6 if name == 'independent llr' else 2
        label = f'{name}, mean {values.mean():.2f}'
        share = counts / values.size
        axes.vlines(found + shift, 0, share, color=color, linewidth=width, label=label)
    axes.set(xlabel=f'ε_LB at ε_UB = {rows[0]["eps_ub"]:.2f}', ylabel='share of runs')
    axes.set_title(f'{len(rows)} seeds of the default audit', loc='left')
    axes.spines[['top', 'right']].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(RESULTS / 'default_audit.png', dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument(
        '--seeds', type=int, default=SEEDS, help='other than 40: nothing is written'
    )
    seeds = parser.parse_args().seeds
    spawn = multiprocessing.get_context('spawn')  # JAX does not survive a fork
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=spawn) as pool:
        rows = list(track(pool.map(one, range(seeds)), description='auditing', total=seeds))
    config, sigma = digits_wb.get_config(), rows[0]['noise_multiplier']
    predicted = {score: predict(config, sigma, SIMULATIONS, score) for score in ('llr', 'dot')}

    summary = Table(title=f'{seeds} seeds of configs/digits_wb.py', title_justify='left')
    for name in ('score', 'mean ε_LB', 'least', 'most', 'above 0', 'at most ε_UB', 'predicted'):
        summary.add_column(name)
    for name in SCORES:
        values = np.array([row[name] for row in rows])
        below = sum(row[name] <= row['eps_ub'] for row in rows)
        numbers = f'{values.mean():.3f}', f'{values.min():.3f}', f'{values.max():.3f}'
        counts = f'{np.sum(values > 0)} of {seeds}', f'{below} of {seeds}'
        alone = predicted['llr' if name.endswith('llr') else 'dot'].mean()
        summary.add_row(name, *numbers, *counts, f'{alone:.3f}')
    console = Console(width=100)
    console.print(summary)
    accuracy = np.mean([row['test_accuracy'] for row in rows])
    ratio = np.mean([row['residual_llr'] for row in rows]) / predicted['llr'].mean()
    console.print(f'test accuracy {accuracy:.1%}; residual_llr / predicted = {ratio:.3f}')
    if seeds == SEEDS:
        with (RESULTS / 'default_audit.csv').open('w', newline='') as file:
            means = {f'predicted_{name}': values.mean() for name, values in predicted.items()}
            writer = csv.DictWriter(file, [*rows[0], *means], lineterminator='\n')
            writer.writeheader()
            for row in rows:
                writer.writerow(row | means)
        plot(rows, predicted['llr'])
        print(f'Written to {RESULTS.name}/default_audit.csv and default_audit.png.')


if __name__ == '__main__':
    main()
