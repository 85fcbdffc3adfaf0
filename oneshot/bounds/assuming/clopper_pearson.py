"""Audits that guess every canary by a threshold (Nasr et al. 2023).

Nasr, Hayes, Steinke, Balle, Tramèr, Jagielski, Carlini and Terzis, Tight Auditing of
Differentially Private Machine Learning (2023), tell ε from the false positive and false
negative rates of one threshold, of which Clopper and Pearson (1934) give exact limits.

What is assumed: scores that are independent given the coins, and a threshold that was fixed
before they were seen. Residual scores of Dirac canaries are independent if the code is
right: the test is then a valid test of the claim that the code is DP-SGD with these
parameters. The canaries are alike, too: all have one false positive rate and one false
negative rate, as they do by symmetry or when they are drawn from one distribution. Then
the numbers of alarms and of misses are two independent binomials.

The claims are (ε, δ)-DP and μ-Gaussian-DP. The latter permits the rates (p, q) with
Φ⁻¹(1 − q) − Φ⁻¹(p) ≤ μ. Limits of p and q at half of the failure probability each give a
bound on μ at once, the plain form; a joint test of both counts pays less (see `_Joint`).
"""

import math

import numpy as np
import scipy

from oneshot import inputs
from oneshot.bounds.gaussian import gaussian_eps

_LEAST = 1e-40  # the smallest p-value that is told from 0: SciPy's limits fail far below it
_MOST = 10**8  # the largest count of the joint test, which takes time in its square root


def clopper_pearson_eps_lower_bound(
    n_in: int, hits: int, n_out: int, alarms: int, delta: float, confidence: float = 0.95
) -> float:
    """Lower bound on the ε of an (ε, δ)-DP algorithm, from one threshold (Nasr et al. 2023).

    At most the true ε with probability at least `confidence`, if scores are independent
    given the coins and the threshold was fixed in advance. The limits a of the false
    positive rate and b of the false negative rate hold at once, each failing with half
    of the probability, and (ε, δ)-DP asks for 1 − b ≤ e^ε·a + δ and 1 − a ≤ e^ε·b + δ.

    Args:
        n_in: the number of included canaries.
        hits: the number of those with a score above the threshold.
        n_out: the number of excluded canaries.
        alarms: the number of those with a score above the threshold.
        delta: δ in [0, 1].
        confidence: 1 − the probability that the bound may be wrong.

    Returns:
        max(0, log((1 − δ − b) / a), log((1 − δ − a) / b)).
    """
    counts = _counts(n_in, hits, n_out, alarms)
    delta, confidence = inputs.delta(delta), inputs.confidence(confidence)
    return max(0.0, _eps_at_level(*counts, delta, 1.0 - confidence))


def clopper_pearson_p_value(
    n_in: int, hits: int, n_out: int, alarms: int, eps: float, delta: float
) -> float:
    """p-value of "M is (ε, δ)-DP": the smallest failure probability at which ε is rejected.

    Found to a relative 1e-9 and rounded up; 1e-40 stands for all smaller ones. It takes
    the arguments of `clopper_pearson_eps_lower_bound` and assumes the same.
    """
    counts = _counts(n_in, hits, n_out, alarms)
    eps, delta = inputs.eps(eps), inputs.delta(delta)

    def rejected(log_level: float) -> bool:
        return _eps_at_level(*counts, delta, math.exp(log_level)) >= eps

    if not rejected(0.0):
        return 1.0
    if rejected(math.log(_LEAST)):
        return _LEAST
    low, high = math.log(_LEAST), 0.0
    while high - low > 1e-10:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if rejected(middle) else (middle, high)
    return math.exp(high)


def cp_gdp_mu_lower_bound(
    n_in: int, hits: int, n_out: int, alarms: int, confidence: float = 0.95, *, plain: bool = False
) -> float:
    """Lower bound on the μ of an algorithm that is μ-Gaussian-DP, from one threshold.

    At most the true μ with probability at least `confidence`, if scores are independent
    given the coins and the threshold was fixed in advance: the largest μ that is rejected,
    to 1e-8, and 0 where μ = 0 is not. It takes the arguments of
    `clopper_pearson_eps_lower_bound`. With `plain`, two Clopper-Pearson limits stand in
    place of the joint test. Choose before the counts are seen: the larger of both is no bound.
    """
    counts = _counts(n_in, hits, n_out, alarms, inputs.MOST if plain else _MOST)
    level = 1.0 - inputs.confidence(confidence)
    if plain:
        a, b = _limits(*counts, level)
        return max(0.0, float(-scipy.special.ndtri(a) - scipy.special.ndtri(b)))
    if _proves_nothing(*counts):
        return 0.0
    joint = _Joint(*counts, level)
    # A guess, good near 95 %, and then as far as need be.
    low, high, width = joint.statistic - joint.spread / 4, joint.statistic, joint.spread
    while low > 0.0 and joint.excess(low) >= 0.0:
        low, high, width = low - width, low, 2.0 * width
    low = max(0.0, low)
    if low == 0.0 and joint.excess(0.0) >= 0.0:
        return 0.0
    high = max(high, low)
    while joint.excess(high) < 0.0:  # ends, since 98 % of the level is below 98 %
        low, high, width = high, high + width, 2.0 * width
    root = scipy.optimize.brentq(joint.excess, low, high, xtol=1e-9, rtol=1e-14)
    mu, back = root, 1e-9
    while joint.excess(mu) > 0.0:  # the root may lie a hair on the wrong side
        mu, back = max(0.0, root - back), 2.0 * back
    return mu


def cp_gdp_eps_lower_bound(
    n_in: int, hits: int, n_out: int, alarms: int, delta: float, confidence: float = 0.95
) -> float:
    """Lower bound on the ε at δ of an algorithm that is Gaussian-DP, whatever its μ.

    `cp_gdp_mu_lower_bound`, told as the ε that a Gaussian mechanism with this μ has at δ
    (Lemma gauss). At δ = 0 that is ∞ for every μ > 0.
    """
    delta = inputs.delta(delta)
    mu = cp_gdp_mu_lower_bound(n_in, hits, n_out, alarms, confidence)
    return gaussian_eps(delta, sigma=1.0, sensitivity=mu)


def cp_gdp_p_value(n_in: int, hits: int, n_out: int, alarms: int, mu: float) -> float:
    """p-value of "M is μ-Gaussian-DP": the smallest failure probability that rejects μ.

    By the joint test, to a relative 1e-7 and rounded up; 1e-40 stands for all smaller
    ones. It takes the counts of `cp_gdp_mu_lower_bound` and assumes the same.
    """
    counts = _counts(n_in, hits, n_out, alarms, _MOST)
    mu = inputs.real('mu', mu, 0.0)
    if _proves_nothing(*counts) or mu == math.inf:
        return 1.0

    def excess(log_level: float) -> float:
        return _Joint(*counts, math.exp(log_level)).excess(mu)

    if excess(0.0) > 0.0:
        return 1.0
    if excess(math.log(_LEAST)) <= 0.0:
        return _LEAST
    root = scipy.optimize.brentq(excess, math.log(_LEAST), 0.0, xtol=1e-8, rtol=1e-14)
    forth = 1e-8
    while excess(min(0.0, root + forth)) > 0.0:  # on the side where μ is rejected
        forth *= 2.0
    return math.exp(min(0.0, root + forth))


def _counts(
    n_in: object, hits: object, n_out: object, alarms: object, most: int = inputs.MOST
) -> tuple[int, int, int, int]:
    """Checks the counts, and tells them as n_in, misses, n_out, alarms."""
    n_in = inputs.count('n_in, the number of included canaries,', n_in, 0, most)
    hits = inputs.count('hits, the included canaries above the threshold,', hits, 0, n_in)
    n_out = inputs.count('n_out, the number of excluded canaries,', n_out, 0, most)
    alarms = inputs.count('alarms, the excluded canaries above the threshold,', alarms, 0, n_out)
    return n_in, n_in - hits, n_out, alarms


def _proves_nothing(n_in: int, misses: int, n_out: int, alarms: int) -> bool:
    """No canary of one kind, or none that was guessed right."""
    return misses == n_in or alarms == n_out


def _upper_limit(n: int, k: int, level: float) -> float:
    """Clopper-Pearson: the p at which k or fewer of n have probability `level`."""
    return 1.0 if k == n else float(scipy.special.betainccinv(k + 1, n - k, level))


def _lower_limit(n: int, k: int, level: float) -> float:
    """Clopper-Pearson: the p at which k or more of n have probability `level`."""
    return 0.0 if k == 0 else float(scipy.special.betaincinv(k, n - k + 1, level))


def _limits(n_in: int, misses: int, n_out: int, alarms: int, level: float) -> tuple[float, float]:
    """Upper limits of the false positive and negative rates that both hold but for `level`."""
    return _upper_limit(n_out, alarms, level / 2), _upper_limit(n_in, misses, level / 2)


def _eps_at_level(
    n_in: int, misses: int, n_out: int, alarms: int, delta: float, level: float
) -> float:
    """`clopper_pearson_eps_lower_bound` before it is cut off at 0; −∞ where δ allows all."""
    a, b = _limits(n_in, misses, n_out, alarms, level)
    pairs = [(1.0 - delta - b, a), (1.0 - delta - a, b)]
    return max(math.log(top) - math.log(low) if top > 0.0 else -math.inf for top, low in pairs)


class _Joint:
    """The joint test of "μ-Gaussian-DP", at one level, from misses and alarms.

    The statistic is T = −Φ⁻¹(u) − Φ⁻¹(w), where u and w are upper score limits (Wilson
    1927) of the two rates: an estimate of μ, less an allowance for its deviation. It falls
    in misses and in alarms, and so P[T ≥ t] is largest where the false negative rate is the
    least that μ allows, Φ(−Φ⁻¹(p) − μ) for a false positive rate of p. What is left is the
    supremum over p. It is taken over a Clopper-Pearson interval of p only, which costs
    the probability that p is not in there, level / 50 (Berger and Boos 1994). For p in a
    cell [p_i, p_{i+1}] of it, P[T ≥ t] is at most what p_i for the alarms and p_{i+1} for
    the misses give, again since T falls in both. So nothing between grid points is missed.

    T, unlike a statistic that depends on μ, makes the p-value rise with μ.
    """

    cells = 256
    z = math.sqrt(2.0)  # of the limits: the tightest among 1, 1.2, √2, 1.64, 2, 2.5
    share = 1 / 50  # of the level, for the interval

    def __init__(self, n_in: int, misses: int, n_out: int, alarms: int, level: float):
        self.n_in = n_in
        self.target = scipy.special.ndtri(min(level * (1.0 - self.share), 1.0 - 1e-16))
        limits = self._score_limit(n_in, misses), self._score_limit(n_out, alarms)
        self.statistic = float(-scipy.special.ndtri(limits).sum())
        rates = (misses + 0.5) / (n_in + 1.0), (alarms + 0.5) / (n_out + 1.0)
        self.spread = float(-scipy.special.ndtri(rates).sum()) - self.statistic

        interval = level * self.share / 2.0
        first = _lower_limit(n_out, alarms, interval)
        last = _upper_limit(n_out, alarms, interval)
        angles = np.linspace(
            math.asin(math.sqrt(first)), math.asin(math.sqrt(last)), 1 + self.cells
        )
        p = np.sin(angles) ** 2  # steps of equal deviation

        # Numbers of alarms that matter; those below count as if T ≥ t, those above as the last.
        far = 16.0 - math.log(level)  # e^-far is far below the level
        low = n_out * first - math.sqrt(2.0 * far * n_out * first * (1.0 - first))
        high = n_out * last + math.sqrt(2.0 * far * n_out * last * (1.0 - last)) + far / 3.0
        seen = np.arange(max(0, math.floor(low)), min(n_out, math.ceil(high)) + 1)
        # T ≥ t exactly if misses are at most so many; rounding errors add to them.
        rate = scipy.special.ndtr(
            -self.statistic - scipy.special.ndtri(self._score_limit(n_out, seen))
        )
        most = n_in * rate - self.z * np.sqrt(n_in * rate * (1.0 - rate))
        most = np.minimum(np.floor(most + 1e-9 * (1.0 + n_in * rate)), n_in)
        self.most = np.where(rate < (1.0 - 1e-9) * self._score_limit(n_in, 0), -1.0, most)

        rows = max(1, 2**18 // seen.size)  # what fits into a cache
        self.pieces = []
        for i in range(0, self.cells, rows):
            lower, upper = p[:-1][i : i + rows], p[1:][i : i + rows]
            mass = _pmf(n_out, seen, lower)
            below = scipy.special.bdtr(seen[0] - 1.0, n_out, lower) if seen[0] > 0 else 0.0 * lower
            mass[:, -1] = np.maximum(1.0 - below - mass[:, :-1].sum(axis=1), mass[:, -1])
            self.pieces.append((below, mass, scipy.special.ndtri(upper)))

    def _score_limit(self, n: int, k: int | np.ndarray) -> float | np.ndarray:
        half = self.z * self.z / 2.0
        return (k + half + self.z * np.sqrt(k * (1.0 - k / n) + half / 2.0)) / (n + 2.0 * half)

    def excess(self, mu: float) -> float:
        """Above 0 where μ is not rejected; on the scale of normal quantiles, nearly linear."""
        p = max(
            float(np.max(below + np.einsum('ij,ij->i', mass, self._few_misses(-upper - mu))))
            for below, mass, upper in self.pieces
        )
        return scipy.special.ndtri(min(max(p, 1e-305), 1.0 - 1e-16)) - self.target

    def _few_misses(self, quantile: np.ndarray) -> np.ndarray:
        """P[at most `most` misses], a row for each quantile Φ⁻¹ of the false negative rate."""
        rate = scipy.special.ndtr(quantile)
        low, high = max(0, int(self.most[-1])), max(0, int(self.most[0]))
        if high - low > 256 * self.most.size:  # few alarms and many misses
            few = scipy.special.bdtr(np.maximum(self.most, 0.0), self.n_in, rate[:, np.newaxis])
        else:
            few = _pmf(self.n_in, np.arange(low, high + 1), rate)
            if low > 0:
                few[:, 0] += scipy.special.bdtr(low - 1.0, self.n_in, rate)
            few = np.cumsum(few, axis=1, out=few)[:, np.maximum(self.most, low).astype(int) - low]
        few[:, self.most < 0.0] = 0.0
        return few


def _pmf(n: int, k: np.ndarray, p: np.ndarray) -> np.ndarray:
    """P[Binomial(n, p) = k], a row for each p and a column for each k."""
    log_choose = scipy.special.gammaln(n + 1.0) - scipy.special.gammaln(k + 1.0)
    log_choose -= scipy.special.gammaln(n - k + 1.0)
    p = np.clip(p, 1e-300, 1.0 - 1e-16)
    log = np.multiply.outer(np.log(p) - np.log1p(-p), k)
    log += log_choose
    log += (n * np.log1p(-p))[:, np.newaxis]
    return np.exp(log, out=log)
