"""The plots of a report."""

import base64
import io
import pathlib
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from oneshot import bounds
from oneshot.files import write
from oneshot.results.result import AuditResult

_STYLE = {'axes.spines.top': False, 'axes.spines.right': False, 'legend.frameon': False}


class Curves(NamedTuple):
    """What the plots show beside the result."""

    scores_in: np.ndarray  # of the canaries that were in
    scores_out: np.ndarray
    right_share: np.ndarray  # of the 2, 4, 6 … surest guesses
    method: str  # of the bounds
    bounds: dict[int, float]  # ε_LB by the number of guesses


def draw(folder: pathlib.Path, curves: Curves, result: AuditResult) -> list[tuple[str, str]]:
    """Draws all plots of the headline into `folder`.

    Returns:
        A caption and the picture in base64 for each.
    """
    drawn = []
    with matplotlib.rc_context(_STYLE):
        for name, plot in (('scores', _scores), ('ranking', _ranking), ('guesses', _guesses)):
            figure = Figure(figsize=(7, 3.6), layout='constrained')
            caption = plot(figure.subplots(), curves, result)
            picture = io.BytesIO()
            figure.savefig(picture, dpi=110)
            write(folder / f'{name}.png', picture.getvalue())
            drawn.append((caption, base64.b64encode(picture.getvalue()).decode()))
    return drawn


def _scores(axes, curves: Curves, result: AuditResult) -> str:
    ordered = np.sort(np.concatenate([curves.scores_in, curves.scores_out]))
    edges = np.histogram_bin_edges(ordered, 60)
    axes.hist(curves.scores_in, edges, alpha=0.6, label='in', color='tab:orange')
    axes.hist(curves.scores_out, edges, alpha=0.6, label='out', color='tab:blue')
    if result.k_minus:
        axes.axvline(ordered[result.k_minus - 1], color='tab:blue', linestyle='--')
    if result.k_plus:
        axes.axvline(ordered[-result.k_plus], color='tab:orange', linestyle='--')
    axes.set(xlabel='score', ylabel='canaries')
    axes.legend(loc='upper right')
    return 'Scores of the canaries that were in and out; beyond the dashed lines they are guessed.'


def _ranking(axes, curves: Curves, result: AuditResult) -> str:
    """From the surest guess on: the surest are the highest and the lowest in turn."""
    guesses = 2 * np.arange(1, len(curves.right_share) + 1)
    axes.plot(guesses, curves.right_share, color='black', label='right guesses')
    axes.axhline(0.5, color='gray', linewidth=1, linestyle=':', label='chance')
    eps = result.eps_claimed
    if result.method == 'replacement':
        eps, _ = bounds.replacement_guarantee(eps, result.delta)
    claim = {'color': 'tab:red', 'linewidth': 1, 'linestyle': '--'}
    axes.axhline(1.0 / (1.0 + np.exp(-eps)), **claim, label='e^ε/(e^ε+1) as claimed')
    axes.set(xlabel='guesses, the surest first', ylabel='share that is right', xscale='log')
    axes.legend(loc='center left')
    return 'Right guesses along the ranking, against chance and against the claim.'


def _guesses(axes, curves: Curves, result: AuditResult) -> str:
    numbers, eps_lbs = list(curves.bounds), list(curves.bounds.values())
    axes.plot(numbers, eps_lbs, color='black', label=f'ε_LB, {curves.method}')
    if np.isfinite(result.eps_claimed):
        axes.axhline(result.eps_claimed, color='tab:red', linestyle='--', linewidth=1, label='ε_UB')
    if curves.method == result.method:
        axes.plot(result.guesses, result.eps_lb, 'o', color='black', label='as fixed beforehand')
    axes.set(xlabel='guesses r', ylabel='ε', xscale='log', ylim=(0, None))
    axes.legend(loc='center right')
    return 'ε_LB as the number of guesses varies: for looking, not for choosing.'
