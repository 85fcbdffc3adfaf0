"""Appendix C: the mutual information between the coins and what a DP algorithm gives."""

import math
from typing import Literal

import numpy as np

from oneshot import inputs
from oneshot.bounds import binomial


def mutual_information_bound(
    n: int, eps: float, delta: float, p: float = 0.5, form: Literal['exact', 'quadratic'] = 'exact'
) -> float:
    """Upper bound on I(S; M(S)) in nats for n coins of probability p (Appendix C).

    Let M be (ε, δ)-DP on {0, 1}^n and S ~ Bernoulli(p)^n. With h the binary
    entropy, I(S; M(S)) is at most

        exact:      nδ·h(p) + n(1 − δ)·(h((p·e^ε + 1 − p) / (e^ε + 1))
                    − log(1 + e^(−ε)) − ε / (e^ε + 1)),
        quadratic:  nδ·log 2 + n(1 − δ)·ε²/8, for p = 1/2 only.

    The exact form is the information that n uses of (ε, δ)-DP randomized response
    give, so nothing smaller holds for all M.
    """
    n = inputs.count('n, the number of coins,', n, 1)
    eps, delta = inputs.eps(eps), inputs.delta(delta)
    p = inputs.real('p, the probability of a coin,', p, 0.0, 1.0)
    inputs.choice('form', form, ('exact', 'quadratic'))
    entropy = -sum(x * math.log(x) for x in (p, 1.0 - p) if x > 0.0)
    if form == 'exact':
        return n * (delta * entropy + (1.0 - delta) * _randomized_response(eps, p))
    if p != 0.5:
        raise ValueError(f'p must be 0.5 for the quadratic form, but {p!r} was given.')
    return n * (delta * entropy + ((1.0 - delta) * eps * eps / 8.0 if delta < 1.0 else 0.0))


def _randomized_response(eps: float, p: float) -> float:
    """Information of one ε-DP randomized response on a coin of probability p.

    It is p·KL(a ‖ b) + (1 − p)·KL(1 − a ‖ b), with a = e^ε / (e^ε + 1) and b the
    probability of the answer 1. As a sum of squares near ε = 0, this form keeps
    the digits that a difference of entropies loses.
    """
    a, not_a = binomial.expit(eps), binomial.expit(-eps)
    gap = math.tanh(eps / 2.0)  # a − not_a
    b, not_b = p * a + (1.0 - p) * not_a, p * not_a + (1.0 - p) * a
    information = 0.0
    for weight, shift in ((p, (1.0 - p) * gap), (1.0 - p, -p * gap)):
        if weight > 0.0 and shift != 0.0:
            terms = b * _entropy_gap(shift / b), not_b * _entropy_gap(-shift / not_b)
            information += weight * sum(terms)
    return information


def _entropy_gap(u: float) -> float:
    """(1 + u)·log(1 + u) − u for u ≥ −1, to full relative precision."""
    if abs(u) < 0.05:
        return u * u * float(np.polynomial.polynomial.polyval(u, _SERIES))
    return (1.0 + u) * math.log1p(u) - u if u > -1.0 else 1.0


# (1 + u)·log(1 + u) − u = u²·Σ_{k≥0} (−u)^k / ((k + 1)(k + 2)); 0.05^13 is below rounding.
_SERIES = [(-1) ** k / ((k + 1) * (k + 2)) for k in range(13)]
