import math

import numpy as np
import pytest
import scipy.stats

from oneshot.bounds import (
    adaptive_analysis_error,
    generalization_error,
    generalization_failure,
    jung_error,
)


def test_the_papers_example():
    case = {'eps': 1 / 3, 'delta': 1e-5, 'beta': 1e-5, 'failure': 0.05}
    assert round(adaptive_analysis_error(n=2000, **case), 3) == 0.308
    assert round(jung_error(**case), 3) == 0.397


def test_failure_follows_the_theorem():
    n, gamma, eta, eps, delta = 200, 0.5, 0.1, 0.4, 1e-4
    q = math.exp(eps) / (math.exp(eps) + 1)
    w = (1 + gamma - 1.5 * eta) * n / 2

    def survival(x):
        return scipy.stats.binom.sf(math.ceil(x) - 1, n, q)

    terms = [2 * n * delta / i * (survival(w - i) - survival(w)) for i in range(1, n + 1)]
    expected = survival(w) + max(terms) + 2 * math.exp(-n * eta**2 / 2)
    assert generalization_failure(n, gamma, eta, eps, delta) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize('delta', [0.0, 1e-6, 1e-4])
def test_error_is_the_best_over_eta(delta):
    n, eps, failure = 500, 0.3, 0.05
    error = generalization_error(n, eps, delta, failure)
    etas = np.linspace(0.001, (error - 0.02) / 1.5, 1000)

    def best(gamma):
        return min(generalization_failure(n, gamma, eta, eps, delta) for eta in etas)

    assert best(error + 1e-9) <= failure * 1.01  # the grid of η is not perfect
    assert best(error - 0.01) > failure


def test_a_large_delta_is_searched_far_out():
    """The term of δ falls slowly: the best threshold lies far beyond the binomial's."""
    error = generalization_error(2000, 0.1, 5e-3, 0.05)
    assert error == pytest.approx(0.535, abs=2e-3)
    grid = min(
        generalization_failure(2000, error + 1e-9, eta, 0.1, 5e-3)
        for eta in np.linspace(0, 0.2, 400)
    )
    assert grid <= 0.0505  # the grid of η is not perfect
    assert generalization_error(100, 1.0, 0.5, 0.05) > 1  # says nothing


def test_jung_is_at_the_best_c_and_d():
    eps, delta, beta, failure = 0.2, 1e-6, 1e-4, 0.05
    c = np.linspace(beta / failure * 1.0001, 0.1, 200_000)
    d = delta / (failure - beta / c)
    assert jung_error(eps, delta, beta, failure) == pytest.approx(
        math.expm1(eps) + np.min(c + 2 * d), rel=1e-6
    )


def test_it_holds_for_an_algorithm_that_overfits():
    """Randomized response on n bits picks the query that fits its answers.

    X_i are fair bits, the algorithm sees each of them through randomized response
    (ε-DP for replacement) and asks for the share of samples that agree with its
    answers, so that q(Y, X) − q(Y, P) = share − 1/2. The error at failure 0.05 must
    be exceeded in at most 5 % of runs; 20,000 runs see more than 1,200 of them
    with probability below 1e-9 if it is.
    """
    n, eps, runs = 500, 0.5, 20_000
    q = 1 / (1 + math.exp(-eps))
    gap = np.random.default_rng(1).binomial(n, q, runs) / n - 0.5
    assert np.sum(gap >= generalization_error(n, eps, 0.0, 0.05)) <= 1200
    assert np.mean(gap) > 0.1  # it does overfit
