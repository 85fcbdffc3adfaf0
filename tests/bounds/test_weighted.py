import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oneshot.bounds import (
    eps_lower_bound,
    main_p_value,
    p_value,
    weighted_eps_lower_bound,
    weighted_p_value,
)


def _survival(weights, eps):
    """x ↦ P[Σ Š_i·|t_i| ≥ x] by going through all 2^m outcomes."""
    q = 1 / (1 + math.exp(-eps))
    weights = np.abs(weights)
    outcomes = np.array(list(itertools.product([0, 1], repeat=len(weights))))
    sums = outcomes @ weights
    chances = np.prod(np.where(outcomes == 1, q, 1 - q), axis=1)
    return lambda x: np.array([chances[sums >= one - 1e-9].sum() for one in np.atleast_1d(x)])


@given(
    st.lists(st.integers(0, 8), min_size=1, max_size=9),
    st.sampled_from([1.0, 0.5, 0.1, 1 / 64, 0.3]),
    st.integers(0, 2**9 - 1),
    st.floats(0, 4),
)
def test_exact_on_a_lattice(steps, step, right, eps):
    weights = step * np.array(steps)
    v = sum(w for i, w in enumerate(weights) if right >> i & 1)
    exact = _survival(weights, eps)(v)[0]
    assert weighted_p_value(weights, v, eps) == pytest.approx(exact, rel=1e-12)


@given(
    st.lists(st.integers(0, 10), min_size=2, max_size=9),
    st.integers(0, 2**9 - 1),
    st.floats(0, 3),
    st.sampled_from([1e-6, 1e-3, 0.05]),
)
def test_theorem_main_on_a_lattice(steps, right, eps, delta):
    weights = np.array(steps) / 10
    v = sum(w for i, w in enumerate(weights) if right >> i & 1)
    exact = main_p_value(_survival(weights, eps), weights.size, v, delta)
    assert weighted_p_value(weights, v, eps, delta) == pytest.approx(exact, rel=1e-11)


@given(
    st.lists(st.floats(0.001, 1.0), min_size=1, max_size=9),
    st.integers(0, 2**9 - 1),
    st.floats(0, 4),
)
def test_never_too_small_off_the_lattice(weights, right, eps):
    weights = np.array(weights)
    v = sum(w for i, w in enumerate(weights) if right >> i & 1)
    survival = _survival(weights, eps)
    p = weighted_p_value(weights, v, eps)
    assert p >= survival(v)[0] * (1 - 1e-12)
    # and hardly too large: no more than an error of 0.3 % in v would make it.
    assert p <= survival(v - 0.003 * weights.sum())[0] + 2e-12


def test_off_the_lattice_costs_little():
    """Weights a hair off the lattice, so that the exact value next to them is known."""
    rng = np.random.default_rng(0)
    exact = np.repeat([1.0, 0.5, 0.25], [300, 300, 400])
    weights = exact * (1 - 1e-7 * rng.random(exact.size))
    right = rng.random(exact.size) < 0.85
    near = weighted_eps_lower_bound(exact, exact[right].sum())
    assert near - 0.01 < weighted_eps_lower_bound(weights, weights[right].sum()) < near + 1e-4


@given(st.integers(1, 400), st.floats(0.0, 1.0), st.integers(0, 50), st.floats(0, 5))
def test_equal_weights_are_the_binomial(r, share, abstained, eps):
    weights = np.repeat([1.0, 0.0], [r, abstained])
    v = round(share * r)
    for delta in (0.0, 1e-4):
        binomial = p_value(r + abstained, r, v, eps, delta)
        assert weighted_p_value(weights, v, eps, delta) == pytest.approx(binomial, rel=1e-11)
    assert weighted_p_value(0.37 * weights, 0.37 * v, eps) == pytest.approx(
        p_value(r, r, v, eps, 0.0), rel=1e-11
    )


def test_equal_weights_give_the_same_bound():
    for m, r, v, delta in [(10**5, 1510, 1439, 1e-5), (1000, 100, 75, 1e-4), (50, 50, 50, 0.0)]:
        weights = np.repeat([1.0, 0.0], [r, m - r])
        expected = eps_lower_bound(m, r, v, delta)
        assert weighted_eps_lower_bound(weights, v, delta) == pytest.approx(expected, abs=1e-9)


def test_far_tails_keep_their_digits():
    """All right: the probability is q^m, far below the rounding error of 1."""
    weights = np.repeat([1.0, 0.5], [500, 500])
    assert weighted_p_value(weights, weights.sum(), 0.0) == pytest.approx(2.0**-1000, rel=1e-9)


def test_signs_of_the_guesses_do_not_matter_and_weights_may_be_large():
    weights = np.array([3.0, -2.0, 1.0, 5.0])
    assert weighted_p_value(weights, 11.0, 1.0) == weighted_p_value(np.abs(weights), 11.0, 1.0)
    with pytest.raises(ValueError, match='where delta > 0'):
        weighted_p_value(weights, 11.0, 1.0, delta=1e-5)
