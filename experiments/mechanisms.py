"""Small mechanisms whose privacy is known exactly, to audit the audits with.

Each takes m coins S in {−1, +1}^m to m scores, knows the smallest δ for every ε
and the smallest ε for every δ, and has a sampler that flips the coins as well.
DP is with respect to flipping one coin.
"""

import abc
import dataclasses
import math

import numpy as np
import scipy

from oneshot import inputs
from oneshot.bounds import binomial, gaussian_delta, gaussian_eps
from oneshot.claims import accounting
from oneshot.plan.score_law import Scoring, log_ratio
from oneshot.scores.any_algorithm import Sample


@dataclasses.dataclass(frozen=True)
class Mechanism(abc.ABC):
    """A mechanism on m coins.

    Attributes:
        m: the number of coins.
    """

    m: int

    def __post_init__(self) -> None:
        inputs.count('m, the number of coins,', self.m, 1)

    @abc.abstractmethod
    def delta(self, eps: float) -> float:
        """The smallest δ for which the mechanism is (ε, δ)-DP."""

    @abc.abstractmethod
    def eps(self, delta: float) -> float:
        """The smallest ε ≥ 0 for which the mechanism is (ε, δ)-DP."""

    @abc.abstractmethod
    def scores(self, rng: np.random.Generator, signs: np.ndarray) -> np.ndarray:
        """One run on the coins `signs` in {−1, +1}^m."""

    def sample(self, rng: np.random.Generator) -> Sample:
        """Flips m fair coins and runs the mechanism on them."""
        included = rng.random(self.m) < 0.5
        return Sample(self.scores(rng, np.where(included, 1, -1)), included)


@dataclasses.dataclass(frozen=True)
class RandomizedResponse(Mechanism):
    """Each coin is told truly with probability e^ε0 / (e^ε0 + 1); exactly (ε0, 0)-DP."""

    eps0: float

    def __post_init__(self) -> None:
        super().__post_init__()
        inputs.real('eps0', self.eps0, 0.0, 700.0)

    def delta(self, eps: float) -> float:
        gap = min(0.0, inputs.eps(eps) - self.eps0)
        return -math.expm1(gap) * binomial.expit(self.eps0)

    def eps(self, delta: float) -> float:
        # δ(ε) = (1 − e^(ε − ε0))·q, solved for ε.
        rest = 1.0 - inputs.delta(delta) / binomial.expit(self.eps0)
        return max(0.0, self.eps0 + math.log(rest)) if rest > 0.0 else 0.0

    def scores(self, rng: np.random.Generator, signs: np.ndarray) -> np.ndarray:
        true = rng.random(self.m) < binomial.expit(self.eps0)
        return np.where(true, signs, -signs).astype(float)


@dataclasses.dataclass(frozen=True)
class Gaussian(Mechanism):
    """Releases S_i·Δ/2 + N(0, σ²); exactly as private as Lemma gauss says."""

    sigma: float
    sensitivity: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        gaussian_delta(0.0, self.sigma, self.sensitivity)  # checks both

    def delta(self, eps: float) -> float:
        return gaussian_delta(eps, self.sigma, self.sensitivity)

    def eps(self, delta: float) -> float:
        return gaussian_eps(delta, self.sigma, self.sensitivity)

    def scores(self, rng: np.random.Generator, signs: np.ndarray) -> np.ndarray:
        return 0.5 * self.sensitivity * signs + self.sigma * rng.standard_normal(self.m)


@dataclasses.dataclass(frozen=True)
class Laplace(Mechanism):
    """Releases S_i·Δ/2 + Laplace(b); exactly (Δ/b, 0)-DP."""

    scale: float
    sensitivity: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        inputs.real('scale', self.scale, 0.0, math.inf, ends='()')
        inputs.real('sensitivity', self.sensitivity, 0.0, math.inf, ends='[)')

    def delta(self, eps: float) -> float:
        gap = min(0.0, inputs.eps(eps) - self.sensitivity / self.scale)
        return -math.expm1(gap / 2.0)

    def eps(self, delta: float) -> float:
        rest = 1.0 - inputs.delta(delta)
        shift = 2.0 * math.log(rest) if rest > 0.0 else -math.inf
        return max(0.0, self.sensitivity / self.scale + shift)

    def scores(self, rng: np.random.Generator, signs: np.ndarray) -> np.ndarray:
        return 0.5 * self.sensitivity * signs + rng.laplace(scale=self.scale, size=self.m)


@dataclasses.dataclass(frozen=True)
class SubsampledGaussian(Mechanism):
    """Dirac canaries of DP-SGD: each is drawn with probability q at every step, if it is in.

    The scores are those of `oneshot.plan.Scoring`. ε and δ are those of the accountant,
    which rounds up.

    Attributes:
        m: the number of coins.
        scoring: the DP-SGD, and how its canaries are scored.
    """

    scoring: Scoring

    def delta(self, eps: float) -> float:
        sizes = dataclasses.astuple(self.scoring.claim)
        return accounting.delta_upper_bound(*sizes, inputs.eps(eps))

    def eps(self, delta: float) -> float:
        return self.scoring.claim.eps(delta)

    def scores(self, rng: np.random.Generator, signs: np.ndarray) -> np.ndarray:
        return draw_scores(self.scoring, rng, signs > 0)


def draw_scores(scoring: Scoring, rng: np.random.Generator, included: np.ndarray) -> np.ndarray:
    """Scores of canaries with these coins, drawn step by step for `llr`."""
    m, (sigma, q, steps) = included.size, dataclasses.astuple(scoring.claim)
    noise = math.hypot(sigma, scoring.interference)
    if scoring.weighing == 'dot':
        drawn = rng.binomial(steps, q, m) * included
        return scoring.scale * (drawn + noise * math.sqrt(steps) * rng.standard_normal(m))
    scores = np.zeros(m)
    for _ in range(steps):
        drawn = (rng.random(m) < q) & included
        scores += log_ratio(drawn + noise * rng.standard_normal(m), sigma, q)
    return scoring.scale * scores


@dataclasses.dataclass(frozen=True)
class Pathological(Mechanism):
    """Algorithm pathological: (ε, δ)-DP, and nearly the worst that Theorem main allows.

    It answers for r coins drawn at random and is silent (score 0) on the others.
    With probability β all its answers at once are better than ε allows, by what
    δ pays for. The scores are its guesses T in {−1, 0, +1}^m.

    Attributes:
        m: the number of coins.
        r: the number of answers.
        claimed_eps: the ε of the algorithm.
        claimed_delta: the δ of the algorithm, with 0 < mδ ≤ rβ.
        beta: β, the probability of the bad event.
    """

    r: int
    claimed_eps: float
    claimed_delta: float
    beta: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        inputs.count('r, the number of answers,', self.r, 1, self.m)
        inputs.real('claimed_eps', self.claimed_eps, 0.0, 700.0)
        inputs.real('beta', self.beta, 0.0, 1.0, ends='(]')
        most = self.r * self.beta / self.m
        inputs.real('claimed_delta', self.claimed_delta, 0.0, min(1.0, most), ends='(]')

    @property
    def _rates(self) -> tuple[float, float]:
        """The probability of a true answer in the bad event, and outside of it."""
        q = binomial.expit(self.claimed_eps)
        boost = self.m * self.claimed_delta / (self.r * self.beta)
        return boost + (1.0 - boost) * q, q

    def delta(self, eps: float) -> float:
        """Exact, with the event hidden: `claimed_delta` at `claimed_eps`.

        Flipping coin i matters if it is answered, with probability r/m. What the
        other r − 1 answers tell about the event is how many of them are true.
        """
        scale = math.exp(min(inputs.eps(eps), 700.0))
        others = np.arange(self.r)
        gain = np.zeros(self.r)
        for rate, event in zip(self._rates, (self.beta, 1.0 - self.beta), strict=True):
            law = scipy.stats.binom.pmf(others, self.r - 1, rate)
            gain += event * law * (rate - scale * (1.0 - rate))
        return self.r / self.m * float(np.sum(np.maximum(gain, 0.0)))

    def eps(self, delta: float) -> float:
        delta = inputs.delta(delta)
        if self.delta(0.0) <= delta:
            return 0.0
        high = self.claimed_eps + 1.0
        while self.delta(high) > delta:
            high *= 2.0
            if high > 700.0:
                return math.inf
        return scipy.optimize.brentq(lambda eps: self.delta(eps) - delta, 0.0, high, xtol=1e-12)

    def scores(self, rng: np.random.Generator, signs: np.ndarray) -> np.ndarray:
        rate = self._rates[0 if rng.random() < self.beta else 1]
        chosen = rng.choice(self.m, self.r, replace=False)
        scores = np.zeros(self.m)
        true = rng.random(self.r) < rate
        scores[chosen] = np.where(true, signs[chosen], -signs[chosen])
        return scores
