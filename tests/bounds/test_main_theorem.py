import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from oneshot.bounds import (
    eps_lower_bound,
    hoeffding_eps_lower_bound,
    hoeffding_p_value,
    main_p_value,
    p_value,
)


def test_with_a_binomial_it_is_corollary_ternary():
    for m, r, v, eps, delta in [(100, 60, 45, 0.7, 1e-3), (2000, 500, 410, 1.0, 1e-5)]:
        q = 1 / (1 + math.exp(-eps))

        def survival(x, r=r, q=q):
            return scipy.stats.binom.sf(np.ceil(x) - 1, r, q)

        assert main_p_value(survival, m, v, delta) == pytest.approx(
            p_value(m, r, v, eps, delta), rel=1e-9
        )


def test_the_maximum_is_found_beyond_one_chunk():
    """W* = 0: P[W* ≥ v − i] jumps to 1 at i = v, so α = 1/v."""
    m, v, delta = 10**6, 200_000, 1e-7

    def survival(x):
        return (x <= 0).astype(float)

    assert main_p_value(survival, m, v, delta) == pytest.approx(2 * m * delta / v)


def _literal_hoeffding(m, r1, r2, v, eps, delta):
    mean = r1 * math.exp(eps) / (math.exp(eps) + 1)

    def f(x):
        return math.exp(-2 / r2**2 * (x - mean) ** 2) if x >= mean else 1.0

    slope = max((f(v - i) - f(v)) / i for i in range(1, m + 1))
    closed = f(v) + 2 * m * delta * max(2 / (v - mean), f((v + mean) / 2)) if v > mean else 1.0
    return min(1, f(v) + 2 * m * delta * slope), min(1, closed)


@given(
    st.integers(10, 400),
    st.floats(0.1, 1.0),
    st.floats(0.0, 1.0),
    st.floats(0.0, 2.0),
    st.sampled_from([0.0, 1e-6, 1e-3, 0.1]),
)
def test_both_forms_of_corollary_hoeffding(m, share, right, eps, delta):
    r1, r2 = share * m, math.sqrt(share * m)
    v = right * r1
    in_sum, closed = _literal_hoeffding(m, r1, r2, v, eps, delta)
    mean = r1 / (1 + math.exp(-eps))
    assert hoeffding_p_value(m, r1, r2, v, eps, delta) == pytest.approx(in_sum, rel=1e-9)
    expected = closed if v >= mean + 2 else 1.0
    assert hoeffding_p_value(m, r1, r2, v, eps, delta, form='closed') == pytest.approx(
        expected, rel=1e-9
    )
    assert in_sum <= expected * (1 + 1e-12)


def test_hoeffding_is_the_looser_bound():
    for m, r, v, delta in [
        (1000, 100, 90, 1e-5),
        (1000, 1000, 800, 0.0),
        (10**5, 1500, 1429, 1e-5),
    ]:
        norms = r, math.sqrt(r)
        sums = hoeffding_eps_lower_bound(m, *norms, v, delta)
        closed = hoeffding_eps_lower_bound(m, *norms, v, delta, form='closed')
        assert 0 < closed <= sums < eps_lower_bound(m, r, v, delta)


def test_the_substitution_after_the_corollary():
    """v = q·r1 + r2·√(log(1/β)/2) gives β + 2mδ·max(1/(r2·√(log(1/β)/2))·…, β^(1/4))."""
    m, r1, r2, eps, delta, beta = 1000, 400.0, 20.0, 0.5, 1e-4, 1e-4
    shift = r2 * math.sqrt(0.5 * math.log(1 / beta))
    v = r1 / (1 + math.exp(-eps)) + shift
    expected = beta + 2 * m * delta * max(2 / shift, beta**0.25)
    assert hoeffding_p_value(m, r1, r2, v, eps, delta, form='closed') == pytest.approx(expected)
