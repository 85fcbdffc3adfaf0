"""From a config to a run that can start: whatever is wrong with it is said here."""

import itertools
import math
import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import optax
from flax import nnx

from oneshot import accounting, canaries, data, dpsgd, models, views
from oneshot.attacks import SIGNALS, black_box, score_names, white_box
from oneshot.bounds import _check
from oneshot.clipping import STRATEGIES, Clipping, choose
from oneshot.gradients import LossFn
from oneshot.laws import DPSGD, LEAST_NOISE, SCORES

# The methods that a run reports of each score. What the second need is known where canaries
# do not interfere: of the residual of Dirac canaries. The last is for pairs of canaries.
METHODS = ('one_run', 'weighted', 'adaptive', 'hoeffding', 'fdp', 'fdp_dpsgd', 'gaussian_pair')
INDEPENDENT_METHODS = ('clopper_pearson', 'cp_gdp')
PAIRED_METHODS = ('replacement',)


class Run(NamedTuple):
    """Everything that a run needs, made from the config and checked."""

    config: ml_collections.ConfigDict
    directory: pathlib.Path | None
    noise_multiplier: float
    clipping: Clipping
    eps_ub: float
    dataset: data.Dataset
    apply: Any  # logits of one image
    attacks: dict[str, dpsgd.Attack]
    step: Any
    state: dpsgd.State
    key: jax.Array
    population: Any
    canaries: Any
    scores: tuple[str, ...]  # the names of all that the attacks give
    headline: str  # one of them, or 'best'
    methods: dict[str, tuple[str, ...]]  # those that are reported of each score
    mechanisms: dict[str, DPSGD]  # the claim, for scores whose law follows from it
    coins: jax.Array  # one for each canary, or for each pair
    included: jax.Array  # one for each canary


def prepare(config: ml_collections.ConfigDict, workdir: str | None = None) -> Run:
    """Makes the run that a config describes; whatever is wrong with it is said here.

    Args:
        config: as in `configs/`.
        workdir: where the results go; nothing is written without it.

    Raises:
        ValueError: the config is wrong, in one sentence.
        OSError: the workdir cannot be made.
    """
    _check_values(config)
    dp, options = config.dp, config.audit
    number = 2 * options.m if options.pairs else options.m  # of canaries

    # One key for each purpose, by a number that never changes.
    seed = jax.random.key(config.seed)
    model_key, canary_key, coin_key, run_key = (jax.random.fold_in(seed, i) for i in range(4))
    dataset = data.load(
        config.data.name,
        config.data.n,
        config.seed,
        train=config.data.train,
        test=config.data.test,
        data_dir=config.data_dir,
    )
    model = models.make(
        config.model.name,
        dataset.train.images.shape[1:],
        dataset.classes,
        nnx.Rngs(model_key),
        hidden=config.model.hidden,
        widths=config.model.widths,
        stride=config.model.stride,
        conv=config.model.conv,
        dtype=config.model.dtype,
    )
    network, params = models.split(model)

    def apply(params: Any, image: jax.Array) -> jax.Array:
        return network(params, views.scale(image))

    loss_fn = models.cross_entropy(apply)
    batch = dp.sampling_prob * (len(dataset.train.labels) + number / 2)  # as expected
    augment, trained = None, loss_fn
    if config.views:
        augment, trained = views.make_augment(config.views), views.mean_loss(loss_fn)
    clipping = _clipping(config, trained, params, dataset, batch)

    chosen, dataset = _canaries(options.canaries, canary_key, number, params, dataset)
    coins = canaries.flip_coins(coin_key, options.m)
    included = canaries.pair_up(coins) if options.pairs else coins
    optimizer, signal = _optimizer(config, params)
    scores = _scores(config, signal)
    methods = _methods(config, scores)
    sigma = dp.noise_multiplier
    if sigma is None:
        sigma = accounting.calibrate_noise(dp.eps, dp.sampling_prob, config.steps, dp.delta)
    attacks = _attacks(config, scores, chosen, loss_fn, clipping, sigma, batch)
    init, step = dpsgd.make_step(
        trained,
        optimizer,
        noise_multiplier=sigma,
        sampling_prob=dp.sampling_prob,
        expected_batch_size=batch,
        attacks=attacks,
        augment=augment,
        ema_decay=config.ema_decay,
        **clipping._asdict(),
    )
    directory = None if workdir is None else pathlib.Path(workdir)
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
    return Run(
        config=config,
        directory=directory,
        noise_multiplier=sigma,
        clipping=clipping,
        eps_ub=accounting.eps_upper_bound(sigma, dp.sampling_prob, config.steps, dp.delta),
        dataset=dataset,
        apply=apply,
        attacks=attacks,
        step=step,
        state=init(params),
        key=run_key,
        population=jax.tree.map(jnp.asarray, tuple(dataset.train)),
        canaries=chosen,
        scores=scores.names,
        headline=scores.headline,
        methods=methods,
        mechanisms=_mechanisms(config, scores.names, sigma, batch),
        coins=coins,
        included=included,
    )


def _check_values(config: ml_collections.ConfigDict) -> None:
    """What is out of range by itself; the rest is found by what takes the value."""
    dp, options = config.dp, config.audit
    _check.count('config.seed', config.seed, 0, 2**32 - 1)  # JAX takes no more bits
    _check.real('config.learning_rate', config.learning_rate, 0.0, math.inf, open_high=True)
    for size in config.model.hidden:
        _check.count('a size in config.model.hidden', size, 1)
    for size in itertools.chain(*config.model.widths):
        _check.count('a size in config.model.widths', size, 1)
    _check.count('config.model.stride', config.model.stride, 1)
    for name in ('steps', 'chunk'):
        _check.count(f'config.{name}', config[name], 1)
    for name in ('views', 'evaluate_every'):
        _check.count(f'config.{name}', config[name], 0)
    if config.microbatch_size is not None:
        _check.count('config.microbatch_size', config.microbatch_size, 1)
    _check.choice('config.strategy', config.strategy, ('auto', *STRATEGIES))
    _check.choice('config.model.name', config.model.name, models.MODELS)
    _check.choice('config.model.conv', config.model.conv, models.CONVS)
    _check.choice('config.model.dtype', config.model.dtype, models.DTYPES)
    _check.real('config.dp.sampling_prob', dp.sampling_prob, 0.0, 1.0, open_low=True)
    dirac = options.canaries == 'dirac'  # c·e_j needs a finite c
    _check.real('config.dp.clip_norm', dp.clip_norm, 0.0, open_low=True, open_high=dirac)
    if dp.noise_multiplier is not None:
        _check.real('config.dp.noise_multiplier', dp.noise_multiplier, 0.0, open_high=True)
    _check.real('config.dp.delta', dp.delta, 0.0, 1.0, open_high=True)
    _check.confidence(options.confidence)
    for score in options.scores:
        _check.choice('config.audit.scores', score, SCORES)
    m = _check.count('config.audit.m', options.m, 1)
    _check.choice('config.audit.guesses', options.guesses, ('planned', 'preset', 'grid'))
    if (options.k_plus is None) != (options.k_minus is None):
        raise ValueError(
            'config.audit.k_plus and config.audit.k_minus must be given together, but '
            f'{options.k_plus!r} and {options.k_minus!r} were given.'
        )
    if options.k_plus is not None:
        k_plus = _check.count('config.audit.k_plus', options.k_plus, 0, m)
        _check.count('config.audit.k_minus', options.k_minus, 0 if k_plus else 1, m - k_plus)


def _clipping(
    config: ml_collections.ConfigDict,
    loss_fn: LossFn,
    params: Any,
    dataset: data.Dataset,
    batch: float,
) -> Clipping:
    """What the config leaves open is chosen by the rule."""
    images, labels = dataset.train
    shape = (config.views, *images.shape[1:]) if config.views else images.shape[1:]
    example = jax.ShapeDtypeStruct(shape, images.dtype), jax.ShapeDtypeStruct((), labels.dtype)
    strategy, size = choose(loss_fn, params, example, batch=batch, strategy=config.strategy)
    return Clipping(config.dp.clip_norm, config.microbatch_size or size, strategy)


def _canaries(kind: str, key: jax.Array, m: int, params: Any, dataset: data.Dataset):
    """The canaries, and the data set without the held-out examples that became some."""
    _check.choice('config.audit.canaries', kind, ('dirac', 'mislabeled', 'in_distribution'))
    if kind == 'dirac':
        return canaries.dirac(key, m, params), dataset
    images, labels = dataset.test
    _check.count('The number of held-out examples used as canaries', m, 1, len(labels) - 1)
    rest = dataset._replace(test=data.Split(images[m:], labels[m:]))
    if kind == 'mislabeled':
        return canaries.mislabeled(key, m, images[:m], labels[:m], dataset.classes), rest
    return canaries.in_distribution(key, m, images[:m], labels[:m]), rest


def _optimizer(
    config: ml_collections.ConfigDict, params: Any
) -> tuple[optax.GradientTransformation, str]:
    """The optimizer, and the signal of the paper's score that goes with it.

    w_{t−1} − w_t is the privatized gradient, scaled, if the update is a step of plain SGD.
    Elsewhere the adversary sees the same, and the privatized gradient says it directly.
    """
    name, options = config.optimizer, dict(config.optimizer_options)
    make = getattr(optax, name, None)
    try:
        optimizer = make(config.learning_rate, **options)
    except TypeError as error:
        raise ValueError(
            'config.optimizer and config.optimizer_options must be an optimizer of optax and its '
            f'options, but {name!r} and {options!r} were given ({error}).'
        ) from error
    if not isinstance(optimizer, optax.GradientTransformation):
        raise ValueError(f'config.optimizer must be an optimizer of optax, but {name!r} was given.')
    try:
        jax.eval_shape(optimizer.update, params, optimizer.init(params), params)
    except TypeError as error:
        raise ValueError(
            'config.optimizer must make do with gradients, because losses are not privatized, '
            f'but {name!r} was given ({error}).'
        ) from error
    return optimizer, 'iterates' if name == 'sgd' and not options else 'gradient'


class Scores(NamedTuple):
    """What the attacks of a config give: the names of all scores, the paper's among them."""

    names: tuple[str, ...]
    signals: tuple[str, ...]
    weighed: tuple[str, ...]  # how: dot, llr
    headline: str


def _scores(config: ml_collections.ConfigDict, signal: str) -> Scores:
    """Without noise there is no likelihood: there, `dot` takes the place of `llr`."""
    options, names = config.audit, ()
    given = (signal if one == 'iterates' else one for one in options.signals)
    signals = tuple(dict.fromkeys((signal, *given)))
    weighed, headline = tuple(dict.fromkeys(('dot', *options.scores))), options.headline
    if config.dp.noise_multiplier == 0.0:
        weighed, headline = ('dot',), headline.removesuffix('_llr')
    for one in signals:
        _check.choice('signal', one, SIGNALS)
    for name in options.attacks:
        _check.choice('config.audit.attacks', name, ('white_box', 'black_box'))
        if name == 'black_box' and options.canaries == 'dirac':
            raise ValueError('canaries must be examples for the black-box attack, but are Dirac.')
        names += score_names(signals, weighed) if name == 'white_box' else ('loss',)
    if signal != 'iterates' and headline.startswith('iterates'):
        headline = headline.replace('iterates', signal)
    _check.choice('config.audit.headline', headline, (*names, 'best'))
    return Scores(names, signals, weighed, headline)


def _attacks(
    config: ml_collections.ConfigDict,
    scores: Scores,
    chosen: Any,
    loss_fn: LossFn,
    clipping: Clipping,
    sigma: float,
    batch: float,
) -> dict[str, dpsgd.Attack]:
    attacks = {}
    for name in config.audit.attacks:
        if name == 'white_box':
            attacks[name] = white_box(
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
            attacks[name] = black_box(
                chosen, loss_fn=loss_fn, microbatch_size=clipping.microbatch_size
            )
    return attacks


def _mechanisms(
    config: ml_collections.ConfigDict, scores: tuple[str, ...], sigma: float, batch: float
) -> dict[str, DPSGD]:
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
            found[name] = DPSGD(
                sigma, config.dp.sampling_prob, config.steps, weighed or 'dot', scale=scale
            )
    return found


def _lawful(config: ml_collections.ConfigDict, score: str) -> bool:
    """Whether the law of a score follows from the claim: Dirac canaries are of length c."""
    dirac = config.audit.canaries == 'dirac' and not config.audit.pairs
    moving = config.learning_rate > 0.0 or not score.startswith('iterates')
    sigma = config.dp.noise_multiplier  # calibrated, it is not small
    return dirac and moving and (sigma is None or sigma >= LEAST_NOISE)


def _methods(config: ml_collections.ConfigDict, scores: Scores) -> dict[str, tuple[str, ...]]:
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
    _check.choice('config.audit.method', options.method, allowed)
    return found
