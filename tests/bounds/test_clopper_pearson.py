import functools
import itertools
import math
import random

import mpmath
import numpy as np
import pytest
import scipy
from mpmath import mpf

from oneshot import bounds
from oneshot.bounds.assuming import clopper_pearson
from tests import reference  # sets 50 digits

_NORMAL = scipy.stats.norm


def _outcomes(n_in, n_out):
    return list(itertools.product(range(n_in + 1), range(n_out + 1)))


def _chances(n_in, n_out, tpr, fpr):
    """The probability of each outcome, a row for each pair of rates."""
    hits = scipy.stats.binom.pmf(np.arange(n_in + 1), n_in, tpr[:, np.newaxis])
    alarms = scipy.stats.binom.pmf(np.arange(n_out + 1), n_out, fpr[:, np.newaxis])
    return np.einsum('ij,ik->ijk', hits, alarms).reshape(len(tpr), -1)


def _least_just_below(found):
    """Claims that the bound exceeds: none between two of them is exceeded more often."""
    return [one - 1e-9 for one in sorted(set(found)) if one > 1e-9]


@pytest.mark.parametrize('case', range(20))
def test_the_limits_against_50_digits(case):
    draw = random.Random(case)
    n = draw.choice([1, 7, 300, 2500, 10**5])
    k = draw.randint(0, n - 1)
    level = draw.choice([0.4, 0.025, 1e-4, 1e-12, 1e-30])
    limit = clopper_pearson._upper_limit(n, k, level)
    miss = mpf(1) - mpf(limit)  # k or fewer of n are n − k or more of the others
    assert reference.binomial_survival(n, n - k, miss / limit) == pytest.approx(level, rel=1e-7)
    other = clopper_pearson._lower_limit(n, n - k, level)
    assert other == pytest.approx(1 - limit, rel=1e-9)
    assert clopper_pearson._upper_limit(n, n, level) == 1.0
    assert clopper_pearson._lower_limit(n, 0, level) == 0.0


def test_eps_is_that_of_the_limits():
    """2,500 each, 1,900 hits and 500 alarms at δ = 1e-3."""
    a = mpmath.findroot(
        lambda p: mpmath.log(reference.binomial_survival(2500, 2000, (1 - p) / p) / 0.025), 0.22
    )
    b = mpmath.findroot(
        lambda p: mpmath.log(reference.binomial_survival(2500, 1900, (1 - p) / p) / 0.025), 0.26
    )
    expected = max(mpmath.log((1 - mpf(1e-3) - b) / a), mpmath.log((1 - mpf(1e-3) - a) / b))
    found = bounds.clopper_pearson_eps_lower_bound(2500, 1900, 2500, 500, 1e-3)
    assert found == pytest.approx(float(expected), rel=1e-10)
    mu = bounds.cp_gdp_mu_lower_bound(2500, 1900, 2500, 500, plain=True)
    assert mu == pytest.approx(-_NORMAL.ppf(float(a)) - _NORMAL.ppf(float(b)), rel=1e-10)


@pytest.mark.parametrize(('n_in', 'n_out', 'level'), [(12, 12, 0.05), (5, 12, 0.2), (12, 4, 0.1)])
@pytest.mark.parametrize('plain', [False, True])
def test_gdp_is_wrong_at_most_as_often_as_it_says(n_in, n_out, level, plain):
    """Exactly: all outcomes, every μ that matters, and 400 false positive rates."""
    found = np.array(
        [
            bounds.cp_gdp_mu_lower_bound(n_in, hits, n_out, alarms, 1 - level, plain=plain)
            for hits, alarms in _outcomes(n_in, n_out)
        ]
    )
    fpr = np.sin(np.linspace(0, math.pi / 2, 402)[1:-1]) ** 2
    worst = 0.0
    for mu in _least_just_below(found):
        tpr = _NORMAL.cdf(_NORMAL.ppf(fpr) + mu)
        worst = max(worst, (_chances(n_in, n_out, tpr, fpr) @ (found > mu)).max())
    assert worst <= level
    assert plain or worst > 0.8 * level  # and little is given away
    assert found.max() > 0.5


@pytest.mark.parametrize('delta', [0.0, 0.1])
def test_eps_is_wrong_at_most_as_often_as_it_says(delta):
    n, level = 12, 0.1
    found = np.array(
        [
            bounds.clopper_pearson_eps_lower_bound(n, hits, n, alarms, delta, 1 - level)
            for hits, alarms in _outcomes(n, n)
        ]
    )
    fpr = np.sin(np.linspace(0, math.pi / 2, 402)) ** 2
    for eps in _least_just_below(found):
        most = np.minimum(math.exp(eps) * fpr + delta, 1 - math.exp(-eps) * (1 - delta - fpr))
        chances = _chances(n, n, np.clip(most, 0.0, 1.0), fpr)
        assert (chances @ (found > eps)).max() <= level
    assert found.max() > 0.5


def _brute_force(n_in, hits, n_out, alarms, mu, level):
    """P[T ≥ t] at its largest over 2,000 false positive rates, one outcome after another."""

    def statistic(hits, alarms):
        def upper(n, k):  # the score limit: (u − k/n)² = 2·u·(1 − u)/n, the larger root
            roots = np.roots([1 + 2 / n, -2 * k / n - 2 / n, (k / n) ** 2])
            return float(np.max(roots.real))

        return -_NORMAL.ppf(upper(n_in, n_in - hits)) - _NORMAL.ppf(upper(n_out, alarms))

    seen = statistic(hits, alarms)
    extreme = np.array([statistic(*one) >= seen - 1e-9 for one in _outcomes(n_in, n_out)])
    interval = level / 100
    first = scipy.stats.beta.ppf(interval, alarms, n_out - alarms + 1) if alarms else 1e-12
    last = scipy.stats.beta.isf(interval, alarms + 1, n_out - alarms)
    fpr = np.linspace(first, last, 2000)
    return (_chances(n_in, n_out, _NORMAL.cdf(_NORMAL.ppf(fpr) + mu), fpr) @ extreme).max()


@pytest.mark.parametrize(('n_in', 'n_out'), [(6, 6), (3, 8), (9, 2)])
def test_the_joint_test_against_brute_force(n_in, n_out):
    """Every outcome: never above what brute force finds, and close to it."""
    for hits, alarms in _outcomes(n_in, n_out):
        if hits == 0 or alarms == n_out:
            assert bounds.cp_gdp_mu_lower_bound(n_in, hits, n_out, alarms, 0.8) == 0.0
            continue
        mu = bounds.cp_gdp_mu_lower_bound(n_in, hits, n_out, alarms, 0.8)
        chance = _brute_force(n_in, hits, n_out, alarms, mu, 0.2)
        if mu > 0:
            assert 0.97 * 0.196 <= chance <= 0.196
        else:
            assert chance >= 0.97 * 0.196
        joint = clopper_pearson._Joint(n_in, n_in - hits, n_out, alarms, 0.2)
        for mu in (0.0, 0.5, 3.0):
            p = _NORMAL.cdf(joint.excess(mu) + joint.target)
            chance = _brute_force(n_in, hits, n_out, alarms, mu, 0.2)
            assert chance <= p + 1e-9
            assert p <= chance * 1.2 + 1e-6  # cells are wide where canaries are few


def test_the_joint_test_is_tighter():
    """At the mean counts of N(μ, 1) against N(0, 1) and thresholds near and far."""
    n = 2500
    for mu, threshold in itertools.product((0.3, 1.0, 1.6), (0.0, 1.0, 2.0)):
        fpr = _NORMAL.sf(threshold)
        hits, alarms = round(n * _NORMAL.sf(threshold - mu)), round(n * fpr)
        joint = bounds.cp_gdp_mu_lower_bound(n, hits, n, alarms)
        assert joint > bounds.cp_gdp_mu_lower_bound(n, hits, n, alarms, plain=True) + 0.03
        variance = sum(p * (1 - p) / _NORMAL.pdf(_NORMAL.ppf(p)) ** 2 for p in (fpr, hits / n)) / n
        assert joint == pytest.approx(
            mu - 1.645 * math.sqrt(variance), abs=0.1 * math.sqrt(variance) + 0.01
        )


def test_the_bound_holds_for_two_normals():
    """At most 5 % of 1,500 runs, plus 6 deviations: fails by chance with less than 1e-8."""
    rng, n, mu, runs, wrong = np.random.default_rng(0), 100, 1.0, 1500, 0
    p_value = functools.cache(bounds.cp_gdp_p_value)
    for _ in range(runs):
        hits, alarms = (int(np.sum(rng.normal(mean, size=n) > 0.5)) for mean in (mu, 0.0))
        wrong += p_value(n, hits, n, alarms, mu) <= 0.05
    assert wrong <= 0.05 * runs + 6 * math.sqrt(0.05 * 0.95 * runs)
    assert wrong >= 0.05 * runs / 3  # a valid test that wastes little


def test_p_values_reject_what_the_bounds_exclude():
    for counts in ((100, 80, 120, 30), (2500, 1800, 2500, 700), (50, 50, 50, 0)):
        for level in (0.2, 0.05, 1e-3):
            eps = bounds.clopper_pearson_eps_lower_bound(*counts, 1e-5, 1 - level)
            mu = bounds.cp_gdp_mu_lower_bound(*counts, 1 - level)
            assert eps > 0
            assert mu > 0
            p = bounds.clopper_pearson_p_value(*counts, eps, 1e-5)
            assert p == pytest.approx(level, rel=1e-8)
            assert bounds.cp_gdp_p_value(*counts, mu) == pytest.approx(level, rel=1e-5)
            for near, rejected in ((1 - 1e-4, True), (1 + 1e-4, False)):
                p = bounds.clopper_pearson_p_value(*counts, eps * near, 1e-5)
                assert (p <= level) == rejected
                assert (bounds.cp_gdp_p_value(*counts, mu * near) <= level) == rejected
            told = bounds.cp_gdp_eps_lower_bound(*counts, 1e-5, 1 - level)
            assert told == bounds.gaussian_eps(1e-5, 1.0, mu)


def test_monotone():
    """More hits, fewer alarms, more risk: a larger bound; a larger claim: a larger p-value."""
    for bound in (
        lambda hits, alarms, confidence=0.95: bounds.clopper_pearson_eps_lower_bound(
            60, hits, 50, alarms, 1e-3, confidence
        ),
        lambda hits, alarms, confidence=0.95: bounds.cp_gdp_mu_lower_bound(
            60, hits, 50, alarms, confidence
        ),
    ):
        found = [bound(hits, 12) for hits in range(0, 61, 4)]
        assert found == sorted(found)
        found = [bound(40, alarms) for alarms in range(50, -1, -5)]
        assert found == sorted(found)
        assert found[0] == 0.0 < found[-1]
        found = [bound(40, 12, confidence) for confidence in (1 - 1e-9, 0.99, 0.95, 0.5, 0.01)]
        assert found == sorted(found)
    for p in (
        lambda claim: bounds.clopper_pearson_p_value(60, 50, 50, 10, claim, 1e-3),
        lambda claim: bounds.cp_gdp_p_value(60, 50, 50, 10, claim),
    ):
        found = [p(claim) for claim in (0.0, 0.1, 0.5, 1.0, 2.0, 5.0, math.inf)]
        assert found == sorted(found)
        assert found[0] < 1e-4
        assert found[-1] == 1.0


def _all(*counts, delta=1e-5):
    return (
        bounds.clopper_pearson_eps_lower_bound(*counts, delta),
        bounds.cp_gdp_mu_lower_bound(*counts),
        bounds.cp_gdp_mu_lower_bound(*counts, plain=True),
        bounds.cp_gdp_eps_lower_bound(*counts, delta),
    )


def test_edges():
    for counts in (
        (0, 0, 0, 0),
        (0, 0, 5, 2),
        (5, 5, 0, 0),
        (9, 0, 9, 9),
        (9, 0, 9, 0),
        (9, 9, 9, 9),
    ):
        assert _all(*counts) == (0.0, 0.0, 0.0, 0.0)
        assert bounds.cp_gdp_p_value(*counts, 0.0) == 1.0
        assert bounds.clopper_pearson_p_value(*counts, 0.0, 0.0) > 0.05
    for counts in ((100, 100, 100, 0), (10**7, 10**7, 10**7, 0), (1, 1, 10**6, 0)):
        assert all(0.0 < one < math.inf for one in _all(*counts))
    eps, mu, _, gdp_eps = _all(100, 90, 100, 10, delta=1.0)
    assert (eps, gdp_eps) == (0.0, 0.0)
    assert mu > 1.0
    eps, _, _, gdp_eps = _all(100, 90, 100, 10, delta=0.0)
    assert 1.0 < eps < gdp_eps == math.inf
    assert bounds.clopper_pearson_p_value(100, 90, 100, 10, 0.0, 1.0) == 1.0
    assert bounds.clopper_pearson_p_value(100, 90, 100, 10, math.inf, 0.0) == 1.0
    assert bounds.clopper_pearson_p_value(10**5, 10**5, 10**5, 0, 0.0, 0.0) == 1e-40
    assert bounds.cp_gdp_p_value(10**5, 10**5, 10**5, 0, 0.0) == 1e-40
    assert bounds.cp_gdp_p_value(100, 90, 100, 10, 1e9) == 1.0
    assert _all(100.0, 90.0, 100.0, 10.0) == _all(100, 90, 100, 10)
    assert bounds.clopper_pearson_eps_lower_bound(10**12, 10**12, 10**12, 0, 0.0) > 20
    with pytest.raises(ValueError, match=r'hits, .* must be a whole number from 0 to 10'):
        bounds.cp_gdp_mu_lower_bound(10, 11, 10, 0)
    with pytest.raises(ValueError, match=r'alarms, .* must be a whole number from 0 to 10'):
        bounds.clopper_pearson_eps_lower_bound(10, 10, 10, 11, 0.0)


@pytest.mark.parametrize('counts', [(10**7, 10**6), (10, 10**7), (10**7, 10)])
def test_many_canaries(counts):
    n_in, n_out = counts
    found = bounds.cp_gdp_mu_lower_bound(n_in, n_in * 9 // 10, n_out, n_out // 10)
    plain = bounds.cp_gdp_mu_lower_bound(n_in, n_in * 9 // 10, n_out, n_out // 10, plain=True)
    assert plain < found < 2 * _NORMAL.ppf(0.9)
