"""What the guesses of an audit came to."""

import dataclasses
from typing import NamedTuple

import numpy as np

from oneshot.claims.claim import DPSGD


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
