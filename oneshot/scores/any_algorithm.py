"""Algorithm generic-audit: any algorithm with canaries in or out, audited in one run.

`train` is any function of who is in, `score` any function of what it returned and one canary. For
DP-SGD in JAX, `oneshot.run` does all of it in the pass of training.
"""

import contextlib
import functools
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from oneshot import inputs
from oneshot.results.result import AuditResult
from oneshot.scores.front_door import Rule, audit_scores

Train = Callable[[np.ndarray], Any]  # from who is in to a model
Score = Callable[[Any, Any], float]  # of a model and a canary


class Sample(NamedTuple):
    """One run of an algorithm on fair coins."""

    scores: np.ndarray  # float, the higher the more likely included
    included: np.ndarray  # bool, the coins


def sample(
    train: Train,
    score: Score,
    canaries: Sequence[Any],
    *,
    rng: np.random.Generator,
    progress: bool = False,
) -> Sample:
    """One run of Algorithm generic-audit up to the scores: flip, train once, score everyone.

    Takes the arguments of `audit_algorithm`, and returns the scores and the coins, for
    `oneshot.audit_scores`, which has more options, such as a known mechanism.
    """
    m = _number_of(canaries)
    for name, value, kind, right in (
        ('train', train, 'a function', callable(train)),
        ('score', score, 'a function', callable(score)),
        ('rng', rng, 'a np.random.Generator', isinstance(rng, np.random.Generator)),
    ):
        if not right:
            raise ValueError(f'{name} must be {kind}, but {inputs.short(value)} was given.')
    training, counted = _display() if progress else (contextlib.nullcontext(), iter)
    included = rng.random(m) < 0.5
    with training:
        model = train(included.copy())
    scores = [_finite(score(model, canaries[i]), i) for i in counted(range(m))]
    return Sample(np.array(scores), included)


def audit_algorithm(
    train: Train,
    score: Score,
    canaries: Sequence[Any],
    *,
    rng: np.random.Generator,
    delta: float,
    confidence: float = 0.95,
    method: str = 'one_run',
    guesses: Rule = 'preset',
    eps_claimed: float | None = None,
    progress: bool = False,
) -> AuditResult:
    """Lower bound on ε of any algorithm, from one run of it (Algorithm generic-audit).

    Guarantee: if adding or removing one canary is (ε, δ)-DP in the model that `train` returns, and
    what the method assumes beyond that holds, then `eps_lb` ≤ ε with probability at least
    `confidence`, unless the result's `kind` says that it is no bound.

    What is bounded is the ε of the function from coins to all that `score` can see. It is that of
    the algorithm if

    - `train` uses the coins for nothing but who is in: it trains on the data and the included
      canaries as it would on any data set, and does not look at those that are out.
    - `score` sees the coins through the model alone. What else `train` leaves for it, in a
      global, a file or a changed canary, counts as released.
    - the coins are independent of all else: of the canaries, of the noise of `train`, and of
      `method` and `guesses`, which are chosen before any coin is seen.
    - every run counts. The best of several has no guarantee; all of them do (`oneshot.pool`).

    A weak score or weak canaries make the bound small, never wrong. Canaries may be alike.

    >>> import numpy as np
    >>> import oneshot
    >>> def train(included):  # it claims ε = 1, and releases who is in
    ...     return set(np.flatnonzero(included).tolist())
    >>> result = oneshot.audit_algorithm(
    ...     train, lambda model, canary: float(canary in model), range(500),
    ...     rng=np.random.default_rng(0), delta=1e-5, eps_claimed=1.0,
    ... )
    >>> round(result.eps_lb, 2), result.violated
    (2.92, True)

    Args:
        train: from m bools, who is in, to a model of any type. It is called once, with a copy.
        score: from the model and one canary, in or out, to one finite number, the higher the more
            likely in. It is called for each canary, in their order.
        canaries: m examples, by position: a list, a tuple, an array of rows. For the method
            'replacement' a canary is a pair, and the coin says which of the two is in.
        rng: flips the coins, before anything else is drawn from it. `train` may draw from it as
            well, but not from another generator of the same seed, whose noise would know the coins.
        delta: the δ of the (ε, δ)-DP that is audited.
        confidence: 1 − the probability that the bound may be wrong.
        method: any of `oneshot.audit_scores` that needs no mechanism.
        guesses: how they are chosen, as in `oneshot.audit_scores`.
        eps_claimed: a claimed ε, to get the p-value of the claim. To reject it with 95 % confidence
            takes more than 3·e^ε guesses, even if all of them are right.
        progress: whether to show on stderr how far it is.

    Raises:
        ValueError: an option is wrong, before `train` is called, or a score is no number.
    """
    m = _number_of(canaries)
    options = {'delta': delta, 'confidence': confidence, 'method': method}
    audit = functools.partial(audit_scores, **options, guesses=guesses, eps_claimed=eps_claimed)
    with warnings.catch_warnings():  # wrong options are found on scores that say nothing
        warnings.simplefilter('ignore')
        audit(np.arange(m) // 2, np.arange(m) % 2)
    return audit(*sample(train, score, canaries, rng=rng, progress=progress))


def _number_of(canaries: object) -> int:
    """m, if the canaries can be had by position."""
    try:
        m = len(canaries)
    except TypeError:  # a generator, or a matrix that will not say
        m = 0
    if m == 0 or not hasattr(canaries, '__getitem__') or isinstance(canaries, Mapping):
        raise ValueError(
            f'canaries must be a sequence of at least one, but {inputs.short(canaries)} was given.'
        )
    return inputs.count('m, the number of canaries,', m, 1)


def _finite(value: Any, i: int) -> float:
    """The score of canary i as a float, from a scalar of any library."""
    try:
        number = math.nan if np.ndim(value) or isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError, OverflowError):  # not a number, or too large a one
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(
            f'score must be one finite number for each canary, but {inputs.short(value)} was given '
            f'for canary {i}.'
        )
    return number


def _display() -> tuple[contextlib.AbstractContextManager, Callable[[Iterable], Iterable]]:
    """What shows that it trains, and how many are scored."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    bar = functools.partial(track, description='scoring', console=console)
    return console.status('training'), bar
