"""Figure valid_or_best: how often a bound is above the true ε, by how guesses are chosen."""

import sys

import matplotlib.figure
import numpy as np
import scipy.stats

from experiments.csv_files import Row
from experiments.figures import figure, style
from experiments.figures.figure import Claim
from experiments.figures.sweep import CORES, Sweep
from experiments.figures.training import ALARM
from experiments.mechanisms import RandomizedResponse
from oneshot import bounds
from oneshot.results import guess

TITLE = 'how often a bound is above the true ε, by how guesses are chosen'
PAPER_SAYS = (
    '"we … only report the highest auditing results. Since this is doing multiple hypothesis '
    'testing on the same data, we are reducing the confidence value". By how much?'
)

M, CONFIDENCE = 1_000, 0.95
EPS = 0.0, 0.5, 1.0, 2.0, 4.0
ONE = 1.0  # of which ε_LB is shown
RUNS, SHOWN = 20_000, 500  # audits for the shares, and those of which ε_LB is found
RULES = {
    'preset': 'k from m alone',
    'grid': 'the best of 5 numbers k, paid for',
    'best_of_all': 'the best of all k, as in the paper',
}


def sweep(full: bool, data_dir: str | None) -> Sweep:
    """Randomized response, of which ε is known exactly and the bound is tight."""
    settings = [{'part': 'share', 'eps': eps} for eps in EPS] + [{'part': 'audit', 'eps': ONE}]
    numbers = 'eps', 'runs', 'above', 'run', 'eps_lb'

    def alone(setting: Row) -> tuple:
        return tuple(setting.values())

    return Sweep(settings, measure, ('part', 'rule'), numbers, alone, CORES)


def pairs(rule: str) -> list[tuple[int, int]]:
    """The numbers of guesses that a rule looks at."""
    if rule == 'preset':
        return [guess.preset(M)]
    return list(guess.Grid.preset(M).pairs) if rule == 'grid' else guess.counts_for_best_of_all(M)


def confidence(rule: str) -> float:
    """Of each of them; in a grid they share it, and `best_of_all` does not pay."""
    return 1.0 - (1.0 - CONFIDENCE) / len(pairs(rule)) if rule == 'grid' else CONFIDENCE


def right(eps: float, run: int) -> tuple[np.ndarray, np.ndarray]:
    """How many of the surest 0, 1, 2 … guesses "in" and "out" are right, in one run."""
    rng = np.random.default_rng([2305, 8846, round(10 * eps), run])
    scores, included = RandomizedResponse(M, eps).sample(rng)
    ranked = included[guess.order(scores)]
    inside, outside = np.cumsum(ranked[::-1]), np.cumsum(~ranked)
    return np.concatenate([[0], inside]), np.concatenate([[0], outside])


NONE = {'run': np.nan, 'eps_lb': np.nan}  # of a row that is no single audit


def measure(setting: Row) -> list[Row]:
    return (shares if setting['part'] == 'share' else audits)(setting['eps'])


def shares(eps: float) -> list[Row]:
    """ε_LB > ε if the p-value of ε is below 1 − confidence."""
    enough = {}
    for rule in RULES:
        for pair in pairs(rule):
            r = sum(pair)
            p_values = bounds.p_value(M, r, np.arange(r + 1), eps, 0.0)
            enough[rule, pair] = int(np.sum(p_values >= 1.0 - confidence(rule)))
    above = dict.fromkeys(RULES, 0)
    for run in range(RUNS):
        inside, outside = right(eps, run)
        for rule in RULES:
            above[rule] += any(
                inside[a] + outside[b] >= enough[rule, (a, b)] for a, b in pairs(rule)
            )
    return [{'rule': rule, 'runs': RUNS, 'above': above[rule]} | NONE for rule in RULES]


def audits(eps: float) -> list[Row]:
    rows, known = [], {}
    for run in range(SHOWN):
        inside, outside = right(eps, run)
        for rule in RULES:
            found = []
            for a, b in pairs(rule):
                given = a + b, int(inside[a] + outside[b]), confidence(rule)
                if given not in known:
                    known[given] = bounds.eps_lower_bound(M, *given[:2], 0.0, given[2])
                found.append(known[given])
            rows.append({'rule': rule, 'runs': np.nan, 'above': np.nan, 'run': run})
            rows[-1]['eps_lb'] = max(found)
    return rows


def of(rows: list[Row], rule: str) -> list[Row]:
    return [row for row in rows if row['part'] == 'share' and row['rule'] == rule]


def draw(rows: list[Row]) -> matplotlib.figure.Figure:
    title = 'Randomized response, m = 1,000, bounds with "95 % confidence"'
    labels = ('true ε', 'share of audits with ε_LB > ε'), ('ε_LB at ε = 1', 'share of audits below')
    drawn, (left, right_axes) = style.panels(title, labels)
    colors = style.OURS, style.PAPERS_SCORE, style.CHOSEN
    for (rule, words), color in zip(RULES.items(), colors, strict=True):
        own = of(rows, rule)
        share = [row['above'] / row['runs'] for row in own]
        left.plot([row['eps'] for row in own], share, 'o-', color=color, label=words)
        found = np.sort(
            [row['eps_lb'] for row in rows if row['part'] == 'audit' and row['rule'] == rule]
        )
        right_axes.ecdf(found, color=color, label=words)
    left.axhline(0.05, **style.TRUTH, label='what was promised, and the truth')
    left.set_ylim(0, None)
    right_axes.axvline(ONE, **style.TRUTH)
    return drawn


def measured(rows: list[Row]) -> list[str]:
    found = []
    for rule, words in RULES.items():
        share = ', '.join(
            f'{row["above"] / row["runs"]:.1%} ({row["eps"]:g})' for row in of(rows, rule)
        )
        found.append(f'{words}: above the true ε in {share} of {RUNS:,} audits.')
    return found


def claims(rows: list[Row]) -> list[Claim]:
    """By exact binomial tests, which alarm falsely in at most one of 10⁶ cases."""
    found = []
    for rule, words in RULES.items():
        exceeded = [
            scipy.stats.binomtest(int(row['above']), int(row['runs']), 0.05, 'greater').pvalue
            for row in of(rows, rule)
        ]
        if rule == 'best_of_all':
            text, holds = f'{words}: wrong in more than 5 % of runs', max(exceeded) < ALARM
            evidence = f'largest p-value of at most 5 %: {max(exceeded):.1g}'
        else:
            text, holds = f'{words}: wrong in at most 5 % of runs', min(exceeded) > ALARM
            evidence = f'least p-value of at most 5 %: {min(exceeded):.2g}'
        found.append(Claim(text, holds, evidence))
    return found


def differs(rows: list[Row]) -> str:
    share = next(row['above'] / row['runs'] for row in of(rows, 'best_of_all') if row['eps'] == ONE)
    most = max(row['eps_lb'] for row in rows if row['rule'] == 'best_of_all' and row['run'] >= 0)
    return (
        'With randomized response every number of guesses is as good as its sampling error, so '
        'that what the best of all gains is luck. '
        f'At ε = {ONE:g} it is too large in {share:.0%} of audits, and in the worst of {SHOWN} '
        f'it is {most:.2f}. Naming a few numbers and paying for all of them is valid, and finds '
        'more than one number does.'
    )


if __name__ == '__main__':
    sys.exit(figure.main('valid_or_best'))
