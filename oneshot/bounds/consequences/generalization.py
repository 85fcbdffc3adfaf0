"""Appendix B: differential privacy implies generalization.

A DP algorithm that picks a query q(y, ·) with values in [0, 1] from n samples of
a distribution P cannot make its mean on the samples, q(Y, X), exceed its mean on
the distribution, q(Y, P), by much. DP is for replacement here.
"""

import math

import numpy as np

from oneshot import inputs
from oneshot.bounds import binomial
from oneshot.bounds.one_run.ternary import p_value


def generalization_failure(n: int, gamma: float, eta: float, eps: float, delta: float) -> float:
    """Upper bound on P[q(Y, X) − q(Y, P) ≥ γ] (Theorem generalization).

    With W ~ Binomial(n, e^ε / (e^ε + 1)) and w = (1 + γ − 3η/2)·n/2, it is

        P[W ≥ w] + max over i in 1..n of (2nδ/i)·P[w > W ≥ w − i] + 2·exp(−nη²/2).

    Args:
        n: the number of samples.
        gamma: γ ≥ 3η/2, the gap.
        eta: η ≥ 0, which shares the gap between the algorithm and the sampling.
        eps: ε of the algorithm, for replacement.
        delta: δ of the algorithm, for replacement.
    """
    n = inputs.count('n, the number of samples,', n, 1)
    eta = inputs.real('eta', eta, 0.0, math.inf, ends='[)')
    gamma = inputs.real('gamma', gamma, 1.5 * eta, math.inf, ends='[)')
    eps, delta = inputs.eps(eps), inputs.delta(delta)
    # Rounded down by more than the rounding error, so that no value of W is lost.
    threshold = math.ceil((1.0 + gamma - 1.5 * eta) * n / 2.0 - 1e-9 * n)
    sampling = 2.0 * math.exp(-0.5 * n * eta * eta)
    algorithm = p_value(n, n, threshold, eps, delta) if threshold <= n else 0.0
    return min(1.0, algorithm + sampling)


def generalization_error(n: int, eps: float, delta: float, failure: float) -> float:
    """The smallest γ with `generalization_failure` ≤ `failure` for the best η.

    A value above 1 says nothing, since the gap is never above 1. For Corollary gen_ada,
    see `adaptive_analysis_error`.
    """
    n = inputs.count('n, the number of samples,', n, 1)
    eps, delta = inputs.eps(eps), inputs.delta(delta)
    failure = inputs.real('failure', failure, 0.0, 1.0, ends='()')
    # Given the threshold w on W, the best η uses up what is left of the failure.
    # Beyond the window only δ counts, which falls slowly: there, a coarser grid will do.
    low = max(math.floor(n * binomial.expit(eps)), math.ceil(n / 2))
    high = min(n, low + binomial.reach(n, eps))
    beyond = np.unique(np.geomspace(1, n - high + 1, 2000).astype(np.int64)) + high - 1
    w = np.union1d(np.arange(low, high + 1), beyond)
    left = failure - np.append(p_value(n, n, w, eps, delta), 0.0)  # 0 at w = n + 1
    w = np.append(w, n + 1)
    w, left = w[left > 0], left[left > 0]
    eta = np.sqrt(2.0 * np.log(2.0 / left) / n)
    return float(np.min(2.0 * w / n - 1.0 + 1.5 * eta))


def adaptive_analysis_error(n: int, eps: float, delta: float, beta: float, failure: float) -> float:
    """The error beyond α of a DP answer to an adaptive query (Corollary gen_ada).

    If an (ε, δ)-DP algorithm (for replacement) gives a query Y and an answer Z
    with P[|Z − q(Y, X)| ≥ α] ≤ β, then P[|Z − q(Y, P)| ≥ α + γ] ≤ `failure` for
    the returned γ. At ε = 1/3, n = 2000, β = δ = 1e-5, failure 0.05 it is 0.308.
    """
    beta, failure = _checked_failure(beta, failure)
    return generalization_error(n, eps, delta, failure - beta)


def jung_error(eps: float, delta: float, beta: float, failure: float) -> float:
    """The same by Theorem jlnrsms (Jung et al. 2019), which does not depend on n.

    e^ε − 1 + c + 2d with β/c + δ/d = failure, at the best c and d:
    e^ε − 1 + (√β + √(2δ))² / failure. In the example above, 0.397.
    """
    eps, delta = inputs.eps(eps), inputs.delta(delta)
    beta, failure = _checked_failure(beta, failure)
    root = math.sqrt(beta) + math.sqrt(2.0 * delta)
    return math.expm1(eps) + root * root / failure if eps < 709.0 else math.inf


def _checked_failure(beta: float, failure: float) -> tuple[float, float]:
    failure = inputs.real('failure', failure, 0.0, 1.0, ends='()')
    return inputs.real('beta', beta, 0.0, failure, ends='[)'), failure
