"""f-DP in one run: a bound for algorithms whose whole trade-off curve is claimed.

Mahloujifar, Melis and Chaudhuri, Auditing f-Differential Privacy in One Run (2025). M is
f-DP if every test of "in" against "out" with false alarm rate x misses with probability at
least f(x): an event has probability at most 1 − f(x), the blow-up of x, under one of them
if it has x under the other. A curve is given here by the inverse y ↦ x of the blow-up,
which is convex and increasing.

Why the recursion holds: let p_j be the probability of j right guesses out of r among m
canaries, and R_j = Σ_{i≥j} i·p_i / m, H_j = Σ_{i≥j} (r − i)·p_i / m the mean shares of
right and wrong guesses in runs with at least j right ones. Turning the coin of a canary
that is guessed right makes the guess wrong and leaves j − 1 right ones or more, so that
H_{j−1} ≥ inverse(R_j): canary by canary by f-DP, and in the mean because the inverse is
convex. By definition R_j = R_{j+1} + j/(r − j)·(H_j − H_{j+1}), and R_0 + H_0 = r/m. If
v right guesses or more had probability β, then R_v ≥ β·v/m and R_v + H_v ≥ β·r/m; going
down from equality, which is the least, R_0 + H_0 may not exceed r/m. The largest β for
which it does not is the p-value of v right guesses.
"""

import math
from bisect import bisect
from collections.abc import Callable
from statistics import NormalDist

import scipy
from numpy.typing import ArrayLike

from oneshot import inputs
from oneshot.bounds.gaussian import gaussian_eps

Curve = Callable[[float], float]  # the inverse of the blow-up, from [0, 1] to [0, 1]

_NORMAL = NormalDist()
_LARGEST = 128.0  # μ at which every inverse blow-up is 0, but for that of 1
_LEAST = -690.0  # the logarithm of the smallest p-value that is told from 0


def gaussian_curve(mu: float) -> Curve:
    """Gaussian differential privacy: "in" and "out" are as N(μ, 1) and N(0, 1).

    The inverse blow-up is y ↦ Φ(Φ⁻¹(y) − μ).
    """
    mu = inputs.real('mu', mu, 0.0, 1e6)

    def inverse(y: float) -> float:
        if not 0.0 < y < 1.0:
            return float(y >= 1.0)
        return 0.5 * math.erfc((mu - _NORMAL.inv_cdf(y)) / math.sqrt(2.0))

    return inverse


def approximate_curve(eps: float, delta: float) -> Curve:
    """(ε, δ)-DP: the inverse blow-up is y ↦ max(0, e^−ε·(y − δ), 1 − δ − e^ε·(1 − y))."""
    eps, delta = inputs.real('eps', eps, 0.0, 700.0), inputs.delta(delta)
    ratio = math.exp(eps)
    return lambda y: max(0.0, (y - delta) / ratio, 1.0 - delta - ratio * (1.0 - y))


def envelope_curve(eps: ArrayLike, delta: ArrayLike) -> Curve:
    """(ε_i, δ_i)-DP for all i at once: the largest of the inverse blow-ups they imply.

    y ↦ max(0, max_i e^−ε_i·(y − δ_i), max_i 1 − δ_i − e^ε_i·(1 − y)). Any (ε_i, δ_i) that
    are true make a claim that is true, so that its p-value is valid; many of them come
    close to the trade-off curve of the algorithm itself.

    Args:
        eps: the ε_i, at least one, in [0, 700].
        delta: the δ_i, as many.
    """
    eps = inputs.array(eps, lambda value: inputs.real('eps', value, 0.0, 700.0))
    delta = inputs.array(delta, inputs.delta)
    if eps.shape != delta.shape or eps.ndim != 1 or eps.size == 0:
        raise ValueError(
            f'eps and delta must be vectors of one length of at least 1, but shapes '
            f'{eps.shape} and {delta.shape} were given.'
        )
    # Lines by their slope and the point (y, x) around which they are exact.
    lines = [(0.0, 0.0, 0.0)]
    for one_eps, one_delta in zip(eps.tolist(), delta.tolist(), strict=True):
        lines.append((math.exp(-one_eps), 0.0, one_delta))
        lines.append((math.exp(one_eps), 1.0 - one_delta, 1.0))
    lines.sort(key=lambda line: (line[0], line[1], -line[2]))  # of one slope the largest last
    hull, starts = [], []  # lines that are the largest somewhere, and from which y − 1 on
    for slope, x, y in lines:
        start = -1.0
        while hull:
            other, on_x, on_y = hull[-1]
            if slope > other:
                start = y - 1.0 + (on_x + other * (y - on_y) - x) / (slope - other)
                if start > starts[-1]:
                    break
            hull.pop()  # nowhere the largest
            starts.pop()
        if start <= 0.0:
            starts.append(start if hull else -1.0)
            hull.append((slope, x, y))

    def inverse(y: float) -> float:
        slope, on_x, on_y = hull[bisect(starts, y - 1.0) - 1]
        return max(0.0, on_x + slope * (y - on_y))

    return inverse


def fdp_p_value(m: int, r: int, v: int, curve: Curve) -> float:
    """p-value of "M is f-DP" from v right of r guesses among m canaries.

    Valid for any f-DP algorithm and fair coins, r fixed before the scores are seen;
    guesses of both kinds count. Takes time in proportion to v. To a relative 1e-11; 1e-299
    stands for all smaller p-values.

    Args:
        m: the number of canaries.
        r: the number of guesses.
        v: the number of right guesses.
        curve: the inverse of the blow-up of f, such as `gaussian_curve(mu)`.
    """
    m, r, v = inputs.counts(m, r, v)
    if v == 0 or _excess(m, r, v, curve, 1.0) <= 0.0:
        return 1.0
    if _excess(m, r, v, curve, math.exp(_LEAST)) > 0.0:
        return 1e-299
    root = scipy.optimize.brentq(
        lambda log_beta: _excess(m, r, v, curve, math.exp(log_beta)), _LEAST, 0.0, xtol=1e-12
    )
    return min(1.0, math.exp(root + 1e-11))


def gdp_mu_lower_bound(m: int, r: int, v: int, confidence: float = 0.95) -> float:
    """Lower bound on the μ of an algorithm that is μ-Gaussian-DP.

    At most the true μ with probability at least `confidence`: the largest μ that
    `fdp_p_value` rejects, to 1e-12; 0 where μ = 0 cannot be rejected, and ∞ where every μ
    is. It takes the arguments of `fdp_p_value`; r is fixed before the scores are seen.
    """
    m, r, v = inputs.counts(m, r, v)
    beta = 1.0 - inputs.confidence(confidence)

    def excess(mu: float) -> float:
        return _excess(m, r, v, gaussian_curve(mu), beta)

    if v == 0 or excess(0.0) <= 0.0:
        return 0.0
    if excess(_LARGEST) > 0.0:
        return math.inf
    high = 1.0
    while excess(high) > 0.0:
        high *= 2.0
    root = scipy.optimize.brentq(excess, 0.0, high, xtol=1e-13, rtol=1e-14)
    mu, back = root, 1e-13
    while excess(mu) <= 0.0:  # the root may lie a hair on the wrong side
        mu, back = max(0.0, root - back), 2.0 * back
    return mu


def fdp_eps_lower_bound(m: int, r: int, v: int, delta: float, confidence: float = 0.95) -> float:
    """Lower bound on the ε at δ of an algorithm that is Gaussian-DP, whatever its μ.

    `gdp_mu_lower_bound`, told as the ε that a Gaussian mechanism with this μ has at δ
    (Lemma gauss). It uses more than (ε, δ)-DP, namely that the trade-off curve is that
    of a Gaussian mechanism, and so finds more than `eps_lower_bound`. At δ = 0 every
    Gaussian mechanism has ε = ∞, and so has this bound where μ = 0 is rejected.
    """
    delta = inputs.delta(delta)
    mu = gdp_mu_lower_bound(m, r, v, confidence)
    if math.isinf(mu):
        return math.inf if delta < 1.0 else 0.0
    return gaussian_eps(delta, sigma=1.0, sensitivity=mu)


def _excess(m: int, r: int, v: int, curve: Curve, beta: float) -> float:
    """log((R_0 + H_0) / (r/m)): above 0 if v right guesses are too many to have probability β."""
    right, wrong = beta * v / m, beta * (r - v) / m
    for j in range(v - 1, -1, -1):
        wider = curve(min(1.0, right))
        if wider <= wrong:
            break  # nothing changes any more
        right += j / (r - j) * (wider - wrong)
        wrong = wider
    return math.log((right + wrong) * m / r)
