import math
import random

import pytest

from oneshot import bounds
from oneshot.claims import accounting

_CIFAR = 4096 / 50_000, 2000  # q and ℓ


@pytest.mark.parametrize(('eps', 'sigma'), [(1, 13.72), (2, 7.371), (4, 4.052), (8, 2.329)])
def test_known_values(eps, sigma):
    """σ for 2,000 steps at q = 4096/50000 and δ = 1e-5, to the digits known beforehand."""
    found = accounting.eps_upper_bound(sigma, 4096 / 50_000, 2000, 1e-5)
    assert found == pytest.approx(eps, rel=1e-3)


def test_calibration_is_tight_and_safe():
    sigma = accounting.calibrate_noise(3.0, 0.2, 50, 1e-5)
    assert accounting.eps_upper_bound(sigma, 0.2, 50, 1e-5) <= 3.0
    assert accounting.eps_upper_bound(sigma - 1e-3, 0.2, 50, 1e-5) > 3.0


@pytest.mark.parametrize(
    ('eps', 'q', 'steps', 'delta'),
    [(0.01, 0.1, 100, 1e-5), (8.0, *_CIFAR, 1e-5), (0.5, 1, 1, 1e-6)],
)
def test_calibration_to_four_digits(eps, q, steps, delta):
    sigma = accounting.calibrate_noise(eps, q, steps, delta)
    assert accounting.eps_upper_bound(sigma, q, steps, delta) <= eps
    assert accounting.eps_upper_bound(sigma - 1e-4, q, steps, delta) > eps


def test_one_full_step_is_the_gaussian_mechanism():
    assert accounting.eps_upper_bound(1.5, 1.0, 1, 1e-5) == pytest.approx(
        bounds.gaussian_eps(1e-5, 1.5), rel=1e-3
    )


def test_little_noise_takes_no_time_and_is_bounded_from_above():
    assert accounting.eps_upper_bound(1e-4, 0.1, 300, 1e-5) > 1e9
    loose = accounting.eps_upper_bound(0.3, 0.1, 300, 1e-5)
    assert 300 < loose < 3000
    with pytest.raises(ValueError, match=r'eps must be a number in \(0, 50\]'):
        accounting.calibrate_noise(1000.0, 0.1, 300, 1e-5)


def test_delta_is_the_inverse_of_eps():
    eps = accounting.eps_upper_bound(1.2, 0.2, 20, 1e-5)
    assert accounting.delta_upper_bound(1.2, 0.2, 20, eps) == pytest.approx(1e-5, rel=1e-3)
    assert accounting.delta_upper_bound(0.0, 0.2, 20, 1.0) == 1.0
    assert accounting.delta_upper_bound(1.0, 0.0, 20, 1.0) == 0.0


def test_edges():
    assert accounting.eps_upper_bound(0.0, 0.1, 10, 1e-5) == math.inf
    assert accounting.eps_upper_bound(1.0, 0.1, 0, 1e-5) == 0.0
    for bad in ((-1.0, 0.1, 10, 1e-5), (1.0, 1.1, 10, 1e-5), (1.0, 0.1, 1.5, 1e-5)):
        with pytest.raises(ValueError, match='must be'):
            accounting.eps_upper_bound(*bad)


def test_the_quick_distributions_are_close_to_the_accountant():
    draw = random.Random(0)
    for sigma in (0.8, 2.329, 13.72):
        q, steps = draw.choice([_CIFAR, (0.05, 500), (0.2, 50)])
        eps = accounting.eps_upper_bound(sigma, q, steps, 1e-5)
        quick = accounting.distribution(sigma, q, steps).get_epsilon_for_delta(1e-5)
        assert quick == pytest.approx(eps, rel=3e-4)
