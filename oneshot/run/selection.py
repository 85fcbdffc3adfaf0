"""What a run reports: the scores that its attacks give, and the methods for each of them."""

from typing import NamedTuple

from ml_collections import ConfigDict

from oneshot import inputs
from oneshot.audit.score import ATTACKS, SCORES, Score
from oneshot.claims.claim import DPSGD, MIN_SIGMA
from oneshot.plan.score_law import Scoring
from oneshot.results.methods import METHODS


class Selection(NamedTuple):
    """What a config says is reported, before the run."""

    scores: tuple[Score, ...]  # all that the attacks give, the paper's among them
    headline: str  # the name of one of them, or 'best'
    methods: dict[str, tuple[str, ...]]  # those that are reported of each score, by its name

    @property
    def names(self) -> tuple[str, ...]:
        """Of the scores."""
        return tuple(score.name for score in self.scores)


def select(config: ConfigDict) -> Selection:
    """The selection of a config."""
    chosen, headline = scores(config)
    return Selection(chosen, headline, methods(config, chosen, headline))


def scores(config: ConfigDict) -> tuple[tuple[Score, ...], str]:
    """The paper's score and those that the config names; and the name of the headline's.

    w_{t−1} − w_t is the privatized gradient, scaled, if the update is a step of plain SGD.
    Elsewhere the adversary sees the same, and the privatized gradient says it directly.
    Without noise there is no likelihood: there, `dot` takes the place of `llr`.
    """
    options, noiseless = config.audit, config.dp.noise_multiplier == 0.0
    plain = config.optimizer == 'sgd' and not config.optimizer_options
    first = 'iterates' if plain else 'gradient'

    def seen(signal: str) -> str:
        return first if signal == 'iterates' else signal

    signals = tuple(dict.fromkeys((first, *map(seen, options.signals))))
    weighings = ('dot',) if noiseless else tuple(dict.fromkeys(('dot', *options.scores)))
    chosen, headline = (), options.headline
    for attack in options.attacks:
        chosen += ATTACKS[attack](signals, weighings)
    if headline in SCORES:
        signal, weighing = SCORES[headline]
        headline = Score(seen(signal), 'dot' if noiseless else weighing).name
    allowed = *(score.name for score in chosen), 'best'
    return chosen, inputs.choice('config.audit.headline', headline, allowed)


def methods(
    config: ConfigDict, chosen: tuple[Score, ...], headline: str
) -> dict[str, tuple[str, ...]]:
    """The methods for each score; that of the headline must be among them."""
    reported = {score.name: _methods_of(config, score) for score in chosen}
    shared = set.intersection(*(set(names) for names in reported.values()))
    allowed = reported.get(headline, [name for name in METHODS if name in shared])
    inputs.choice('config.audit.method', config.audit.method, allowed)
    return reported


def _methods_of(config: ConfigDict, score: Score) -> tuple[str, ...]:
    known = _law_is_known(config, score)
    # Methods on the confusion matrix take scores for independent; weights are planned.
    needed = {'claim': known, 'confusion': known and score.signal == 'residual'}
    return tuple(
        name
        for name, method in METHODS.items()
        if method.pairs == config.audit.pairs
        and needed.get(method.needs, known or not method.by_weights)
    )


def mechanisms(
    config: ConfigDict, chosen: tuple[Score, ...], sigma: float, batch: float
) -> dict[str, Scoring]:
    """The claim as the scores measure it, by name, for those whose law is known."""
    sizes = config.dp.clip_norm, batch, config.learning_rate
    return {
        score.name: score.scoring(DPSGD(sigma, config.dp.sampling_prob, config.steps), *sizes)
        for score in chosen
        if _law_is_known(config, score)
    }


def _law_is_known(config: ConfigDict, score: Score) -> bool:
    """Whether the law of a score follows from the claim: Dirac canaries are of length c."""
    dirac = config.audit.canaries == 'dirac' and not config.audit.pairs
    moving = config.learning_rate > 0.0 or score.signal != 'iterates'
    sigma = config.dp.noise_multiplier  # calibrated, it is not small
    return dirac and moving and (sigma is None or sigma >= MIN_SIGMA)
