"""What a canary is scored by: a signal of the run, and how its steps are weighed.

>>> from oneshot.audit.score import SCORES
>>> SCORES['residual_llr']
Score(signal='residual', weighing='llr')
"""

from collections.abc import Sequence
from typing import NamedTuple

from oneshot import inputs
from oneshot.claims.claim import DPSGD
from oneshot.plan.score_law import WEIGHINGS, Scoring

SIGNALS = ('iterates', 'gradient', 'residual')  # of a step, for the white-box attack


class Score(NamedTuple):
    """A score of every canary.

    Attributes:
        signal: what the adversary sees: of every step one of `SIGNALS`, or `loss`, of the first
            and the last model.
        weighing: how a signal is weighed, `dot` or `llr` (see `oneshot.audit.white_box`).
    """

    signal: str
    weighing: str = 'dot'

    @property
    def name(self) -> str:
        """Its name in results and configs: residual, residual_llr, loss."""
        return self.signal if self.weighing == 'dot' else f'{self.signal}_{self.weighing}'

    def scoring(
        self, claim: DPSGD, clip_norm: float, batch: float, learning_rate: float | None = None
    ) -> Scoring | None:
        """The claim as this score measures it with Dirac canaries, whose norm is c.

        None where its scale is not known: `dot` of the iterates has that of the learning rate.
        """
        scales = {'residual': clip_norm * clip_norm, 'gradient': clip_norm * clip_norm / batch}
        if learning_rate is not None:
            scales['iterates'] = learning_rate * clip_norm * clip_norm / batch
        scale = 1.0 if self.weighing == 'llr' else scales.get(self.signal)
        return None if scale is None else Scoring(claim, self.weighing, scale=scale)


def white_box_scores(signals: Sequence[str], weighings: Sequence[str]) -> tuple[Score, ...]:
    """Every signal, weighed in every way."""
    for signal in signals:
        inputs.choice('signal', signal, SIGNALS)
    for weighing in weighings:
        inputs.choice('score', weighing, WEIGHINGS)
    return tuple(Score(signal, weighing) for weighing in weighings for signal in signals)


LOSS = Score('loss')  # of the black-box attack
# The scores that each attack of a run gives, by the signals and weighings that are asked for.
ATTACKS = {'white_box': white_box_scores, 'black_box': lambda signals, weighings: (LOSS,)}
SCORES = {score.name: score for score in (*white_box_scores(SIGNALS, WEIGHINGS), LOSS)}
