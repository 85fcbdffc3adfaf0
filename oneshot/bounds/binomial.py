"""The binomial distribution to nearly full precision, in time O(√n).

Every bound of the paper rests on two numbers of a distribution W on the
integers and a threshold v:

    β = P[W ≥ v]  and  α = max over i ≥ 1 of P[v > W ≥ v − i] / i.

Success probabilities enter as logits, so that neither q nor 1 − q is ever
rounded to 1. Probabilities are computed in log space by Loader's saddle-point
form, whose error does not grow with n, and only where they matter: a window
around the mode outside of which the mass is below 1e-18 of what is summed.
"""

import math

import numpy as np
import scipy

ALL_RIGHT = 700.0  # beyond this logit, 1 − q is close to the smallest double
_TINY = 42.0  # −log of the relative mass that a window may leave out: exp(−42) < 1e-18


def expit(x: float) -> float:
    """1 / (1 + exp(−x)) without overflow; `math` is much faster on scalars."""
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else math.exp(x) / (1.0 + math.exp(x))


# log(k! e^k / k^k) for k < 16; above, Stirling's series in _stirling.
_STIRLING = np.array([0.0] + [math.lgamma(k + 1) + k - k * math.log(k) for k in range(1, 16)])


def _stirling(k: np.ndarray) -> np.ndarray:
    """log(k! e^k / k^k)."""
    large = np.maximum(k, len(_STIRLING))
    x = 1.0 / (large * large)
    series = 1 / 12 - x * (1 / 360 - x * (1 / 1260 - x * (1 / 1680 - x / 1188)))
    series = series / large + 0.5 * np.log(2.0 * np.pi * large)
    small = k < len(_STIRLING)
    if small.any():
        series[small] = _STIRLING[k[small].astype(int)]
    return series


def log_pmf(k: np.ndarray, n: int, logit: float) -> np.ndarray:
    """log P[W = k] for W ~ Binomial(n, expit(logit)), 0 ≤ k ≤ n, n ≥ 1 (Loader 2000).

    The two halves of the deviance, of right and of wrong guesses, are stationary at
    their means, which is what keeps the rounding of the means out of the result.
    """
    both = np.array([k, n - k], dtype=float)
    means = np.array([[n * expit(logit)], [n * expit(-logit)]])
    with np.errstate(over='ignore'):  # where q or 1 − q is close to the smallest double
        deviance = scipy.special.xlog1py(both, (both - means) / means)
    constant = _stirling(np.array([float(n)])) - math.fsum((*means.ravel().tolist(), -n))
    return constant - np.sum(deviance + _stirling(both), axis=0)


def reach(n: int, logit: float) -> int:
    """t with P[|W − mode| > t] < 1e-17, by Bernstein's inequality."""
    variance = n * expit(logit) * expit(-logit)
    return math.ceil(_TINY / 3 + math.sqrt(_TINY**2 / 9 + 2 * _TINY * variance)) + 1


def mode(n: int, logit: float) -> int:
    """The most likely value of Binomial(n, expit(logit))."""
    return min(n, math.floor((n + 1) * expit(logit)))


def window(n: int, logit: float, v: int = 0) -> np.ndarray:
    """The k on which all but 1e-17 of the mass of W, and of its part from v on, lies."""
    top, t = mode(n, logit), reach(n, logit)
    return np.arange(max(0, top - t), min(n, max(top, v) + t) + 1)


def survival(v: int, n: int, logit: float) -> float:
    """β = P[W ≥ v] for W ~ Binomial(n, expit(logit))."""
    return beta_alpha(v, n, logit)[0]


def beta_alpha(v: int, n: int, logit: float) -> tuple[float, float]:
    """β and α, as above, for W ~ Binomial(n, expit(logit)), to a relative 1e-12.

    α is the largest running mean of P[W = v−1], P[W = v−2], … These rise up to
    the mode and fall after it, so the largest mean is the first one if v − 1 is
    at or below the mode, and is attained inside the window otherwise.
    """
    if v <= 0:
        return 1.0, 0.0
    top, t = mode(n, logit), reach(n, logit)
    up = np.arange(max(v, top - t), min(n, max(v, top) + t) + 1)
    down = np.arange(min(v - 1, top + t, n), max(0, min(v - 1, top - t)) - 1, -1)
    pmf = np.exp(log_pmf(np.concatenate([up, down]), n, logit))
    beta = min(1.0, float(np.sum(pmf[: up.size])))
    return beta, float(np.max(np.cumsum(pmf[up.size :]) / (v - down)))
