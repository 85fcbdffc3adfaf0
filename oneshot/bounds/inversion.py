"""From p-values to lower bounds (Lemma testci)."""

import functools
from collections.abc import Callable

import scipy

_XTOL = 1e-12


def largest_rejected_eps(p_value: Callable[[float], float], level: float) -> float:
    """The largest ε that is rejected at the given level (Lemma testci).

    If p_value(ε) is a valid p-value of "M is (ε, δ)-DP" that does not fall as ε
    grows, or an upper bound on such a one, then the true ε is at least the
    returned one with probability at least 1 − level.

    Args:
        p_value: the p-value as a function of ε ≥ 0.
        level: the probability that the bound may be wrong, in (0, 1].

    Returns:
        ε with p_value(ε) ≤ level, within 1e-11 of the crossing where the
        p-value is continuous; 0.0 where ε = 0 cannot be rejected.
    """

    @functools.cache
    def excess(eps: float) -> float:
        # On the scale of normal quantiles p is nearly linear in ε.
        p = min(max(p_value(eps), 1e-300), 1.0 - 1e-16)
        return scipy.special.ndtri(p) - target

    target = scipy.special.ndtri(min(level, 1.0 - 1e-16))
    if p_value(0.0) >= level:
        return 0.0
    low, high = 0.0, 1.0
    while excess(high) < 0:  # ends, since every p-value here is 1 from ε = 700 on
        low, high = high, 2.0 * high
    root = scipy.optimize.brentq(excess, low, high, xtol=_XTOL, rtol=1e-14)
    # The root may lie a hair on the wrong side.
    eps, back = root, _XTOL
    while p_value(eps) > level:
        eps, back = max(0.0, root - back), 2.0 * back
    return eps
