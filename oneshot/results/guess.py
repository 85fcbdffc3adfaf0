"""From scores to guesses T, without a look at the coins (Algorithm generic-audit).

`RULES` lists the rules by which guesses may be chosen. A rule that is fixed beforehand is valid
with every method that takes its guesses. `Split` and `Grid` look at coins, and pay for that.

>>> import numpy as np
>>> from oneshot import guess
>>> scores = np.array([0.3, 2.1, -1.0, 0.9, -0.2])
>>> guess.top_k(scores, k_plus=2, k_minus=1)
array([ 0,  1, -1,  1,  0], dtype=int8)
>>> guess.Threshold(0.5).guesses(scores)
array([-1,  1, -1,  1, -1], dtype=int8)
>>> guess.preset(1000)  # how many guesses of each kind, where nothing is known of the scores
(45, 45)
"""

import dataclasses
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from oneshot import inputs


class GuessRule(NamedTuple):
    """A rule by which guesses are chosen."""

    words: str  # in a report
    named: bool = False  # whether `audit_scores` takes it by its name
    for_runs: bool = False  # whether a run may use it: with a guarantee, by every method


RULES = {
    'fixed': GuessRule('fixed before the run'),
    'planned': GuessRule('planned before the run', named=True, for_runs=True),
    'preset': GuessRule('from m alone', named=True, for_runs=True),
    'split': GuessRule('by thresholds chosen on other canaries', named=True),
    'grid': GuessRule('the best of a grid that shares the confidence', named=True, for_runs=True),
    'best_of_all': GuessRule('chosen by their success', named=True),
    'threshold': GuessRule('by a threshold fixed before the run'),
    'beyond': GuessRule('by two thresholds, without a guess between them'),
    'ranked': GuessRule('by weights for each rank, fixed before the run'),
}
NAMED_RULES = tuple(name for name, rule in RULES.items() if rule.named)


def top_k(scores: ArrayLike, k_plus: int, k_minus: int) -> np.ndarray:
    """Guesses +1 for the k_plus largest scores and −1 for the k_minus smallest.

    The last step of Algorithm generic-audit. Equal scores are ordered by a fixed pseudo-random
    permutation of the positions: if they were taken in order, a file that lists the included
    canaries first would be guessed right for free.

    Args:
        scores: m scores, the higher the more likely included.
        k_plus: the number of guesses "included".
        k_minus: the number of guesses "excluded".

    Returns:
        T in {−1, 0, +1}^m as int8.
    """
    scores = inputs.vector('scores', scores)
    k_plus = inputs.count('k_plus, the number of guesses "included",', k_plus, 0, scores.size)
    k_minus = inputs.count(
        'k_minus, the number of guesses "excluded",', k_minus, 0, scores.size - k_plus
    )
    ranked = order(scores)
    guesses = np.zeros(scores.size, dtype=np.int8)
    guesses[ranked[:k_minus]] = -1
    guesses[ranked[scores.size - k_plus :]] = 1
    return guesses


def order(scores: np.ndarray) -> np.ndarray:
    """The positions from the smallest score to the largest; equal ones as in `top_k`."""
    ties = np.random.Generator(np.random.Philox(key=scores.size)).permutation(scores.size)
    return np.lexsort((ties, scores))


def preset(m: int) -> tuple[int, int]:
    """(k_plus, k_minus) from the number of canaries alone: m^0.65 guesses, half each way.

    On Gaussian scores with ε from 1 to 8 the expected bound is within 10 % of that of the best
    number from m = 5,000 on. Where the mechanism is known, a plan does better.
    """
    m = inputs.count('m, the number of canaries,', m, 1)
    half = min(m // 2, math.ceil(m**0.65 / 2.0))
    return (half, half) if m > 1 else (1, 0)


@dataclasses.dataclass(frozen=True)
class Threshold:
    """Every canary is guessed: "in" if its score is above a threshold fixed beforehand."""

    value: float

    def __post_init__(self) -> None:
        inputs.real('the threshold', self.value)

    def guesses(self, scores: np.ndarray) -> np.ndarray:
        return np.where(scores > self.value, 1, -1).astype(np.int8)


@dataclasses.dataclass(frozen=True)
class Beyond:
    """ "In" above `high`, "out" below `low`, and no guess between: for `adaptive`.

    How many are guessed depends on the scores, and so may `low` and `high`.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        inputs.real('low', self.low)
        inputs.real('high', self.high, self.low)

    def guesses(self, scores: np.ndarray) -> np.ndarray:
        return (scores > self.high).astype(np.int8) - (scores < self.low)


@dataclasses.dataclass(frozen=True)
class Ranked:
    """Weighted guesses T in [−1, +1], one for each rank from the smallest score to the largest."""

    weights: tuple[float, ...]

    def guesses(self, scores: np.ndarray) -> np.ndarray:
        weights = inputs.vector('weights', self.weights)
        if weights.size != scores.size:
            raise ValueError(
                f'weights must be one for each of {scores.size} ranks, '
                f'but {weights.size} were given.'
            )
        guesses = np.empty(scores.size)
        guesses[order(scores)] = weights
        return guesses


@dataclasses.dataclass(frozen=True)
class Split:
    """Thresholds are chosen on one part of the canaries, coins and all; the others are audited.

    How many of the others are then guessed is random, so that the method is `adaptive`.
    """

    share: float = 0.3  # of canaries on which the thresholds are chosen

    def __post_init__(self) -> None:
        inputs.real('share', self.share, 0.0, 1.0, ends='()')

    def parts(self, m: int) -> tuple[np.ndarray, np.ndarray]:
        """The positions of both parts, by a fixed pseudo-random permutation."""
        if m < 2:
            raise ValueError(f'A split needs two canaries or more, but {m} was given.')
        shuffled = np.random.Generator(np.random.Philox(key=[m, 1])).permutation(m)
        size = min(m - 1, max(1, round(self.share * m)))
        return shuffled[:size], shuffled[size:]


@dataclasses.dataclass(frozen=True)
class Grid:
    """Several numbers of guesses, named beforehand: the best is taken, and all are paid for.

    Each bound may fail with an equal part of 1 − confidence (Bonferroni).
    """

    pairs: tuple[tuple[int, int], ...]  # (k_plus, k_minus) of each

    def __post_init__(self) -> None:
        if not self.pairs:
            raise ValueError('A grid needs one (k_plus, k_minus) or more, but none was given.')

    @classmethod
    def preset(cls, m: int, number: int = 5) -> 'Grid':
        """So many numbers of guesses, from m alone: each twice as large as the one before."""
        middle = preset(m)[0]
        halves = {
            min(m // 2, max(1, round(middle * 2.0**power)))
            for power in np.arange(number) - (number - 1) / 2
        }
        return cls(tuple((half, half) for half in sorted(halves)))


RuleClass = Threshold | Beyond | Ranked | Split | Grid


def counts_for_best_of_all(m: int) -> list[tuple[int, int]]:
    """A hundred numbers of guesses from few to all, half each way: for `best_of_all`."""
    halves = np.unique(np.geomspace(1, max(1, m // 2), 100).astype(int)).tolist()
    return [(half, half) for half in halves] if m > 1 else [(1, 0)]
