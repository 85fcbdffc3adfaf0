"""The distribution of scores before a run: what is known of it from the claim alone.

The canary of interest has ĝ of norm c at every step. Along it, in units of c, an
adversary sees x_t = b_t + σ·N(0, 1), with b_t a coin of probability q if the canary is
in, and 0 if it is out. `dot` is Σ_t x_t, and `llr` is Σ_t log(1 − q + q·exp((2x_t − 1)/2σ²)).
For Dirac canaries and the residual this is exact, and the scores are independent. Other
data adds to what the iterates show; how much is not known before a run.
"""

import dataclasses
import functools
import math

import numpy as np
import scipy

from oneshot import inputs
from oneshot.claims.claim import DPSGD

WEIGHINGS = ('dot', 'llr')

_REACH = 10.0  # standard deviations on each side
_LATTICE = 1 << 18  # points of the distribution of `llr`
_KEPT = 16  # one of so many points is kept of it
_STEP_POINTS = 200_001  # of one step of it
_POINTS = 4_001  # of the distribution of `dot`
_COUNTS = 512  # numbers of draws that are told apart in it


@dataclasses.dataclass(frozen=True)
class Law:
    """The scores of a canary that is in and of one that is out, at points that rise."""

    points: np.ndarray
    above_in: np.ndarray  # P[score > point], if the canary is in
    above_out: np.ndarray
    below_in: np.ndarray  # P[score ≤ point]; of its own, because a tail is small
    below_out: np.ndarray

    def wrong_share(self, share: np.ndarray, side: str) -> np.ndarray:
        """The share of wrong guesses if this share of all canaries is guessed.

        Of the largest scores, guessed "in" (`side` is 'in'), or of the smallest.
        """
        return np.interp(np.log(share), *self._wrong_shares[side])

    @functools.cached_property
    def _wrong_shares(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """The logarithms of shares of guesses, and the shares of wrong ones among them."""
        sides = {
            'in': (self.above_in[::-1], self.above_out[::-1]),
            'out': (self.below_out, self.below_in),
        }
        shares = {}
        for side, (right, wrong) in sides.items():
            both = 0.5 * (right + wrong)
            use = both > 1e-12  # below, rounding would tell
            shares[side] = np.log(both[use]), 0.5 * wrong[use] / both[use]
        return shares

    def threshold(self, share: float) -> float:
        """The point above which this share of all scores lies."""
        return float(np.interp(-share, -0.5 * (self.above_in + self.above_out), self.points))

    def moments(self, included: bool) -> tuple[float, float]:
        """Mean and variance of the scores of a canary that is in, or out."""
        mass = np.diff(self.below_in if included else self.below_out)
        middle = 0.5 * (self.points[1:] + self.points[:-1])
        mean = float(np.sum(mass * middle) / np.sum(mass))
        return mean, float(np.sum(mass * (middle - mean) ** 2) / np.sum(mass))


@dataclasses.dataclass(frozen=True)
class Scoring:
    """How the canaries of a claim are scored: all that a plan needs to know.

    Attributes:
        claim: the DP-SGD.
        weighing: 'dot' or 'llr'.
        interference: the standard deviation, in units of c, of what other data adds to a
            step along a canary: 0 for the residual, unknown for the iterates.
        scale: what a score of 1 in units of c is in the scores that are audited.
    """

    claim: DPSGD
    weighing: str = 'dot'
    interference: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.claim, DPSGD):
            raise ValueError(f'claim must be a oneshot.DPSGD, but {self.claim!r} was given.')
        inputs.choice('weighing', self.weighing, WEIGHINGS)
        inputs.real('interference', self.interference, 0.0, math.inf, ends='[)')
        inputs.real('scale', self.scale, 0.0, math.inf, ends='()')

    def law(self, noise_multiplier: float | None = None) -> Law:
        """The distribution of scores if the noise is as claimed, or if it is another."""
        claimed, q, steps = dataclasses.astuple(self.claim)
        sigma = claimed if noise_multiplier is None else noise_multiplier
        noise = math.hypot(sigma, self.interference)
        if self.weighing == 'dot':
            law = _dot_law(noise, q, steps)
        else:
            law = _llr_law(noise, claimed, q, steps)
        return dataclasses.replace(law, points=self.scale * law.points)


def log_ratio(x: np.ndarray, sigma: float, q: float) -> np.ndarray:
    """log(1 − q + q·exp((2x − 1)/2σ²)): one step of `llr`."""
    exponent = (2.0 * x - 1.0) / (2.0 * sigma**2)
    return exponent if q == 1.0 else np.logaddexp(math.log1p(-q), math.log(q) + exponent)


@functools.lru_cache(maxsize=64)
def _dot_law(noise: float, q: float, steps: int) -> Law:
    """A normal if the canary is out, and a normal around each number of draws if it is in."""
    deviation = noise * math.sqrt(steps)
    spread = _REACH * math.sqrt(steps * q * (1.0 - q)) + 2.0
    first = max(0, math.floor(steps * q - spread))
    last = min(steps, math.ceil(steps * q + spread))
    edges = np.unique(np.linspace(first, last, min(_COUNTS, last - first + 1)).astype(np.int64))
    if edges.size > 1:
        mass = np.diff(scipy.stats.binom.cdf(np.append(edges, last + 1) - 1, steps, q))
        middle = 0.5 * (edges + np.append(edges[1:], last + 1) - 1)
    else:
        mass, middle = np.ones(1), edges.astype(float)
    mass = mass / mass.sum()
    points = np.linspace(-_REACH * deviation, max(middle[-1], 0.0) + _REACH * deviation, _POINTS)
    away = (points[:, None] - middle) / deviation
    return Law(
        points,
        above_in=scipy.special.ndtr(-away) @ mass,
        above_out=scipy.special.ndtr(-points / deviation),
        below_in=scipy.special.ndtr(away) @ mass,
        below_out=scipy.special.ndtr(points / deviation),
    )


@functools.lru_cache(maxsize=40)
def _llr_law(noise: float, sigma: float, q: float, steps: int) -> Law:
    """The sum of independent steps, each on a lattice, by the Fourier transform.

    A value between two points of the lattice is shared by both, which keeps the mean.
    """
    x = np.linspace(-_REACH * noise, 1.0 + _REACH * noise, _STEP_POINTS)
    values = log_ratio(x, sigma, q)
    out = np.exp(-0.5 * (x / noise) ** 2)
    drawn = np.exp(-0.5 * ((x - 1.0) / noise) ** 2)
    out, drawn = out / out.sum(), drawn / drawn.sum()
    step_laws = (1.0 - q) * out + q * drawn, out  # if the canary is in, and if it is out
    ends = []
    for mass in step_laws:
        mean = float(mass @ values)
        reach = _REACH * math.sqrt(steps * float(mass @ (values - mean) ** 2))
        ends += [steps * mean - reach - 1.0, steps * mean + reach + values[-1] - mean]
    low, high = max(min(ends), steps * float(values[0])), max(ends)
    width = (high - low) / (_LATTICE - 2)
    place = values / width
    left = np.floor(place).astype(np.int64)
    part = place - left
    first = math.floor(low / width)
    laws = []
    for mass in step_laws:
        lattice = np.bincount(left % _LATTICE, mass * (1.0 - part), _LATTICE)
        lattice += np.bincount((left + 1) % _LATTICE, mass * part, _LATTICE)
        total = np.fft.irfft(np.fft.rfft(lattice) ** steps, _LATTICE)
        total = np.maximum(np.roll(total, -(first % _LATTICE)), 0.0)
        laws.append(total / total.sum())
    points = width * (first + np.arange(_LATTICE))
    above = [np.append(np.cumsum(mass[:0:-1])[::-1], 0.0) for mass in laws]
    below = [np.cumsum(mass) for mass in laws]
    tails = [np.minimum(1.0, tail) for tail in above + below]
    return Law(*(values[::_KEPT] for values in (points, *tails)))
