"""From scores to guesses T, without a look at the coins (Algorithm generic-audit)."""

import math

import numpy as np
from numpy.typing import ArrayLike

from oneshot.bounds import _check


def top_k(scores: ArrayLike, k_plus: int, k_minus: int) -> np.ndarray:
    """Guesses +1 for the k_plus largest scores and −1 for the k_minus smallest.

    The last step of Algorithm generic-audit. Equal scores are ordered by a fixed
    pseudo-random permutation of the positions: if they were taken in order, a
    file that lists the included canaries first would be guessed right for free.

    Args:
        scores: m scores, the higher the more likely included.
        k_plus: the number of guesses "included".
        k_minus: the number of guesses "excluded".

    Returns:
        T in {−1, 0, +1}^m as int8.
    """
    scores = _check.vector('scores', scores)
    k_plus = _check.count('k_plus, the number of guesses "included",', k_plus, 0, scores.size)
    k_minus = _check.count(
        'k_minus, the number of guesses "excluded",', k_minus, 0, scores.size - k_plus
    )
    ties = np.random.Generator(np.random.Philox(key=scores.size)).permutation(scores.size)
    order = np.lexsort((ties, scores))
    guesses = np.zeros(scores.size, dtype=np.int8)
    guesses[order[:k_minus]] = -1
    guesses[order[scores.size - k_plus :]] = 1
    return guesses


def preset(m: int) -> tuple[int, int]:
    """(k_plus, k_minus) from the number of canaries alone: m^0.65 guesses, half each way.

    Few guesses are surer, many have the smaller sampling error. On Gaussian
    scores with ε from 1 to 8 the expected bound is within 10 % of that of the best
    number from m = 5,000 on. It knows nothing of the mechanism: who does can do better.
    """
    m = _check.count('m, the number of canaries,', m, 1)
    half = min(m // 2, math.ceil(m**0.65 / 2.0))
    return (half, half) if m > 1 else (1, 0)
