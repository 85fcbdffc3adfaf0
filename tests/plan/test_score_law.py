"""The predicted scores against closed forms, simulated ones, and dp_accounting."""

import dataclasses

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import binom

from experiments.mechanisms import draw_scores
from oneshot.claims import accounting
from oneshot.claims.claim import DPSGD
from oneshot.plan import Scoring, score_law

SMALL = Scoring(DPSGD(0.6, 0.02, 500), 'llr')


def _above(law, points, included):
    return np.interp(points, law.points, law.above_in if included else law.above_out)


def test_dot_of_one_step_of_everybody_is_normal():
    law, points = Scoring(DPSGD(2.0)).law(), np.linspace(-6.0, 8.0, 30)
    np.testing.assert_allclose(_above(law, points, False), ndtr(-points / 2.0), atol=1e-5)
    np.testing.assert_allclose(_above(law, points, True), ndtr((1.0 - points) / 2.0), atol=1e-5)
    mean, variance = law.moments(True)
    assert (mean, variance) == (pytest.approx(1.0), pytest.approx(4.0, rel=1e-4))


@pytest.mark.parametrize('steps', [3, 200, 100_000])
def test_dot_of_many_steps_is_a_mixture(steps):
    """Also where numbers of draws are too many to be told apart."""
    known = Scoring(DPSGD(0.7, 0.3, steps))
    drawn = np.arange(steps + 1)
    chances, deviation = binom.pmf(drawn, steps, 0.3), 0.7 * np.sqrt(steps)
    points = np.linspace(-3.0 * deviation, 0.3 * steps + 3.0 * deviation, 20)
    exact = [float(chances @ ndtr((drawn - point) / deviation)) for point in points]
    np.testing.assert_allclose(_above(known.law(), points, True), exact, atol=2e-5)


def test_llr_of_one_step_in_closed_form():
    sigma, q = 0.8, 0.3
    law = Scoring(DPSGD(sigma, q, 1), 'llr').law()
    points = np.linspace(np.log(1 - q) + 1e-3, 4.0, 40)
    x = sigma**2 * np.log((np.exp(points) - 1 + q) / q) + 0.5
    out, drawn = ndtr(-x / sigma), ndtr((1.0 - x) / sigma)
    np.testing.assert_allclose(_above(law, points, False), out, atol=2e-3)
    np.testing.assert_allclose(_above(law, points, True), (1 - q) * out + q * drawn, atol=2e-3)


@pytest.mark.parametrize('known', [Scoring(DPSGD(2.329, 0.08192, 2000), 'llr'), SMALL])
def test_llr_is_the_privacy_loss(known):
    """It is the logarithm of the ratio of both laws, whose tail dp_accounting knows."""
    law = known.law()
    inside, outside = -np.diff(law.above_in), -np.diff(law.above_out)
    middle = 0.5 * (law.points[1:] + law.points[:-1])
    # Below, e^middle would make much of the rounding of a Fourier transform, which is another on
    # another machine; what is left out is less than 1e-4 of all.
    large = inside > 1e-7
    assert np.sum(inside[~large]) < 1e-4
    assert np.sum(np.exp(middle[large]) * outside[large]) == pytest.approx(1.0, abs=2e-3)
    ratio = np.log(inside[large] / outside[large])
    np.testing.assert_allclose(ratio, middle[large], atol=0.01)
    for eps in (1.0, 4.0, 6.0):
        delta = float(np.sum(np.maximum(0.0, inside - np.exp(eps) * outside)))
        sizes = dataclasses.astuple(known.claim)
        assert delta == pytest.approx(accounting.delta_upper_bound(*sizes, eps), rel=0.02)


@pytest.mark.parametrize(
    'known',
    [
        SMALL,
        Scoring(DPSGD(0.6, 0.02, 500)),
        Scoring(DPSGD(1.3, 0.2, 40), 'llr', interference=0.5, scale=3.0),
    ],
)
def test_simulated_scores_follow_the_law(known):
    """Distance at most 0.021: by Dvoretzky, Kiefer and Wolfowitz, by chance below 1e-7 twice."""
    rng = np.random.default_rng(0)
    for included in (True, False):
        scores = np.sort(draw_scores(known, rng, np.full(20_000, included)))
        away = _above(known.law(), scores, included) - (1.0 - np.arange(1, 20_001) / 20_000)
        assert np.abs(away).max() < 0.021


def test_less_noise_than_claimed():
    """The score is still that of the claim, and tells more."""
    claimed = Scoring(DPSGD(1.0, 0.2, 50), 'llr')
    as_claimed, less = claimed.law(), claimed.law(0.7)
    share = np.array([0.05])
    assert less.wrong_share(share, 'in') < as_claimed.wrong_share(share, 'in')
    rng = np.random.default_rng(0)
    scores = np.zeros(20_000)
    for _ in range(50):
        drawn = rng.random(20_000) < 0.2
        scores += score_law.log_ratio(drawn + 0.7 * rng.standard_normal(20_000), 1.0, 0.2)
    away = _above(less, np.sort(scores), True) - (1.0 - np.arange(1, 20_001) / 20_000)
    assert np.abs(away).max() < 0.021


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'noise_multiplier': 0.0}, r'noise_multiplier must be a number in \[0.01, 1e\+06\]'),
        ({'sampling_prob': 0.0}, r'sampling_prob must be a number in \(0, 1\], but 0.0'),
        ({'steps': 0}, 'steps must be a whole number from 1'),
        ({'weighing': 'loss'}, "weighing must be one of dot, llr, but 'loss'"),
        ({'claim': 1.0}, r'claim must be a oneshot\.DPSGD, but 1\.0'),
        ({'interference': -1.0}, 'interference must be'),
        ({'scale': 0.0}, 'scale must be'),
    ],
)
def test_bad_input(change, message):
    fields = {field.name for field in dataclasses.fields(DPSGD)}
    of_claim = {'noise_multiplier': 1.0} | {k: v for k, v in change.items() if k in fields}
    rest = {k: v for k, v in change.items() if k not in fields}

    def make():
        return Scoring(**{'claim': DPSGD(**of_claim)} | rest)

    with pytest.raises(ValueError, match=message):
        make()
