"""Corollary ternary: ε from the number of right guesses. The paper's main tool."""

import functools

import numpy as np
from numpy.typing import ArrayLike

from oneshot import inputs
from oneshot.bounds import binomial
from oneshot.bounds.inversion import largest_rejected_eps


def p_value(m: int, r: int, v: ArrayLike, eps: ArrayLike, delta: float) -> float | np.ndarray:
    """p-value of "M is (ε, δ)-DP" when v of at most r guesses were right.

    Corollary ternary: let S be m fair independent coins and let M be (ε, δ)-DP
    with guesses T = M(S) in {−1, 0, +1}^m, of which at most r are not 0. Then
    v or more of them are right with probability at most

        f(v) + 2mδ · max over i in 1..m of (f(v − i) − f(v)) / i,

    where f(v) = P[Binomial(r, e^ε / (e^ε + 1)) ≥ v].

    Assumes nothing about M beyond (ε, δ)-DP. The number r must be fixed before
    the scores are seen; `adaptive_p_value` lifts this.

    Args:
        m: the number of canaries, each included by a fair coin of its own.
        r: the number of guesses, abstentions left out.
        v: the number of right guesses, or an array of such numbers.
        eps: the claimed ε ≥ 0, or an array that broadcasts with `v`.
        delta: the claimed δ in [0, 1].

    Returns:
        The p-value, at most 1; an array where `v` or `eps` is one.
    """
    m, r, _ = inputs.counts(m, r, 0)
    delta = inputs.delta(delta)
    v = inputs.array(v, lambda count: inputs.counts(m, r, count)[2])
    eps = inputs.array(eps, inputs.eps)
    try:
        v, eps = np.broadcast_arrays(v, eps)
    except ValueError:
        raise ValueError(
            f'v and eps must broadcast together, but shapes {v.shape} and {eps.shape} were given.'
        ) from None
    values = np.vectorize(lambda v, eps: _p_value(m, r, v, eps, delta), otypes=[float])(v, eps)
    return values if v.ndim else values.item()


def _p_value(m: int, r: int, v: int, eps: float, delta: float) -> float:
    if v == 0 or eps > binomial.ALL_RIGHT:
        return 1.0
    beta, alpha = binomial.beta_alpha(v, r, eps)
    return min(1.0, beta + 2.0 * m * delta * alpha)


def eps_lower_bound(m: int, r: int, v: int, delta: float, confidence: float = 0.95) -> float:
    """Lower bound on ε when v of at most r guesses were right.

    Corollary ternary through Lemma testci: if M is (ε, δ)-DP, the returned
    value is at most ε with probability at least `confidence`. Assumes nothing
    about M beyond (ε, δ)-DP; r and δ are fixed before the scores are seen.
    Arguments as in `p_value`, but v is one number.

    Returns:
        The largest ε whose p-value is at most 1 − confidence, to 1e-11; 0 if ε = 0 is not rejected.
    """
    m, r, v = inputs.counts(m, r, v)
    delta, confidence = inputs.delta(delta), inputs.confidence(confidence)
    return eps_at_level(m, r, v, delta, 1.0 - confidence)


@functools.lru_cache(maxsize=1 << 16)  # audits of one m meet the same counts again
def eps_at_level(m: int, r: int, v: int, delta: float, level: float) -> float:
    """`eps_lower_bound` for checked counts, and a level that may be below 1e-16."""
    return largest_rejected_eps(lambda eps: _p_value(m, r, v, eps, delta), level)
