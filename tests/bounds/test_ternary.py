import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oneshot.bounds import eps_lower_bound, p_value
from tests import reference


@pytest.mark.parametrize(
    ('value', 'published', 'digits'),
    [
        (lambda: p_value(100, 100, 75, math.log(3), 0), 0.5535, 4),
        (lambda: eps_lower_bound(100, 100, 75, 0), 0.7022, 4),
        (lambda: eps_lower_bound(100, 100, 75, 1e-4), 0.6995, 4),
        (lambda: eps_lower_bound(1000, 100, 75, 1e-4), 0.6730, 4),
        (lambda: eps_lower_bound(10**4, 10**4, 9820, 0), 3.8744, 4),
        (lambda: eps_lower_bound(10**5, 1510, 1439, 1e-5), 2.6759, 4),
    ],
)
def test_the_papers_own_numbers(value, published, digits):
    assert round(value(), digits) == published


def _drawn_cases(number):
    """(m, r, v, eps, delta) from the bulk of the binomial to 36 deviations out."""
    rng = np.random.default_rng(2305)
    while number:
        r = int(np.exp(rng.uniform(0, np.log(1e6))))
        m = int(min(1e7, r * np.exp(rng.uniform(0, 6))))
        eps = float(rng.choice([0.0, rng.uniform(0, 5), rng.uniform(0, 50)]))
        q = 1 / (1 + math.exp(-eps))
        deviation = max(0.3, math.sqrt(r * q * (1 - q)))
        v = int(np.clip(round(r * q + rng.uniform(-5, 36) * deviation), 0, r))
        powers = 10 ** rng.uniform(-300, 0), 10 ** rng.uniform(-12, -1)
        delta = float(rng.choice([0.0, 1.0, *powers]))
        expected = reference.p_value(m, r, v, eps, delta)
        if expected >= 1e-280:
            number -= 1
            yield (m, r, v, eps, delta), expected


def test_relative_error_below_1e9_against_50_digits():
    lowest = 1.0
    for case, expected in _drawn_cases(400):
        assert abs(p_value(*case) / expected - 1) < 1e-9, case
        lowest = min(lowest, float(expected))
    assert lowest < 1e-250  # the draws do reach far out


def test_the_reference_is_the_definition():
    """The reference's short cuts against every term of Corollary ternary."""
    for m, r, v, eps, delta in [
        (30, 20, 15, 0.5, 0.01),
        (9, 7, 7, 0.0, 0.1),
        (50, 40, 9, 2.0, 1e-3),
    ]:
        ratio = reference.odds(eps)
        pmf = [reference.binomial_pmf(r, k, ratio) for k in range(r + 1)]

        def f(x, pmf=pmf):
            return sum(pmf[max(0, x) :])

        alpha = max((f(v - i) - f(v)) / i for i in range(1, m + 1))
        literal = min(1, f(v) + 2 * m * reference.mpf(delta) * alpha)
        assert abs(reference.p_value(m, r, v, eps, delta) / literal - 1) < 1e-40


def test_nothing_overflows():
    assert p_value(10**7, 10**7, 10**7, 50.0, 1e-5) == pytest.approx(1.0)
    assert p_value(10**7, 10**7, 10**7, 0.0, 0.0) == 0.0
    assert p_value(10, 10, 10, math.inf, 0.0) == 1.0
    assert p_value(10, 10, 10, 1e4, 0.5) == 1.0
    assert 13 < eps_lower_bound(10**7, 10**7, 10**7, 0.0) < 16
    assert 0 < eps_lower_bound(10**7, 10**7, 10**7, 1e-12) < 16
    assert eps_lower_bound(10**7, 10**6, 10**6, 1.0) == 0.0


def test_no_evidence_gives_zero():
    for m, r, v in [(1, 0, 0), (100, 100, 50), (100, 10, 0), (4, 4, 4)]:
        assert eps_lower_bound(m, r, v, 0.0) == 0.0
    assert eps_lower_bound(5, 5, 5, 0.0) > 0.0  # 2^-5 < 0.05 ≤ 2^-4


def test_arrays_of_eps_and_v():
    eps, v = np.array([0.0, 0.5, 1.0]), np.array([[60], [75]])
    table = p_value(100, 100, v, eps, 1e-4)
    assert table.shape == (2, 3)
    assert table[1, 2] == p_value(100, 100, 75, 1.0, 1e-4)
    assert isinstance(p_value(100, 100, 75, 1.0, 1e-4), float)


@st.composite
def audits(draw):
    r = draw(st.integers(1, 3000))
    m = r + draw(st.integers(0, 5000))
    v = draw(st.integers(0, r))
    delta = draw(st.one_of(st.just(0.0), st.floats(1e-12, 1.0)))
    return m, r, v, draw(st.floats(0.0, 12.0)), delta


# Computed values may differ in the last digits where the exact ones are equal.
_ROUNDING = 1 + 1e-11


@given(audits(), st.floats(0.0, 3.0))
def test_p_rises_with_eps(audit, more):
    m, r, v, eps, delta = audit
    assert p_value(m, r, v, eps, delta) <= p_value(m, r, v, eps + more, delta) * _ROUNDING


@given(audits())
def test_p_falls_with_v(audit):
    m, r, v, eps, delta = audit
    assert p_value(m, r, min(r, v + 1), eps, delta) <= p_value(m, r, v, eps, delta) * _ROUNDING


@given(audits(), st.floats(0.0, 1.0), st.integers(0, 1000))
def test_p_rises_with_delta_and_m(audit, share, more):
    m, r, v, eps, delta = audit
    p = p_value(m, r, v, eps, delta)
    assert p_value(m, r, v, eps, share * delta) <= p * _ROUNDING
    assert p <= p_value(m + more, r, v, eps, delta) * _ROUNDING


@given(audits(), st.floats(0.01, 0.999))
def test_bound_rises_with_v_and_is_where_p_crosses(audit, confidence):
    m, r, v, _, delta = audit
    bound = eps_lower_bound(m, r, v, delta, confidence)
    assert bound <= eps_lower_bound(m, r, min(r, v + 1), delta, confidence) + 1e-9
    if bound > 0:
        p = p_value(m, r, v, bound, delta)
        assert p <= 1 - confidence  # on the safe side
        assert p == pytest.approx(1 - confidence, abs=1e-8)
    else:
        assert p_value(m, r, v, 1e-9, delta) >= 1 - confidence - 1e-8


@given(audits())
def test_small_delta_agrees_with_the_pure_theorem(audit):
    m, r, v, eps, _ = audit
    assert p_value(m, r, v, eps, 1e-18) == pytest.approx(p_value(m, r, v, eps, 0.0), abs=1e-13)
