"""The trade-off curve of DP-SGD by privacy loss distributions, and audits of f-DP by it."""

import functools
import math
from bisect import bisect_left

import numpy as np

from oneshot import inputs
from oneshot.bounds.assuming import fdp
from oneshot.claims import accounting

_STEP = 1e-4  # of log σ, between the noises that `dpsgd_eps_lower_bound` tries
_COARSE = 256  # steps between those that it tries first
_LEAST_SIGMA = 0.1  # the smallest of them


def dpsgd_curve(noise_multiplier: float, sampling_prob: float, steps: int) -> fdp.Curve:
    """The trade-off curve of DP-SGD, as `fdp_p_value` takes it: no Gaussian is assumed.

    The envelope of (ε, δ(ε))-DP for 300 values of ε, up to that with δ = 1e-10, each proven
    by the accountant for adding and for removing an example. Where Rényi DP does not prove
    ε ≤ 300 the curve claims nothing.
    """
    return _curve(*accounting.parameters(noise_multiplier, sampling_prob, steps))


@functools.lru_cache(maxsize=1024)
def _curve(sigma: float, q: float, steps: int, size: int = 300) -> fdp.Curve:
    if steps == 0 or q == 0.0:
        return fdp.envelope_curve([0.0], [0.0])
    if sigma == 0.0 or accounting.renyi_eps(sigma, q, steps, 1e-5) > accounting.LARGEST_EPS:
        return fdp.envelope_curve([0.0], [1.0])
    losses = accounting.distribution(sigma, q, steps)
    eps = np.linspace(0.0, min(700.0, losses.get_epsilon_for_delta(1e-10)), size)
    return fdp.envelope_curve(eps, np.clip(losses.get_delta_for_epsilon(eps), 0.0, 1.0))


def dpsgd_p_value(
    m: int, r: int, v: int, noise_multiplier: float, sampling_prob: float, steps: int
) -> float:
    """p-value of "M is DP-SGD with these σ, q and ℓ" from v right of r guesses.

    `fdp_p_value` with the curve of DP-SGD; it assumes the same. Since that curve ends at
    δ = 1e-10, p-values are overstated where they would be below some 1e-10·m/r.
    """
    return fdp.fdp_p_value(m, r, v, dpsgd_curve(noise_multiplier, sampling_prob, steps))


def dpsgd_eps_lower_bound(
    m: int, r: int, v: int, delta: float, confidence: float, sampling_prob: float, steps: int
) -> float:
    """Lower bound on the ε at δ of DP-SGD with these q and ℓ, whatever its σ.

    At most the true ε with probability at least `confidence`, if the algorithm has the
    trade-off curve of DP-SGD with some σ: that of the smallest σ that is rejected, and then
    all larger ones are. As for `fdp_p_value`, r is fixed before the scores are seen. Takes
    about a second for 2,000 steps, and less where calls with the same q and ℓ came before.

    The ε of that σ is found to a relative 1e-4 and rounded up: to 1e-3 where ε is 8. It is 0
    where no σ is rejected. No σ is tried below 0.1 or where Rényi DP does not prove ε ≤ 300 at
    δ = 1e-5: where all others are rejected, the ε of the smallest is returned.
    """
    m, r, v = inputs.counts(m, r, v)
    delta, beta = inputs.delta(delta), 1.0 - inputs.confidence(confidence)
    _, q, steps = accounting.parameters(1.0, sampling_prob, steps)
    if steps == 0 or q == 0.0:
        return 0.0
    mu = fdp.gdp_mu_lower_bound(m, r, v, confidence)
    if mu == 0.0:  # not even the curve of perfect privacy is rejected
        return 0.0

    @functools.cache
    def excess(position: int) -> float:
        """Above 0 where σ is rejected, and nearly linear."""
        curve = _curve(math.exp(position * _STEP), q, steps)
        return math.log(beta / fdp.fdp_p_value(m, r, v, curve))

    # Positions on a fixed grid, coarse ones first: calls for other counts share the curves.
    least, most = _ends(q, steps)
    guess = math.log(accounting.gaussian_guess(min(mu, 64.0), q, steps)) / _STEP
    low, width = min(max(_COARSE * math.floor(guess / _COARSE), least), most), _COARSE
    high = low
    while low > least and excess(low) > 0.0:
        low, high, width = max(least, low - width), low, 2 * width
    if excess(low) > 0.0:
        return _eps_at(least, q, steps, delta)
    while excess(high) <= 0.0:
        if high == most:
            return 0.0
        low, high, width = high, min(most, high + width), 2 * width
    tries = 0
    while high - low > 1:
        share = excess(low) / (excess(low) - excess(high)) if tries % 6 < 5 else 0.5
        root = low + share * (high - low)
        for stride in (_COARSE, 16, 1):  # from either side of the root, ever closer
            middle = stride * math.floor(root / stride)
            middle += stride if middle <= low else 0
            if low < middle < high:
                break
        low, high = (low, middle) if excess(middle) > 0.0 else (middle, high)
        tries += 1
    return _eps_at(high, q, steps, delta)


@functools.cache
def _ends(q: float, steps: int) -> tuple[int, int]:
    """The first and last position at which `dpsgd_eps_lower_bound` looks."""

    def proven(k: int) -> bool:
        sigma = math.exp(k * _COARSE * _STEP)
        return accounting.renyi_eps(sigma, q, steps, 1e-5) <= accounting.LARGEST_EPS

    ends = _LEAST_SIGMA, max(1.0, accounting.gaussian_guess(1e-3, q, steps))
    least, most = (math.ceil(math.log(sigma) / _STEP / _COARSE) for sigma in ends)
    least += bisect_left(range(least, most), True, key=proven)
    return least * _COARSE, most * _COARSE


@functools.cache
def _eps_at(position: int, q: float, steps: int, delta: float) -> float:
    if delta == 0.0:
        return math.inf
    # The accountant cannot tell δ below 1e-12; a larger one has a smaller ε.
    losses = accounting.distribution(math.exp(position * _STEP), q, steps, points=100.0)
    return losses.get_epsilon_for_delta(max(delta, 1e-12))
