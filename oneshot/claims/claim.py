"""What is claimed of an algorithm."""

import dataclasses

from oneshot import inputs
from oneshot.claims import accounting

MIN_SIGMA = 1e-2  # the smallest σ of a claim that is audited


@dataclasses.dataclass(frozen=True)
class DPSGD:
    """The claim that an algorithm is DP-SGD with these parameters (Algorithm dpsgd).

    With one step and q = 1 it is the Gaussian mechanism of sensitivity 1.

    >>> import oneshot
    >>> claim = oneshot.DPSGD(noise_multiplier=1.0, sampling_prob=0.1, steps=100)
    >>> round(claim.eps(delta=1e-5), 2)
    7.05

    Attributes:
        noise_multiplier: σ as claimed.
        sampling_prob: q, the probability with which an example joins a step.
        steps: ℓ.
    """

    noise_multiplier: float
    sampling_prob: float = 1.0
    steps: int = 1

    def __post_init__(self) -> None:
        inputs.real('noise_multiplier', self.noise_multiplier, MIN_SIGMA, 1e6)
        inputs.real('sampling_prob', self.sampling_prob, 0.0, 1.0, ends='(]')
        inputs.count('steps', self.steps, 1, 10**7)

    def eps(self, delta: float) -> float:
        """ε_UB: the ε that is proven of the claim at δ (`eps_upper_bound`)."""
        return accounting.eps_upper_bound(*dataclasses.astuple(self), delta)
