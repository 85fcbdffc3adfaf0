"""What a run reports: the scores that its attacks give, and the methods for each of them."""

from typing import NamedTuple

import ml_collections

from oneshot import dpsgd, inputs
from oneshot.audit.attacks import black_box, score_names, white_box
from oneshot.claims.claim import DPSGD, MIN_SIGMA
from oneshot.dpsgd.clipping import Clipping
from oneshot.dpsgd.gradients.strategy import LossFn
from oneshot.plan.score_law import Scoring

# The methods that a run reports of each score. What the second need is known where canaries
# do not interfere: of the residual of Dirac canaries. The last is for pairs of canaries.
METHODS = ('one_run', 'weighted', 'adaptive', 'hoeffding', 'fdp', 'fdp_dpsgd', 'gaussian_pair')
INDEPENDENT_METHODS = ('clopper_pearson', 'cp_gdp')
PAIRED_METHODS = ('replacement',)


class Scores(NamedTuple):
    """What the attacks of a config give: the names of all scores, the paper's among them."""

    names: tuple[str, ...]
    signals: tuple[str, ...]
    weighed: tuple[str, ...]  # how: dot, llr
    headline: str


def scores(config: ml_collections.ConfigDict) -> Scores:
    """The paper's score and those that the config names.

    w_{t−1} − w_t is the privatized gradient, scaled, if the update is a step of plain SGD.
    Elsewhere the adversary sees the same, and the privatized gradient says it directly.
    Without noise there is no likelihood: there, `dot` takes the place of `llr`.
    """
    plain = config.optimizer == 'sgd' and not config.optimizer_options
    signal = 'iterates' if plain else 'gradient'
    options, names = config.audit, ()
    given = (signal if one == 'iterates' else one for one in options.signals)
    signals = tuple(dict.fromkeys((signal, *given)))
    weighed, headline = tuple(dict.fromkeys(('dot', *options.scores))), options.headline
    if config.dp.noise_multiplier == 0.0:
        weighed, headline = ('dot',), headline.removesuffix('_llr')
    for name in options.attacks:
        names += score_names(signals, weighed) if name == 'white_box' else ('loss',)
    if signal != 'iterates' and headline.startswith('iterates'):
        headline = headline.replace('iterates', signal)
    inputs.choice('config.audit.headline', headline, (*names, 'best'))
    return Scores(names, signals, weighed, headline)


def attacks(
    config: ml_collections.ConfigDict,
    scores: Scores,
    chosen: dpsgd.Canaries,
    loss_fn: LossFn,
    clipping: Clipping,
    sigma: float,
    batch: float,
) -> dict[str, dpsgd.Attack]:
    """The attacks of a config; σ may be traced."""
    found = {}
    for name in config.audit.attacks:
        if name == 'white_box':
            found[name] = white_box(
                chosen,
                signals=scores.signals,
                scores=scores.weighed,
                noise_multiplier=sigma,
                sampling_prob=config.dp.sampling_prob,
                expected_batch_size=batch,
                loss_fn=loss_fn,
                **clipping._asdict(),
            )
        else:
            found[name] = black_box(
                chosen, loss_fn=loss_fn, microbatch_size=clipping.microbatch_size
            )
    return found


def mechanisms(
    config: ml_collections.ConfigDict, scores: tuple[str, ...], sigma: float, batch: float
) -> dict[str, Scoring]:
    """The claim as the scores measure it, for those whose law is known (`_lawful`)."""
    c = config.dp.clip_norm
    units = {
        'residual': c * c,
        'gradient': c * c / batch,
        'iterates': config.learning_rate * c * c / batch,
    }
    found = {}
    for name in scores:
        signal, _, weighed = name.partition('_')
        if _lawful(config, name):
            scale = 1.0 if weighed else units[signal]
            claim = DPSGD(sigma, config.dp.sampling_prob, config.steps)
            found[name] = Scoring(claim, weighed or 'dot', scale=scale)
    return found


def _lawful(config: ml_collections.ConfigDict, score: str) -> bool:
    """Whether the law of a score follows from the claim: Dirac canaries are of length c."""
    dirac = config.audit.canaries == 'dirac' and not config.audit.pairs
    moving = config.learning_rate > 0.0 or not score.startswith('iterates')
    sigma = config.dp.noise_multiplier  # calibrated, it is not small
    return dirac and moving and (sigma is None or sigma >= MIN_SIGMA)


def methods(config: ml_collections.ConfigDict, scores: Scores) -> dict[str, tuple[str, ...]]:
    """The methods for each score; what the headline needs must be among them."""
    options, found = config.audit, {}
    for name in scores.names:
        if options.pairs:
            found[name] = PAIRED_METHODS
        elif not _lawful(config, name):
            found[name] = tuple(one for one in METHODS if one not in ('weighted', 'fdp_dpsgd'))
        elif name.startswith('residual'):
            found[name] = METHODS + INDEPENDENT_METHODS
        else:
            found[name] = METHODS
    shared = set.intersection(*(set(one) for one in found.values()))
    allowed = found.get(scores.headline, [one for one in METHODS if one in shared])
    inputs.choice('config.audit.method', options.method, allowed)
    return found
