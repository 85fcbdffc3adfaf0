import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import exp, log1p, mpf, sqrt

from oneshot.bounds import dpsgd_rdp, rdp_max_accuracy


@given(st.integers(1, 10**6), st.floats(1e-6, 1.0), st.floats(0.02, 1000))
def test_dpsgd_rdp_against_50_digits(steps, q, sigma):
    expected = steps * log1p(mpf(q) ** 2 * (exp(1 / mpf(sigma) ** 2) - 1))
    assert abs(dpsgd_rdp(steps, q, sigma) / expected - 1) < 1e-9


def test_dpsgd_rdp_edges():
    assert dpsgd_rdp(10, 0.0, 1.0) == 0.0
    assert dpsgd_rdp(10, 0.1, 0.0) == math.inf
    assert dpsgd_rdp(1, 1.0, 0.01) == pytest.approx(1e4)
    # ≈ ℓ·q²/σ² for large σ
    assert dpsgd_rdp(1000, 0.01, 20.0) == pytest.approx(1000 * 0.01**2 / 400, rel=2e-3)


@given(st.floats(1e-12, 500))
def test_max_accuracy_against_50_digits(eps):
    e = exp(mpf(eps))
    expected = mpf(1) / 2 + sqrt((e - 1) / (e + 3)) / 2
    assert abs(rdp_max_accuracy(eps) / expected - 1) < 1e-12


def test_max_accuracy_edges_and_tightness():
    assert rdp_max_accuracy(0.0) == 0.5
    assert rdp_max_accuracy(math.inf) == 1.0
    assert rdp_max_accuracy(0.01) == pytest.approx(0.5 + 0.25 * math.sqrt(0.01), rel=1e-3)
    # Randomized response with accuracy a has RDP log(a²/(1−a) + (1−a)²/a) at order 2.
    a = 0.8
    rdp = math.log(a**2 / (1 - a) + (1 - a) ** 2 / a)
    assert rdp_max_accuracy(rdp) == pytest.approx(a)
