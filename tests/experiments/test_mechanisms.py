import itertools
import math

import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from experiments.mechanisms import (
    Gaussian,
    Laplace,
    Pathological,
    RandomizedResponse,
    SubsampledGaussian,
)
from oneshot.claims.claim import DPSGD
from oneshot.plan import Scoring
from tests.chance import plausible

MECHANISMS = [
    RandomizedResponse(6, 1.3),
    Gaussian(6, sigma=1.5, sensitivity=2.0),
    Laplace(6, scale=0.7, sensitivity=1.1),
    Pathological(6, r=4, claimed_eps=0.8, claimed_delta=0.02, beta=0.1),
]


@pytest.mark.parametrize('mechanism', MECHANISMS, ids=lambda one: type(one).__name__)
def test_eps_and_delta_are_inverse(mechanism):
    for eps in (0.0, 0.3, 0.79, 1.0):
        delta = mechanism.delta(eps)
        if delta > 0:
            assert mechanism.eps(delta) == pytest.approx(eps, abs=1e-7)
    assert mechanism.eps(1.0) == 0.0
    assert mechanism.delta(0.5) <= mechanism.delta(0.1)


def test_pure_mechanisms_at_delta_zero():
    assert RandomizedResponse(5, 2.0).eps(0.0) == 2.0
    assert Laplace(5, scale=0.5, sensitivity=1.0).eps(0.0) == 2.0
    assert Gaussian(5, sigma=1.0).eps(0.0) == math.inf


def test_continuous_deltas_are_the_hockey_stick_divergence():
    """δ = ∫ max(0, p(x) − e^ε·q(x)) dx, integrated."""
    eps = 0.6
    for mechanism, law in [
        (Gaussian(1, sigma=1.5, sensitivity=2.0), scipy.stats.norm(scale=1.5)),
        (Laplace(1, scale=0.7, sensitivity=2.0), scipy.stats.laplace(scale=0.7)),
    ]:
        integral, _ = scipy.integrate.quad(
            lambda x, law=law: max(0.0, law.pdf(x - 1) - math.exp(eps) * law.pdf(x + 1)),
            -20,
            20,
            points=[-1, 0, 1],
            limit=200,
        )
        assert mechanism.delta(eps) == pytest.approx(integral, abs=1e-8)


def _law_of_pathological(mechanism, signs):
    """P[T = t] for every t, from the lines of Algorithm pathological."""
    m, r, beta = mechanism.m, mechanism.r, mechanism.beta
    q = math.exp(mechanism.claimed_eps) / (math.exp(mechanism.claimed_eps) + 1)
    boost = m * mechanism.claimed_delta / (r * beta)
    law = {}
    for chosen in itertools.combinations(range(m), r):
        for answers in itertools.product([-1, 1], repeat=r):
            t = [0] * m
            for i, answer in zip(chosen, answers, strict=True):
                t[i] = answer
            right = sum(answer == signs[i] for i, answer in zip(chosen, answers, strict=True))
            high = boost + (1 - boost) * q
            law[tuple(t)] = (
                beta * high**right * (1 - high) ** (r - right)
                + (1 - beta) * q**right * (1 - q) ** (r - right)
            ) / math.comb(m, r)
    return law


def test_pathological_delta_is_that_of_all_its_outcomes():
    mechanism = MECHANISMS[3]
    one = _law_of_pathological(mechanism, (1, 1, -1, 1, -1, -1))
    other = _law_of_pathological(mechanism, (-1, 1, -1, 1, -1, -1))
    assert sum(one.values()) == pytest.approx(1)
    for eps in (0.0, 0.5, 0.8, 0.9):
        exact = sum(max(0.0, one[t] - math.exp(eps) * other[t]) for t in one)
        assert mechanism.delta(eps) == pytest.approx(exact, rel=1e-10, abs=1e-16)
    assert mechanism.delta(0.8) == pytest.approx(0.02)  # as the paper claims


@pytest.mark.parametrize('mechanism', MECHANISMS, ids=lambda one: type(one).__name__)
def test_coins_are_fair_and_independent(mechanism):
    """A false alarm has probability below 36 · 1e-9."""
    rng = np.random.default_rng(7)
    coins = np.array([mechanism.sample(rng).included for _ in range(4000)])
    for i, j in itertools.combinations_with_replacement(range(mechanism.m), 2):
        both = int(np.sum(coins[:, i] & coins[:, j]))
        assert plausible(both, 4000, 0.5 if i == j else 0.25)


def test_samples_follow_their_laws():
    """Each check gives a false alarm with probability below 1e-8."""
    rng = np.random.default_rng(8)
    m = 100_000
    scores, included = RandomizedResponse(m, 1.3).sample(rng)
    assert set(scores.tolist()) == {-1.0, 1.0}
    right = int(np.sum((scores > 0) == included))
    assert plausible(right, m, 1 / (1 + math.exp(-1.3)))
    for mechanism, law in [
        (Gaussian(m, sigma=1.5, sensitivity=2.0), scipy.stats.norm(scale=1.5)),
        (Laplace(m, scale=0.7, sensitivity=2.0), scipy.stats.laplace(scale=0.7)),
    ]:
        scores, included = mechanism.sample(rng)
        noise = scores - np.where(included, 1.0, -1.0)
        assert scipy.stats.kstest(noise, law.cdf).pvalue > 1e-8


def test_pathological_samples_follow_their_law():
    """Counts of right answers over 20,000 runs; a false alarm is below 1e-8 each."""
    mechanism = Pathological(12, r=4, claimed_eps=0.8, claimed_delta=0.02, beta=0.3)
    rng = np.random.default_rng(9)
    q, boost = 1 / (1 + math.exp(-0.8)), 12 * 0.02 / (4 * 0.3)
    counts = np.zeros(5, dtype=int)
    answered = np.zeros(12, dtype=int)
    for _ in range(20_000):
        scores, included = mechanism.sample(rng)
        assert np.count_nonzero(scores) == 4
        answered += scores != 0
        counts[np.sum((scores != 0) & ((scores > 0) == included))] += 1
    for k, count in enumerate(counts.tolist()):
        chance = 0.3 * scipy.stats.binom.pmf(k, 4, boost + (1 - boost) * q)
        chance += 0.7 * scipy.stats.binom.pmf(k, 4, q)
        assert plausible(count, 20_000, chance)
    for count in answered.tolist():
        assert plausible(count, 20_000, 4 / 12)


def test_the_same_seed_gives_the_same_sample():
    for mechanism in MECHANISMS:
        one, two = (mechanism.sample(np.random.default_rng(3)) for _ in range(2))
        assert (one.scores == two.scores).all()
        assert (one.included == two.included).all()


def test_one_step_of_everybody_is_the_gaussian_mechanism():
    """To 1e-4, which is what the accountant rounds up; the step of a canary is Δ = 1."""
    stepped, plain = SubsampledGaussian(4, Scoring(DPSGD(0.8))), Gaussian(4, 0.8)
    for eps in (0.5, 2.0):
        assert stepped.delta(eps) == pytest.approx(plain.delta(eps), rel=1e-3)
    assert stepped.eps(1e-5) == pytest.approx(plain.eps(1e-5), rel=1e-3)
    scores = SubsampledGaussian(40_000, Scoring(DPSGD(0.8))).sample(np.random.default_rng(0))
    shift = scores.scores[scores.included].mean() - scores.scores[~scores.included].mean()
    assert abs(shift - 1.0) < 5.5 * 0.8 * 2 / 200  # by chance with probability 4e-8
