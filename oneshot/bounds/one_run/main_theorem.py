"""Theorem main and Corollary hoeffding: guesses in [−1, +1] with known tails."""

import math
from collections.abc import Callable
from typing import Literal

import numpy as np

from oneshot import inputs
from oneshot.bounds import binomial
from oneshot.bounds.inversion import largest_rejected_eps

_CHUNK = 1 << 16

_Form = Literal['sum', 'closed']


def main_p_value(
    survival: Callable[[np.ndarray], np.ndarray], m: int, v: float, delta: float
) -> float:
    """p-value of "M is (ε, δ)-DP" when the right guesses weigh v in all.

    Theorem main: let S be m fair independent coins, M be (ε, δ)-DP with guesses
    T = M(S) in [−1, +1]^m, and let W* stochastically dominate
    Σ_i Š_i·|t_i|, Š ~ Bernoulli(e^ε / (e^ε + 1))^m, for every t that M can give.
    Then Σ_i max(0, T_i·S_i) ≥ v with probability at most β + 2mδα, where

        β = P[W* ≥ v],  α = max over i in 1..m of (P[W* ≥ v − i] − β) / i.

    Assumes nothing about M beyond (ε, δ)-DP and the dominance, which the caller
    vouches for and which has to hold for all t, not only for the one observed.

    Args:
        survival: x ↦ P[W* ≥ x] at the ε in question, on arrays.
        m: the number of canaries.
        v: the total weight of the right guesses, Σ_i max(0, T_i·S_i).
        delta: the claimed δ.
    """
    m = inputs.count('m, the number of canaries,', m, 1)
    v = inputs.real('v, the weight of the right guesses,', v, 0.0, math.inf, ends='[)')
    delta = inputs.delta(delta)
    beta, alpha, start = float(survival(np.array([v]))[0]), 0.0, 1
    # No term beyond i can exceed (1 − β) / i: stop once that is reached.
    while delta > 0 and start <= m and alpha < (1.0 - beta) / start:
        i = np.arange(start, min(m, start + _CHUNK - 1) + 1)
        alpha = max(alpha, float(np.max((survival(v - i) - beta) / i)))
        start += _CHUNK
    return min(1.0, beta + 2.0 * m * delta * alpha)


def hoeffding_p_value(
    m: int, r1: float, r2: float, v: float, eps: float, delta: float, form: _Form = 'sum'
) -> float:
    """p-value of "M is (ε, δ)-DP" from the norms of the guesses alone.

    Corollary hoeffding: as Theorem main, where all that is known of T is
    ‖T‖₁ ≤ r1 and ‖T‖₂ ≤ r2 with probability 1. With a = r1·e^ε / (e^ε + 1) and
    f(v) = exp(−2·max(0, v − a)² / r2²), the p-value is

        sum:     f(v) + 2mδ · max over i in 1..m of (f(v − i) − f(v)) / i,
        closed:  f(v) + 2mδ · max(2 / (v − a), f((v + a) / 2))  where v ≥ a + 2,
                 and 1 elsewhere.

    Valid under (ε, δ)-DP alone, looser than Corollary ternary, and in the closed
    form an expression that one can reason about.
    """
    m = inputs.count('m, the number of canaries,', m, 1)
    r1 = inputs.real('r1, the bound on ‖T‖₁,', r1, 0.0, m)
    r2 = inputs.real('r2, the bound on ‖T‖₂,', r2, 0.0, math.sqrt(m))
    v = inputs.real('v, the weight of the right guesses,', v, 0.0, r1)
    eps, delta = inputs.eps(eps), inputs.delta(delta)
    inputs.choice('form', form, ('sum', 'closed'))
    if r1 == 0.0 or r2 == 0.0:  # no guesses
        return 1.0
    mean = r1 * binomial.expit(eps)

    def f(x: np.ndarray) -> np.ndarray:
        return np.exp(-2.0 * (np.maximum(0.0, x - mean) / r2) ** 2)

    if form == 'sum':
        return main_p_value(f, m, v, delta)
    if v < mean + 2.0:
        return 1.0
    slope = max(2.0 / (v - mean), float(f((v + mean) / 2.0)))
    return min(1.0, float(f(v)) + 2.0 * m * delta * slope)


def hoeffding_eps_lower_bound(
    m: int,
    r1: float,
    r2: float,
    v: float,
    delta: float,
    confidence: float = 0.95,
    form: _Form = 'sum',
) -> float:
    """Lower bound on ε by Corollary hoeffding and Lemma testci.

    At most the true ε with probability at least `confidence`, under (ε, δ)-DP
    alone, if ‖T‖₁ ≤ r1 and ‖T‖₂ ≤ r2 were fixed before the scores were seen.
    """
    confidence = inputs.confidence(confidence)
    return largest_rejected_eps(
        lambda eps: hoeffding_p_value(m, r1, r2, v, eps, delta, form), 1.0 - confidence
    )
