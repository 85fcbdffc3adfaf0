"""The choice of guesses with the largest expected ε_LB, before any score is seen."""

import dataclasses
import functools
import itertools
import math
from typing import Any

import numpy as np
import scipy

from oneshot import inputs
from oneshot.claims.claim import DPSGD
from oneshot.plan import expected
from oneshot.plan.expected import COUNT_METHODS, MOST_CANARIES, AuditSetting, Rule
from oneshot.plan.score_law import Scoring
from oneshot.results import guess
from oneshot.results.methods import METHODS

_SEARCH_NODES = 5  # numbers of wrong guesses at which a bound is computed while searching
_COARSE = 6  # numbers of guesses of a kind on the first grid
_MOST = 20_000  # guesses of a kind on it
_NEAR = {'adaptive': 'one_run', 'hoeffding': 'one_run', 'fdp_dpsgd': 'fdp'}
# At δ = 0 the ε of a Gaussian mechanism is ∞, and so are these bounds as soon as they show any.
_INFINITE_AT_0 = ('fdp', 'cp_gdp')
_SMALL_DELTA = 1e-12  # at which their guesses are chosen there


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to do, and what to expect of it.

    Attributes:
        audit: what was planned.
        rule: what `audit_scores` takes as `guesses`; None if the method makes none.
        grid: the expected ε_LB of other choices, by what was chosen, roughly.
    """

    audit: AuditSetting
    rule: Rule
    grid: dict[Any, float] = dataclasses.field(repr=False)

    @functools.cached_property
    def eps_lb(self) -> float:
        """The expected ε_LB, if the claim holds exactly."""
        return expected.expected_eps_lb(self.audit, self.rule)


@functools.lru_cache(maxsize=256)
def plan_guesses(audit: AuditSetting, start: tuple[int, int] | None = None) -> Plan:
    """The choice with the largest expected ε_LB.

    With `start`, numbers of guesses are looked for around it. A bound that is ∞ at δ = 0 tells
    no choice from another; there it is the best choice for a small δ.
    """
    near = {}
    if audit.method in _NEAR:  # which takes less time
        near = {'method': _NEAR[audit.method]}
    elif audit.delta == 0.0 and audit.method in _INFINITE_AT_0:
        near = {'delta': _SMALL_DELTA}
    if near:
        return Plan(audit, plan_guesses(dataclasses.replace(audit, **near), start).rule, {})
    if audit.method in COUNT_METHODS:
        return _best_counts(audit, start)
    if METHODS[audit.method].by_weights:
        return _best_weights(audit)
    if audit.method == 'gaussian_pair':
        return Plan(audit, None, {})
    return _best_threshold(audit)


def candidate_counts(m: int) -> list[int]:
    """Numbers of guesses of one kind, from none to half of all, or to as many as may be best."""
    most = min(m // 2, math.ceil(8.0 * m**0.65), _MOST)
    return [0, *np.unique(np.geomspace(min(10, most), most, _COARSE).astype(int)).tolist()]


def _best_counts(audit: AuditSetting, start: tuple[int, int] | None) -> Plan:
    """A coarse grid over both kinds of guesses, then ever smaller steps around its best."""
    law, m = audit.scoring.law(), audit.m

    @functools.cache
    def value(pair: tuple[int, int]) -> float:
        return expected.expected_for_guesses(audit, law, pair, _SEARCH_NODES)

    sizes = candidate_counts(m)
    grid = {}
    if start is None:
        grid = {(a, b): value((a, b)) for a in sizes for b in sizes if a + b > 0}
        start = max(grid, key=grid.get)
    chosen = start
    step = math.sqrt(sizes[-1] / sizes[-2]) if len(sizes) > 2 else 2.0
    for factor in (step, step**0.5, step**0.25):
        while True:
            around = [
                {max(0, min(round(k / factor), k - 1)), k, max(round(k * factor), k + 1)}
                for k in chosen
            ]
            near = itertools.product(*around)
            better = max((pair for pair in near if 0 < sum(pair) <= m), key=value)
            if value(better) <= value(chosen):
                break
            chosen = better
    return Plan(audit, chosen, grid)


def _best_weights(audit: AuditSetting) -> Plan:
    """Weights that grow with the log-odds of a guess, from where they exceed the ε to be shown.

    Against guesses that are right with odds e^ε, the likelihood ratio of guesses with
    log-odds l has the weights l − ε. They are cut off at 1, as Theorem main needs it.
    """
    law, m = audit.scoring.law(), audit.m
    level = plan_guesses(dataclasses.replace(audit, method='one_run')).eps_lb
    rates = expected.rank_rates(law, m, 'in'), expected.rank_rates(law, m, 'out')
    odds = [np.log1p(-np.minimum(rate, 0.5)) - np.log(rate) for rate in rates]
    values, rules = {}, {}
    for first in (0.9 * level, level, 1.1 * level):
        for width in (0.5, 1.0, 2.0):
            plus, minus = (
                np.rint(expected.LATTICE * np.clip((log_odds - first) / width, 0.0, 1.0))
                / expected.LATTICE
                for log_odds in odds
            )
            overlap = plus[::-1] >= minus  # of the two sides, the surer one guesses
            weights = np.where(overlap, plus[::-1], -minus)
            if weights.any():
                rule = rules[first, width] = guess.Ranked(tuple(weights.tolist()))
                values[first, width] = expected.expected_for_guesses(audit, law, rule, 3)
    if not values:  # nothing is to be expected
        weights = guess.top_k(np.arange(m), *guess.preset(m)).astype(float)
        return Plan(audit, guess.Ranked(tuple(weights.tolist())), {})
    chosen = max(values, key=values.get)
    return Plan(audit, rules[chosen], values)


def _best_threshold(audit: AuditSetting) -> Plan:
    """By the bound at the expected counts, first on a coarse grid, then around its best."""
    law, values = audit.scoring.law(), {}

    def value(share: float) -> float:
        """The bound where this share of canaries is guessed "in"."""
        if share not in values:
            rates = expected.rates(law, law.threshold(share))
            values[share] = audit.eps_lb(expected.tally_for_rates(audit.m, *rates))
        return values[share]

    edge = min(0.25, 4.0 / audit.m)
    shares = scipy.special.expit(np.linspace(-1.0, 1.0, 17) * -scipy.special.logit(edge)).tolist()
    for _ in range(3):
        middle = max(shares, key=value)
        logit, gap = scipy.special.logit(middle), np.diff(scipy.special.logit(sorted(shares)))
        near = logit + float(gap.min()) * np.array([-0.67, -0.33, 0.33, 0.67])
        shares = [middle, *scipy.special.expit(near).tolist()]
    share = max(values, key=values.get)
    return Plan(audit, guess.Threshold(law.threshold(share)), values)


def canaries_needed(audit: AuditSetting, eps_lb: float) -> int | None:
    """How many canaries it takes to expect at least this ε_LB; to 2 % above the least.

    None if MOST_CANARIES are not enough. `audit.m` is where the search begins.
    """
    eps_lb = inputs.real('eps_lb', eps_lb, 0.0, math.inf, ends='()')
    start: tuple[int, Rule] | None = None

    def enough(m: int) -> bool:
        nonlocal start
        around = None
        if start is not None and isinstance(start[1], tuple):
            scale = (m / start[0]) ** 0.6
            around = tuple(min(m // 2, max(1, round(k * scale))) for k in start[1])
        plan = plan_guesses(dataclasses.replace(audit, m=m), around)
        start = m, plan.rule
        return plan.eps_lb >= eps_lb

    low, high = 1, audit.m
    while not enough(high):
        if high == MOST_CANARIES:
            return None
        low, high = high, min(MOST_CANARIES, 4 * high)
    if low == 1:
        while high > 8 and enough(high // 4):
            high //= 4
        low = max(2, high // 4)
    while high - low > max(1, 0.02 * low):
        middle = round(math.sqrt(low * high))
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def plan_audit(
    claim: DPSGD,
    m: int,
    delta: float,
    *,
    confidence: float = 0.95,
    method: str = 'one_run',
    weighing: str = 'llr',
) -> Plan:
    """The best guesses for an audit of DP-SGD, and the ε_LB to expect of them.

    >>> import oneshot
    >>> plan = oneshot.plan_audit(oneshot.DPSGD(1.0, 0.1, 100), m=1000, delta=1e-5)
    >>> plan.rule
    (52, 21)
    >>> round(plan.eps_lb, 1)
    2.1

    Args:
        claim: the DP-SGD that is to be audited.
        m: the number of canaries.
        delta: δ of the claim.
        confidence: 1 − the probability that the bound may be wrong.
        method: any of `oneshot.results.METHODS` that takes one coin a canary.
        weighing: how the residual of Dirac canaries is scored, 'llr' or 'dot'.

    Returns:
        A `Plan`; `audit_scores` takes its `rule` as `guesses`.
    """
    return plan_guesses(AuditSetting(Scoring(claim, weighing), m, delta, confidence, method))
