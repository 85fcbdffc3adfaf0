"""What is claimed of an algorithm, and what is proven of it.

`claim` has the claim, `accounting` ε_UB and σ, `tradeoff` the trade-off curve.

>>> from oneshot import claims
>>> sigma = claims.calibrate_noise(eps=8.0, sampling_prob=0.1, steps=100, delta=1e-5)
>>> round(sigma, 2)
0.94
"""

from oneshot.claims.accounting import calibrate_noise, delta_upper_bound, eps_upper_bound
from oneshot.claims.claim import DPSGD
from oneshot.claims.tradeoff import dpsgd_curve, dpsgd_eps_lower_bound, dpsgd_p_value

__all__ = [
    'DPSGD',
    'calibrate_noise',
    'delta_upper_bound',
    'dpsgd_curve',
    'dpsgd_eps_lower_bound',
    'dpsgd_p_value',
    'eps_upper_bound',
]
