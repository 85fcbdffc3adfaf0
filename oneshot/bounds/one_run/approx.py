"""Proposition approx: coins of any probability p, and the optimal F."""

import math

import numpy as np
import scipy

from oneshot import inputs
from oneshot.bounds import binomial
from oneshot.bounds.inversion import largest_rejected_eps


def approx_p_value(
    m: int, k_plus: int, k_minus: int, v: int, eps: float, delta: float, p: float = 0.5
) -> float:
    """p-value of "M is (ε, δ)-DP" when each coin includes its canary with probability p.

    Proposition approx: let S be m independent coins with P[S_i = +1] = p and let
    the (ε, δ)-DP algorithm M guess +1 at most k_plus times and −1 at most
    k_minus times. Then the number of right guesses is dominated by W + F, with

        W ~ Binomial(k_plus, p·e^ε / (p·e^ε + 1 − p))
          + Binomial(k_minus, (1 − p)·e^ε / ((1 − p)·e^ε + p)),

    and F independent of W, on {0, …, m}, with E[F] ≤ 2mδ. The p-value is the
    largest P[W + F ≥ v] that such an F can give, a linear program. Its dual is

        min over α ≥ 0 of 2mδ·α + max over i in 0..m of (P[W ≥ v − i] − α·i),

    the upper concave envelope of i ↦ P[W ≥ v − i] at 2mδ. At p = 1/2 this is
    Corollary ternary, or less where 2mδ is so large that the corollary's dual
    solution is not the best one.

    Assumes nothing about M beyond (ε, δ)-DP; k_plus and k_minus are fixed before
    the scores are seen.

    Args:
        m: the number of canaries.
        k_plus: the number of guesses "included".
        k_minus: the number of guesses "excluded".
        v: the number of right guesses.
        eps: the claimed ε.
        delta: the claimed δ.
        p: the probability of inclusion, in (0, 1).
    """
    k_plus = inputs.count('k_plus, the number of guesses "included",', k_plus, 0)
    k_minus = inputs.count('k_minus, the number of guesses "excluded",', k_minus, 0)
    m, _, v = inputs.counts(m, k_plus + k_minus, v)
    p = inputs.real('p, the probability of inclusion,', p, 0.0, 1.0, ends='()')
    eps, delta = inputs.eps(eps), inputs.delta(delta)
    if v == 0 or eps > binomial.ALL_RIGHT:
        return 1.0
    odds = math.log(p) - math.log1p(-p)
    logits = (min(binomial.ALL_RIGHT, logit) for logit in (eps + odds, eps - odds))
    parts = [(k, logit) for k, logit in zip((k_plus, k_minus), logits, strict=True) if k > 0]
    budget = 2.0 * m * delta
    beta = _tail(parts, v)
    if delta == 0.0:
        return beta
    if budget >= v:
        return 1.0
    # P[W = v−1], P[W = v−2], … are unimodal: up to the largest running mean, at
    # i = steepest, the envelope is a chord, and after it the function itself.
    low, pmf = _bulk(parts)
    k = np.arange(min(v - 1, low + pmf.size - 1), low - 1, -1)
    if k.size == 0:  # v is so low that W ≥ v but for 1e-17
        return 1.0
    mass = np.cumsum(pmf[k - low])
    i = v - k
    steepest = int(np.argmax(mass / i))
    if budget <= i[steepest]:
        return min(1.0, beta + budget * float(mass[steepest]) / int(i[steepest]))
    return min(1.0, beta + float(np.interp(budget, i, mass)))


def approx_eps_lower_bound(
    m: int,
    k_plus: int,
    k_minus: int,
    v: int,
    delta: float,
    confidence: float = 0.95,
    p: float = 0.5,
) -> float:
    """Lower bound on ε by Proposition approx and Lemma testci.

    At most the true ε with probability at least `confidence`, under (ε, δ)-DP
    alone. Arguments and conditions as in `approx_p_value`.
    """
    confidence = inputs.confidence(confidence)
    return largest_rejected_eps(
        lambda eps: approx_p_value(m, k_plus, k_minus, v, eps, delta, p), 1.0 - confidence
    )


def _bulk(parts: list[tuple[int, float]]) -> tuple[int, np.ndarray]:
    """The law of a sum of independent binomials where it is above 1e-17."""
    low, pmf = 0, np.ones(1)
    for n, logit in parts:
        k = binomial.window(n, logit)
        low, pmf = low + int(k[0]), np.convolve(pmf, np.exp(binomial.log_pmf(k, n, logit)))
    return low, pmf


def _tail(parts: list[tuple[int, float]], v: int) -> float:
    """P[W ≥ v] for a sum W of independent binomials, accurate also far out.

    Far out, each binomial is tilted by e^(θk) so that W has its mean at v; the
    logit of a tilted binomial is θ higher. The tilt is undone term by term.
    """
    theta = _tilt(parts, v)
    low, law, scale = 0, np.ones(1), 0.0
    for n, logit in parts:
        k = binomial.window(n, logit + theta)
        center = binomial.mode(n, logit + theta)
        terms = binomial.log_pmf(k, n, logit) + theta * (k - center)
        scale += float(np.max(terms)) + theta * center
        low, law = low + int(k[0]), np.convolve(law, np.exp(terms - np.max(terms)))
    w = np.arange(max(low, v), low + law.size)
    untilted = law[w - low] * np.exp(-theta * (w - v))
    return min(1.0, math.exp(scale - theta * v) * float(np.sum(untilted)))


def _tilt(parts: list[tuple[int, float]], v: int) -> float:
    """θ ≥ 0 that moves the mean of W up to v (to v − 1/2 where W cannot exceed v)."""

    def lack(theta: float) -> float:
        return sum(n * binomial.expit(logit + theta) for n, logit in parts) - target

    target = min(v, sum(n for n, _ in parts) - 0.5)
    if lack(0.0) >= 0.0:
        return 0.0
    return scipy.optimize.brentq(lack, 0.0, 100.0 + max(-logit for _, logit in parts))
