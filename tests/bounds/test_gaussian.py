import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oneshot.bounds import eps_lower_bound, gaussian_delta, gaussian_eps, gaussian_rho
from tests import reference


def test_the_papers_own_numbers():
    assert round(gaussian_eps(1e-5, sigma=2.0, sensitivity=2.0), 4) == 4.3772
    assert round(gaussian_delta(2.676, sigma=2.0, sensitivity=2.0), 5) == 0.00393
    matched = eps_lower_bound(10**5, 1510, 1439, 1e-5)
    assert round(gaussian_delta(matched, sigma=2.0, sensitivity=2.0), 7) == 0.0039334
    assert gaussian_rho(sigma=2.0, sensitivity=2.0) == 0.5


@given(st.floats(0, 50), st.floats(0.05, 100), st.floats(0.01, 10))
def test_delta_against_50_digits(eps, sigma, sensitivity):
    expected = reference.gaussian_delta(eps, sigma, sensitivity)
    if expected > 1e-300:
        assert abs(gaussian_delta(eps, sigma, sensitivity) / expected - 1) < 1e-9


@given(st.floats(1e-300, 0.99), st.floats(0.02, 100))
def test_eps_inverts_delta(delta, sigma):
    eps = gaussian_eps(delta, sigma)
    if eps > 0:
        assert gaussian_delta(eps, sigma) == pytest.approx(delta, rel=1e-8)
    else:
        assert gaussian_delta(0.0, sigma) <= delta


def test_edges():
    assert gaussian_eps(0.0, 1.0) == math.inf
    assert gaussian_eps(0.0, 1.0, sensitivity=0.0) == 0.0
    assert gaussian_delta(math.inf, 1.0) == 0.0
    assert gaussian_delta(np.array([0.0, 1.0]), 1.0).shape == (2,)
    assert gaussian_delta(0.0, 1e-3) == 1.0


def test_zcdp_is_the_renyi_divergence_over_the_order():
    """D_α between N(0, σ²) and N(Δ, σ²), integrated, is α·ρ."""
    sigma, sensitivity, order = 1.5, 2.0, 3.0
    x = np.linspace(-40, 40, 400_001)
    log_p, log_q = (-0.5 * ((x - mean) / sigma) ** 2 for mean in (0.0, sensitivity))
    scale = sigma * math.sqrt(2 * math.pi)
    integral = np.trapezoid(np.exp(order * log_p + (1 - order) * log_q), x) / scale
    divergence = math.log(integral) / (order - 1)
    assert divergence == pytest.approx(order * gaussian_rho(sigma, sensitivity), rel=1e-9)
