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
    """A method as a pair of functions of a tally.

    Attributes:
        theorem: what it rests on.
        assumptions: what has to hold of the algorithm, a key of `ASSUMPTIONS`.
        condition: what has to hold of the auditor.
        p_value: of a tally, eps, delta and the confidence.
        eps_lower_bound: of a tally, delta and the confidence.
        kind: 'bound' or 'estimate'.
        needs: the field of the tally that it cannot do without, if any: 'confusion',
            'samples' or 'claim'.
        takes_weights: whether guesses may have weights between 0 and 1.
        pairs: whether a coin is for a pair of canaries, of which one was in.
    """

    theorem: str
    assumptions: str
    condition: str
    p_value: Callable[[Tally, float, float, float], float]
    eps_lower_bound: Callable[[Tally, float, float], float]
    kind: str = 'bound'
    needs: str | None = None
    takes_weights: bool = False
    pairs: bool = False

    @property
    def takes_counts(self) -> bool:
        """Whether (k_plus, k_minus) may be chosen freely: by a threshold or a fit, it may not."""
        return self.needs in (None, 'claim')


def _on_counts(bound: Callable[..., float]) -> Callable[..., float]:
    return lambda tally, *options: bound(tally.m, tally.r, tally.v, *options)


def _on_weights(ternary: Callable[..., float], weighted: Callable[..., float]):
    """A function of a tally: by its counts if all guesses are ±1, else by its weights."""

    def function(tally: Tally, *options: float) -> float:
        if tally.weights is None:
            return ternary(tally.m, tally.r, tally.v, *options)
        return weighted(tally.weights, tally.v, *options)

    return function


def _on_norms(bound: Callable[..., float]) -> Callable[..., float]:
    def function(tally: Tally, *options: float) -> float:
        if tally.weights is None:
            norms = float(tally.r), math.sqrt(tally.r)
        else:
            norms = float(tally.weights.sum()), math.sqrt(float(np.sum(tally.weights**2)))
        return bound(tally.m, *norms, tally.v, *options)

    return function


def _on_confusion(bound: Callable[..., float]) -> Callable[..., float]:
    return lambda tally, *options: bound(*tally.confusion, *options)


def _on_samples(bound: Callable[..., float]) -> Callable[..., float]:
    return lambda tally, *options: bound(*tally.samples, *options)


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
        _without_confidence(_on_counts(bounds.p_value)),
        _on_counts(bounds.eps_lower_bound),
    ),
    'adaptive': Method(
        'Corollary adap_T',
        'none',
        'the guesses depend on the scores in any way, never on the coins',
        _on_weights(bounds.adaptive_p_value, bounds.adaptive_weighted_p_value),
        _on_weights(bounds.adaptive_eps_lower_bound, bounds.adaptive_weighted_eps_lower_bound),
        takes_weights=True,
    ),
    'hoeffding': Method(
        'Corollary hoeffding',
        'none',
        'the norms of the guesses were fixed before the scores were seen',
        _without_confidence(_on_norms(bounds.hoeffding_p_value)),
        _on_norms(bounds.hoeffding_eps_lower_bound),
        takes_weights=True,
    ),
    'fdp': Method(
        'f-DP in one run (Mahloujifar et al. 2025)',
        'f-dp',
        _FIXED,
        _as_gaussian(lambda t, mu: bounds.fdp_p_value(t.m, t.r, t.v, bounds.gaussian_curve(mu))),
        _on_counts(bounds.fdp_eps_lower_bound),
    ),
    'fdp_dpsgd': Method(
        'f-DP in one run, by privacy loss distributions',
        'f-dp-dpsgd',
        _FIXED,
        _dpsgd_p_value,
        _dpsgd_eps_lower_bound,
        needs='claim',
    ),
    'weighted': Method(
        'Theorem main (at δ = 0, Proposition pure)',
        'none',
        'the weights of the guesses were fixed before the scores were seen',
        _without_confidence(_on_weights(bounds.p_value, bounds.weighted_p_value)),
        _on_weights(bounds.eps_lower_bound, bounds.weighted_eps_lower_bound),
        takes_weights=True,
    ),
    'clopper_pearson': Method(
        'Clopper-Pearson (Nasr et al. 2023)',
        'independent',
        _THRESHOLD,
        _without_confidence(_on_confusion(bounds.clopper_pearson_p_value)),
        _on_confusion(bounds.clopper_pearson_eps_lower_bound),
        needs='confusion',
    ),
    'cp_gdp': Method(
        'Clopper-Pearson to Gaussian DP (Nasr et al. 2023)',
        'independent-gaussian',
        _THRESHOLD,
        _as_gaussian(_on_confusion(bounds.cp_gdp_p_value)),
        _on_confusion(bounds.cp_gdp_eps_lower_bound),
        needs='confusion',
    ),
    'gaussian_pair': Method(
        'a fit of two normals',
        'gaussian-scores',
        'every score is used',
        _as_gaussian(_on_samples(bounds.gaussian_pair_p_value)),
        _on_samples(bounds.gaussian_pair_eps),
        kind='estimate',
        needs='samples',
    ),
    'replacement': Method(
        'Corollary ternary and group privacy (Appendix A)',
        'none',
        'one of each pair of canaries was in; ' + _FIXED,
        _without_confidence(_on_counts(bounds.replacement_p_value)),
        _on_counts(bounds.replacement_eps_lower_bound),
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
    if tally.weights is not None and chosen.takes_counts and not chosen.takes_weights:
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
