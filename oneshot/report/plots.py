"""The plots of a report."""

import base64
import io
import pathlib

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from oneshot import bounds
from oneshot.files import write
from oneshot.results.result import AuditResult
from oneshot.scores.front_door import audit_scores

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
