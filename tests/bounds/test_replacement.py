import math

import pytest

from oneshot.bounds import (
    eps_lower_bound,
    p_value,
    replacement_eps_lower_bound,
    replacement_guarantee,
    replacement_p_value,
)


def test_group_privacy():
    assert replacement_guarantee(1.0, 1e-5) == (2.0, pytest.approx((math.e + 1) * 1e-5))
    assert replacement_guarantee(3.0, 0.0) == (6.0, 0.0)
    assert replacement_guarantee(800.0, 1e-300) == (1600.0, 1.0)


def test_p_value_is_that_of_the_implied_guarantee():
    assert replacement_p_value(1000, 100, 90, 0.5, 1e-5) == p_value(
        1000, 100, 90, 1.0, (math.exp(0.5) + 1) * 1e-5
    )


def test_pure_dp_halves_the_bound():
    for m, r, v in [(100, 100, 90), (1000, 50, 50)]:
        assert replacement_eps_lower_bound(m, r, v, 0.0) == pytest.approx(
            eps_lower_bound(m, r, v, 0.0) / 2, abs=1e-9
        )


def test_bound_is_where_the_p_value_crosses():
    bound = replacement_eps_lower_bound(5000, 300, 280, 1e-5)
    assert 0 < bound < eps_lower_bound(5000, 300, 280, 1e-5) / 2
    assert replacement_p_value(5000, 300, 280, bound, 1e-5) == pytest.approx(0.05, abs=1e-8)
