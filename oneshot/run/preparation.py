"""From a config to a run that can start: whatever is wrong with it is said here."""

import json
import os
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax
from flax import nnx

from oneshot import dpsgd, inputs
from oneshot.audit import canaries, sharded_canaries
from oneshot.claims import accounting
from oneshot.data import augmentation, datasets, models
from oneshot.dpsgd import sharding
from oneshot.dpsgd.clipping import Clipping, choose
from oneshot.dpsgd.gradients.strategy import LossFn
from oneshot.dpsgd.layout import Layout
from oneshot.keep.workdir import Workdir
from oneshot.plan.score_law import Scoring
from oneshot.run import selection, settings


class Program(NamedTuple):
    """What runs share whose configs differ in `_ARGUMENTS` alone: it is compiled once."""

    apply: Callable[..., jax.Array]
    step: Callable[..., tuple[dpsgd.State, dpsgd.Stats]]  # also takes σ and the learning rate


# Keys of a config that a step takes as arguments, or does not ask for.
_ARGUMENTS = (
    'seed',
    'steps',
    'learning_rate',
    'dp.eps',
    'dp.delta',
    'dp.noise_multiplier',
    'audit.canaries',
)


class Run(NamedTuple):
    """Everything that a run needs, made from the config and checked."""

    config: ml_collections.ConfigDict
    directory: Workdir | None
    noise_multiplier: float
    clipping: Clipping
    eps_ub: float
    layout: Layout
    n: int  # examples to train on, in all processes
    dataset: datasets.Dataset  # of the examples to train on, those of this process
    apply: Any  # logits of one image
    attacks: Callable[[dpsgd.Canaries], dict[str, dpsgd.Attack]]
    step: Any
    scalars: tuple[float, ...]  # further arguments of the step, where runs share it
    state: dpsgd.State
    key: jax.Array
    population: Any
    held_out: Any  # images and labels to evaluate on
    chosen: Any  # the canaries, in their order
    canaries: Any  # the same, as they lie on the devices
    rows: np.ndarray  # of each row of the scores on the devices, which canary it is of, or −1
    scores: tuple[str, ...]  # the names of all that the attacks give
    headline: str  # one of them, or 'best'
    methods: dict[str, tuple[str, ...]]  # those that are reported of each score
    mechanisms: dict[str, Scoring]  # the claim, for scores whose law follows from it
    coins: jax.Array  # one for each canary, or for each pair
    included: jax.Array  # one for each canary


def prepare(
    config: ml_collections.ConfigDict,
    workdir: Workdir | str | os.PathLike[str] | None = None,
    programs: dict[str, Program] | None = None,
) -> Run:
    """Makes the run that a config describes; whatever is wrong with it is said here.

    Args:
        config: as in `configs/`.
        workdir: where the results go; nothing is written without it.
        programs: what earlier runs compiled, and this one may use or add to: σ and the learning
            rate are then arguments of the step, which changes results by rounding alone.

    Raises:
        ValueError: the config is wrong, with a sentence for each problem, or the workdir
            belongs to another config.
        OSError: the workdir cannot be made.
    """
    check(config)
    if workdir is not None and not isinstance(workdir, Workdir):
        workdir = Workdir(workdir, config)
    dp, options = config.dp, config.audit
    number = _number(config)

    # One key for each purpose, by a number that never changes.
    seed = jax.random.key(config.seed)
    model_key, canary_key, coin_key, run_key = (jax.random.fold_in(seed, i) for i in range(4))
    layout = Layout(sharding.make_mesh(config.mesh.data, config.mesh.model))
    about = _describe(config, download=True)
    dataset = datasets.load(
        config.data.name,
        config.data.n,
        config.seed,
        train=config.data.train,
        test=config.data.test,
        data_dir=config.data_dir,
        rows=layout.rows_here(about.n),
    )

    def build() -> nnx.Module:
        given = config.model.name, tuple(about.image), about.classes, nnx.Rngs(model_key)
        return models.make(*given, **_model_options(config))

    network, _ = models.split(nnx.eval_shape(build))
    params = layout.make(lambda: models.split(build())[1])

    def apply(params: Any, image: jax.Array) -> jax.Array:
        return network(params, augmentation.scale(image))

    loss_fn = models.cross_entropy(apply)
    batch = dp.sampling_prob * (about.n + number / 2)  # as expected
    augment, trained = None, loss_fn
    if config.views:
        augment, trained = augmentation.make_augment(config.views), augmentation.mean_loss(loss_fn)
    clipping = _clipping(config, trained, params, dataset, batch)

    chosen, dataset = _canaries(options.canaries, canary_key, number, params, dataset)
    placed, rows = sharded_canaries.place(chosen, layout, params)
    coins = canaries.flip_coins(coin_key, options.m)
    included = canaries.pair_up(coins) if options.pairs else coins
    scores = selection.scores(config)
    methods = selection.methods(config, scores)
    sigma = dp.noise_multiplier
    if sigma is None:
        sigma = accounting.calibrate_noise(dp.eps, dp.sampling_prob, config.steps, dp.delta)

    def attacks(given: dpsgd.Canaries, sigma: float = sigma) -> dict[str, dpsgd.Attack]:
        return selection.attacks(config, scores, given, loss_fn, clipping, sigma, batch)

    def algorithm(sigma: float, learning_rate: float) -> tuple[Any, Any]:
        return dpsgd.make_step(
            trained,
            _make_optimizer(config, learning_rate),
            noise_multiplier=sigma,
            sampling_prob=dp.sampling_prob,
            expected_batch_size=batch,
            attacks=lambda given: attacks(given, sigma),
            augment=augment,
            ema_decay=config.ema_decay,
            n=None if layout.mesh is None else about.n,
            **clipping._asdict(),
        )

    (init, step), scalars = algorithm(sigma, config.learning_rate), ()
    if programs is not None and sigma > 0.0:

        def shared(*given: Any) -> tuple[dpsgd.State, dpsgd.Stats]:
            *given, sigma, learning_rate = given
            return algorithm(sigma, learning_rate)[1](*given)

        apply, step = programs.setdefault(_program_key(config), Program(apply, shared))
        scalars = sigma, config.learning_rate
    return Run(
        config=config,
        directory=workdir,
        noise_multiplier=sigma,
        clipping=clipping,
        eps_ub=accounting.eps_upper_bound(sigma, dp.sampling_prob, config.steps, dp.delta),
        layout=layout,
        n=about.n,
        dataset=dataset,
        apply=apply,
        attacks=attacks,
        step=step,
        scalars=scalars,
        state=layout.call(init, params, placed),
        key=layout.place(run_key),
        population=layout.place_rows(tuple(dataset.train), about.n),
        held_out=layout.place_rows(tuple(dataset.test), len(dataset.test.labels)),
        chosen=chosen,
        canaries=placed,
        rows=rows,
        scores=scores.names,
        headline=scores.headline,
        methods=methods,
        mechanisms=selection.mechanisms(config, scores.names, sigma, batch),
        coins=coins,
        included=layout.place(included),
    )


def check(config: ml_collections.ConfigDict, problems: settings.Problems | None = None) -> None:
    """Looks for everything that is wrong with a config, before anything is run.

    Args:
        config: as in `configs/`.
        problems: what is known to be wrong already.

    Raises:
        ValueError: with all of it, a sentence each.
    """
    problems = settings.Problems() if problems is None else problems
    settings.values(config, problems)
    sound = not problems.sentences  # else nothing is downloaded for it
    problems.attempt(('mesh',), lambda: sharding.make_mesh(config.mesh.data, config.mesh.model))
    about = problems.attempt(('data', 'data_dir'), _describe, config, sound)
    if about is not None:
        shapes = problems.attempt(('model',), _shapes, config, about)
        looked_at = 'audit.m', 'audit.pairs', 'audit.canaries'
        problems.attempt(looked_at, _room_for_canaries, config, about, shapes)
    looked_at = 'optimizer', 'optimizer_options', 'learning_rate'
    problems.attempt(looked_at, _check_optimizer, config, jax.ShapeDtypeStruct((2, 2), jnp.float32))
    looked_at = 'optimizer', 'optimizer_options', 'dp.noise_multiplier', 'audit.headline'
    more = 'audit.attacks', 'audit.signals', 'audit.scores'
    scores = problems.attempt((*looked_at, *more), selection.scores, config)
    if scores is not None:
        looked_at = 'learning_rate', 'dp.noise_multiplier', 'audit.canaries'
        more = 'audit.pairs', 'audit.method'
        problems.attempt((*looked_at, *more), selection.methods, config, scores)
    problems.stop()
    n = about.n + _number(config) / 2
    if config.dp.delta * n > 1.0:
        warnings.warn(
            f'config.dp.delta = {config.dp.delta:g} is larger than 1/n = {1.0 / n:.3g}: an '
            'algorithm that publishes one example in n as it is would pass for private.',
            stacklevel=3,
        )


def _number(config: ml_collections.ConfigDict) -> int:
    """How many canaries there are."""
    return 2 * config.audit.m if config.audit.pairs else config.audit.m


def _program_key(config: ml_collections.ConfigDict) -> str:
    flat = settings.flat(settings.plain(config))
    return json.dumps({key: flat[key] for key in flat if key not in _ARGUMENTS})


def _describe(config: ml_collections.ConfigDict, download: bool) -> datasets.Description | None:
    return datasets.describe(
        config.data.name,
        config.data.n,
        train=config.data.train,
        test=config.data.test,
        data_dir=config.data_dir,
        download=download,
    )


def _model_options(config: ml_collections.ConfigDict) -> dict[str, Any]:
    return {
        'hidden': tuple(config.model.hidden),
        'widths': tuple(map(tuple, config.model.widths)),
        'stride': config.model.stride,
        'conv': config.model.conv,
        'dtype': config.model.dtype,
    }


def _shapes(config: ml_collections.ConfigDict, about: datasets.Description) -> Any:
    """The shapes of the parameters."""
    name, options = config.model.name, _model_options(config)
    return models.shapes(name, tuple(about.image), about.classes, **options)


def _room_for_canaries(
    config: ml_collections.ConfigDict, about: datasets.Description, shapes: Any | None
) -> None:
    twice = 'twice config.audit.m' if config.audit.pairs else 'config.audit.m'
    if config.audit.canaries != 'dirac':
        name = f'{twice}, the number of held-out examples used as canaries,'
        inputs.count(name, _number(config), 1, about.held_out - 1)
    elif shapes is not None:
        size = sum(leaf.size for leaf in jax.tree.leaves(shapes))
        inputs.count(f'{twice}, the number of Dirac canaries,', _number(config), 1, size)


def _clipping(
    config: ml_collections.ConfigDict,
    loss_fn: LossFn,
    params: Any,
    dataset: datasets.Dataset,
    batch: float,
) -> Clipping:
    """What the config leaves open is chosen by the rule."""
    images, labels = dataset.train
    shape = (config.views, *images.shape[1:]) if config.views else images.shape[1:]
    example = jax.ShapeDtypeStruct(shape, images.dtype), jax.ShapeDtypeStruct((), labels.dtype)
    strategy, size = choose(loss_fn, params, example, batch=batch, strategy=config.strategy)
    return Clipping(config.dp.clip_norm, config.microbatch_size or size, strategy)


def _canaries(kind: str, key: jax.Array, m: int, params: Any, dataset: datasets.Dataset):
    """The canaries, and the data set without the held-out examples that became some."""
    if kind == 'dirac':
        return canaries.dirac(key, m, params), dataset
    images, labels = dataset.test
    rest = dataset._replace(test=datasets.Split(images[m:], labels[m:]))
    if kind == 'mislabeled':
        return canaries.mislabeled(key, m, images[:m], labels[:m], dataset.classes), rest
    return canaries.in_distribution(key, m, images[:m], labels[:m]), rest


def _make_optimizer(config: ml_collections.ConfigDict, learning_rate: float) -> Any:
    return getattr(optax, config.optimizer)(learning_rate, **dict(config.optimizer_options))


def _check_optimizer(config: ml_collections.ConfigDict, params: Any) -> None:
    """Whether there is an optimizer as the config names it, for shapes like these."""
    name, options = config.optimizer, dict(config.optimizer_options)
    try:
        optimizer = _make_optimizer(config, config.learning_rate)
        if not isinstance(optimizer, optax.GradientTransformation):
            raise TypeError(f'optax.{name} is none')
    except Exception as error:  # of whatever the name stands for
        raise ValueError(
            'config.optimizer and config.optimizer_options must be an optimizer of optax and its '
            f'options, but {name!r} and {options!r} were given ({inputs.one_line(error)}).'
        ) from error
    try:
        jax.eval_shape(lambda w: optimizer.update(w, optimizer.init(w), w), params)
    except Exception as error:
        raise ValueError(
            'config.optimizer with config.optimizer_options must make do with gradients, because '
            f'losses are not privatized, but {name!r} with {options!r} was given '
            f'({inputs.one_line(error)}).'
        ) from error
