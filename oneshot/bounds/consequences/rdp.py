"""Proposition rdp-dpsgd: what DP-SGD promises, in one line."""

import math

import numpy as np

from oneshot import inputs


def dpsgd_rdp(steps: int, sampling_prob: float, noise_multiplier: float) -> float:
    """ε̌ with which DP-SGD is (2, ε̌)-RDP (Proposition rdp-dpsgd).

    ε̌ = ℓ·log(1 + q²·(exp(1/σ²) − 1)), for ℓ steps of Algorithm dpsgd that sample
    each example with probability q and add noise σc to gradients clipped at c.
    """
    steps = inputs.count('steps', steps, 0)
    q = inputs.real('sampling_prob', sampling_prob, 0.0, 1.0)
    sigma = inputs.real('noise_multiplier', noise_multiplier, 0.0, math.inf)
    if steps == 0 or q == 0.0 or sigma == math.inf:
        return 0.0
    if sigma == 0.0:
        return math.inf
    exponent = 1.0 / sigma / sigma
    if exponent < 1.0:
        return steps * math.log1p(q * q * math.expm1(exponent))
    others = math.log1p(-q * q) if q < 1.0 else -math.inf
    return steps * float(np.logaddexp(others, 2.0 * math.log(q) + exponent))


def rdp_max_accuracy(rdp_eps: float) -> float:
    """The best accuracy of membership inference under (2, ε̌)-RDP, in the balanced case.

    1/2 + 1/2·√((e^ε̌ − 1) / (e^ε̌ + 3)), the bound after Proposition rdp-dpsgd.
    """
    rdp_eps = inputs.real('rdp_eps', rdp_eps, 0.0)
    return 0.5 + 0.5 * math.sqrt(-math.expm1(-rdp_eps) / (1.0 + 3.0 * math.exp(-rdp_eps)))
