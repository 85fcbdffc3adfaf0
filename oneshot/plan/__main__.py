"""What an audit will see, before it is run: python -m oneshot.plan --help.

From the claim alone (m, σ, q, steps, δ) follows the distribution of the scores
(`oneshot.plan.score_law`), from it that of right guesses, and from that the expected ε_LB of every
choice of guesses. The best choice is then fixed before any score is seen, so that the
bound is valid. If the claim is wrong, the choice is still valid, and perhaps not the best.
"""

import argparse
import dataclasses
import json
import math
import pathlib
import sys
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from oneshot import inputs
from oneshot.claims import accounting
from oneshot.claims.claim import DPSGD
from oneshot.plan.detection import POWER, Violation, detectable_violation
from oneshot.plan.expected import COUNT_METHODS, MOST_CANARIES, PLANNED_METHODS, AuditSetting, Rule
from oneshot.plan.score_law import WEIGHINGS, Scoring
from oneshot.plan.search import canaries_needed, candidate_counts, plan_guesses
from oneshot.results import guess, methods, result

_EXAMPLES = """examples:
  python -m oneshot.plan --m=5000 --eps=8 --delta=1e-5 --sampling-prob=0.08192 --steps=2000
  python -m oneshot.plan --m=5000 --noise-multiplier=1 --delta=1e-5 --see=2 --plot=plan.png

Without --sampling-prob and --steps it is one step of everybody, the Gaussian mechanism. The
scores are those of the residual, which other data leaves alone; for the iterates,
--interference is the deviation of what other data adds to a step along a canary, in units of
the clip norm, and unknown beforehand: with 0, what is printed is the most to expect."""


def main(argv: list[str] | None = None) -> int:
    """Prints the plan; returns the exit status."""
    parser = _parser()
    flags = parser.parse_args(argv)
    try:
        audit, eps_ub = _audit(flags)
        if flags.see is not None:
            inputs.real('--see', flags.see, 0.0, math.inf, open_low=True, open_high=True)
        answer = _answer(audit, eps_ub, flags.see)
        if flags.plot is not None:
            from oneshot.plan import plot

            plot.draw_plan(flags.plot, audit, answer['plans'][audit.method])
    except (ValueError, OSError) as error:
        print(f'{parser.prog}: {error}', file=sys.stderr)
        return 2
    if flags.json:
        print(json.dumps(_record(audit, eps_ub, answer), indent=2, ensure_ascii=False))
    else:
        _show(Console(), audit, eps_ub, answer)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog='python -m oneshot.plan',
        description='What an audit in one run will see, and how many guesses are best for it.',
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('--m', type=float, required=True, help='the number of canaries')
    noise = parser.add_mutually_exclusive_group(required=True)
    noise.add_argument('--eps', type=float, help='the claimed ε, from which σ follows')
    noise.add_argument('--noise-multiplier', '--sigma', type=float, help='σ')
    parser.add_argument('--delta', type=float, required=True, help='δ')
    parser.add_argument('--sampling-prob', '--q', type=float, default=1.0, help='q; default 1')
    parser.add_argument('--steps', type=float, default=1, help='default 1')
    parser.add_argument('--confidence', type=float, default=0.95, help='default 0.95')
    parser.add_argument('--score', default='llr', help=f'{", ".join(WEIGHINGS)}; default llr')
    parser.add_argument('--method', default='one_run', help=f'{", ".join(PLANNED_METHODS)}')
    parser.add_argument('--interference', type=float, default=0.0, help='default 0; see below')
    parser.add_argument('--see', type=float, help='an ε_LB: how many canaries does it take?')
    parser.add_argument('--plot', type=pathlib.Path, help='a .png to draw')
    parser.add_argument('--json', action='store_true', help='print JSON')
    return parser


def _audit(flags: argparse.Namespace) -> tuple[AuditSetting, float]:
    """The audit, and the ε that is claimed."""
    inputs.choice('--score', flags.score, WEIGHINGS)
    steps = inputs.count('--steps', flags.steps, 1, 10**7)
    q = inputs.real('--sampling-prob', flags.sampling_prob, 0.0, 1.0, open_low=True)
    m = inputs.count('--m', flags.m, 2, MOST_CANARIES)
    inputs.delta(flags.delta)
    sigma = flags.noise_multiplier
    if sigma is None:
        sigma = accounting.calibrate_noise(flags.eps, q, steps, flags.delta)
    scoring = Scoring(DPSGD(sigma, q, steps), flags.score, flags.interference)
    audit = AuditSetting(scoring, m, flags.delta, flags.confidence, flags.method)
    return audit, accounting.eps_upper_bound(sigma, q, steps, flags.delta)


def _answer(audit: AuditSetting, eps_ub: float, see: float | None) -> dict[str, Any]:
    """Every method's plan, and what is asked of the chosen one."""
    slow = {'fdp_dpsgd'} | ({'weighted'} if audit.m > 10**5 else set())
    shown = [name for name in PLANNED_METHODS if name == audit.method or name not in slow]
    plans = {name: plan_guesses(dataclasses.replace(audit, method=name)) for name in shown}
    answer = {'plans': plans, 'see': see}
    if see is not None:
        answer['needed'] = canaries_needed(audit, see)
    if audit.method != 'gaussian_pair':
        answer['planned'] = detectable_violation(audit, eps_ub, [plans[audit.method].rule])
        answer['any'] = detectable_violation(audit, eps_ub)
    return answer


def _words(rule: Rule) -> str:
    if rule is None:
        return 'all scores'
    if isinstance(rule, guess.Threshold):
        return f'above {rule.value:.4g}'
    if isinstance(rule, guess.Ranked):
        weights = np.asarray(rule.weights)
        return f'{np.count_nonzero(weights):,} by weight'
    return f'{rule[0]:,} in, {rule[1]:,} out'


def _show(console: Console, audit: AuditSetting, eps_ub: float, answer: dict[str, Any]) -> None:
    known = audit.scoring.claim
    console.print(
        f'DP-SGD, {known.steps:,} steps, q = {known.sampling_prob:.4g}, '
        f'σ = {known.noise_multiplier:.4g}: ε_UB = {eps_ub:.4g} at δ = {audit.delta:g}'
    )
    console.print(
        f'm = {audit.m:,} canaries, score {audit.scoring.weighing}, '
        f'{100 * audit.confidence:g} % confidence'
    )
    table = Table(title='the ε_LB to expect', title_justify='left')
    for name in ('method', 'guesses', 'ε_LB', 'kind', 'assumes'):
        table.add_column(name, no_wrap=name != 'assumes')
    for name, plan in answer['plans'].items():
        method = methods.METHODS[name]
        words = result.ASSUMPTIONS[method.assumptions]
        table.add_row(name, _words(plan.rule), f'{plan.eps_lb:.3f}', method.kind, words)
    console.print(table)
    if audit.method in COUNT_METHODS and answer['plans'][audit.method].grid:
        console.print(_grid_table(audit, answer['plans'][audit.method].grid))
    for line in _sentences(audit, eps_ub, answer):
        console.print(line)


def _grid_table(audit: AuditSetting, grid: dict[tuple[int, int], float]) -> Table:
    """Rows are guesses "in", columns are guesses "out"."""
    title = f'by {audit.method}: guesses "in" down, "out" across'
    table = Table(title=title, title_justify='left')
    sizes = candidate_counts(audit.m)
    for name in ('', *(f'{size:,}' for size in sizes)):
        table.add_column(name, justify='right')
    for k_plus in sizes:
        found = (grid.get((k_plus, k_minus)) for k_minus in sizes)
        table.add_row(f'{k_plus:,}', *('' if one is None else f'{one:.2f}' for one in found))
    return table


def _sentences(audit: AuditSetting, eps_ub: float, answer: dict[str, Any]) -> list[str]:
    """The answers to the questions, in words."""
    lines = []
    if answer['see'] is not None:
        needed = answer['needed']
        lines.append(
            f'To expect ε_LB ≥ {answer["see"]:g} by {audit.method}: '
            + (f'{needed:,} canaries.' if needed else f'more than {MOST_CANARIES:,} canaries.')
        )
    for name, words in (('planned', 'these guesses'), ('any', 'the best guesses for that')):
        if name not in answer:
            continue
        found = answer[name]
        claim = f'Noticed with {100 * POWER:g} % power by {audit.method} and {words}'
        if found is None:
            lines.append(f'{claim}: no lack of noise, however large.')
        else:
            share = found.noise_multiplier / audit.scoring.claim.noise_multiplier
            rule = '' if name == 'planned' else f' ({_words(found.rule)})'
            lines.append(
                f'{claim}{rule}: a true σ of {found.noise_multiplier:.3g}, '
                f'{100 * share:.0f} % of the claimed one'
                + (
                    f', down to {found.blind_below:.3g}, and not less.'
                    if found.blind_below
                    else '.'
                )
            )
    return lines


def _record(audit: AuditSetting, eps_ub: float, answer: dict[str, Any]) -> dict[str, Any]:
    """The answers for --json."""

    def plain(found: Violation | None) -> dict[str, Any] | None:
        if found is None:
            return None
        return {
            'noise_multiplier': found.noise_multiplier,
            'least_noise_multiplier': found.blind_below,
            'guesses': _plain_rule(found.rule),
        }

    plans = {
        name: {'guesses': _plain_rule(plan.rule), 'expected_eps_lb': plan.eps_lb}
        for name, plan in answer['plans'].items()
    }
    record = dataclasses.asdict(audit)
    scoring = record.pop('scoring')
    score = {'score': scoring.pop('weighing')}
    record = {'mechanism': scoring.pop('claim') | score | scoring} | record
    record |= {'eps_ub': eps_ub, 'plans': plans}
    if answer['see'] is not None:
        record['canaries_needed'] = {'eps_lb': answer['see'], 'm': answer['needed']}
    if 'any' in answer:
        record['noticed'] = {name: plain(answer[name]) for name in ('planned', 'any')}
        record['noticed']['power'] = POWER
    return record


def _plain_rule(rule: Rule) -> Any:
    if isinstance(rule, guess.Threshold):
        return {'threshold': rule.value}
    if isinstance(rule, guess.Ranked):
        return {'weights': list(rule.weights)}
    return None if rule is None else list(rule)


if __name__ == '__main__':
    sys.exit(main())
