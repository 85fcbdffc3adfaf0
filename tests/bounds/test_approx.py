import math

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from oneshot.bounds import approx_eps_lower_bound, approx_p_value, eps_lower_bound, p_value
from tests import reference


def _linear_program(m, k_plus, k_minus, v, eps, delta, p):
    """The largest P[W + F ≥ v] of Proposition approx, by a solver, from its primal."""
    e = math.exp(eps)
    rates = p * e / (p * e + 1 - p), (1 - p) * e / ((1 - p) * e + p)
    laws = [
        scipy.stats.binom.pmf(np.arange(k + 1), k, rate)
        for k, rate in zip((k_plus, k_minus), rates, strict=True)
    ]
    law = np.convolve(*laws)
    tails = np.array([law[max(0, v - i) :].sum() for i in range(m + 1)])
    solution = scipy.optimize.linprog(
        -tails,
        A_ub=[np.arange(m + 1)],
        b_ub=[2 * m * delta],
        A_eq=[np.ones(m + 1)],
        b_eq=[1.0],
        method='highs',
    )
    return -solution.fun


@given(
    st.integers(0, 15),
    st.integers(0, 15),
    st.integers(1, 20),
    st.floats(0, 1),
    st.floats(0, 3),
    st.sampled_from([0.0, 1e-4, 0.01, 0.1, 0.4, 1.0]),
    st.floats(0.05, 0.95),
)
def test_the_optimal_f_is_that_of_the_linear_program(k_plus, k_minus, idle, share, eps, delta, p):
    m, v = k_plus + k_minus + idle, round(share * (k_plus + k_minus))
    case = m, k_plus, k_minus, v, eps, delta, p
    assert approx_p_value(*case) == pytest.approx(_linear_program(*case), abs=1e-7)


@given(st.integers(0, 300), st.integers(0, 300), st.floats(0, 1), st.floats(0, 5))
def test_fair_coins_give_corollary_ternary(k_plus, k_minus, share, eps):
    r = k_plus + k_minus
    m, v = r + 100, round(share * r)
    for delta in (0.0, 1e-6, 1e-4):  # 2mδ < 1: the corollary's dual solution is the best one
        assert approx_p_value(m, k_plus, k_minus, v, eps, delta) == pytest.approx(
            p_value(m, r, v, eps, delta), rel=1e-9, abs=1e-300
        )


@given(st.integers(1, 60), st.integers(0, 60), st.floats(0, 1), st.floats(0, 5), st.floats(0, 1))
def test_never_above_corollary_ternary(k_plus, k_minus, share, eps, delta):
    r = k_plus + k_minus
    m, v = r + 10, round(share * r)
    ternary = p_value(m, r, v, eps, delta)
    assert approx_p_value(m, k_plus, k_minus, v, eps, delta) <= ternary * (1 + 1e-10)


def test_close_to_fair_coins_is_close_to_corollary_ternary():
    fair = eps_lower_bound(1000, 100, 80, 1e-5)
    assert approx_eps_lower_bound(1000, 50, 50, 80, 1e-5, p=0.5) == pytest.approx(fair, abs=1e-9)
    assert approx_eps_lower_bound(1000, 50, 50, 80, 1e-5, p=0.5 + 1e-9) == pytest.approx(
        fair, abs=1e-6
    )


@pytest.mark.parametrize('v', [150, 300, 450, 600, 690, 700])
def test_far_tails_of_two_binomials(v):
    """Against a convolution in 50 digits."""
    k_plus, k_minus, eps, p = 400, 300, 0.4, 0.2
    plus, minus = (reference.odds(eps, one) for one in (p, 1 - p))
    tail = sum(
        reference.binomial_pmf(k_plus, k, plus) * reference.binomial_survival(k_minus, v - k, minus)
        for k in range(k_plus + 1)
    )
    ours = approx_p_value(1000, k_plus, k_minus, v, eps, 0.0, p)
    assert abs(ours / tail - 1) < 1e-10


def test_large_counts():
    assert approx_p_value(10**7, 600_000, 400_000, 750_000, 1.0, 1e-9) == pytest.approx(
        p_value(10**7, 10**6, 750_000, 1.0, 1e-9), rel=1e-9
    )
    assert approx_p_value(10**7, 600_000, 400_000, 10**6, 0.0, 0.0, p=0.3) == 0.0
    assert approx_p_value(10**7, 600_000, 400_000, 10**6, 50.0, 1e-5, p=0.3) == pytest.approx(1.0)
