"""50-digit references, written from the theorems of the paper with mpmath.

They follow the definitions: the binomial probabilities come from the recurrence of
their ratios, the maximum in α from the running means. Two facts keep a million
terms short: the terms of a binomial are unimodal, so that a running mean which the
next term no longer raises has passed its maximum, and the remainder of a tail
whose ratios fall is below a geometric series.
"""

import mpmath
from mpmath import mp, mpf

mp.dps = 50


def odds(eps, p=0.5):
    """q / (1 − q) of Proposition approx for a guess of +1; p = 1/2 is the paper's."""
    return mpf(p) / (1 - mpf(p)) * mpmath.exp(mpf(eps))


def binomial_pmf(n, k, ratio):
    """P[Binomial(n, q) = k] with ratio = q / (1 − q)."""
    log = mpmath.loggamma(n + 1) - mpmath.loggamma(k + 1) - mpmath.loggamma(n - k + 1)
    return mpmath.exp(log + k * mpmath.log(ratio) - n * mpmath.log1p(ratio))


def binomial_survival(n, v, ratio):
    """P[Binomial(n, q) ≥ v], summed away from the mode on either side of it."""
    if v <= 0:
        return mpf(1)
    if v > n:
        return mpf(0)
    mean = n * ratio / (1 + ratio)
    if v > mean:
        return _sum_up(n, v, ratio)
    return 1 - _sum_up(n, n - v + 1, 1 / ratio)


def _sum_up(n, v, ratio):
    if v > n:
        return mpf(0)
    term = total = binomial_pmf(n, v, ratio)
    for k in range(v, n):
        step = mpf(n - k) / (k + 1) * ratio
        term *= step
        total += term
        if step < 1 and term * step / (1 - step) < total * mpf(10) ** -40:
            break
    return total


def steepest(n, v, ratio):
    """α = max over i ≥ 1 of P[v > Binomial(n, q) ≥ v − i] / i."""
    if v <= 0:
        return mpf(0)
    term = binomial_pmf(n, v - 1, ratio)
    mean = total = term
    for i in range(2, v + 1):
        k = v - i
        term *= mpf(k + 1) / (n - k) / ratio
        if term < mean:
            return mean
        total += term
        mean = total / i
    return mean


def p_value(m, r, v, eps, delta):
    """Corollary ternary."""
    ratio = odds(eps)
    beta = binomial_survival(r, v, ratio)
    return min(mpf(1), beta + 2 * m * mpf(delta) * steepest(r, v, ratio))


def gaussian_delta(eps, sigma, sensitivity):
    """Lemma gauss."""
    eps, rho = mpf(eps), (mpf(sensitivity) / mpf(sigma)) ** 2 / 2

    def upper(z):
        return mpmath.erfc(z / mpmath.sqrt(2)) / 2

    root = mpmath.sqrt(2 * rho)
    return upper((eps - rho) / root) - mpmath.exp(eps) * upper((eps + rho) / root)


def mutual_information(n, eps, delta, p):
    """Appendix C, as it is printed."""
    eps, delta, p = mpf(eps), mpf(delta), mpf(p)

    def entropy(x):
        return -sum(y * mpmath.log(y) for y in (x, 1 - x) if y > 0)

    e = mpmath.exp(eps)
    pure = entropy((p * e + 1 - p) / (e + 1)) - mpmath.log1p(1 / e) - eps / (e + 1)
    return n * (delta * entropy(p) + (1 - delta) * pure)
