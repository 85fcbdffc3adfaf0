"""What an audit will see, before it is run: python -m oneshot.plan --help.

From the claim alone (m, σ, q, steps, δ) follows the distribution of the scores, from it that of
right guesses, and from that the expected ε_LB of every choice of guesses. The best choice is then
fixed before any score is seen. If the claim is wrong, it is still valid, and perhaps not the best.
"""

import argparse
import dataclasses
import functools
import math
import pathlib
import sys
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from oneshot import command, inputs
from oneshot.claims import accounting
from oneshot.claims.claim import DPSGD
from oneshot.json_text import number_text
from oneshot.plan.detection import POWER, Violation, detectable_violation
from oneshot.plan.expected import COUNT_METHODS, MOST_CANARIES, PLANNED_METHODS, AuditSetting, Rule
from oneshot.plan.score_law import WEIGHINGS, Scoring
from oneshot.plan.search import Plan, canaries_needed, candidate_counts, plan_guesses
from oneshot.results import guess
from oneshot.results.methods import METHODS
from oneshot.results.result import ASSUMPTIONS

_USAGE = """--m M (--eps ε | --sigma σ) --delta δ [option ...]"""

_EPILOG = """examples:
  %(prog)s --m=5000 --eps=8 --delta=1e-5 --q=0.08192 --steps=2000
  %(prog)s --m=5000 --sigma=1 --delta=1e-5 --target-eps-lb=2 --plot=plan.png

Without --q and --steps it is one step of everybody, the Gaussian mechanism. The scores are those of
the residual, which other data leaves alone. For the iterates, --interference is the deviation of
what other data adds to a step along a canary, in units of the clip norm. It is unknown beforehand;
with 0, what is printed is the most to expect."""


def main(argv: list[str] | None = None, prog: str | None = None) -> int:
    """Prints the plan; returns the exit status."""
    return command.run(_parser(prog or 'python -m oneshot.plan'), argv, _answer, _record, _show)


def _parser(prog: str) -> argparse.ArgumentParser:
    description = 'What an audit in one run will see, and how many guesses are best for it.'
    parser = command.make_parser(prog, _USAGE, description, _EPILOG)
    number = functools.partial(parser.add_argument, type=float)
    number('--m', required=True, help='the number of canaries')
    noise = parser.add_mutually_exclusive_group(required=True)
    noise.add_argument('--eps', type=float, metavar='ε', help='the claimed ε, from which σ follows')
    noise.add_argument('--noise-multiplier', '--sigma', type=float, metavar='σ', help='σ')
    number('--delta', required=True, metavar='δ', help='δ in [0, 1]')
    number('--sampling-prob', '--q', default=1.0, metavar='q', help='q; default 1')
    number('--steps', default=1, help='default 1')
    number('--confidence', default=0.95, help='default 0.95')
    parser.add_argument('--score', default='llr', help=f'{", ".join(WEIGHINGS)}; default llr')
    parser.add_argument('--method', default='one_run', help=f'{", ".join(PLANNED_METHODS)}')
    number('--interference', default=0.0, help='default 0; see below')
    number('--target-eps-lb', metavar='ε', help='an ε_LB: how many canaries does it take?')
    parser.add_argument('--plot', type=pathlib.Path, metavar='FILE', help='a .png to draw')
    return parser


class _Answer(NamedTuple):
    audit: AuditSetting
    eps_ub: float
    plans: dict[str, Plan]  # by method
    target: float | None  # the ε_LB that is asked for
    needed: int | None  # canaries for it
    noticed: dict[str, Violation | None]  # with the planned guesses, and with any


def _answer(flags: argparse.Namespace) -> _Answer:
    """Every method's plan, and what is asked of the chosen one."""
    audit, target = _audit(flags), flags.target_eps_lb
    if target is not None:
        inputs.real('--target-eps-lb', target, 0.0, math.inf, ends='()')
    if flags.plot is not None:
        inputs.require('run', 'matplotlib')
    slow = {'fdp_dpsgd'} | ({'weighted'} if audit.m > 10**5 else set())
    shown = [name for name in PLANNED_METHODS if name == audit.method or name not in slow]
    plans = {name: plan_guesses(dataclasses.replace(audit, method=name)) for name in shown}
    eps_ub, noticed = audit.scoring.claim.eps(audit.delta), {}
    if audit.method != 'gaussian_pair':
        planned = [plans[audit.method].rule]
        noticed['planned'] = detectable_violation(audit, eps_ub, planned)
        noticed['any'] = detectable_violation(audit, eps_ub)
    needed = None if target is None else canaries_needed(audit, target)
    if flags.plot is not None:
        from oneshot.plan import plot

        plot.draw_plan(flags.plot, audit, plans[audit.method])
    return _Answer(audit, eps_ub, plans, target, needed, noticed)


def _audit(flags: argparse.Namespace) -> AuditSetting:
    inputs.choice('--score', flags.score, WEIGHINGS)
    steps = inputs.count('--steps', flags.steps, 1, 10**7)
    q = inputs.real('--sampling-prob', flags.sampling_prob, 0.0, 1.0, ends='(]')
    m = inputs.count('--m', flags.m, 2, MOST_CANARIES)
    inputs.delta(flags.delta)
    sigma = flags.noise_multiplier
    if sigma is None:
        sigma = accounting.calibrate_noise(flags.eps, q, steps, flags.delta)
    scoring = Scoring(DPSGD(sigma, q, steps), flags.score, flags.interference)
    return AuditSetting(scoring, m, flags.delta, flags.confidence, flags.method)


def _show(answer: _Answer) -> None:
    console, audit, claim = Console(), answer.audit, answer.audit.scoring.claim
    console.print(
        f'DP-SGD, {claim.steps:,} steps, q = {claim.sampling_prob:.4g}, '
        f'σ = {claim.noise_multiplier:.4g}: '
        f'ε_UB = {number_text(answer.eps_ub)} at δ = {audit.delta:g}'
    )
    console.print(
        f'm = {audit.m:,} canaries, score {audit.scoring.weighing}, '
        f'{100 * audit.confidence:g} % confidence'
    )
    table = Table(title='the ε_LB to expect', title_justify='left')
    for name in ('method', 'guesses', 'ε_LB', 'kind', 'assumes'):
        table.add_column(name, no_wrap=name != 'assumes')
    for name, plan in answer.plans.items():
        eps_lb, method = number_text(plan.eps_lb, '.3f'), METHODS[name]
        assumed = ASSUMPTIONS[method.assumptions]
        table.add_row(name, _rule_text(plan.rule), eps_lb, method.kind, assumed)
    console.print(table)
    if audit.method in COUNT_METHODS and answer.plans[audit.method].grid:
        console.print(_grid_table(audit, answer.plans[audit.method].grid))
    for line in _sentences(answer):
        console.print(line)


def _rule_text(rule: Rule) -> str:
    if rule is None:
        return 'all scores'
    if isinstance(rule, guess.Threshold):
        return f'above {rule.value:.4g}'
    if isinstance(rule, guess.Ranked):
        return f'{np.count_nonzero(rule.weights):,} by weight'
    return f'{rule[0]:,} in, {rule[1]:,} out'


def _grid_table(audit: AuditSetting, grid: dict[tuple[int, int], float]) -> Table:
    """Rows are guesses "in", columns are guesses "out"."""
    title = f'by {audit.method}: guesses "in" down, "out" across'
    table = Table(title=title, title_justify='left')
    sizes = candidate_counts(audit.m)
    for name in ('', *(f'{size:,}' for size in sizes)):
        table.add_column(name, justify='right')
    for k_plus in sizes:
        cells = (grid.get((k_plus, k_minus)) for k_minus in sizes)
        row = ('' if eps_lb is None else number_text(eps_lb, '.2f') for eps_lb in cells)
        table.add_row(f'{k_plus:,}', *row)
    return table


def _sentences(answer: _Answer) -> list[str]:
    """The answers to the questions, in words."""
    lines, method = [], answer.audit.method
    if answer.target is not None:
        number = f'{answer.needed:,}' if answer.needed else f'more than {MOST_CANARIES:,}'
        lines.append(f'To expect ε_LB ≥ {answer.target:g} by {method}: {number} canaries.')
    for name, violation in answer.noticed.items():
        guesses = {'planned': 'these guesses', 'any': 'the best guesses for that'}[name]
        line = f'Noticed with {100 * POWER:g} % power by {method} and {guesses}'
        if violation is None:
            lines.append(f'{line}: no lack of noise, however large.')
            continue
        sigma, blind = violation.noise_multiplier, violation.blind_below
        share = sigma / answer.audit.scoring.claim.noise_multiplier
        line += '' if name == 'planned' else f' ({_rule_text(violation.rule)})'
        line += f': a true σ of {sigma:.3g}, {100 * share:.0f} % of the claimed one'
        lines.append(line + (f', down to {blind:.3g}, and not less.' if blind else '.'))
    return lines


def _record(answer: _Answer) -> dict[str, Any]:
    """The answers for --json."""
    record = dataclasses.asdict(answer.audit)
    scoring = record.pop('scoring')
    mechanism = scoring.pop('claim') | {'score': scoring.pop('weighing')} | scoring
    plans = {
        name: {'guesses': _rule_record(plan.rule), 'expected_eps_lb': plan.eps_lb}
        for name, plan in answer.plans.items()
    }
    record = {'mechanism': mechanism} | record | {'eps_ub': answer.eps_ub, 'plans': plans}
    if answer.target is not None:
        record['canaries_needed'] = {'eps_lb': answer.target, 'm': answer.needed}
    if answer.noticed:
        record['noticed'] = {'power': POWER}
    for name, violation in answer.noticed.items():
        record['noticed'][name] = violation and {
            'noise_multiplier': violation.noise_multiplier,
            'least_noise_multiplier': violation.blind_below,
            'guesses': _rule_record(violation.rule),
        }
    return record


def _rule_record(rule: Rule) -> Any:
    if isinstance(rule, guess.Threshold):
        return {'threshold': rule.value}
    if isinstance(rule, guess.Ranked):
        return {'weights': list(rule.weights)}
    return None if rule is None else list(rule)


if __name__ == '__main__':
    sys.exit(main())
