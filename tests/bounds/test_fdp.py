import math
import random

import mpmath
import numpy as np
import pytest
import scipy
from mpmath import mpf

from oneshot import bounds
from oneshot.bounds.assuming import fdp
from oneshot.results import guess
from oneshot.results.methods import Tally, audit_tally
from tests import reference  # sets 50 digits


def _reference(m, r, v, curve, beta):
    """R_0 + H_0, by the recursion as it is printed."""
    right, wrong = mpf(beta) * v / m, mpf(beta) * (r - v) / m
    for j in range(v - 1, -1, -1):
        wider = max(wrong, curve(min(mpf(1), right)))
        right, wrong = right + mpf(j) / (r - j) * (wider - wrong), wider
    return right + wrong


def _gaussian(mu):
    """Φ(Φ⁻¹(y) − μ) in 50 digits."""

    def inverse(y):
        if y >= 1:
            return mpf(1)
        start = mpf(float(scipy.special.ndtri(float(y))))
        quantile = mpmath.findroot(lambda x: mpmath.log(mpmath.ncdf(x) / y), start)
        return mpmath.ncdf(quantile - mpf(mu))

    return inverse


def test_the_facts():
    """N(S, 4) on 100,000 coins, 484 right of 500: 3.358, of 4.38 in truth."""
    assert bounds.fdp_eps_lower_bound(10**5, 500, 484, 1e-5) == pytest.approx(3.358, abs=5e-4)
    mu = bounds.gdp_mu_lower_bound(10**5, 500, 484)
    assert bounds.fdp_eps_lower_bound(10**5, 500, 484, 1e-5) == bounds.gaussian_eps(1e-5, 1 / mu)


@pytest.mark.parametrize('case', range(12))
def test_p_values_against_50_digits(case):
    draw = random.Random(case)
    m = draw.choice([50, 1000, 10**7])
    r = draw.randint(20, 50)
    v = draw.randint(r // 2 + 5, r)
    mu = draw.uniform(0.0, 1.5)
    p = bounds.fdp_p_value(m, r, v, bounds.gaussian_curve(mu))
    if p == 1:
        assert _reference(m, r, v, _gaussian(mu), 1) <= mpf(r) / m * (1 + mpf(10) ** -40)
    else:
        below, above = (_reference(m, r, v, _gaussian(mu), p * (1 + x)) for x in (-1e-9, 1e-9))
        assert below < mpf(r) / m < above
    found = bounds.gdp_mu_lower_bound(m, r, v, 0.95)
    if found > 0:
        level = 1.0 - 0.95
        assert _reference(m, r, v, _gaussian(found - 1e-9), level) > mpf(r) / m
        assert _reference(m, r, v, _gaussian(found + 1e-9), level) < mpf(r) / m


def test_the_gaussian_reference_is_right():
    assert reference.mp.dps == 50
    assert float(_gaussian(0.7)(mpf('0.3'))) == pytest.approx(
        scipy.stats.norm.cdf(scipy.stats.norm.ppf(0.3) - 0.7), rel=1e-12
    )


@pytest.mark.parametrize(
    'curve',
    [
        fdp.gaussian_curve(1.3),
        fdp.approximate_curve(0.8, 0.1),
        fdp.envelope_curve([0.0, 0.5, 1.0], [0.4, 0.2, 0.1]),
    ],
)
def test_curves_invert_a_blow_up(curve):
    """Convex, increasing, at most y, and symmetric as f is: 1 − inverse is the blow-up at 1 − y."""
    y = np.linspace(0, 1, 201)
    x = np.array([curve(one) for one in y])
    assert x[0] == 0.0
    assert (np.diff(x) >= -1e-15).all()
    assert (np.diff(x, 2) >= -1e-12).all()
    assert (x <= y + 1e-15).all()
    for one in y[(x > 0) & (x < 1)]:
        assert curve(1.0 - curve(one)) == pytest.approx(1.0 - one, abs=1e-9)


@pytest.mark.parametrize('case', range(20))
def test_the_envelope_is_the_largest_of_its_curves(case):
    draw = random.Random(case)
    size, most = draw.randint(1, 30), draw.choice([0.1, 3.0, 30.0, 700.0])
    eps = [draw.choice([0.0, draw.uniform(0.0, most)]) for _ in range(size)]
    delta = [draw.choice([0.0, 1.0, draw.random(), 10 ** draw.uniform(-12, 0)]) for _ in eps]
    envelope = bounds.envelope_curve(eps, delta)
    curves = [bounds.approximate_curve(*pair) for pair in zip(eps, delta, strict=True)]
    some = [draw.random() for _ in range(100)]
    for y in [0.0, 1.0, *some, *(one**9 for one in some), *(1.0 - one**9 for one in some)]:
        largest = max(curve(y) for curve in curves)
        assert largest - 1e-12 <= envelope(y) <= largest + 1e-15


def test_the_envelope_comes_close_to_the_curve():
    """(ε, δ(ε)) of a Gaussian mechanism at 400 values of ε are nearly the mechanism."""
    eps = np.linspace(0.0, 12.0, 400)
    envelope = bounds.envelope_curve(eps, bounds.gaussian_delta(eps, 1.0))
    exact = bounds.gaussian_curve(1.0)
    for y in 10 ** np.linspace(-6, 0, 100):
        assert exact(y) * (1 - 1e-3) <= envelope(y) <= exact(y) + 1e-12
    for counts in ((1000, 100, 90), (10**5, 500, 484), (100, 100, 75)):
        close, p = (bounds.fdp_p_value(*counts, curve) for curve in (envelope, exact))
        assert p <= close <= p * 1.05


def test_approximate_curve_bounds_what_randomized_response_does():
    """Each of r guesses is right with probability e^ε/(e^ε + 1): the p-value is no smaller."""
    eps, r = 1.0, 60
    for v in range(30, 61):
        exact = scipy.stats.binom.sf(v - 1, r, math.exp(eps) / (1 + math.exp(eps)))
        assert bounds.fdp_p_value(r, r, v, bounds.approximate_curve(eps, 0.0)) >= exact * (1 - 1e-9)


@pytest.mark.parametrize('kinds', [(40, 40), (80, 0)])
def test_the_bound_holds_for_the_gaussian_mechanism(kinds):
    """At most 5 % of 4,000 runs, plus 6 deviations: fails by chance with less than 1e-8."""
    rng, m, mu, runs, wrong = np.random.default_rng(0), 400, 1.0, 4000, 0
    least = {}
    for _ in range(runs):
        included = rng.random(m) < 0.5
        guesses = guess.top_k(rng.normal(mu * included), *kinds)
        v = int(np.sum(guesses * np.where(included, 1, -1) > 0))
        if v not in least:
            least[v] = bounds.gdp_mu_lower_bound(m, sum(kinds), v)
        wrong += least[v] > mu
    assert wrong <= 0.05 * runs + 6 * math.sqrt(0.05 * 0.95 * runs)
    assert max(least.values()) > 0.5  # and it finds something


def test_a_claim_is_told_as_its_gaussian():
    """The claim is rejected at 95 % exactly where the bound is above it."""
    for eps, delta in ((0.1, 1e-5), (2.0, 1e-5), (8.0, 1e-9), (1.0, 0.2)):
        mu = bounds.gaussian_mu(eps, delta)
        assert bounds.gaussian_eps(delta, 1.0, mu) == pytest.approx(eps, rel=1e-9)
    assert bounds.gaussian_mu(1.0, 0.0) == 0.0
    assert bounds.gaussian_mu(math.inf, 1e-5) == bounds.gaussian_mu(1.0, 1.0) == math.inf
    eps = bounds.fdp_eps_lower_bound(1000, 100, 90, 1e-5)
    tally = Tally(1000, 100, 90)
    for claimed, rejected in ((eps - 1e-6, True), (eps + 1e-6, False)):
        result = audit_tally(tally, delta=1e-5, method='fdp', eps_claimed=claimed)
        assert (result.p_value < 0.05) == result.violated == rejected
        assert (result.eps_lb, result.assumptions) == (eps, 'f-dp')
    for claimed in (1e6, 1e13, 1e300, math.inf):
        result = audit_tally(tally, delta=1e-5, method='fdp', eps_claimed=claimed)
        assert result.p_value == 1.0


def test_coin_flips_have_no_bound():
    """The share of bounds above 0 is at most 5 %; half right is none, whatever m and r are."""
    for m, r in ((10, 10), (1000, 300), (10**7, 1000)):
        assert bounds.fdp_eps_lower_bound(m, r, r // 2, 1e-5) == 0.0
        assert bounds.fdp_p_value(m, r, r // 2, bounds.gaussian_curve(0.0)) == 1.0
    r = 500
    first = next(v for v in range(r + 1) if bounds.gdp_mu_lower_bound(r, r, v) > 0)
    assert scipy.stats.binom.sf(first - 1, r, 0.5) <= 0.05


def test_monotone():
    found = [bounds.fdp_eps_lower_bound(1000, 100, v, 1e-5) for v in range(50, 101, 5)]
    assert found == sorted(found)
    assert found[-1] > bounds.eps_lower_bound(1000, 100, 100, 1e-5)
    p = [bounds.fdp_p_value(1000, 100, 90, bounds.gaussian_curve(mu)) for mu in (0, 0.5, 1, 2)]
    assert p == sorted(p)
    assert p[-1] == 1.0


def test_edges():
    assert bounds.fdp_eps_lower_bound(100, 0, 0, 1e-5) == 0.0
    assert bounds.fdp_eps_lower_bound(100, 50, 50, 0.0) == math.inf
    assert bounds.fdp_eps_lower_bound(100, 50, 50, 1.0) == 0.0
    assert bounds.fdp_p_value(10**7, 2000, 2000, bounds.gaussian_curve(0.0)) == 1e-299
    assert 0 < bounds.fdp_eps_lower_bound(10**7, 10**4, 10**4, 1e-5) < 50
    assert bounds.gdp_mu_lower_bound(10, 10, 10, 1e-20) == math.inf  # always right: no μ has that
    assert bounds.fdp_eps_lower_bound(10, 10, 10, 1e-5, 1e-20) == math.inf
    assert math.isfinite(bounds.gdp_mu_lower_bound(10, 10, 10, 1e-9))
    for given in ({'mu': -1.0}, {'mu': math.nan}):
        with pytest.raises(ValueError, match='mu must be a number in'):
            bounds.gaussian_curve(**given)
    with pytest.raises(ValueError, match='v, the number of right guesses'):
        bounds.gdp_mu_lower_bound(100, 10, 11)
    with pytest.raises(ValueError, match='confidence must be'):
        bounds.fdp_eps_lower_bound(100, 10, 10, 1e-5, 1.0)
    for eps, delta in (([], []), ([1.0], [0.1, 0.2]), (1.0, 0.1)):
        with pytest.raises(ValueError, match='eps and delta must be vectors of one length'):
            bounds.envelope_curve(eps, delta)
