import bisect
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from oneshot.bounds import (
    adaptive_eps_lower_bound,
    adaptive_p_value,
    adaptive_split,
    adaptive_weighted_eps_lower_bound,
    adaptive_weighted_p_value,
    approx_p_value,
    eps_lower_bound,
    p_value,
)


@given(st.integers(1, 10**7), st.floats(0, 1), st.floats(0.01, 0.999))
def test_the_split_spends_what_there_is(m, delta, confidence):
    gamma, tau, failure = adaptive_split(m, delta, confidence)
    assert 0 <= gamma <= 1 - confidence
    assert 0 <= tau <= m
    if gamma > 0:
        assert failure == pytest.approx(2 * m * delta / (tau + 1), abs=1e-12)
        assert gamma + failure == pytest.approx(1 - confidence, abs=1e-12)
    else:
        assert adaptive_eps_lower_bound(m, m, m, delta, confidence) == 0.0


@given(st.integers(1, 2000), st.integers(0, 2000), st.floats(0, 1), st.sampled_from([1e-6, 1e-4]))
def test_p_value_crosses_where_the_bound_is(r, idle, share, delta):
    m, v = r + idle, round(share * r)
    bound = adaptive_eps_lower_bound(m, r, v, delta)
    p = adaptive_p_value(m, r, v, bound, delta)
    if bound > 0:
        assert p == pytest.approx(0.05, abs=1e-8)
    else:
        assert p >= 0.05 - 1e-8
    assert bound <= eps_lower_bound(m, r, v, 0.0)


def test_without_delta_nothing_is_paid():
    for m, r, v in [(100, 100, 75), (1000, 30, 30)]:
        assert adaptive_eps_lower_bound(m, r, v, 0.0) == eps_lower_bound(m, r, v, 0.0)
        assert adaptive_p_value(m, r, v, 0.5, 0.0) == p_value(m, r, v, 0.5, 0.0)


@pytest.mark.parametrize(('m', 'delta'), [(10**5, 1e-5), (5000, 1e-5), (1000, 1e-4)])
@pytest.mark.parametrize('eps', [0.0, 1.0, 3.0])
def test_no_f_can_fail_more_often_than_promised(m, delta, eps):
    """P[F > τ] ≤ 2mδ/(τ + 1) is the corollary's Markov step for a whole F.

    At the smallest v that is rejected, the worst F of Proposition approx, found by
    its linear program, must keep P[W + F ≥ v] at 1 − confidence.
    """
    for r in (m, int(m**0.65)):
        v = bisect.bisect_left(
            range(r), -0.05, key=lambda v: -adaptive_p_value(m, r, v, eps, delta)
        )
        assert adaptive_p_value(m, r, v - 1, eps, delta) > 0.05
        if adaptive_p_value(m, r, v, eps, delta) <= 0.05:
            assert approx_p_value(m, r, 0, v, eps, delta) <= 0.05


@pytest.mark.parametrize('m', [1000, 5000, 10**5])
@pytest.mark.parametrize('delta', [1e-6, 1e-5])
@pytest.mark.parametrize('mu', [0.5, 1.0, 3.0])
def test_the_split_is_chosen_well(m, delta, mu):
    """Audits of Gaussian scores: knowing the best τ beforehand would add less than 0.02."""
    for r in (int(m**0.5), int(m**0.65), m // 10):
        v = _right_guesses(m, r, mu)
        best = 0.0
        for tau in range(min(v, 80)):
            gamma = 0.05 - 2 * m * delta / (tau + 1)
            if gamma > 1e-9:
                best = max(best, eps_lower_bound(r, r, v - tau, 0.0, 1 - gamma))
        assert adaptive_eps_lower_bound(m, r, v, delta) > best - 0.02


def _right_guesses(m, r, mu):
    """How many of the r/2 largest and r/2 smallest of m scores N(±mu/2, 1) are right."""
    grid = np.linspace(-8, 8, 20001)
    above = 0.5 * (scipy.stats.norm.sf(grid - mu / 2) + scipy.stats.norm.sf(grid + mu / 2))
    cut = np.interp(-r / (2 * m), -above, grid)
    return int(r * 0.5 * scipy.stats.norm.sf(cut - mu / 2) / (r / (2 * m)))


def test_weights():
    weights = np.repeat([1.0, 0.0], [500, 500])
    assert adaptive_weighted_eps_lower_bound(weights, 450, 1e-5) == pytest.approx(
        adaptive_eps_lower_bound(1000, 500, 450, 1e-5), abs=1e-9
    )
    assert adaptive_weighted_p_value(weights, 450, 1.0, 1e-5) == pytest.approx(
        adaptive_p_value(1000, 500, 450, 1.0, 1e-5)
    )
    halves = 0.5 * weights
    assert 0 < adaptive_weighted_eps_lower_bound(halves, 225, 1e-5) < math.inf
    with pytest.raises(ValueError, match=r'weights must lie in \[-1, 1\]'):
        adaptive_weighted_eps_lower_bound([2.0], 1.0, 1e-5)
