"""Lemma gauss: the exact (ε, δ) and the zCDP of the Gaussian mechanism."""

import math

import numpy as np
import scipy
from numpy.typing import ArrayLike

from oneshot import inputs


def gaussian_rho(sigma: float, sensitivity: float = 1.0) -> float:
    """ρ = Δ² / 2σ² with which the Gaussian mechanism is ρ-zCDP (Lemma gauss).

    Releasing a value of sensitivity Δ with noise N(0, σ²) has Rényi divergence
    αρ at every order α > 1 for a pair at distance Δ, and no less for any smaller ρ.
    """
    sigma = inputs.real('sigma', sigma, 1e-50, 1e50)
    sensitivity = inputs.real('sensitivity', sensitivity, 0.0, 1e50)
    return 0.5 * (sensitivity / sigma) ** 2


def gaussian_delta(eps: ArrayLike, sigma: float, sensitivity: float = 1.0) -> float | np.ndarray:
    """The smallest δ for which the Gaussian mechanism is (ε, δ)-DP (Lemma gauss).

    δ = Φ̄((ε − ρ) / √(2ρ)) − e^ε·Φ̄((ε + ρ) / √(2ρ)), exact for every ε ≥ 0 or array of them, for
    noise of standard deviation `sigma` and Δ, the most that one person can move the value.
    """
    rho = gaussian_rho(sigma, sensitivity)
    eps = inputs.array(eps, inputs.eps)
    if rho == 0.0:
        delta = np.zeros(eps.shape)
    else:
        # Both tails have the factor φ(a), because e^ε·φ(b) = φ(a) where b² − a² = 2ε.
        mu = math.sqrt(2.0 * rho)
        a, b = (eps - rho) / mu, (eps + rho) / mu
        density = np.exp(-0.5 * np.minimum(np.abs(a), 1e3) ** 2) / math.sqrt(2.0 * math.pi)
        if mu < 1e-5:  # the tails are close: take their difference by its derivative
            middle = np.minimum(eps / mu, 1e3)
            delta = density * mu * (1.0 - middle * _mills(middle))
        else:
            near = np.where(a < 0.0, scipy.special.ndtr(-a), density * _mills(np.maximum(a, 0.0)))
            delta = np.maximum(0.0, near - density * _mills(b))
    return float(delta) if eps.ndim == 0 else delta


def _mills(x: np.ndarray) -> np.ndarray:
    """Mills ratio Φ̄(x) / φ(x) for x ≥ 0."""
    return math.sqrt(math.pi / 2.0) * scipy.special.erfcx(x / math.sqrt(2.0))


def gaussian_eps(delta: float, sigma: float, sensitivity: float = 1.0) -> float:
    """The smallest ε ≥ 0 for which the Gaussian mechanism is (ε, δ)-DP (Lemma gauss).

    Found to 1e-12; ∞ at δ = 0 (unless the sensitivity is 0).
    """
    rho, delta = gaussian_rho(sigma, sensitivity), inputs.delta(delta)
    if gaussian_delta(0.0, sigma, sensitivity) <= delta:
        return 0.0
    if delta == 0.0:
        return math.inf

    mu = math.sqrt(2.0 * rho)

    def excess(eps: float) -> float:
        a, b = (eps - rho) / mu, (eps + rho) / mu
        if a <= 0.0 or mu < 1e-5:
            log_delta = math.log(max(gaussian_delta(eps, sigma, sensitivity), 5e-324))
        else:  # in log space, since δ may be below the smallest double
            log_delta = -0.5 * a * a - 0.5 * math.log(2.0 * math.pi)
            log_delta += math.log(max(float(_mills(a) - _mills(b)), 5e-324))
        return log_delta - math.log(delta)

    high = rho + 2.0 * math.sqrt(rho * -math.log(delta)) + 1.0  # zCDP gives δ there
    return scipy.optimize.brentq(excess, 0.0, high, xtol=1e-13, rtol=1e-14)


def gaussian_mu(eps: float, delta: float) -> float:
    """The largest μ = Δ/σ for which the Gaussian mechanism is (ε, δ)-DP (Lemma gauss).

    Found to 1e-12; 0 at δ = 0, where none is, and ∞ where every one is.
    """
    eps, delta = inputs.eps(eps), inputs.delta(delta)
    if delta == 0.0:
        return 0.0 if eps < math.inf else math.inf
    if delta == 1.0 or eps == math.inf:
        return math.inf

    def excess(mu: float) -> float:
        return gaussian_eps(delta, 1.0, mu) - eps

    high = 1.0
    while excess(high) <= 0.0:  # ends, since ε grows as μ²/2
        high *= 2.0
    return scipy.optimize.brentq(excess, 0.0, high, xtol=1e-13, rtol=1e-14)
