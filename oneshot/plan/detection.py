"""Which violation an audit would notice: a true σ that is smaller than the claimed one."""

import dataclasses
import functools
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable

import numpy as np
import scipy

from oneshot.plan import expected
from oneshot.plan.expected import COUNT_METHODS, AuditSetting, Rule
from oneshot.plan.score_law import Law
from oneshot.plan.search import candidate_counts, plan_guesses
from oneshot.results import guess

POWER = 0.9

_LEAST_NOISE = 1.0 / 64.0  # of the claimed noise, where a violation is looked for
_NOISES = 25  # that are tried on the way


@dataclasses.dataclass(frozen=True)
class Violation:
    """The least violation that an audit notices often enough.

    Attributes:
        noise_multiplier: the largest true σ below the claimed one that is noticed.
        rule: the guesses with which it is.
        blind_below: the σ below which the same guesses no longer notice it; 0 if they notice
            any. A threshold for `llr` is for noise as it is claimed, and goes blind where
            there is far less.
    """

    noise_multiplier: float
    rule: Rule
    blind_below: float = 0.0


def detectable_violation(
    audit: AuditSetting, eps: float, rules: Iterable[Rule] | None = None, power: float = POWER
) -> Violation | None:
    """The largest true σ below the claimed one with which the claim is rejected so often.

    Args:
        audit: the audit, with the claimed σ in its claim.
        eps: the claimed ε, which is rejected where ε_LB > eps.
        rules: choices of guesses, of which the most powerful is taken; by default many.
        power: the probability with which the claim is to be rejected.

    Returns:
        The violation, to 1 % in σ. None if no σ down to a 64th of the claimed one is noticed
        so often, as where there are too few guesses.
    """
    rules = _rules(audit) if rules is None else rules
    tests = {rule: test for rule in rules if (test := _power(audit, rule, eps)) is not None}
    if not tests:
        return None
    sigma = audit.scoring.claim.noise_multiplier

    def noticed(share: float) -> tuple[float, Rule]:
        law = audit.scoring.law(sigma * share)
        return max(((test(law), rule) for rule, test in tests.items()), key=lambda pair: pair[0])

    # Less noise need not be noticed more often: a threshold and `llr` are for the claimed one.
    high, *shares = np.geomspace(1.0, _LEAST_NOISE, _NOISES).tolist()
    for low in shares:
        chance, rule = noticed(low)
        if chance >= power:
            break
        high = low
    else:
        return None
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        chance, better = noticed(middle)
        if chance >= power:
            low, rule = middle, better
        else:
            high = middle
    test, still_noticed = tests[rule], low
    for share in (share for share in shares if share < low):
        if test(audit.scoring.law(sigma * share)) < power:
            return Violation(low * sigma, rule, still_noticed * sigma)
        still_noticed = share
    return Violation(low * sigma, rule)


def _rules(audit: AuditSetting) -> list[Rule]:
    """The guesses that are planned, and others that may notice more."""
    plan = plan_guesses(audit)
    if isinstance(plan.rule, guess.Threshold):
        law = audit.scoring.law()
        return [plan.rule, *(guess.Threshold(law.threshold(share)) for share in (0.5, 0.7))]
    if audit.method not in COUNT_METHODS:
        return [plan.rule]
    return [plan.rule, *((k, k) for k in candidate_counts(audit.m) if k > 0)]


@functools.lru_cache(maxsize=64)
def _power(audit: AuditSetting, rule: Rule, eps: float) -> Callable[[Law], float] | None:
    """P[the claim is rejected], as a function of how the scores are really distributed.

    None if it is not rejected even where every guess is right.
    """
    if rule is None:
        raise ValueError('An estimate rejects no claim: method gaussian_pair has no power.')
    if isinstance(rule, guess.Threshold):
        return _power_of_threshold(audit, rule, eps)
    most, tally, chances = expected.outcomes(audit, rule)
    least = bisect_left(
        range(most + 1), True, key=lambda right: audit.rejects(tally(most - right), eps)
    )
    if least > most:
        return None
    return lambda law: float(chances(law)[: most - least + 1].sum())


def _power_of_threshold(
    audit: AuditSetting, rule: guess.Threshold, eps: float
) -> Callable[[Law], float] | None:
    n_in, n_out = audit.m // 2, audit.m - audit.m // 2

    def rejects(hits: int, alarms: int) -> bool:
        tally = expected.tally_for_rates(audit.m, hits / n_in, alarms / n_out)
        return audit.eps_lb(tally) > eps

    # At some numbers of alarms, and interpolated between them.
    nodes = np.unique(np.rint(n_out * np.linspace(0.0, 1.0, 9) ** 2).astype(int))
    needed = [
        bisect_left(range(n_in + 1), True, key=functools.partial(rejects, alarms=alarms))
        for alarms in nodes.tolist()
    ]
    if min(needed) > n_in:
        return None

    def power(law: Law) -> float:
        hits, alarms = expected.rates(law, rule.value)
        spread = math.sqrt(n_out * alarms * (1.0 - alarms))
        counts = np.clip(n_out * alarms + spread * expected.NORMAL_POINTS, 0.0, n_out)
        hits_needed = np.ceil(np.interp(counts, nodes, needed))
        chances = scipy.stats.binom.sf(hits_needed - 1, n_in, hits)
        return float(expected.NORMAL_WEIGHTS @ chances / expected.NORMAL_WEIGHTS.sum())

    return power
