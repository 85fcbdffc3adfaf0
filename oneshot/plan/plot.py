"""What a plan expects, as a picture."""

import dataclasses
import pathlib

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from oneshot.plan.expected import AuditSetting, expected_eps_lb
from oneshot.plan.search import Plan, plan_guesses
from oneshot.results import guess

_STYLE = {'axes.spines.top': False, 'axes.spines.right': False, 'legend.frameon': False}


def draw_plan(path: pathlib.Path, audit: AuditSetting, plan: Plan) -> None:
    """Draws what a plan expects: the scores, and ε_LB by the numbers of guesses."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(11, 4.2), layout='constrained')
        left, right = figure.subplots(1, 2)
        law = audit.scoring.law()
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
        left.set(xlabel=f'score ({audit.scoring.weighing})', ylabel='density', ylim=(0, None))
        left.set_title('Scores to expect; dashed: guessed from here on', loc='left', fontsize=10)
        left.legend()
        halves = np.unique(np.geomspace(5, max(5, audit.m // 2), 14).astype(int)).tolist()
        for method, color in (('one_run', 'black'), ('fdp', 'tab:green')):
            by_method = dataclasses.replace(audit, method=method)
            bounds = [expected_eps_lb(by_method, (k, k)) for k in halves]
            right.plot([2 * k for k in halves], bounds, color=color, label=method)
            best = plan_guesses(by_method)
            right.plot(sum(best.rule), best.eps_lb, 'o', color=color)
        right.set(xlabel='guesses r, half each way', ylabel='expected ε_LB', xscale='log')
        right.set_ylim(0, None)
        right.set_title(f'm = {audit.m:,}; the dots are planned', loc='left', fontsize=10)
        right.legend()
        figure.savefig(path, dpi=110)


def _thresholds(audit: AuditSetting, plan: Plan) -> list[float]:
    """Where guesses begin."""
    if isinstance(plan.rule, guess.Threshold):
        return [plan.rule.value]
    if not isinstance(plan.rule, tuple):
        return []
    law, (k_plus, k_minus) = audit.scoring.law(), plan.rule
    shares = [share for share in (1 - k_minus / audit.m, k_plus / audit.m) if 0 < share < 1]
    return [law.threshold(share) for share in shares]
