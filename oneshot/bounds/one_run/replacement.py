"""Appendix A: one of two canaries is always in, so that the data set has a fixed size.

With pairs, S_i decides which of x_{2i−1} and x_{2i} is included, and the auditor
guesses which (its score is the difference of the two). If the algorithm is
(ε, δ)-DP for the replacement of one example, every bound of this package holds
for pairs as it stands: m counts the pairs. The functions here serve algorithms
that are (ε, δ)-DP for the addition or removal of one example.
"""

import math

from oneshot import inputs
from oneshot.bounds.inversion import largest_rejected_eps
from oneshot.bounds.one_run.ternary import p_value


def replacement_guarantee(eps: float, delta: float) -> tuple[float, float]:
    """(2ε, (e^ε + 1)·δ), the guarantee for replacement that (ε, δ) for addition implies.

    By group privacy (Appendix A): replacing is removing and adding. δ is cut at 1.
    """
    eps, delta = inputs.eps(eps), inputs.delta(delta)
    if delta == 0.0 or eps > 700.0:
        return 2.0 * eps, float(delta > 0.0)
    return 2.0 * eps, min(1.0, (math.exp(eps) + 1.0) * delta)


def replacement_p_value(m: int, r: int, v: int, eps: float, delta: float) -> float:
    """p-value of "M is (ε, δ)-DP for addition or removal" from an audit with m pairs.

    Corollary ternary at `replacement_guarantee(eps, delta)`; assumes nothing
    beyond, r fixed before the scores are seen.
    """
    inputs.counts(m, r, v)
    return p_value(m, r, v, *replacement_guarantee(eps, delta))


def replacement_eps_lower_bound(
    m: int, r: int, v: int, delta: float, confidence: float = 0.95
) -> float:
    """Lower bound on the ε of addition or removal, from an audit with m pairs.

    At most the true ε with probability at least `confidence` (Appendix A,
    Corollary ternary, Lemma testci). For the ε of replacement itself, which is
    up to twice as large, use `eps_lower_bound`.
    """
    confidence = inputs.confidence(confidence)
    return largest_rejected_eps(
        lambda eps: replacement_p_value(m, r, v, eps, delta), 1.0 - confidence
    )
