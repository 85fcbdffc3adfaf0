"""The plots of a report."""

import base64
import dataclasses
import io
import pathlib

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from oneshot import bounds, guess
from oneshot.best import Plan, best
from oneshot.expected import Audit, expected_eps_lb
from oneshot.methods import AuditResult
from oneshot.scores import audit_scores
from oneshot.workdir import write

_STYLE = {'axes.spines.top': False, 'axes.spines.right': False, 'legend.frameon': False}


def draw(
    folder: pathlib.Path, scores: np.ndarray, coins: np.ndarray, result: AuditResult
) -> list[tuple[str, str]]:
    """Draws all plots of the headline into `folder`.

    Returns:
        A caption and the picture in base64 for each.
    """
    drawn = []
    with matplotlib.rc_context(_STYLE):
        for name, plot in (('scores', _scores), ('ranking', _ranking), ('guesses', _guesses)):
            figure = Figure(figsize=(7, 3.6), layout='constrained')
            caption = plot(figure.subplots(), scores, coins, result)
            picture = io.BytesIO()
            figure.savefig(picture, dpi=110)
            write(folder / f'{name}.png', picture.getvalue())
            drawn.append((caption, base64.b64encode(picture.getvalue()).decode()))
    return drawn


def _scores(axes, scores: np.ndarray, coins: np.ndarray, result: AuditResult) -> str:
    edges = np.histogram_bin_edges(scores, 60)
    axes.hist(scores[coins], edges, alpha=0.6, label='in', color='tab:orange')
    axes.hist(scores[~coins], edges, alpha=0.6, label='out', color='tab:blue')
    ordered = np.sort(scores)
    if result.k_minus:
        axes.axvline(ordered[result.k_minus - 1], color='tab:blue', linestyle='--')
    if result.k_plus:
        axes.axvline(ordered[-result.k_plus], color='tab:orange', linestyle='--')
    axes.set(xlabel='score', ylabel='canaries')
    axes.legend()
    return 'Scores of the canaries that were in and out; beyond the dashed lines they are guessed.'


def _ranking(axes, scores: np.ndarray, coins: np.ndarray, result: AuditResult) -> str:
    """From the surest guess on: the surest are the highest and the lowest in turn."""
    up, down = np.argsort(-scores, kind='stable'), np.argsort(scores, kind='stable')
    half = scores.size // 2
    right = coins[up[:half]].astype(int) + ~coins[down[:half]]
    guesses = 2 * np.arange(1, half + 1)
    axes.plot(guesses, np.cumsum(right) / guesses, color='black', label='right guesses')
    axes.axhline(0.5, color='gray', linewidth=1, linestyle=':', label='chance')
    eps = result.eps_claimed
    if result.method == 'replacement':
        eps, _ = bounds.replacement_guarantee(eps, result.delta)
    claim = 1.0 / (1.0 + np.exp(-eps))
    axes.axhline(
        claim, color='tab:red', linewidth=1, linestyle='--', label='e^ε/(e^ε+1) as claimed'
    )
    axes.set(xlabel='guesses, the surest first', ylabel='share that is right', xscale='log')
    axes.legend(loc='center left')
    return 'Right guesses along the ranking, against chance and against the claim.'


def _guesses(axes, scores: np.ndarray, coins: np.ndarray, result: AuditResult) -> str:
    half = scores.size // 2
    halves = np.unique(np.geomspace(min(5, half), half, 40).astype(int)).tolist()
    by_number = 'one_run', 'adaptive', 'hoeffding', 'fdp', 'replacement'
    method = result.method if result.method in by_number else 'one_run'
    options = {'delta': result.delta, 'confidence': result.confidence, 'method': method}
    found = [audit_scores(scores, coins, guesses=(k, k), **options).eps_lb for k in halves]
    axes.plot([2 * k for k in halves], found, color='black', label=f'ε_LB, {method}')
    if np.isfinite(result.eps_claimed):
        axes.axhline(result.eps_claimed, color='tab:red', linestyle='--', linewidth=1, label='ε_UB')
    if method == result.method:
        fixed = [result.guesses], [result.eps_lb]
        axes.plot(*fixed, 'o', color='black', label='as fixed beforehand')
    axes.set(xlabel='guesses r', ylabel='ε', xscale='log', ylim=(0, None))
    axes.legend()
    return 'ε_LB as the number of guesses varies: for looking, not for choosing.'


def draw_plan(path: pathlib.Path, audit: Audit, plan: Plan) -> None:
    """Draws what a plan expects: the scores, and ε_LB by the numbers of guesses."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(11, 4.2), layout='constrained')
        left, right = figure.subplots(1, 2)
        law = audit.mechanism.law()
        for name, below, color in (
            ('in', law.below_in, 'tab:orange'),
            ('out', law.below_out, 'tab:blue'),
        ):
            edges = np.linspace(*np.interp([1e-4, 1 - 1e-4], below, law.points), 80)
            mass = np.diff(np.interp(edges, law.points, below)) / np.diff(edges)
            left.fill_between(0.5 * (edges[1:] + edges[:-1]), mass, alpha=0.5, color=color)
            left.plot([], [], color=color, label=name)
        for threshold in _thresholds(audit, plan):
            left.axvline(threshold, color='black', linestyle='--', linewidth=1)
        left.set(xlabel=f'score ({audit.mechanism.score})', ylabel='density', ylim=(0, None))
        left.set_title('Scores to expect; dashed: guessed from here on', loc='left', fontsize=10)
        left.legend()
        halves = np.unique(np.geomspace(5, max(5, audit.m // 2), 14).astype(int)).tolist()
        for method, color in (('one_run', 'black'), ('fdp', 'tab:green')):
            one = dataclasses.replace(audit, method=method)
            found = [expected_eps_lb(one, (k, k)) for k in halves]
            right.plot([2 * k for k in halves], found, color=color, label=method)
            chosen = best(one)
            right.plot(sum(chosen.rule), chosen.eps_lb, 'o', color=color)
        right.set(xlabel='guesses r, half each way', ylabel='expected ε_LB', xscale='log')
        right.set_ylim(0, None)
        right.set_title(f'm = {audit.m:,}; the dots are planned', loc='left', fontsize=10)
        right.legend()
        figure.savefig(path, dpi=110)


def _thresholds(audit: Audit, plan: Plan) -> list[float]:
    """Where guesses begin."""
    if isinstance(plan.rule, guess.Threshold):
        return [plan.rule.value]
    if not isinstance(plan.rule, tuple):
        return []
    law, (k_plus, k_minus) = audit.mechanism.law(), plan.rule
    shares = [share for share in (1 - k_minus / audit.m, k_plus / audit.m) if 0 < share < 1]
    return [law.threshold(share) for share in shares]
