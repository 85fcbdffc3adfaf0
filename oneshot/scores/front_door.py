"""The front door for scores: from scores and coins to a lower bound on ε."""

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from oneshot import inputs
from oneshot.bounds import binomial
from oneshot.claims.claim import DPSGD
from oneshot.plan.expected import PLANNED_METHODS, AuditSetting
from oneshot.plan.score_law import Scoring
from oneshot.plan.search import plan_guesses
from oneshot.results import guess
from oneshot.results.methods import METHODS, ConfusionCounts, Tally, audit_tally, require_fields
from oneshot.results.result import AuditResult
from oneshot.scores.tables import join

Rule = str | tuple[int, int] | guess.RuleClass


def audit_guesses(guesses: ArrayLike, included: ArrayLike, **options: Any) -> AuditResult:
    """Lower bound on ε from guesses T and coins S that belong together by position.

    >>> import numpy as np
    >>> import oneshot
    >>> included = np.arange(200) % 2 == 0
    >>> guesses = np.where(included, 1, -1)
    >>> guesses[:5] *= -1  # wrong
    >>> guesses[50:] = 0  # no guess
    >>> result = oneshot.audit_guesses(guesses, included, delta=1e-5)
    >>> result.correct, result.guesses, round(result.eps_lb, 2)
    (45, 50, 1.39)

    Args:
        guesses: T in [−1, +1]^m: the sign is the guess, 0 abstains, the size is its weight.
        included: the coins, as bools, as 0 and 1, or as −1 and +1.
        **options: delta, confidence, method, mechanism and eps_claimed as in `audit_scores`.
    """
    guesses = inputs.vector('guesses', guesses)
    if np.abs(guesses).max() > 1.0:
        worst = float(guesses[np.argmax(np.abs(guesses))])
        raise ValueError(f'guesses must lie in [-1, +1], but one of {worst!r} was given.')
    signs = _signs(included, 'guesses', guesses.size)
    return _audit(guesses, signs, by_threshold=True, **options)


def _audit(
    guesses: np.ndarray,
    signs: np.ndarray,
    *,
    by_threshold: bool = False,
    samples: tuple[np.ndarray, np.ndarray] | None = None,
    mechanism: DPSGD | Scoring | None = None,
    **options: Any,
) -> AuditResult:
    """`audit_guesses` for checked guesses and coins in −1 and +1."""
    weights = np.abs(guesses)
    correct = float(np.sum(np.maximum(0.0, guesses * signs)))
    ternary = bool(np.isin(weights, (0.0, 1.0)).all())
    confusion = None
    if by_threshold and ternary and weights.all():
        inside, positive = signs > 0, guesses > 0
        cells = inside, inside & positive, ~inside, ~inside & positive
        confusion = ConfusionCounts(*(int(np.sum(cell)) for cell in cells))
    tally = Tally(
        m=guesses.size,
        r=int(np.count_nonzero(guesses)),
        v=int(correct) if ternary else correct,
        weights=None if ternary else weights,
        k_plus=int(np.sum(guesses > 0)),
        k_minus=int(np.sum(guesses < 0)),
        confusion=confusion,
        samples=samples,
        claim=_claim(mechanism),
    )
    return audit_tally(tally, **options)


def audit_scores(
    scores: ArrayLike,
    included: ArrayLike,
    *,
    delta: float,
    confidence: float = 0.95,
    method: str = 'one_run',
    guesses: Rule = 'planned',
    mechanism: DPSGD | Scoring | None = None,
    ids: ArrayLike | None = None,
    included_ids: ArrayLike | None = None,
    eps_claimed: float | None = None,
) -> AuditResult:
    """Lower bound on ε from the scores of m canaries and the coins that included them.

    Guarantee: if each canary was included by a fair coin of its own, the algorithm that gave the
    scores is (ε, δ)-DP, and what the method assumes beyond that holds, then `eps_lb` ≤ ε with
    probability at least `confidence`, unless the result's `kind` says that it is no bound. The
    guesses are made from the scores alone; `guesses` and `method` have to be chosen before the
    coins are seen.

    >>> import numpy as np
    >>> import oneshot
    >>> rng = np.random.default_rng(0)
    >>> included = rng.random(1000) < 0.5
    >>> scores = rng.normal(size=1000) + 2 * included
    >>> result = oneshot.audit_scores(scores, included, delta=1e-5)
    >>> result.correct, result.guesses, round(result.eps_lb, 2)
    (90, 90, 3.36)

    Args:
        scores: m numbers, the higher the more likely included.
        included: the m coins, as bools, as 0 and 1, or as −1 and +1.
        delta: the δ of the (ε, δ)-DP that is audited.
        confidence: 1 − the probability that the bound may be wrong.
        method: any of `oneshot.results.METHODS`, which has the theorem and the assumptions of each.
            For 'replacement', a score is for a pair of which one was in (Appendix A): the higher,
            the more likely its first.
        guesses: (k_plus, k_minus): so many of the largest scores are guessed "included", and of the
            smallest "excluded". 'planned' is what `oneshot.plan` expects most of for the mechanism;
            without one it is 'preset', both numbers from m alone. 'split', 'grid' or a rule of
            `oneshot.guess`: see there. 'best_of_all', the paper's, has no guarantee.
        mechanism: the DP-SGD that is claimed to have given the scores, if it is known, or a
            `oneshot.plan.Scoring` of it; by itself it is scored by `dot`, in units of c.
        ids: a name for each score. With it, scores and coins are joined by name.
        included_ids: a name for each coin, in any order.
        eps_claimed: a claimed ε, to get the p-value of the claim.
    """
    scores = inputs.vector('scores', scores)
    if ids is not None or included_ids is not None:
        included = join(scores, included, ids, included_ids)
    signs = _signs(included, 'scores', scores.size)
    options = {
        'delta': inputs.delta(delta),
        'confidence': inputs.confidence(confidence),
        'method': inputs.choice('method', method, list(METHODS)),
        'mechanism': mechanism,
        'eps_claimed': eps_claimed,
    }
    name, rule = choose_rule(guesses, scores.size, **options)
    if METHODS[method].needs == 'samples':  # it makes no guesses
        samples = scores[signs > 0], scores[signs < 0]
        return _audit(np.zeros(scores.size), signs, samples=samples, **options)
    if isinstance(rule, (guess.Beyond, guess.Split)) and method != 'adaptive':
        raise ValueError(
            f'{type(rule).__name__} makes a random number of guesses, which only method '
            f"'adaptive' takes, but {method!r} was given."
        )
    if name == 'best_of_all':
        result = _best_of_all(scores, signs, options)
    elif isinstance(rule, guess.Grid):
        result = _grid(rule, scores, signs, options)
    elif isinstance(rule, guess.Split):
        result = _split(rule, scores, signs, options)
    elif isinstance(rule, tuple):
        result = _audit(guess.top_k(scores, *rule), signs, **options)
    else:
        by_threshold = isinstance(rule, guess.Threshold)
        result = _audit(rule.guesses(scores), signs, by_threshold=by_threshold, **options)
    return dataclasses.replace(result, rule=name)


def pool(runs: Sequence[tuple[ArrayLike, ArrayLike]]) -> tuple[np.ndarray, np.ndarray]:
    """The scores and the coins of several runs as those of one.

    R runs with fresh coins are one algorithm on R·m coins: if every run is (ε, δ)-DP, so are all of
    them together for each coin, because a coin is used in one run only. The same holds of trade-off
    curves. Canaries may be the same in every run; the scores have to be on one scale, and the
    number of runs fixed before they are seen.

    >>> import numpy as np
    >>> import oneshot
    >>> rng = np.random.default_rng(0)
    >>> coins = [rng.random(400) < 0.5 for _ in range(3)]
    >>> runs = [(rng.normal(size=400) + 2 * included, included) for included in coins]
    >>> scores, included = oneshot.pool(runs)
    >>> scores.size
    1200

    Args:
        runs: scores and coins of each.

    Returns:
        Scores and coins, as bools, for `audit_scores`.
    """
    if not runs:
        raise ValueError('pool needs one run or more, but none was given.')
    all_scores, all_coins = [], []
    for scores, included in runs:
        all_scores.append(inputs.vector('scores', scores))
        all_coins.append(_signs(included, 'scores', all_scores[-1].size) > 0)
    seen: dict[bytes, int] = {}
    for number, coins in enumerate(all_coins):
        first = seen.setdefault(np.packbits(coins).tobytes(), number)
        if first != number and coins.size >= 40:  # by chance, once in 2^40
            raise ValueError(
                f'Every run must have fresh coins, but runs {first} and {number} have the same.'
            )
    return np.concatenate(all_scores), np.concatenate(all_coins)


def choose_rule(guesses: Rule, m: int, **options: Any) -> tuple[str, Any]:
    """How `audit_scores` chooses guesses with these options, decided before any score is seen.

    Returns the name of the rule, a key of `oneshot.guess.RULES`, and what it comes to for m
    canaries. The options are delta, confidence, method and mechanism.
    """
    if isinstance(guesses, str) and guesses in guess.NAMED_RULES:
        if guesses == 'planned':
            return _planned(m, options)
        known = {'split': guess.Split(), 'grid': guess.Grid.preset(m), 'preset': guess.preset(m)}
        return guesses, known.get(guesses)
    if isinstance(guesses, (tuple, list)) and len(guesses) == 2:
        return 'fixed', tuple(guesses)
    if isinstance(guesses, guess.RuleClass):
        return type(guesses).__name__.lower(), guesses
    raise ValueError(
        f'guesses must be (k_plus, k_minus), one of {", ".join(guess.NAMED_RULES)}, or a rule of '
        f'oneshot.guess, but {guesses!r} was given.'
    )


def _planned(m: int, options: dict[str, Any]) -> tuple[str, Any]:
    """The best rule for the method, before any score is seen."""
    mechanism = options['mechanism']
    setting = options['delta'], options['confidence'], options['method']
    if mechanism is None or m < 2 or options['method'] not in PLANNED_METHODS:
        return 'preset', guess.preset(m)
    scoring = Scoring(mechanism) if isinstance(mechanism, DPSGD) else mechanism
    unit = dataclasses.replace(scoring, scale=1.0)  # plans for other scales are the same
    rule = plan_guesses(AuditSetting(unit, m, *setting)).rule
    if isinstance(rule, guess.Threshold):
        rule = guess.Threshold(scoring.scale * rule.value)
    return 'planned', rule


def _claim(mechanism: DPSGD | Scoring | None) -> DPSGD | None:
    return mechanism.claim if isinstance(mechanism, Scoring) else mechanism


def _grid(
    rule: guess.Grid, scores: np.ndarray, signs: np.ndarray, options: dict[str, Any]
) -> AuditResult:
    """The best of a grid at a confidence that holds for all of it together (Bonferroni)."""
    number = len(rule.pairs)
    shared = options | {'confidence': 1.0 - (1.0 - options['confidence']) / number}
    results = [_audit(guess.top_k(scores, *pair), signs, **shared) for pair in rule.pairs]
    result, p_value = max(results, key=lambda result: result.eps_lb), None
    if result.p_value is not None:
        p_value = min(1.0, number * min(result.p_value for result in results))
    return dataclasses.replace(result, confidence=options['confidence'], p_value=p_value)


def _split(
    rule: guess.Split, scores: np.ndarray, signs: np.ndarray, options: dict[str, Any]
) -> AuditResult:
    """Thresholds by the best bound on one part, a bound on the other.

    Given the coins of the first part, the second is audited like any other set of canaries: the
    thresholds are a function of scores and of coins that are not audited.
    """
    first, others = rule.parts(scores.size)
    k_plus, k_minus = _best_numbers(scores[first], signs[first], options)
    ranked = np.sort(scores[first])
    low = np.nextafter(ranked[k_minus - 1], np.inf) if k_minus else -np.inf
    high = max(low, np.nextafter(ranked[first.size - k_plus], -np.inf))
    outside = guess.Beyond(float(low), float(high))
    return _audit(outside.guesses(scores[others]), signs[others], **options)


def _best_of_all(scores: np.ndarray, signs: np.ndarray, options: dict[str, Any]) -> AuditResult:
    pair = _best_numbers(scores, signs, options)
    warnings.warn(
        'The best of all numbers of guesses has no guarantee: the confidence is not kept, '
        'because the number was chosen by its success.',
        stacklevel=3,
    )
    result = _audit(guess.top_k(scores, *pair), signs, **options)
    return dataclasses.replace(result, kind='no guarantee')


def _best_numbers(
    scores: np.ndarray, signs: np.ndarray, options: dict[str, Any]
) -> tuple[int, int]:
    """The numbers of guesses with the largest bound, by a look at the coins."""
    name, claim = options['method'], _claim(options['mechanism'])
    if not METHODS[name].takes_counts:
        raise ValueError(f'There are no numbers of guesses to choose from by method {name!r}.')
    require_fields(name, Tally(m=scores.size, r=0, v=0, claim=claim))
    ranked = signs[guess.order(scores)] > 0
    right_in = np.concatenate([[0], np.cumsum(ranked[::-1])])
    right_out = np.concatenate([[0], np.cumsum(~ranked)])

    def bound(pair: tuple[int, int]) -> float:
        right = int(right_in[pair[0]] + right_out[pair[1]])
        tally = Tally(m=scores.size, r=sum(pair), v=right, claim=claim)
        return METHODS[name].eps_lower_bound(tally, options['delta'], options['confidence'])

    return max(guess.counts_for_best_of_all(scores.size), key=bound)


def _signs(included: ArrayLike, what: str, size: int) -> np.ndarray:
    """The coins as −1 and +1, after checks."""
    coins = inputs.vector('included', included)
    if coins.size != size:
        raise ValueError(
            f'{what} and included must be of equal length, but {size} and {coins.size} were given.'
        )
    if not (np.isin(coins, (0.0, 1.0)).all() or np.isin(coins, (-1.0, 1.0)).all()):
        odd = coins[~np.isin(coins, (-1.0, 0.0, 1.0))]
        shown = repr(float(odd[0])) if odd.size else 'a mix of -1, 0 and +1'
        raise ValueError(f'included must be bools, 0 and 1, or -1 and +1, but {shown} was given.')
    inside = int(np.sum(coins > 0))
    if binomial.survival(max(inside, size - inside), size, 0.0) < 1e-12:
        warnings.warn(
            f'{inside} of {size} canaries are included, which fair coins do not give: every bound '
            'here assumes that each canary was included by a fair coin of its own.',
            stacklevel=3,
        )
    return np.where(coins > 0, 1, -1)
