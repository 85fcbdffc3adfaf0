import math

import numpy as np
import pytest

from oneshot import bounds
from oneshot.claims import accounting, tradeoff

_CIFAR = 4096 / 50_000, 2000  # q and ℓ


@pytest.mark.parametrize('sigma', [0.4, 1.0, 5.0])
def test_the_curve_of_one_full_step_is_gaussian(sigma):
    curve, exact = tradeoff.dpsgd_curve(sigma, 1.0, 1), bounds.gaussian_curve(1 / sigma)
    for y in [*np.linspace(0, 1, 101), *(10.0 ** -np.arange(2, 7))]:
        assert exact(y) - 1e-3 <= curve(y) <= exact(y) + 1e-12
    for counts in ((5000, 300, 290), (400, 400, 260)):
        close, p = (bounds.fdp_p_value(*counts, one) for one in (curve, exact))
        assert p * (1 - 1e-9) <= close <= p * 1.05 + 1e-8  # the curve ends at δ = 1e-10
        assert tradeoff.dpsgd_p_value(*counts, sigma, 1.0, 1) == close


@pytest.mark.parametrize(('q', 'steps'), [_CIFAR, (0.3, 10)])
def test_the_curve_inverts_a_blow_up(q, steps):
    """Convex, increasing, at most y, symmetric, and the larger the more noise there is."""
    y = np.linspace(0, 1, 201)
    last = np.zeros(201)
    for sigma in (1.0, 2.329, 5.0):
        curve = tradeoff.dpsgd_curve(sigma, q, steps)
        x = np.array([curve(one) for one in y])
        assert (np.diff(x) >= -1e-12).all()
        assert (np.diff(x, 2) >= -1e-12).all()
        assert (x <= y + 1e-12).all()
        assert (x >= last - 1e-12).all()
        for one in y[(x > 1e-3) & (x < 1)]:
            assert curve(1.0 - curve(one)) == pytest.approx(1.0 - one, abs=1e-9)
        last = x


def test_the_curve_claims_what_the_accountant_proves():
    """At σ = 2.329 it is (8, 1e-5)-DP: above the lines of that, and little more than they say."""
    curve = tradeoff.dpsgd_curve(2.329, *_CIFAR)
    proven = bounds.approximate_curve(8.001, 1e-5)
    more = bounds.approximate_curve(7.99, 1e-5)
    y = 10 ** np.linspace(-5, 0, 1001)
    assert all(curve(one) >= proven(one) - 1e-7 for one in y)
    assert any(curve(one) < more(one) for one in y)
    assert accounting.delta_upper_bound(2.329, *_CIFAR, 8.0) == pytest.approx(1e-5, rel=1e-2)


@pytest.mark.parametrize('counts', [(5000, 300, 297), (5000, 600, 570), (1000, 1000, 640)])
def test_the_bound_rejects_all_noise_above_its_own(counts):
    eps = tradeoff.dpsgd_eps_lower_bound(*counts, 1e-5, 0.95, *_CIFAR)
    sigma = accounting.calibrate_noise(eps, *_CIFAR, 1e-5)
    p = [tradeoff.dpsgd_p_value(*counts, sigma * one, *_CIFAR) for one in (0.999, 1.001, 1.1)]
    assert p == sorted(p, reverse=True)
    assert p[0] > 0.05 > p[1]
    # 2,000 steps are nearly Gaussian; the curve of DP-SGD itself gives a little more.
    gaussian = bounds.fdp_eps_lower_bound(*counts, 1e-5)
    assert gaussian < eps < gaussian * 1.02


def test_few_steps_are_not_gaussian():
    gaussian = bounds.fdp_eps_lower_bound(5000, 300, 300, 1e-5)
    assert tradeoff.dpsgd_eps_lower_bound(5000, 300, 300, 1e-5, 0.95, 1.0, 1) == pytest.approx(
        gaussian, abs=2e-3
    )
    assert tradeoff.dpsgd_eps_lower_bound(5000, 300, 300, 1e-5, 0.95, 0.3, 10) > gaussian + 1.0


def test_the_size_of_the_grid_does_not_matter():
    for counts in ((5000, 300, 297), (5000, 600, 600)):
        eps = tradeoff.dpsgd_eps_lower_bound(*counts, 1e-5, 0.95, *_CIFAR)
        sigma = accounting.calibrate_noise(eps, *_CIFAR, 1e-5)
        p = [bounds.fdp_p_value(*counts, tradeoff._curve(sigma, *_CIFAR, n)) for n in (300, 600)]
        # 1e-3 of ε is 1e-4 of σ or more, which moves log p by so much:
        moved = [tradeoff.dpsgd_p_value(*counts, sigma * one, *_CIFAR) for one in (1.0, 1.0001)]
        assert abs(math.log(p[0] / p[1])) < math.log(moved[0] / moved[1])


def test_the_bound_is_monotone():
    found = []
    for v in range(180, 201, 5):
        found.append(tradeoff.dpsgd_eps_lower_bound(2000, 200, v, 1e-5, 0.95, 0.1, 200))
    assert found == sorted(found)
    again = tradeoff.dpsgd_eps_lower_bound(2000, 200, 200, 1e-5, 0.95, 0.1, 200)
    assert again == found[-1]


def test_edges_of_the_curve():
    def bound(*counts, delta=1e-5, confidence=0.95, q=0.1, steps=10):
        return tradeoff.dpsgd_eps_lower_bound(*counts, delta, confidence, q, steps)

    assert bound(100, 50, 25) == bound(100, 50, 0) == bound(100, 0, 0) == 0.0
    assert bound(100, 50, 50, q=0.0) == bound(100, 50, 50, steps=0) == 0.0
    assert bound(100, 50, 50, delta=0.0) == math.inf
    assert bound(100, 50, 50, delta=1.0) == 0.0
    assert bound(100, 50, 50, delta=1e-300) >= bound(100, 50, 50, delta=1e-9)
    most = bound(10, 10, 10, confidence=1e-20)  # always right, which no σ allows
    assert 50.0 < most < 300.0
    assert tradeoff.dpsgd_p_value(100, 50, 50, 0.0, 0.1, 10) == 1.0
    assert tradeoff.dpsgd_p_value(100, 50, 50, 0.01, 0.1, 10) == 1.0  # nothing is claimed
    perfect = bounds.fdp_p_value(100, 50, 50, bounds.gaussian_curve(0.0))
    for q, steps in ((0.0, 10), (0.1, 0)):
        found = tradeoff.dpsgd_p_value(100, 50, 50, 1.0, q, steps)
        assert found == pytest.approx(perfect, rel=1e-6)
    for bad in ((-1.0, 0.1, 10), (1.0, 1.1, 10), (1.0, 0.1, 1.5), (math.inf, 0.1, 10)):
        with pytest.raises(ValueError, match='must be'):
            tradeoff.dpsgd_curve(*bad)
    with pytest.raises(ValueError, match='v, the number of right guesses'):
        bound(100, 10, 11)
