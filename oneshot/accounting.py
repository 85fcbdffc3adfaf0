"""ε_UB: what is proven of DP-SGD, by privacy loss distributions (dp_accounting)."""

import functools
import math

import dp_accounting
from dp_accounting import pld, rdp

from oneshot.bounds import _check


def _event(noise_multiplier: float, sampling_prob: float, steps: int) -> dp_accounting.DpEvent:
    step = dp_accounting.GaussianDpEvent(noise_multiplier)
    return dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(sampling_prob, step), steps
    )


def eps_upper_bound(
    noise_multiplier: float, sampling_prob: float, steps: int, delta: float
) -> float:
    """ε with which Algorithm dpsgd is (ε, δ)-DP for adding or removing one example.

    Args:
        noise_multiplier: σ; at 0 nothing is proven, and ε is ∞.
        sampling_prob: q of the Poisson sampling.
        steps: ℓ.
        delta: δ.

    Returns:
        ε, rounded up by the accountant; above 300 by Rényi DP, which is looser and takes
        no time, where privacy loss distributions would take minutes.
    """
    sigma = _check.real('noise_multiplier', noise_multiplier, 0.0, math.inf, open_high=True)
    q = _check.real('sampling_prob', sampling_prob, 0.0, 1.0)
    steps, delta = _check.count('steps', steps, 0), _check.delta(delta)
    if steps == 0 or q == 0.0:
        return 0.0
    if sigma == 0.0:
        return math.inf
    event = _event(sigma, q, steps)
    loose = rdp.RdpAccountant(orders=range(2, 64)).compose(event).get_epsilon(delta)
    if loose > 300.0:
        return loose
    return pld.PLDAccountant().compose(event).get_epsilon(delta)


@functools.cache
def calibrate_noise(eps: float, sampling_prob: float, steps: int, delta: float) -> float:
    """The smallest σ, to 1e-4 and rounded up, with which DP-SGD is (ε, δ)-DP."""
    eps = _check.real('eps', eps, 0.0, 50.0, open_low=True)
    q = _check.real('sampling_prob', sampling_prob, 0.0, 1.0, open_low=True)
    steps = _check.count('steps', steps, 1)
    delta = _check.real('delta', delta, 0.0, 1.0, open_low=True, open_high=True)
    return dp_accounting.calibrate_dp_mechanism(
        pld.PLDAccountant, lambda sigma: _event(sigma, q, steps), eps, delta, tol=1e-4
    )
