import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oneshot.bounds import mutual_information_bound
from tests import reference


@given(st.floats(1e-8, 50), st.floats(0, 1), st.floats(1e-6, 1 - 1e-6))
def test_against_50_digits(eps, delta, p):
    expected = reference.mutual_information(7, eps, delta, p)
    assert abs(mutual_information_bound(7, eps, delta, p) / expected - 1) < 1e-9


@given(st.floats(0, 40), st.floats(0, 1))
def test_the_quadratic_form_is_above_the_exact_one(eps, delta):
    exact = mutual_information_bound(3, eps, delta)
    assert exact <= mutual_information_bound(3, eps, delta, form='quadratic') * (1 + 1e-12)
    assert exact <= 3 * math.log(2) * (1 + 1e-12)


def test_it_is_attained_by_randomized_response():
    """I(S; answer) from the joint distribution of a coin and its (ε, δ) answer."""
    eps, delta, p = 1.2, 0.1, 0.3
    true, lie = (1 - delta) / (1 + math.exp(-eps)), (1 - delta) / (1 + math.exp(eps))
    given_coin = np.array([[true, lie, delta, 0.0], [lie, true, 0.0, delta]])
    joint = np.array([[1 - p], [p]]) * given_coin
    product = joint.sum(1, keepdims=True) * joint.sum(0, keepdims=True)
    information = np.sum(joint * np.log(np.where(joint > 0, joint / product, 1.0)))
    assert mutual_information_bound(1, eps, delta, p) == pytest.approx(information, rel=1e-12)


def test_edges():
    assert mutual_information_bound(5, 0.0, 0.0) == 0.0
    assert mutual_information_bound(5, math.inf, 0.0) == pytest.approx(5 * math.log(2))
    assert mutual_information_bound(5, 1.0, 0.0, p=0.0) == 0.0
    with pytest.raises(ValueError, match=r'p must be 0\.5'):
        mutual_information_bound(5, 1.0, 0.0, p=0.3, form='quadratic')
