"""Every method, from a tally of guesses to a lower bound on ε, and what it rests on."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from oneshot import bounds, inputs
from oneshot.claims import tradeoff
from oneshot.results.result import AuditResult
from oneshot.results.tally import Tally


@dataclasses.dataclass(frozen=True)
class Method:
    """A method as a pair of functions of a tally."""

    theorem: str
    assumptions: str
    condition: str  # on the auditor, not on the algorithm
    p_value: Callable[[Tally, float, float, float], float]  # tally, eps, delta, confidence
    eps_lower_bound: Callable[[Tally, float, float], float]  # tally, delta, confidence
    kind: str = 'bound'
    takes: str = 'counts'  # or 'weights', 'cells', 'samples', 'claim'


def _by_weights(ternary: Callable[..., float], weighted: Callable[..., float]):
    """A function of a tally: by its counts if all guesses are ±1, else by its weights."""

    def function(tally: Tally, *rest: float) -> float:
        if tally.weights is None:
            return ternary(tally.m, tally.r, tally.v, *rest)
        return weighted(tally.weights, tally.v, *rest)

    return function


def _norms(tally: Tally) -> tuple[float, float]:
    if tally.weights is None:
        return float(tally.r), math.sqrt(tally.r)
    return float(tally.weights.sum()), math.sqrt(float(np.sum(tally.weights**2)))


def _without_confidence(p_value: Callable[..., float]) -> Callable[..., float]:
    return lambda tally, eps, delta, confidence: p_value(tally, eps, delta)


def _as_gaussian(p_value: Callable[[Tally, float], float]) -> Callable[..., float]:
    """The p-value of the claim (ε, δ) as that of a Gaussian mechanism, from that of its μ."""

    def function(tally: Tally, eps: float, delta: float, confidence: float) -> float:
        mu = bounds.gaussian_mu(eps, delta) if eps < 1e6 else math.inf  # which nothing rejects
        return 1.0 if math.isinf(mu) else p_value(tally, mu)

    return function


def _dpsgd_p_value(tally: Tally, eps: float, delta: float, confidence: float) -> float:
    """Of the claim that the algorithm is DP-SGD with the σ, q and steps that are known."""
    return tradeoff.dpsgd_p_value(tally.m, tally.r, tally.v, *dataclasses.astuple(tally.claim))


def _dpsgd_eps_lower_bound(tally: Tally, delta: float, confidence: float) -> float:
    claim = tally.claim
    return tradeoff.dpsgd_eps_lower_bound(
        tally.m, tally.r, tally.v, delta, confidence, claim.sampling_prob, claim.steps
    )


_FIXED = 'the number of guesses was fixed before the scores were seen'
_THRESHOLD = (
    'the threshold was fixed before the scores were seen. Residual scores of Dirac canaries are '
    'independent if the code is right: the test is then a valid test of the claim that the code '
    'is DP-SGD with these parameters'
)

METHODS = {
    'one_run': Method(
        'Corollary ternary',
        'none',
        _FIXED,
        lambda t, eps, delta, _: bounds.p_value(t.m, t.r, t.v, eps, delta),
        lambda t, delta, confidence: bounds.eps_lower_bound(t.m, t.r, t.v, delta, confidence),
    ),
    'adaptive': Method(
        'Corollary adap_T',
        'none',
        'the guesses depend on the scores in any way, never on the coins',
        _by_weights(bounds.adaptive_p_value, bounds.adaptive_weighted_p_value),
        _by_weights(bounds.adaptive_eps_lower_bound, bounds.adaptive_weighted_eps_lower_bound),
        takes='weights',
    ),
    'weighted': Method(
        'Theorem main (at δ = 0, Proposition pure)',
        'none',
        'the weights of the guesses were fixed before the scores were seen',
        _without_confidence(_by_weights(bounds.p_value, bounds.weighted_p_value)),
        _by_weights(bounds.eps_lower_bound, bounds.weighted_eps_lower_bound),
        takes='weights',
    ),
    'hoeffding': Method(
        'Corollary hoeffding',
        'none',
        'the norms of the guesses were fixed before the scores were seen',
        lambda t, eps, delta, _: bounds.hoeffding_p_value(t.m, *_norms(t), t.v, eps, delta),
        lambda t, delta, confidence: bounds.hoeffding_eps_lower_bound(
            t.m, *_norms(t), t.v, delta, confidence
        ),
        takes='weights',
    ),
    'fdp': Method(
        'f-DP in one run (Mahloujifar et al. 2025)',
        'f-dp',
        _FIXED,
        _as_gaussian(lambda t, mu: bounds.fdp_p_value(t.m, t.r, t.v, bounds.gaussian_curve(mu))),
        lambda t, delta, confidence: bounds.fdp_eps_lower_bound(t.m, t.r, t.v, delta, confidence),
    ),
    'fdp_dpsgd': Method(
        'f-DP in one run, by privacy loss distributions',
        'f-dp-dpsgd',
        _FIXED,
        _dpsgd_p_value,
        _dpsgd_eps_lower_bound,
        takes='claim',
    ),
    'clopper_pearson': Method(
        'Clopper-Pearson (Nasr et al. 2023)',
        'independent',
        _THRESHOLD,
        lambda t, eps, delta, _: bounds.clopper_pearson_p_value(*t.cells, eps, delta),
        lambda t, delta, confidence: bounds.clopper_pearson_eps_lower_bound(
            *t.cells, delta, confidence
        ),
        takes='cells',
    ),
    'cp_gdp': Method(
        'Clopper-Pearson to Gaussian DP (Nasr et al. 2023)',
        'independent-gaussian',
        _THRESHOLD,
        _as_gaussian(lambda t, mu: bounds.cp_gdp_p_value(*t.cells, mu)),
        lambda t, delta, confidence: bounds.cp_gdp_eps_lower_bound(*t.cells, delta, confidence),
        takes='cells',
    ),
    'gaussian_pair': Method(
        'a fit of two normals',
        'gaussian-scores',
        'every score is used',
        _as_gaussian(lambda t, mu: bounds.gaussian_pair_p_value(*t.samples, mu)),
        lambda t, delta, confidence: bounds.gaussian_pair_eps(*t.samples, delta, confidence),
        kind='estimate',
        takes='samples',
    ),
    'replacement': Method(
        'Corollary ternary and group privacy (Appendix A)',
        'none',
        'one of each pair of canaries was in; ' + _FIXED,
        lambda t, eps, delta, _: bounds.replacement_p_value(t.m, t.r, t.v, eps, delta),
        lambda t, delta, confidence: bounds.replacement_eps_lower_bound(
            t.m, t.r, t.v, delta, confidence
        ),
    ),
}

_MISSING = {
    'cells': 'every canary guessed by a threshold that was fixed beforehand, '
    'guesses=guess.Threshold(t), or the mechanism, from which one is planned',
    'samples': 'the scores themselves',
    'claim': 'q and the steps of the DP-SGD, mechanism=DPSGD(…)',
}


def check_given(method: str, tally: Tally) -> None:
    """Says what a method needs and the tally does not have."""
    takes = METHODS[method].takes
    if takes in _MISSING and getattr(tally, takes) is None:
        raise ValueError(f'method {method!r} needs {_MISSING[takes]}.')


def audit_tally(
    tally: Tally,
    *,
    delta: float,
    confidence: float = 0.95,
    method: str = 'one_run',
    eps_claimed: float | None = None,
) -> AuditResult:
    """The bound `method` on a tally of guesses. See `oneshot.audit_scores`."""
    found = METHODS[inputs.choice('method', method, list(METHODS))]
    if found.takes in ('counts', 'claim') and tally.weights is not None:
        raise ValueError(
            f'guesses must be -1, 0 or +1 for method {method!r}, but weights between them were '
            "given; 'weighted' and 'adaptive' take them."
        )
    check_given(method, tally)
    delta, confidence = inputs.delta(delta), inputs.confidence(confidence)
    p_value = None
    if eps_claimed is not None:
        eps_claimed = inputs.real('eps_claimed', eps_claimed, 0.0)
        p_value = found.p_value(tally, eps_claimed, delta, confidence)
    return AuditResult(
        eps_lb=found.eps_lower_bound(tally, delta, confidence),
        method=method,
        assumptions=found.assumptions,
        confidence=confidence,
        delta=delta,
        m=tally.m,
        guesses=tally.r,
        correct=tally.v,
        k_plus=tally.k_plus,
        k_minus=tally.k_minus,
        eps_claimed=eps_claimed,
        p_value=p_value,
        kind=found.kind,
        weight=None if tally.weights is None else float(tally.weights.sum()),
    )
