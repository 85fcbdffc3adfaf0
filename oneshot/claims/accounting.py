"""ε_UB: what is proven of DP-SGD, by privacy loss distributions (dp_accounting)."""

import functools
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import scipy

from oneshot import inputs
from oneshot.bounds.gaussian import gaussian_mu

LARGEST_EPS = 300.0  # by Rényi DP, from where on privacy loss distributions take minutes


@functools.cache
def _library() -> ModuleType:
    """dp_accounting, which takes a second to import."""
    import dp_accounting
    import dp_accounting.pld
    import dp_accounting.rdp

    return dp_accounting


def _event(noise_multiplier: float, sampling_prob: float, steps: int) -> Any:
    library = _library()
    step = library.PoissonSampledDpEvent(sampling_prob, library.GaussianDpEvent(noise_multiplier))
    return library.SelfComposedDpEvent(step, steps)


def renyi_eps(sigma: float, q: float, steps: int, delta: float) -> float:
    """An upper bound on ε that takes no time and is loose."""
    accountant = _library().rdp.RdpAccountant(orders=range(2, 64))
    return accountant.compose(_event(sigma, q, steps)).get_epsilon(delta)


def _pld_eps(sigma: float, q: float, steps: int, delta: float) -> float:
    return _library().pld.PLDAccountant().compose(_event(sigma, q, steps)).get_epsilon(delta)


def eps_upper_bound(
    noise_multiplier: float, sampling_prob: float, steps: int, delta: float
) -> float:
    """ε with which Algorithm dpsgd is (ε, δ)-DP for adding or removing one example.

    Rounded up by the accountant; above 300 by Rényi DP, which is looser and takes no time, where
    privacy loss distributions would take minutes. At σ = 0 nothing is proven, and ε is ∞.
    """
    sigma, q, steps = parameters(noise_multiplier, sampling_prob, steps)
    delta = inputs.delta(delta)
    if steps == 0 or q == 0.0:
        return 0.0
    if sigma == 0.0:
        return math.inf
    loose = renyi_eps(sigma, q, steps, delta)
    return loose if loose > LARGEST_EPS else _pld_eps(sigma, q, steps, delta)


def delta_upper_bound(
    noise_multiplier: float, sampling_prob: float, steps: int, eps: float
) -> float:
    """δ with which Algorithm dpsgd is (ε, δ)-DP, as `eps_upper_bound`, for an ε below 300."""
    sigma, q, steps = parameters(noise_multiplier, sampling_prob, steps)
    eps = inputs.real('eps', eps, 0.0, LARGEST_EPS)
    if steps == 0 or q == 0.0:
        return 0.0
    if sigma == 0.0 or renyi_eps(sigma, q, steps, 1e-5) > LARGEST_EPS:
        return 1.0
    return _library().pld.PLDAccountant().compose(_event(sigma, q, steps)).get_delta(eps)


def parameters(
    noise_multiplier: object, sampling_prob: object, steps: object
) -> tuple[float, float, int]:
    """σ, q and ℓ, checked."""
    sigma = inputs.real('noise_multiplier', noise_multiplier, 0.0, math.inf, ends='[)')
    q = inputs.real('sampling_prob', sampling_prob, 0.0, 1.0)
    return sigma, q, inputs.count('steps', steps, 0)


@functools.cache
def calibrate_noise(eps: float, sampling_prob: float, steps: int, delta: float) -> float:
    """The smallest σ, to 1e-4 and rounded up, with which DP-SGD is (ε, δ)-DP."""
    eps = inputs.real('eps', eps, 0.0, 50.0, ends='(]')
    q = inputs.real('sampling_prob', sampling_prob, 0.0, 1.0, ends='(]')
    steps = inputs.count('steps', steps, 1)
    delta = inputs.real('delta', delta, 0.0, 1.0, ends='()')
    # Distributions of fewer points tell where to look: the accountant itself takes long.
    quick = _smallest(
        lambda sigma: distribution(sigma, q, steps).get_epsilon_for_delta(delta) - eps,
        gaussian_guess(gaussian_mu(eps, delta), q, steps),
        width=0.05,
        tolerance=1e-6,
    )
    return _smallest(
        lambda sigma: _pld_eps(sigma, q, steps, delta) - eps, quick, width=2e-4, tolerance=1e-4
    )


def _smallest(
    excess: Callable[[float], float], guess: float, width: float, tolerance: float
) -> float:
    """The smallest σ, to the tolerance and rounded up, with excess(σ) ≤ 0; excess falls in σ."""
    known = {}

    def value(sigma: float) -> float:
        if sigma not in known:
            known[sigma] = excess(sigma)
        return known[sigma]

    low, high = guess * (1.0 - width), guess * (1.0 + width)
    while value(low) <= 0.0:
        width = min(0.5, 2.0 * width)
        low, high = low * (1.0 - width), low
    while value(high) > 0.0:
        width = min(0.5, 2.0 * width)
        low, high = high, high * (1.0 + width)
    scipy.optimize.brentq(value, low, high, xtol=tolerance, rtol=1e-15)
    return min(sigma for sigma, gap in known.items() if gap <= 0.0)


def gaussian_guess(mu: float, q: float, steps: int) -> float:
    """σ with which DP-SGD is about μ-Gaussian-DP, by the central limit theorem (Bu et al. 2020)."""
    return 1.0 / math.sqrt(math.log1p((mu / q) ** 2 / steps))


def distribution(sigma: float, q: float, steps: int, points: float = 30.0) -> Any:
    """DP-SGD's privacy loss distribution, pessimistic, with so many points to a step's deviation.

    30 points overstate ε by a relative 1e-4, 100 by 1e-5, for many steps of whatever noise.
    """
    deviation = q * math.sqrt(math.expm1(min(1.0 / sigma**2, 100.0)))
    largest = math.log1p(q * math.expm1(min(9.0 / sigma + 0.5 / sigma**2, 700.0)))  # of a loss
    interval = max(min(deviation, 0.3) / points, largest / 50_000)
    step = _library().pld.privacy_loss_distribution.from_gaussian_mechanism(
        sigma, value_discretization_interval=interval, sampling_prob=q
    )
    return step.self_compose(steps)
