"""Every method, from a tally of guesses to a lower bound on ε, and what it rests on."""

import dataclasses
import math
import operator
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from oneshot import bounds, inputs
from oneshot.claims import tradeoff
from oneshot.claims.claim import DPSGD
from oneshot.results.result import AuditResult


class ConfusionCounts(NamedTuple):
    """How many are guessed "in", of the canaries that are in and of those that are out."""

    n_in: int
    hits: int  # of n_in
    n_out: int
    alarms: int  # of n_out


@dataclasses.dataclass(frozen=True)
class Tally:
    """What the guesses came to: all that a method may see."""

    m: int
    r: int
    v: float
    weights: np.ndarray | None = None  # |T|, where the guesses are not all ±1
    k_plus: int | None = None
    k_minus: int | None = None
    confusion: ConfusionCounts | None = None  # where a threshold was fixed beforehand
    samples: tuple[np.ndarray, np.ndarray] | None = None  # the scores of "in" and "out"
    claim: DPSGD | None = None  # what is known of the algorithm


class Bound(NamedTuple):
    """The functions of a bound, and what they are given of a tally."""

    arguments: Callable[[Tally], tuple]
    p_value: Callable[..., float]  # of the arguments and the claim
    eps_lower_bound: Callable[..., float]  # of the arguments, delta and confidence


def _mu(eps: float, delta: float, confidence: float) -> tuple[float, ...]:
    """The claim (ε, δ) as that of a Gaussian mechanism; μ = ∞, which nothing rejects."""
    return (bounds.gaussian_mu(eps, delta) if eps < 1e6 else math.inf,)


@dataclasses.dataclass(frozen=True)
class Method:
    """A bound, and what it rests on.

    Attributes:
        theorem: the theorem.
        assumptions: what has to hold of the algorithm, a key of `ASSUMPTIONS`.
        condition: what has to hold of the auditor.
        bound: its functions.
        weighted: those for guesses with weights between 0 and 1, if it takes them.
        claimed: what the p-value is given, of the eps and delta claimed and the confidence.
        kind: 'bound' or 'estimate'.
        needs: a field of the tally that it cannot do without: 'confusion', 'samples', 'claim'.
        by_weights: whether its guesses are planned as weights, and not as numbers of guesses.
        pairs: whether a coin is for a pair of canaries, of which one was in.
    """

    theorem: str
    assumptions: str
    condition: str
    bound: Bound
    weighted: Bound | None = None
    claimed: Callable[..., tuple[float, ...]] = lambda eps, delta, confidence: (eps, delta)
    kind: str = 'bound'
    needs: str | None = None
    by_weights: bool = False
    pairs: bool = False

    @property
    def takes_counts(self) -> bool:
        """Whether (k_plus, k_minus) may be chosen freely: by a threshold or a fit, it may not."""
        return self.needs in (None, 'claim')

    def p_value(self, tally: Tally, eps: float, delta: float, confidence: float) -> float:
        bound = self._bound(tally)
        return bound.p_value(*bound.arguments(tally), *self.claimed(eps, delta, confidence))

    def eps_lower_bound(self, tally: Tally, delta: float, confidence: float) -> float:
        bound = self._bound(tally)
        return bound.eps_lower_bound(*bound.arguments(tally), delta, confidence)

    def _bound(self, tally: Tally) -> Bound:
        return self.bound if tally.weights is None or self.weighted is None else self.weighted


_counts = operator.attrgetter('m', 'r', 'v')
_weights = operator.attrgetter('weights', 'v')
_confusion = operator.attrgetter('confusion')
_samples = operator.attrgetter('samples')


def _norms(tally: Tally) -> tuple[float, ...]:
    if tally.weights is None:
        return tally.m, float(tally.r), math.sqrt(tally.r), tally.v
    squares = float(np.sum(tally.weights**2))
    return tally.m, float(tally.weights.sum()), math.sqrt(squares), tally.v


def _gdp_p_value(m: int, r: int, v: int, mu: float) -> float:
    return 1.0 if math.isinf(mu) else bounds.fdp_p_value(m, r, v, bounds.gaussian_curve(mu))


_FIXED = 'the number of guesses was fixed before the scores were seen'
_THRESHOLD = (
    'the threshold was fixed before the scores were seen. Residual scores of Dirac canaries are '
    'independent if the code is right: the test is then a valid test of the claim that the code '
    'is DP-SGD with these parameters'
)
_HOEFFDING = Bound(_norms, bounds.hoeffding_p_value, bounds.hoeffding_eps_lower_bound)

# In the order of reports.
METHODS = {
    'one_run': Method(
        'Corollary ternary', 'none', _FIXED, Bound(_counts, bounds.p_value, bounds.eps_lower_bound)
    ),
    'weighted': Method(
        'Theorem main (at δ = 0, Proposition pure)',
        'none',
        'the weights of the guesses were fixed before the scores were seen',
        Bound(_counts, bounds.p_value, bounds.eps_lower_bound),
        Bound(_weights, bounds.weighted_p_value, bounds.weighted_eps_lower_bound),
        by_weights=True,
    ),
    'adaptive': Method(
        'Corollary adap_T',
        'none',
        'the guesses depend on the scores in any way, never on the coins',
        Bound(_counts, bounds.adaptive_p_value, bounds.adaptive_eps_lower_bound),
        Bound(_weights, bounds.adaptive_weighted_p_value, bounds.adaptive_weighted_eps_lower_bound),
        claimed=lambda *arguments: arguments,
    ),
    'hoeffding': Method(
        'Corollary hoeffding',
        'none',
        'the norms of the guesses were fixed before the scores were seen',
        _HOEFFDING,
        _HOEFFDING,
    ),
    'fdp': Method(
        'f-DP in one run (Mahloujifar et al. 2025)',
        'f-dp',
        _FIXED,
        Bound(_counts, _gdp_p_value, bounds.fdp_eps_lower_bound),
        claimed=_mu,
    ),
    'fdp_dpsgd': Method(
        'f-DP in one run, by privacy loss distributions',
        'f-dp-dpsgd',
        _FIXED,
        Bound(
            lambda tally: (*_counts(tally), tally.claim),
            lambda m, r, v, claim: tradeoff.dpsgd_p_value(m, r, v, *dataclasses.astuple(claim)),
            lambda m, r, v, claim, delta, confidence: tradeoff.dpsgd_eps_lower_bound(
                m, r, v, delta, confidence, claim.sampling_prob, claim.steps
            ),
        ),
        claimed=lambda *_: (),  # it is known, σ and all
        needs='claim',
    ),
    'gaussian_pair': Method(
        'a fit of two normals',
        'gaussian-scores',
        'every score is used',
        Bound(_samples, bounds.gaussian_pair_p_value, bounds.gaussian_pair_eps),
        claimed=_mu,
        kind='estimate',
        needs='samples',
    ),
    'clopper_pearson': Method(
        'Clopper-Pearson (Nasr et al. 2023)',
        'independent',
        _THRESHOLD,
        Bound(_confusion, bounds.clopper_pearson_p_value, bounds.clopper_pearson_eps_lower_bound),
        needs='confusion',
    ),
    'cp_gdp': Method(
        'Clopper-Pearson to Gaussian DP (Nasr et al. 2023)',
        'independent-gaussian',
        _THRESHOLD,
        Bound(_confusion, bounds.cp_gdp_p_value, bounds.cp_gdp_eps_lower_bound),
        claimed=_mu,
        needs='confusion',
    ),
    'replacement': Method(
        'Corollary ternary and group privacy (Appendix A)',
        'none',
        'one of each pair of canaries was in; ' + _FIXED,
        Bound(_counts, bounds.replacement_p_value, bounds.replacement_eps_lower_bound),
        pairs=True,
    ),
}

_MISSING = {
    'confusion': 'every canary guessed by a threshold that was fixed beforehand, '
    'guesses=guess.Threshold(t), or the mechanism, from which one is planned',
    'samples': 'the scores themselves',
    'claim': 'q and the steps of the DP-SGD, mechanism=DPSGD(…)',
}


def require_fields(method: str, tally: Tally) -> None:
    """Raises a ValueError if the tally lacks what the method needs."""
    needs = METHODS[method].needs
    if needs is not None and getattr(tally, needs) is None:
        raise ValueError(f'method {method!r} needs {_MISSING[needs]}.')


def audit_tally(
    tally: Tally,
    *,
    delta: float,
    confidence: float = 0.95,
    method: str = 'one_run',
    eps_claimed: float | None = None,
) -> AuditResult:
    """The bound `method` on a tally of guesses. See `oneshot.audit_scores`."""
    chosen = METHODS[inputs.choice('method', method, list(METHODS))]
    if tally.weights is not None and chosen.takes_counts and chosen.weighted is None:
        raise ValueError(
            f'guesses must be -1, 0 or +1 for method {method!r}, but weights between them were '
            "given; 'weighted' and 'adaptive' take them."
        )
    require_fields(method, tally)
    delta, confidence = inputs.delta(delta), inputs.confidence(confidence)
    p_value = None
    if eps_claimed is not None:
        eps_claimed = inputs.real('eps_claimed', eps_claimed, 0.0)
        p_value = chosen.p_value(tally, eps_claimed, delta, confidence)
    return AuditResult(
        eps_lb=chosen.eps_lower_bound(tally, delta, confidence),
        method=method,
        assumptions=chosen.assumptions,
        confidence=confidence,
        delta=delta,
        m=tally.m,
        guesses=tally.r,
        correct=tally.v,
        k_plus=tally.k_plus,
        k_minus=tally.k_minus,
        eps_claimed=eps_claimed,
        p_value=p_value,
        kind=chosen.kind,
        weight=None if tally.weights is None else float(tally.weights.sum()),
    )
