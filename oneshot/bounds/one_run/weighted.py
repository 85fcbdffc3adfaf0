"""Proposition pure and Theorem main for guesses that carry weights.

The weight of the right guesses is at least v exactly if the weight of the wrong
ones, the loss, is at most Σ|t_i| − v. The loss is what is put on a lattice: its
distribution is a sum of independent terms that are 0 with probability
q = e^ε / (e^ε + 1) and |t_i| otherwise, and it is needed only up to a point.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from oneshot import inputs
from oneshot.bounds import binomial
from oneshot.bounds.inversion import largest_rejected_eps
from oneshot.bounds.one_run.main_theorem import main_p_value

_POINTS = 1 << 14  # lattice points where no natural lattice is found
_MOST_POINTS = 1 << 17  # the longest natural lattice that is used as it is
_ROUNDING_FAILURE = 1e-12  # what rounding to a lattice may add to a p-value
_NEAR = 1e-9  # weights this close to the lattice, in steps, lie on it

_Survival = Callable[[np.ndarray], np.ndarray]


def weighted_p_value(weights: ArrayLike, v: float, eps: float, delta: float = 0.0) -> float:
    """p-value of "M is (ε, δ)-DP" when the right guesses weigh v in all.

    Proposition pure (δ = 0): given T = t, the right guesses weigh v or more
    with probability at most P[Σ_i Š_i·|t_i| ≥ v], where the Š_i are independent
    Bernoulli(e^ε / (e^ε + 1)). It holds for real weights of any size, and the
    weights may depend on the scores.

    Theorem main (δ > 0): needs |t_i| ≤ 1, and weights fixed before the scores
    are seen, as a fixed function of the rank of a score is: then every t that M
    can give has the same weights, and Σ_i Š_i·|t_i| dominates for all of them.
    For weights that depend on the scores, see `adaptive_weighted_p_value`.

    The distribution is exact where the weights lie on a lattice (multiples of
    1/2, …, 1/1024, 1/10, 1/100, 1/1000 or of the smallest weight); equal weights
    give the binomial. Other weights are rounded to a lattice and the p-value is
    raised by what the rounding may hide, so that it is never too small: by
    Hoeffding's inequality on the rounding errors, at the price of 1e-12.

    Args:
        weights: |t_i| (signs are ignored) for all m canaries, 0 to abstain.
        v: the total weight of the right guesses, Σ_i max(0, t_i·s_i).
        eps: the claimed ε.
        delta: the claimed δ.
    """
    delta = inputs.delta(delta)
    weights, v = inputs.weights(weights, v, bounded=delta > 0)
    return _p_value(weights, v, inputs.eps(eps), delta)


def weighted_eps_lower_bound(
    weights: ArrayLike, v: float, delta: float = 0.0, confidence: float = 0.95
) -> float:
    """Lower bound on ε by Proposition pure or Theorem main, and Lemma testci.

    At most the true ε with probability at least `confidence`, under (ε, δ)-DP
    alone. Arguments and conditions as in `weighted_p_value`.
    """
    delta = inputs.delta(delta)
    weights, v = inputs.weights(weights, v, bounded=delta > 0)
    confidence = inputs.confidence(confidence)
    return weighted_eps_at_level(weights, v, delta, 1.0 - confidence)


def weighted_eps_at_level(weights: np.ndarray, v: float, delta: float, level: float) -> float:
    """`weighted_eps_lower_bound` for checked weights, and a level that may be below 1e-16."""
    return largest_rejected_eps(lambda eps: _p_value(weights, v, eps, delta), level)


def _p_value(weights: np.ndarray, v: float, eps: float, delta: float) -> float:
    if v <= 0.0 or eps > binomial.ALL_RIGHT:
        return 1.0
    used = weights[weights > 0]
    if np.ptp(used) == 0.0:
        survival = _equal_survival(float(used[0]), used.size, eps, v)
    else:
        mean = used.sum() * binomial.expit(-eps)
        spread = math.sqrt(np.sum(used**2) * binomial.expit(eps) * binomial.expit(-eps))
        top = used.sum() - v if delta == 0 else max(used.sum() - v, mean + 10.0 * spread)
        survival = _Loss.on_lattice(used, float(top), eps).survival
    return main_p_value(survival, weights.size, v, delta)


def _equal_survival(weight: float, r: int, eps: float, v: float) -> _Survival:
    """x ↦ P[weight · Binomial(r, q) ≥ x] for x ≤ v."""
    k = binomial.window(r, eps, math.ceil(v / weight - _NEAR))
    tail = np.minimum(1.0, np.cumsum(np.exp(binomial.log_pmf(k, r, eps))[::-1])[::-1])
    tail[0] = 1.0  # all but 1e-17

    def survival(x: np.ndarray) -> np.ndarray:
        needed = np.ceil(x / weight - _NEAR).astype(np.int64)
        return tail[np.maximum(needed - k[0], 0)]

    return survival


@dataclasses.dataclass(frozen=True)
class _Loss:
    """An upper bound on the distribution function of the loss Σ (1 − Š_i)·|t_i|."""

    step: float
    total: float  # Σ|t_i|
    cdf: np.ndarray  # P[N ≤ j], N the loss of the rounded weights in steps
    slack: float  # loss ≥ step·N − slack, but for a failure
    failure: float

    @classmethod
    def on_lattice(cls, weights: np.ndarray, top: float, eps: float) -> '_Loss':
        """The loss of `weights` > 0, resolved up to `top`."""
        step = _natural_step(weights, top) or max(top, weights.max()) / _POINTS
        steps = np.rint(weights / step)
        error = weights - steps * step
        right, wrong = binomial.expit(eps), binomial.expit(-eps)
        slack, failure = float(np.sum(np.maximum(-error, 0.0))), 0.0
        if np.max(np.abs(error)) > _NEAR * step:
            failure = _ROUNDING_FAILURE
            hoeffding = math.sqrt(0.5 * np.sum(error**2) * -math.log(failure))
            slack = hoeffding - wrong * float(np.sum(error))
        size = math.ceil((top + max(slack, 0.0)) / step) + 2
        pmf = np.zeros(size)
        pmf[0] = 1.0
        for n in steps.astype(np.int64).tolist():
            moved = wrong * pmf[: max(0, size - n)]
            pmf *= right
            pmf[n:] += moved
        return cls(step, float(weights.sum()), np.cumsum(pmf), slack, failure)

    def survival(self, x: np.ndarray) -> np.ndarray:
        """An upper bound on P[Σ Š_i·|t_i| ≥ x] = P[loss ≤ Σ|t_i| − x]."""
        j = np.floor((self.total - x + self.slack) / self.step + 1e-6).astype(np.int64)
        inside = self.cdf[np.clip(j, 0, self.cdf.size - 1)]
        bound = np.where(j < 0, 0.0, np.where(j < self.cdf.size, inside, 1.0))
        return np.minimum(1.0, bound + self.failure)


def _natural_step(weights: np.ndarray, top: float) -> float | None:
    """The step of a lattice on which all weights lie, where one is easily found."""
    units = [float(weights.min()), *(1.0 / d for d in (*(2**k for k in range(11)), 10, 100, 1000))]
    for step in units:
        steps = weights / step
        if np.max(np.abs(steps - np.rint(steps))) <= _NEAR and top / step < _MOST_POINTS:
            return step
    return None
