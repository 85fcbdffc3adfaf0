import math

import mpmath
import numpy as np
import pytest
import scipy
from mpmath import mpf

from oneshot import bounds
from oneshot.bounds.assuming import gaussian_pair
from tests import reference  # sets 50 digits
from tests.chance import plausible


def _draw(seed, n_in, n_out, mu, offset=0.0, deviation=1.0):
    rng = np.random.default_rng(seed)
    return (
        offset + deviation * rng.normal(mu, size=n_in),
        offset + deviation * rng.normal(0.0, size=n_out),
    )


@pytest.mark.parametrize('mu', [0.0, 0.5, 2.0])
@pytest.mark.parametrize(('n_in', 'n_out'), [(2, 2), (5, 9), (300, 200)])
def test_against_scipy(n_in, n_out, mu):
    scores = _draw(1, n_in, n_out, mu, offset=3.0, deviation=7.0)
    t = scipy.stats.ttest_ind(*scores).statistic
    freedom, scale = n_in + n_out - 2, math.sqrt(n_in * n_out / (n_in + n_out))
    for claim in (0.0, 0.3, mu, 3.0):
        expected = scipy.stats.nct.sf(t, freedom, claim * scale)
        assert bounds.gaussian_pair_p_value(*scores, claim) == pytest.approx(expected, abs=1e-11)
    for confidence in (0.5, 0.95, 0.999):
        found = bounds.gaussian_pair_mu(*scores, confidence)
        if found > 0:
            level = scipy.stats.nct.sf(t, freedom, found * scale)
            assert level == pytest.approx(1 - confidence, rel=1e-8)
        else:
            assert scipy.stats.t.sf(t, freedom) >= 1 - confidence - 1e-12
        told = bounds.gaussian_pair_eps(*scores, 1e-5, confidence)
        assert told == bounds.gaussian_eps(1e-5, 1.0, found)


@pytest.mark.parametrize(
    ('t', 'freedom', 'shift'),
    [
        (100.0, 4, 90.0),
        (5000.0, 1000, 4900.0),
        (79_000.0, 10**7, 78_950.0),
        (4475.0, 10**7, 4470.0),
        (1e6, 100, 1e6),
        (3.0, 2, 1.0),
        (1.5, 10**7, 0.5),
        (3.0, 10**7, 8.0),
    ],
)
def test_the_noncentral_t_against_an_integral_of_50_digits(t, freedom, shift):
    assert reference.mp.dps == 50
    half = mpf(freedom) / 2

    def integrand(s):
        log = (freedom - 1) * mpmath.log(s) - half * s * s
        log += half * mpmath.log(half) - mpmath.loggamma(half) + mpmath.log(2)
        return mpmath.exp(log) * mpmath.ncdf(shift - t * s)

    deviation = 1 / math.sqrt(2 * freedom)
    ends = {max(1e-30, 1 + k * deviation) for k in range(-12, 13)} | {shift / t, 1 + 40 * deviation}
    with mpmath.workdps(25):
        exact = float(mpmath.quad(integrand, sorted(ends)))
    found = gaussian_pair._noncentral_t_tail(t, freedom, shift)
    assert found == pytest.approx(exact, abs=1e-12)
    assert gaussian_pair._noncentral_t_tail(-t, freedom, -shift) == pytest.approx(
        1.0 - exact, abs=1e-12
    )


@pytest.mark.parametrize(('n_in', 'n_out', 'mu'), [(10, 15, 1.0), (300, 200, 0.4), (4, 4, 3.0)])
def test_the_limit_covers_normals_exactly(n_in, n_out, mu):
    """Above d' in 5 % of 2,000 runs; each case fails by chance with less than 1e-7."""
    above = sum(
        bounds.gaussian_pair_mu(*_draw((seed, n_in), n_in, n_out, mu, 1.0, 2.0)) > mu
        for seed in range(2000)
    )
    assert plausible(above, 2000, 0.05, alarm=1e-7)


def test_p_values_reject_what_the_limit_excludes():
    scores = _draw(3, 50, 60, 1.5)
    for confidence in (0.9, 0.99):
        mu = bounds.gaussian_pair_mu(*scores, confidence)
        p = bounds.gaussian_pair_p_value(*scores, mu)
        assert p == pytest.approx(1 - confidence, rel=1e-8)
    found = [bounds.gaussian_pair_mu(*scores, one) for one in (0.999, 0.95, 0.5, 0.1)]
    assert found == sorted(found)
    p = [bounds.gaussian_pair_p_value(*scores, mu) for mu in (0.0, 0.5, 1.5, 3.0, math.inf)]
    assert p == sorted(p)
    assert p[-1] == 1.0


def test_location_and_scale_do_not_matter():
    inside, outside = _draw(4, 40, 30, 1.0)
    mu = bounds.gaussian_pair_mu(inside, outside)
    for offset, factor in ((1e6, 1.0), (0.0, 1e300), (0.0, 1e-300), (-5.0, 3.0)):
        moved = bounds.gaussian_pair_mu(offset + factor * inside, offset + factor * outside)
        assert moved == pytest.approx(mu, rel=1e-7)
    assert bounds.gaussian_pair_mu(outside, inside) == 0.0
    assert bounds.gaussian_pair_mu(outside, inside, 1e-12) >= 0.0


def test_many_scores_and_large_distances():
    """The limit is d' − 1.645 deviations, which are √(1/n + 1/m + d'²/(2·(n + m)))."""
    for n, mu in ((10**6, 50.0), (10**6, 0.01), (1000, 50.0), (1000, 1e6)):
        scores = _draw(5, n, n, mu)
        inside, outside = scores
        spread = math.sqrt((inside.var(ddof=1) + outside.var(ddof=1)) / 2)
        distance = (inside.mean() - outside.mean()) / spread
        deviation = math.sqrt(2 / n + distance**2 / (4 * n))
        found = bounds.gaussian_pair_mu(*scores)
        assert found == pytest.approx(distance - 1.645 * deviation, abs=0.05 * deviation)


def test_edges():
    for inside, outside in (([], []), ([], [1.0]), ([5.0], [1.0, 2.0]), ([5.0, 6.0], [1.0])):
        assert bounds.gaussian_pair_mu(inside, outside) == 0.0
        assert bounds.gaussian_pair_eps(inside, outside, 1e-5) == 0.0
        assert bounds.gaussian_pair_p_value(inside, outside, 0.0) == 1.0
    same, more = [0.1] * 3, [0.3] * 7
    assert bounds.gaussian_pair_mu(same, same) == bounds.gaussian_pair_mu(same, more) == 0.0
    assert bounds.gaussian_pair_mu(more, same) == math.inf
    assert bounds.gaussian_pair_eps(more, same, 1e-5) == math.inf
    assert bounds.gaussian_pair_eps(more, same, 1.0) == 0.0
    assert bounds.gaussian_pair_p_value(more, same, 9.0) == 0.0
    assert bounds.gaussian_pair_p_value(same, more, 0.0) == 1.0
    assert bounds.gaussian_pair_eps([1.0, 1.0 + 1e-15], [0.0, 0.0], 1e-5) > 1e20
    assert bounds.gaussian_pair_eps([1, 2, 4], [0, 1, 0], 0.0) in (0.0, math.inf)
    with pytest.raises(ValueError, match='scores_in must be finite, but 1 of 2 entries'):
        bounds.gaussian_pair_mu([1.0, math.inf], [0.0, 1.0])
