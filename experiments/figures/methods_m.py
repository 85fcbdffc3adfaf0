"""Figure methods_m: ε_LB by the number of canaries for every method, beside the plan."""

import sys

import matplotlib.figure
import numpy as np
import scipy.stats

from experiments.csv_files import Row
from experiments.figures import figure, style, training, wb_diff_m
from experiments.figures.figure import Claim
from experiments.figures.training import OURS
from oneshot.results.methods import METHODS
from oneshot.results.result import ASSUMPTIONS

TITLE = 'ε_LB by the number of canaries for every method, beside the plan'
PAPER_SAYS = 'which method finds how much with how many canaries, and was it foreseen?'
RESULTS = 'wb_diff_m'
LEGEND = 3
sweep = wb_diff_m.sweep


def by_method(rows: list[Row], name: str = 'eps_lb') -> dict[str, dict[float, list]]:
    """By m, for every method."""
    planned = [row for row in rows if row['score'] == OURS and row['rule'] == 'planned']
    methods = dict.fromkeys(row['method'] for row in planned)
    return {method: training.by(planned, 'm', name, method=method) for method in methods}


def draw(rows: list[Row]) -> matplotlib.figure.Figure:
    title = 'Every method on real training, score residual_llr, ε_UB = 8'
    labels = 'canaries m', 'ε_LB at δ = 1e-5'
    drawn, axes = style.figure(title, *labels, size=(8.4, 7.0), xscale='log')
    found, expected = by_method(rows), by_method(rows, 'predicted')
    for (method, groups), color in zip(found.items(), style.COLORS, strict=True):
        m, means = list(groups), [np.mean(one) for one in groups.values()]
        kind = ', an estimate' if METHODS[method].kind == 'estimate' else ''
        errors = [np.std(one, ddof=1) / np.sqrt(len(one)) for one in groups.values()]
        axes.errorbar(m, means, errors, fmt='o', color=color, capsize=3)
        axes.plot([], [], 'o-', color=color, label=method + kind)
        axes.plot(m, [one[0] for one in expected[method].values()], color=color)
    axes.axhline(8.0, **style.TRUTH, label='ε_UB')
    axes.plot([], [], 'o', color='0.3', label='dots: means, with standard errors')
    axes.plot([], [], color='0.3', label='lines: expected by the planner')
    axes.set_ylim(0, None)
    style.ticks(axes, next(iter(found.values())))
    return drawn


def measured(rows: list[Row]) -> list[str]:
    chosen = {'score': OURS, 'rule': 'planned'}
    what = [
        (f'{method} ({ASSUMPTIONS[METHODS[method].assumptions]})', chosen | {'method': method})
        for method in by_method(rows)
    ]
    return [*training.table(rows, 'm', what), planned(rows)]


def away(rows: list[Row]) -> dict[str, np.ndarray]:
    """How much more each seed finds than was expected, in the mean over m, by method."""
    found, expected = by_method(rows), by_method(rows, 'predicted')
    return {
        method: np.mean([np.array(one) - expected[method][m][0] for m, one in groups.items()], 0)
        for method, groups in found.items()
    }


def planned(rows: list[Row]) -> str:
    """How far the means are from the plan; too few seeds for a claim that could fail."""
    found = away(rows)
    means = [float(np.mean(one)) for one in found.values()]
    p_values = [scipy.stats.ttest_1samp(one, 0.0).pvalue for one in found.values()]
    seeds = min(one.size for one in found.values())
    least = min(1.0, len(p_values) * min(p_values))
    return (
        f'Over all m, methods are {min(means):+.2f} to {max(means):+.2f} away from what the '
        f'planner expects (p = {least:.2g}). {seeds} seeds are too few to claim that nothing is; '
        'with 200 audits, `python -m experiments.tightness` does.'
    )


def claims(rows: list[Row]) -> list[Claim]:
    bounds = [row for row in rows if row['kind'] == 'bound']
    above = sum(row['eps_lb'] > row['eps_ub'] for row in bounds)
    return [Claim('no bound of any run exceeds ε_UB', above == 0, f'{above} of {len(bounds)}')]


def differs(rows: list[Row]) -> str:
    return (
        'What more is assumed, more is found. With a few hundred canaries only the methods that '
        'assume independent scores say much; `one_run` gains from every canary and stays below, '
        'because it has to hold for all (ε, δ)-DP algorithms.'
    )


if __name__ == '__main__':
    sys.exit(figure.main('methods_m'))
