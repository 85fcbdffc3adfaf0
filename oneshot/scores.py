"""The front door for scores: from scores and coins to a lower bound on ε."""

import collections
import dataclasses
import json
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from oneshot import bounds, guess
from oneshot.bounds import _binomial, _check

ASSUMPTIONS = {
    'none': 'nothing beyond (ε, δ)-DP',
    'f-dp': 'a Gaussian trade-off curve',
}


@dataclasses.dataclass(frozen=True)
class AuditResult:
    """A lower bound on ε, and all that it rests on.

    Attributes:
        eps_lb: at most the true ε with probability at least `confidence`.
        method: the name of the bound, a key of `METHODS`.
        assumptions: what has to hold of the algorithm, a key of `ASSUMPTIONS`.
        confidence: 1 − the probability that the bound may be wrong.
        delta: the δ of the (ε, δ)-DP that is audited.
        m: the number of canaries.
        guesses: the number of guesses, r.
        correct: the number of right guesses, or their weight, v.
        k_plus: the number of guesses "included", None if it is not known.
        k_minus: the number of guesses "excluded", None if it is not known.
        eps_claimed: the ε that the algorithm is claimed to have, if any.
        p_value: the p-value of that claim, if any.
    """

    eps_lb: float
    method: str
    assumptions: str
    confidence: float
    delta: float
    m: int
    guesses: int
    correct: float
    k_plus: int | None = None
    k_minus: int | None = None
    eps_claimed: float | None = None
    p_value: float | None = None

    @property
    def violated(self) -> bool | None:
        """Whether the claim is rejected at this confidence; None without a claim."""
        return None if self.eps_claimed is None else self.eps_lb > self.eps_claimed

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class Tally:
    """What the guesses came to: all that a bound may see."""

    m: int
    r: int
    v: float
    weights: np.ndarray | None = None  # |T|, where the guesses are not all ±1
    k_plus: int | None = None
    k_minus: int | None = None

    @classmethod
    def of_counts(cls, m: int, r: int, v: int) -> 'Tally':
        return cls(*_check.counts(m, r, v))


@dataclasses.dataclass(frozen=True)
class Method:
    """A bound as a pair of functions of a tally."""

    theorem: str
    assumptions: str
    condition: str  # on the auditor, not on the algorithm
    p_value: Callable[[Tally, float, float, float], float]  # tally, eps, delta, confidence
    eps_lower_bound: Callable[[Tally, float, float], float]  # tally, delta, confidence


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


def _fdp_p_value(tally: Tally, eps: float, delta: float) -> float:
    """Of the claim (ε, δ) as that of a Gaussian mechanism."""
    mu = bounds.gaussian_mu(eps, delta) if eps < 1e6 else math.inf  # which nothing rejects
    if math.isinf(mu):
        return 1.0
    return bounds.fdp_p_value(tally.m, tally.r, tally.v, bounds.gaussian_curve(mu))


_FIXED = 'the number of guesses was fixed before the scores were seen'

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
    ),
    'weighted': Method(
        'Theorem main (at δ = 0, Proposition pure)',
        'none',
        'the weights of the guesses were fixed before the scores were seen',
        _without_confidence(_by_weights(bounds.p_value, bounds.weighted_p_value)),
        _by_weights(bounds.eps_lower_bound, bounds.weighted_eps_lower_bound),
    ),
    'hoeffding': Method(
        'Corollary hoeffding',
        'none',
        'the norms of the guesses were fixed before the scores were seen',
        lambda t, eps, delta, _: bounds.hoeffding_p_value(t.m, *_norms(t), t.v, eps, delta),
        lambda t, delta, confidence: bounds.hoeffding_eps_lower_bound(
            t.m, *_norms(t), t.v, delta, confidence
        ),
    ),
    'fdp': Method(
        'f-DP in one run (Mahloujifar et al. 2025)',
        'f-dp',
        _FIXED,
        lambda t, eps, delta, _: _fdp_p_value(t, eps, delta),
        lambda t, delta, confidence: bounds.fdp_eps_lower_bound(t.m, t.r, t.v, delta, confidence),
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


def audit_tally(
    tally: Tally,
    *,
    delta: float,
    confidence: float = 0.95,
    method: str = 'one_run',
    eps_claimed: float | None = None,
) -> AuditResult:
    """The bound `method` on a tally of guesses. See `audit_scores`."""
    bound = METHODS[_check.choice('method', method, list(METHODS))]
    if method in ('one_run', 'fdp', 'replacement') and tally.weights is not None:
        raise ValueError(
            f'guesses must be -1, 0 or +1 for method {method!r}, but weights between them were '
            "given; 'weighted' and 'adaptive' take them."
        )
    delta, confidence = _check.delta(delta), _check.confidence(confidence)
    p_value = None
    if eps_claimed is not None:
        eps_claimed = _check.real('eps_claimed', eps_claimed, 0.0)
        p_value = bound.p_value(tally, eps_claimed, delta, confidence)
    return AuditResult(
        eps_lb=bound.eps_lower_bound(tally, delta, confidence),
        method=method,
        assumptions=bound.assumptions,
        confidence=confidence,
        delta=delta,
        m=tally.m,
        guesses=tally.r,
        correct=tally.v,
        k_plus=tally.k_plus,
        k_minus=tally.k_minus,
        eps_claimed=eps_claimed,
        p_value=p_value,
    )


def audit_guesses(guesses: ArrayLike, included: ArrayLike, **options: Any) -> AuditResult:
    """Lower bound on ε from guesses T and coins S that belong together by position.

    Args:
        guesses: T in [−1, +1]^m: the sign is the guess, 0 abstains, the size is
            the weight of the guess.
        included: the coins, as bools, as 0 and 1, or as −1 and +1.
        **options: delta, confidence, method and eps_claimed as in `audit_scores`.

    Returns:
        An `AuditResult`.
    """
    guesses = _check.vector('guesses', guesses)
    if np.abs(guesses).max() > 1.0:
        worst = float(guesses[np.argmax(np.abs(guesses))])
        raise ValueError(f'guesses must lie in [-1, +1], but one of {worst!r} was given.')
    return _audit(guesses, _signs(included, 'guesses', guesses.size), **options)


def _audit(guesses: np.ndarray, signs: np.ndarray, **options: Any) -> AuditResult:
    """`audit_guesses` for checked guesses and coins in −1 and +1."""
    weights = np.abs(guesses)
    correct = float(np.sum(np.maximum(0.0, guesses * signs)))
    ternary = bool(np.isin(weights, (0.0, 1.0)).all())
    tally = Tally(
        m=guesses.size,
        r=int(np.count_nonzero(guesses)),
        v=int(correct) if ternary else correct,
        weights=None if ternary else weights,
        k_plus=int(np.sum(guesses > 0)),
        k_minus=int(np.sum(guesses < 0)),
    )
    return audit_tally(tally, **options)


def audit_scores(
    scores: ArrayLike,
    included: ArrayLike,
    *,
    delta: float,
    confidence: float = 0.95,
    method: str = 'one_run',
    guesses: str | tuple[int, int] = 'preset',
    ids: ArrayLike | None = None,
    included_ids: ArrayLike | None = None,
    eps_claimed: float | None = None,
) -> AuditResult:
    """Lower bound on ε from the scores of m canaries and the coins that included them.

    Guarantee: if each canary was included by a fair coin of its own, and the
    algorithm that gave the scores is (ε, δ)-DP, then `eps_lb` ≤ ε with
    probability at least `confidence`. The guesses are made from the scores
    alone; `guesses` and `method` have to be chosen before the coins are seen.

    Args:
        scores: m numbers, the higher the more likely included.
        included: the m coins, as bools, as 0 and 1, or as −1 and +1.
        delta: the δ of the (ε, δ)-DP that is audited.
        confidence: 1 − the probability that the bound may be wrong.
        method: 'one_run' (Corollary ternary), 'adaptive' (Corollary adap_T),
            'weighted' (Theorem main), 'hoeffding' (Corollary hoeffding), 'fdp' (for
            algorithms with the trade-off curve of a Gaussian, whose ε it bounds), or
            'replacement' for pairs of which one was in (Appendix A): a score is then
            for a pair, the higher the more likely its first is in.
        guesses: (k_plus, k_minus), how many of the largest scores are guessed
            "included" and of the smallest "excluded", or 'preset', which takes
            both from m (`oneshot.guess.preset`).
        ids: a name for each score. With it, scores and coins are joined by name.
        included_ids: a name for each coin, in any order.
        eps_claimed: a claimed ε, to get the p-value of the claim.

    Returns:
        An `AuditResult`.
    """
    scores = _check.vector('scores', scores)
    if ids is not None or included_ids is not None:
        included = _join(scores.size, ids, _check.vector('included', included), included_ids)
    signs = _signs(included, 'scores', scores.size)
    k_plus, k_minus = _split_guesses(guesses, scores.size)
    return _audit(
        guess.top_k(scores, k_plus, k_minus),
        signs,
        delta=delta,
        confidence=confidence,
        method=method,
        eps_claimed=eps_claimed,
    )


def _split_guesses(guesses: object, m: int) -> tuple[int, int]:
    if isinstance(guesses, str) and guesses == 'preset':
        return guess.preset(m)
    if isinstance(guesses, (tuple, list)) and len(guesses) == 2:
        return guesses[0], guesses[1]
    raise ValueError(f"guesses must be 'preset' or (k_plus, k_minus), but {guesses!r} was given.")


def _signs(included: ArrayLike, what: str, size: int) -> np.ndarray:
    """The coins as −1 and +1, after checks."""
    coins = _check.vector('included', included)
    if coins.size != size:
        raise ValueError(
            f'{what} and included must be of equal length, but {size} and {coins.size} were given.'
        )
    if not (np.isin(coins, (0.0, 1.0)).all() or np.isin(coins, (-1.0, 1.0)).all()):
        odd = coins[~np.isin(coins, (-1.0, 0.0, 1.0))]
        given = f'{float(odd[0])!r}' if odd.size else 'a mix of -1, 0 and +1'
        raise ValueError(f'included must be bools, 0 and 1, or -1 and +1, but {given} was given.')
    inside = int(np.sum(coins > 0))
    if _binomial.survival(max(inside, size - inside), size, 0.0) < 1e-12:
        warnings.warn(
            f'{inside} of {size} canaries are included, which fair coins do not give: every bound '
            'here assumes that each canary was included by a fair coin of its own.',
            stacklevel=3,
        )
    return np.where(coins > 0, 1, -1)


def _join(
    size: int, ids: ArrayLike | None, included: np.ndarray, included_ids: ArrayLike | None
) -> np.ndarray:
    """The coins in the order of the scores."""
    if ids is None or included_ids is None:
        missing = 'ids' if ids is None else 'included_ids'
        raise ValueError(f'ids and included_ids must be given together, but {missing} is missing.')
    names = _names('ids', ids, size)
    coins = dict(zip(_names('included_ids', included_ids, included.size), included, strict=True))
    without_coin = [name for name in names if name not in coins]
    without_score = list(coins.keys() - set(names))
    if without_coin or without_score:
        raise ValueError(
            'scores and coins must name the same canaries, but '
            f'{_some(without_coin)} have no coin and {_some(without_score)} have no score.'
        )
    return np.array([coins[name] for name in names])


def _names(what: str, ids: ArrayLike, size: int) -> list[Any]:
    """The ids as plain Python values, which are equal only if they are the same."""
    ids = np.asarray(ids, dtype=object) if isinstance(ids, (list, tuple)) else np.asarray(ids)
    if ids.shape != (size,):
        raise ValueError(f'{what} must name each of {size} entries, but has shape {ids.shape}.')
    names = ids.tolist()
    repeated = [name for name, count in collections.Counter(names).items() if count > 1]
    if repeated:
        raise ValueError(f'{what} must be unique, but {_some(repeated)} repeat.')
    return names


def _some(ids: list[Any]) -> str:
    """The first few ids, for an error message."""
    if not ids:
        return 'no ids'
    ordered = sorted(ids, key=lambda name: (str(type(name)), name))
    shown = ', '.join(str(one) for one in ordered[:5])
    return f'ids {shown}' + (f' and {len(ids) - 5} more' if len(ids) > 5 else '')


def to_json(content: Any) -> str:
    """JSON with infinities as strings, which JSON itself does not know."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(one) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(one) for one in value]
        return str(value) if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(plain(content), indent=2, ensure_ascii=False, allow_nan=False)
