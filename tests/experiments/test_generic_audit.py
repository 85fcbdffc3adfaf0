"""The examples of experiments/generic_audit.py."""

import math

import numpy as np
import pytest
import scipy.sparse
import scipy.stats

from experiments import generic_audit
from oneshot import bounds

SMALL = generic_audit.problems(n=300, own=800, mislabeled=100)[generic_audit.OWN_FEATURES]


def _example(name, seed=0):
    return generic_audit.run(SMALL, generic_audit.ALGORITHMS[name], seed)


@pytest.mark.parametrize('name', ['sensitivity of the mean', 'no noise'])
def test_too_little_noise_is_caught(name):
    """With noise far below the signal, every guess is right.

    Unless fewer than 200 of 800 are in, or out, with probability below 1e-40.
    """
    result, (scores, included), _ = _example(name)
    assert scores[included].min() > scores[~included].max()
    assert result.correct == result.guesses
    assert result.eps_lb > generic_audit.EPS
    assert result.p_value < 0.01  # of which δ alone allows for a part


def test_output_perturbation_is_consistent_with_its_claim():
    """A canary of its own moves w by at most 1/(2λ): the slope of the loss is 1/2 at most.

    With the noise of the claim, this is a Gaussian mechanism, whose trade-off curve bounds
    the chance of a false alarm.
    """
    result, (scores, included), accuracy = _example('output perturbation')
    counts = result.m, result.guesses
    caught = next(
        right
        for right in range(result.guesses + 1)
        if bounds.eps_lower_bound(*counts, right, result.delta) > generic_audit.EPS
    )
    curve = bounds.gaussian_curve(0.5 * generic_audit.SENSITIVITY / generic_audit.SIGMA)
    assert bounds.fdp_p_value(*counts, caught, curve) < 1e-9
    assert result.eps_lb <= generic_audit.EPS
    assert scores[included].mean() > scores[~included].mean()
    assert accuracy > 0.7


def test_the_claim_is_that_of_the_gaussian_mechanism():
    sensitivity = generic_audit.SENSITIVITY
    eps = bounds.gaussian_eps(generic_audit.DELTA, generic_audit.SIGMA, sensitivity)
    assert eps == pytest.approx(generic_audit.EPS, abs=1e-9)
    assert sensitivity == pytest.approx(1 / generic_audit.LAMBDA, rel=1e-5)


def test_the_noise_is_as_large_as_claimed():
    """Squares that add up to a χ², out of bounds with probability 1e-9."""
    included = np.arange(800) % 2 == 0
    rng = np.random.default_rng(10)
    exact, noisy = (
        generic_audit.trainer(SMALL, sigma, rng)(included) for sigma in (0.0, generic_audit.SIGMA)
    )
    squares = np.sum((noisy - exact) ** 2) / generic_audit.SIGMA**2
    low, high = scipy.stats.chi2.ppf([5e-10, 1 - 5e-10], exact.size)
    assert low < squares < high


def test_the_solver_finds_the_weight_of_a_canary_of_its_own():
    """λw = 1/(1 + e^w) if it is in, and 0 if it is out."""
    included = np.arange(800) % 2 == 0
    w = generic_audit.trainer(SMALL, 0.0, np.random.default_rng(0))(included)[-800:]
    inside = w[included]
    np.testing.assert_allclose(generic_audit.LAMBDA * inside, 1 / (1 + np.exp(inside)), atol=1e-6)
    np.testing.assert_allclose(w[~included], 0.0, atol=1e-6)


def test_one_example_moves_the_minimum_by_at_most_the_sensitivity():
    rng = np.random.default_rng(11)
    for _ in range(20):
        n, scale = int(rng.integers(1, 40)), rng.uniform(0.1, 1.0)
        x = rng.standard_normal((n + 1, 5))
        x *= scale / np.linalg.norm(x, axis=1, keepdims=True)
        x, y = scipy.sparse.csr_array(x), rng.choice([-1.0, 1.0], n + 1)
        moved = generic_audit.fit(x, y) - generic_audit.fit(x[:n], y[:n])
        assert np.linalg.norm(moved) <= generic_audit.SENSITIVITY


def test_an_example_against_all_others_nearly_reaches_the_sensitivity():
    """10,000 examples say +1 of one feature; one says −1 of it, with a feature of its own."""
    x = np.zeros((10_001, 2))
    x[:, 0], x[-1] = 1.0, (0.4, math.sqrt(1.0 - 0.4**2))
    y = np.where(np.arange(10_001) < 10_000, 1.0, -1.0)
    x = scipy.sparse.csr_array(x)
    moved = generic_audit.fit(x, y) - generic_audit.fit(x[:-1], y[:-1])
    assert 0.8 * generic_audit.SENSITIVITY < np.linalg.norm(moved) <= generic_audit.SENSITIVITY


def test_rows_that_are_too_long_are_refused():
    with pytest.raises(ValueError, match='must be of norm 1 or less, but one has 2'):
        generic_audit.fit(scipy.sparse.csr_array([[0.5, 0.0], [0.0, 2.0]]), np.ones(2))


def test_the_committed_results():
    path = generic_audit.RESULTS / 'generic_audit.csv'
    rows = generic_audit.csv_files.read(path, ('seed', 'eps_claimed', 'eps_lb', 'test_accuracy'))
    assert len(rows) == 2 * len(generic_audit.ALGORITHMS) * generic_audit.SEEDS
    for row in rows:
        faulty = row['algorithm'] != 'output perturbation'
        own = row['canaries'] == generic_audit.OWN_FEATURES
        assert (row['eps_lb'] > row['eps_claimed']) == (faulty and own)
    private = [row['test_accuracy'] for row in rows if row['algorithm'] == 'output perturbation']
    assert np.mean(private) > 0.85
