"""Corollary adap_T: the auditor may choose how often to guess from the scores."""

import math
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike

from oneshot import inputs
from oneshot.bounds.one_run.ternary import eps_at_level, p_value
from oneshot.bounds.one_run.weighted import weighted_eps_at_level, weighted_p_value


class Split(NamedTuple):
    """How the failure probability 1 − confidence is shared in Corollary adap_T."""

    gamma: float  # what the binomial tail may use
    tau: int  # the number of right guesses that are given away for δ
    failure: float  # 2mδ / (τ + 1), what δ uses


def adaptive_split(m: int, delta: float, confidence: float = 0.95) -> Split:
    """γ and τ of Corollary adap_T, from m, δ and the confidence alone.

    Corollary adap_T bounds the failure by γ + P[F > τ] with E[F] ≤ 2mδ. Since F
    is a whole number, P[F > τ] ≤ 2mδ / (τ + 1) for a whole τ, a little better
    than the corollary's 2mδ / τ.

    A larger τ gives away more right guesses, a smaller one leaves less for γ. τ
    minimizes τ + s·z(γ), the right guesses needed above the mean, where z is the
    normal quantile and s = m^(1/4) / 4 stands for the deviation of the number of
    right guesses, which is unknown beforehand: for audits of Gaussian scores with
    √m to m/10 guesses, knowing it would raise ε by less than 0.02. The choice is
    valid whatever the deviation is.

    Returns:
        (gamma, tau, failure), with gamma + failure = 1 − confidence. Where δ is
        so large that no τ < m leaves anything for γ, gamma is 0: nothing can be
        rejected.
    """
    m = inputs.count('m, the number of canaries,', m, 1)
    delta, confidence = inputs.delta(delta), inputs.confidence(confidence)
    level, expected = 1.0 - confidence, 2.0 * m * delta
    if expected == 0.0:
        return Split(level, 0, 0.0)
    if expected >= level * m:
        return Split(0.0, m, level)
    least = math.floor(expected / level)  # 2mδ / (τ + 1) < level from here on
    tau = least + np.unique(np.geomspace(1, m - least, 2000).astype(np.int64)) - 1
    gamma = level - expected / (tau + 1.0)
    usable = gamma > 1e-6 * level
    if not usable.any():
        return Split(0.0, m, level)
    tau, gamma = tau[usable], gamma[usable]
    best = int(np.argmin(tau - 0.25 * m**0.25 * scipy.special.ndtri(gamma)))
    return Split(float(gamma[best]), int(tau[best]), float(level - gamma[best]))


def adaptive_p_value(
    m: int, r: int, v: int, eps: float, delta: float, confidence: float = 0.95
) -> float:
    """p-value of "M is (ε, δ)-DP" when r was chosen from the scores.

    Corollary adap_T with the τ that `adaptive_split` fixes beforehand for
    `confidence`: P[Binomial(r, e^ε / (e^ε + 1)) ≥ v − τ] + 2mδ / (τ + 1). It is
    a valid p-value at every level, and at most 1 − confidence exactly for the ε
    below `adaptive_eps_lower_bound`.

    Assumes nothing about M beyond (ε, δ)-DP. The number and choice of guesses
    may depend on the scores in any way, never on the coins.
    """
    m, r, v = inputs.counts(m, r, v)
    split = adaptive_split(m, delta, confidence)
    tail = p_value(m, r, max(0, v - split.tau), inputs.eps(eps), 0.0)
    return min(1.0, tail + split.failure)


def adaptive_eps_lower_bound(
    m: int, r: int, v: int, delta: float, confidence: float = 0.95
) -> float:
    """Lower bound on ε when r was chosen from the scores (Corollary adap_T).

    At most the true ε with probability at least `confidence`, under (ε, δ)-DP
    alone: ε is rejected where P[Binomial(r, e^ε / (e^ε + 1)) ≥ v − τ] ≤ γ.
    Conditions as in `adaptive_p_value`. With δ = 0 it equals `eps_lower_bound`.
    """
    m, r, v = inputs.counts(m, r, v)
    gamma, tau, _ = adaptive_split(m, delta, confidence)
    if gamma == 0.0 or v <= tau:
        return 0.0
    return eps_at_level(m, r, v - tau, 0.0, gamma)


def adaptive_weighted_p_value(
    weights: ArrayLike, v: float, eps: float, delta: float, confidence: float = 0.95
) -> float:
    """`adaptive_p_value` for guesses in [−1, +1] whose weights depend on the scores."""
    weights, v = inputs.weights(weights, v, bounded=True)
    split = adaptive_split(weights.size, delta, confidence)
    return min(1.0, weighted_p_value(weights, max(0.0, v - split.tau), eps) + split.failure)


def adaptive_weighted_eps_lower_bound(
    weights: ArrayLike, v: float, delta: float, confidence: float = 0.95
) -> float:
    """`adaptive_eps_lower_bound` for guesses in [−1, +1] whose weights depend on the scores."""
    weights, v = inputs.weights(weights, v, bounded=True)
    gamma, tau, _ = adaptive_split(weights.size, delta, confidence)
    if gamma == 0.0 or v <= tau:
        return 0.0
    return weighted_eps_at_level(weights, v - tau, 0.0, gamma)
