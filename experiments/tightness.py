"""How much of ε the bounds find, beside what the planner predicts: simulated audits.

    python -m experiments.tightness           # eight minutes on two cores
    python -m experiments.tightness --repeats=5   # less of it, nothing is written

Dirac canaries of DP-SGD with q = 4096/50000, 2,000 steps, m = 5,000 and δ = 1e-5 at ε = 1, 2, 4
and 8: scores are simulated step by step, 200 times, and audited by every method with planned
guesses. Beside it the same with little noise (σ = 0.6, q = 0.02), where `llr` shows what it
is for, the paper's idealized Gaussian (m = 100,000, N(±1, 4), 2,000 times), and the f-DP bound
against that of jax_privacy on the same counts (of the extra `bench`). Writes results/tightness.csv,
results/tightness.png and results/fdp_agreement.csv.
"""

import argparse
import dataclasses
import itertools
import math
import pathlib
import time
from collections.abc import Iterator

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from experiments import csv_files, parallel
from experiments.csv_files import Row
from experiments.mechanisms import draw_scores
from oneshot import DPSGD, audit_scores, bounds
from oneshot.claims import accounting
from oneshot.plan import Scoring
from oneshot.plan.expected import AuditSetting, wrong_guesses
from oneshot.plan.search import plan_guesses
from oneshot.results.methods import METHODS

RESULTS = pathlib.Path(__file__).parent / 'results'
REPEATS = 200
DELTA = 1e-5
EPS = (1.0, 2.0, 4.0, 8.0)
REPORTED = (
    'one_run',
    'weighted',
    'fdp',
    'fdp_dpsgd',
    'clopper_pearson',
    'cp_gdp',
    'gaussian_pair',
)
NEEDED = {
    'one_run': (0.38, 0.91, 1.93, 3.30),
    'fdp': (0.51, 1.20, 2.57, 4.80),
    'cp_gdp': (0.53, 1.50, 3.28, 6.60),
    'gaussian_pair': (0.75, 1.72, 3.57, 6.95),
}
WORDS = ('case', 'score', 'method', 'guesses')
NUMBERS = ('eps', 'm', 'repeats', 'mean', 'error', 'above', 'predicted', 'planning', 'needed')
AGREEMENT = ('m', 'r', 'v', 'oneshot', 'jax_privacy', 'difference')


@dataclasses.dataclass(frozen=True)
class Case:
    """Scores that are simulated."""

    name: str
    scoring: Scoring
    m: int
    methods: tuple[str, ...]
    times: int = 1  # as many repeats as of the others

    @property
    def eps(self) -> float:
        return self.scoring.claim.eps(DELTA)


def cases() -> Iterator[Case]:
    """Every case, by `dot` and by `llr`."""
    q = 4096 / 50_000
    for eps in reversed(EPS):
        sigma = accounting.calibrate_noise(eps, q, 2_000, DELTA)
        for score in ('dot', 'llr'):
            yield Case(f'ε = {eps:g}', Scoring(DPSGD(sigma, q, 2_000), score), 5_000, REPORTED)
    for score in ('dot', 'llr'):
        yield Case('σ = 0.6', Scoring(DPSGD(0.6, 0.02, 2_000), score), 5_000, REPORTED)
    yield Case('N(±1, 4)', Scoring(DPSGD(1.0)), 100_000, ('one_run', 'fdp', 'cp_gdp'), times=10)


def simulate(index: int, repeats: int) -> list[Row]:
    """The case with this index by every method; its numbers depend on nothing else."""
    case = list(cases())[index]
    eps, plans, found = case.eps, {}, {}
    repeats *= case.times
    for method, rule in _audits(case):
        start = time.perf_counter()
        audit = AuditSetting(case.scoring, case.m, DELTA, 0.95, method)
        plans[method] = plan_guesses(audit).eps_lb, time.perf_counter() - start
        found[method, rule] = []
    for repeat in range(repeats):
        rng = np.random.default_rng([2410, 22235, index, repeat])
        included = rng.random(case.m) < 0.5
        scores = draw_scores(case.scoring, rng, included)
        for method, rule in found:
            result = audit_scores(
                scores,
                included,
                delta=DELTA,
                method=method,
                guesses=rule,
                mechanism=case.scoring,
            )
            found[method, rule].append(result.eps_lb)
    rows = []
    for (method, rule), values in found.items():
        predicted, planning = plans[method] if rule == 'planned' else (np.nan, np.nan)
        rows.append(
            {
                'case': case.name,
                'score': case.scoring.weighing,
                'method': method,
                'guesses': rule,
                'eps': eps,
                'm': case.m,
                'repeats': repeats,
                'mean': float(np.mean(values)),
                'error': float(np.std(values) / np.sqrt(repeats)),
                'above': int(np.sum(np.array(values) > eps)),
                'predicted': predicted,
                'planning': planning,
                'needed': _needed(case, method, rule),
            }
        )
    return rows


def idealized(case: Case) -> list[Row]:
    """The paper's protocol for N(±1, 4), its Figure guesses-eps: no audit, and no coins.

    The highest value, over the number of guesses, of the bound at the expected number of
    right ones, rounded up as the paper's 1,439 of 1,510 are.
    """
    law, rows = case.scoring.law(), []
    for method, halves in (('one_run', range(500, 1_000)), ('fdp', range(150, 700))):
        audit, found = AuditSetting(case.scoring, case.m, DELTA, 0.95, method), []
        for half in halves:
            chances = wrong_guesses(law, case.m, half, half)
            wrong = math.floor(np.arange(chances.size) @ chances)
            found.append(audit.eps_lb(audit.tally(2 * half, wrong)))
        empty = dict.fromkeys(NUMBERS, np.nan)
        words = dict(
            zip(WORDS, (case.name, case.scoring.weighing, method, 'expected'), strict=True)
        )
        needed = 3.36 if method == 'fdp' else np.nan
        numbers = {'eps': case.eps, 'm': case.m, 'mean': max(found), 'needed': needed}
        rows.append(empty | words | numbers)
    return rows


def _audits(case: Case) -> Iterator[tuple[str, str]]:
    """Methods and rules; without a plan, `one_run` as a base line."""
    yield 'one_run', 'preset'
    yield from ((method, 'planned') for method in case.methods)


def _needed(case: Case, method: str, rule: str) -> float:
    """What the bound has to find in the mean, where that is said."""
    if rule != 'planned' or method not in NEEDED or not case.name.startswith('ε'):
        return np.nan
    return dict(zip(EPS, NEEDED[method], strict=True))[round(case.eps)]


def agreement() -> list[Row]:
    """f-DP here and in jax_privacy, on the same counts of guesses "in"."""
    from jax_privacy import auditing

    rows = []
    for m, r, share in itertools.product(
        (200, 1_000, 5_000, 100_000), (20, 100, 500), (0.5, 0.6, 0.75, 0.9, 0.97, 1.0)
    ):
        right = round(share * r)
        if 2 * r > m:
            continue
        # m/2 of each kind, of which so many score above the threshold
        scores = [np.arange(m // 2) < count for count in (right, r - right)]
        auditor = auditing.CanaryScoreAuditor(*(one.astype(float) for one in scores))
        theirs = auditor.epsilon_one_run_fdp(
            0.05, DELTA, threshold_strategy=auditing.Explicit(threshold=0.5)
        )
        ours = bounds.fdp_eps_lower_bound(m, r, right, DELTA)
        numbers = m, r, right, ours, float(theirs), ours - float(theirs)
        rows.append(dict(zip(AGREEMENT, numbers, strict=True)))
    return rows


def show(rows: list[Row]) -> None:
    table = Table(title='mean ε_LB of simulated audits', title_justify='left')
    for name in ('case', 'ε', 'score', 'method', 'guesses', 'mean', '±', 'predicted', 'needed'):
        table.add_column(name, justify='left' if name in WORDS else 'right')
    for row in rows:
        table.add_row(
            row['case'],
            f'{row["eps"]:.3g}',
            *(row[name] for name in WORDS[1:]),
            f'{row["mean"]:.3f}',
            *(
                '' if np.isnan(row[name]) else f'{row[name]:.3f}'
                for name in ('error', 'predicted', 'needed')
            ),
        )
    Console(width=110).print(table)


def plot(rows: list[Row], path: pathlib.Path) -> None:
    figure = Figure(figsize=(7.5, 4.8), layout='constrained')
    axes = figure.subplots()
    axes.plot([0, 8], [0, 8], color='0.7', linestyle='--', label='ε itself')
    colors = dict(
        zip(
            REPORTED,
            ('black', 'tab:gray', 'tab:green', 'tab:olive', 'tab:cyan', 'tab:blue', 'tab:red'),
            strict=True,
        )
    )
    for method, color in colors.items():
        for score, style in (('dot', ':'), ('llr', '-')):
            own = [
                row
                for row in rows
                if row['method'] == method
                and row['score'] == score
                and row['guesses'] == 'planned'
                and row['case'].startswith('ε')
            ]
            own.sort(key=lambda row: row['eps'])
            kind = METHODS[method].kind
            label = f'{method}' + (' (an estimate)' if kind == 'estimate' else '')
            axes.plot(
                [row['eps'] for row in own],
                [row['mean'] for row in own],
                style,
                marker='.',
                color=color,
                label=label if score == 'llr' else None,
            )
    axes.set(xlabel='ε', ylabel='mean ε_LB')
    title = 'm = 5,000 Dirac canaries, 2,000 steps, planned guesses; dotted: dot, solid: llr'
    axes.set_title(title, loc='left', fontsize=10)
    axes.spines[['top', 'right']].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument(
        '--repeats', type=int, default=REPEATS, help='other than 200: nothing is written'
    )
    repeats = parser.parse_args().repeats
    count = len(list(cases()))
    rows = [row for found in parallel.simulate(simulate, count, repeats) for row in found]
    rows += idealized(list(cases())[-1])
    show(rows)
    same = agreement()
    worst = max(same, key=lambda row: abs(row['difference']))
    print(f'f-DP differs from jax_privacy by at most {abs(worst["difference"]):.2g}.')
    if repeats == REPEATS:
        csv_files.write(RESULTS / 'tightness.csv', rows, WORDS, NUMBERS)
        csv_files.write(RESULTS / 'fdp_agreement.csv', same, (), AGREEMENT)
        plot(rows, RESULTS / 'tightness.png')
        print(f'Written to {RESULTS.name}/tightness.csv, tightness.png and fdp_agreement.csv.')


if __name__ == '__main__':
    main()
