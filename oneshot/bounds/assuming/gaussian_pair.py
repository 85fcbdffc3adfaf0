"""The ε of two normals fitted to the scores: an estimate, not a bound.

Included scores are taken to be N(a, s²) and excluded ones N(b, s²), all independent. Then
d' = (a − b)/s is the μ of the pair, and its exact lower confidence limit follows from the
noncentral t distribution of the two-sample t statistic. Nothing here holds for scores that
are not normal: for a bound that needs no more than independence, see `clopper_pearson`.
"""

import functools
import math

import numpy as np
import scipy
from numpy.typing import ArrayLike

from oneshot import inputs
from oneshot.bounds.gaussian import gaussian_eps

_REACH = 1e-30  # the probability that integrals leave out on either side
_leggauss = functools.cache(np.polynomial.legendre.leggauss)  # 256 nodes take 10 ms


def gaussian_pair_eps(
    scores_in: ArrayLike, scores_out: ArrayLike, delta: float, confidence: float = 0.95
) -> float:
    """An estimate of ε at δ: the two normals' `gaussian_pair_mu`, told by Lemma gauss.

    If the scores are independent and normal with one variance, at most the ε of that pair
    with probability `confidence`; no bound otherwise. 0 if the limit of μ is. The scores are
    those of the included and of the excluded canaries.
    """
    delta = inputs.delta(delta)
    mu = gaussian_pair_mu(scores_in, scores_out, confidence)
    if mu > 1e50:
        return math.inf if delta < 1.0 else 0.0
    return gaussian_eps(delta, sigma=1.0, sensitivity=mu)


def gaussian_pair_mu(
    scores_in: ArrayLike, scores_out: ArrayLike, confidence: float = 0.95
) -> float:
    """The exact lower confidence limit of d' = (mean in − mean out) / deviation.

    At most the d' of independent normal scores of one variance with probability
    `confidence`. It is 0 where it would be negative and with fewer than two scores of
    either kind, ∞ if neither kind of scores varies and the included ones are larger.
    """
    t, freedom, scale = _t_statistic(scores_in, scores_out)
    level = 1.0 - inputs.confidence(confidence)
    if math.isinf(t):
        return max(0.0, t)
    target = scipy.special.ndtri(min(level, 1.0 - 1e-16))

    def excess(shift: float) -> float:
        p = _noncentral_t_tail(t, freedom, shift)
        return scipy.special.ndtri(min(max(p, 1e-300), 1.0 - 1e-16)) - target

    if excess(0.0) >= 0.0:
        return 0.0
    # The tail is nearly normal; its deviation tells how far to look.
    width = math.hypot(1.0, t / math.sqrt(2.0 * freedom))
    low, high = max(0.0, t + (target - 1.0) * width), max(0.0, t + target * width) + width
    while excess(low) >= 0.0:
        low, high, width = max(0.0, low - width), low, 2.0 * width
    while excess(high) < 0.0:
        low, high, width = high, high + width, 2.0 * width
    return scipy.optimize.brentq(excess, low, high, xtol=1e-12, rtol=1e-12) / scale


def gaussian_pair_p_value(scores_in: ArrayLike, scores_out: ArrayLike, mu: float) -> float:
    """P[T ≥ observed] for the t statistic of independent normal scores with d' = `mu`.

    To an absolute 1e-12; 1 with fewer than two scores of either kind.
    """
    t, freedom, scale = _t_statistic(scores_in, scores_out)
    mu = inputs.real('mu', mu, 0.0)
    if mu == math.inf or t == -math.inf:
        return 1.0
    if t == math.inf:
        return 0.0
    return min(1.0, _noncentral_t_tail(t, freedom, mu * scale))


def _scores(name: str, value: object) -> np.ndarray:
    if getattr(value, 'shape', None) == (0,) or (isinstance(value, (list, tuple)) and not value):
        return np.zeros(0)  # too few are told as 0, and so are none
    scores = inputs.vector(name, value)
    if bad := np.flatnonzero(np.isinf(scores)).tolist():
        raise ValueError(
            f'{name} must be finite, but {len(bad)} of {scores.size} entries are not, '
            f'the first at position {bad[0]}.'
        )
    return scores


def _t_statistic(scores_in: ArrayLike, scores_out: ArrayLike) -> tuple[float, int, float]:
    """T, its degrees of freedom, and T / d'; −∞ in place of T where there is none."""
    inside, outside = _scores('scores_in', scores_in), _scores('scores_out', scores_out)
    n, k = inside.size, outside.size
    if n < 2 or k < 2:
        return -math.inf, 1, 1.0
    largest = max(np.abs(inside).max(), np.abs(outside).max())
    if largest > 0.0:  # no square overflows
        inside, outside = inside / largest, outside / largest
    freedom, scale = n + k - 2, math.sqrt(n * (k / (n + k)))
    squares = n * inside.var() + k * outside.var()
    if np.ptp(inside) == np.ptp(outside) == 0.0 or squares == 0.0:
        return (math.inf if inside[0] > outside[0] else -math.inf), freedom, scale
    gap = float(inside.mean() - outside.mean())
    return gap / math.sqrt(squares / freedom) * scale, freedom, scale


def _noncentral_t_tail(t: float, freedom: int, shift: float) -> float:
    """P[(Z + shift) / S ≥ t] for a normal Z and S² of `freedom` degrees, to 1e-12.

    The integral of P[Z ≥ t·S − shift] over S: SciPy's series fail for large shifts.
    """
    if t < 0.0:
        return 1.0 - _noncentral_t_tail(-t, freedom, -shift)
    low = math.sqrt(2.0 * scipy.special.gammaincinv(freedom / 2.0, _REACH) / freedom)
    high = math.sqrt(2.0 * scipy.special.gammainccinv(freedom / 2.0, _REACH) / freedom)
    # The probability falls from 1 to 0 around S = shift / t, perhaps within a short way.
    steep = np.array([shift - 10.0, shift + 10.0]) / max(t, 1e-300)
    ends = np.concatenate([[low], np.clip(steep, low, high), [high]])
    middle, half = 0.5 * (ends[1:] + ends[:-1]), 0.5 * np.diff(ends)
    nodes, weights = _leggauss(256)
    s = middle[:, np.newaxis] + np.multiply.outer(half, nodes)
    log_density = (freedom - 1.0) * np.log(s) - 0.5 * freedom * (s - 1.0) * (s + 1.0)
    weights = np.multiply.outer(half, weights) * np.exp(log_density - log_density.max())
    return float(np.sum(weights * scipy.special.ndtr(shift - t * s)) / weights.sum())
