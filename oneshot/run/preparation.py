"""From a config to a run that can start: data, model, canaries, coins, step and plan."""

import json
import os
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import ml_collections
import numpy as np
from flax import nnx

from oneshot import dpsgd
from oneshot.audit import canaries, sharded_canaries
from oneshot.audit.attacks import attacks_for
from oneshot.claims import accounting
from oneshot.data import augmentation, datasets, models
from oneshot.dpsgd import sharding
from oneshot.dpsgd.clipping import Clipping, choose_strategy
from oneshot.dpsgd.gradients.strategy import LossFn
from oneshot.dpsgd.layout import Layout
from oneshot.keep.workdir import Workdir
from oneshot.plan.score_law import Scoring
from oneshot.run import selection, settings
from oneshot.run.planning import Plan, plan_run
from oneshot.run.validation import (
    check,
    describe_data,
    make_optimizer,
    model_options,
    num_canaries,
)

# Keys of a config that a shared step takes as arguments, or does not ask for.
SHARED_STEP_KEYS = (
    'seed',
    'steps',
    'learning_rate',
    'dp.eps',
    'dp.delta',
    'dp.noise_multiplier',
    'audit.canaries',
)


class Spec(NamedTuple):
    """What is run and how it is audited: the config, and what follows from it."""

    config: ml_collections.ConfigDict
    n: int  # examples to train on, in all processes
    noise_multiplier: float
    expected_batch_size: float
    clipping: Clipping
    eps_ub: float
    selection: selection.Selection  # the scores, the headline, the methods of each score
    mechanisms: dict[str, Scoring]  # the claim, for scores whose law follows from it
    confidence: float  # of each bound
    plan: Plan


class Program(NamedTuple):
    """What is computed. Runs whose configs differ in `SHARED_STEP_KEYS` alone can share a step."""

    apply: Callable[..., jax.Array]  # logits of one image
    step: Callable[..., tuple[dpsgd.State, dpsgd.Stats]]
    attacks: Callable[[dpsgd.Canaries], dict[str, dpsgd.Attack]]
    scalars: tuple[float, ...] = ()  # further arguments of a shared step: σ, the learning rate


class CanarySet(NamedTuple):
    """The canaries and their coins."""

    chosen: Any  # in their order
    placed: Any  # the same, as they lie on the devices
    rows: np.ndarray  # of each row of the scores on the devices, which canary it is of, or −1
    coins: jax.Array  # one for each canary, or for each pair
    included: jax.Array  # one for each canary


class Arrays(NamedTuple):
    """What the steps start from, on the devices."""

    state: dpsgd.State
    key: jax.Array
    population: Any
    held_out: Any  # images and labels to evaluate on


class Run(NamedTuple):
    """A run that can start."""

    spec: Spec
    program: Program
    canaries: CanarySet
    arrays: Arrays
    layout: Layout
    dataset: datasets.Dataset  # of the examples to train on, those of this process
    workdir: Workdir | None

    @property
    def step_arguments(self) -> tuple[Any, ...]:
        """What the step takes beside the state and the key."""
        population, (_, placed, _, _, included) = self.arrays.population, self.canaries
        return population, placed, included, *self.program.scalars


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
        workdir = settings.open_workdir(workdir, config)
    # One key for each purpose, by a number that never changes.
    seed = jax.random.key(config.seed)
    model_key, canary_key, coin_key, run_key = (jax.random.fold_in(seed, i) for i in range(4))
    layout = Layout(sharding.make_mesh(config.mesh.data, config.mesh.model))
    data = describe_data(config)
    _warn_of_large_delta(config, data.n)
    places = {'train': config.data.train, 'test': config.data.test, 'data_dir': config.data_dir}
    rows = layout.rows_here(data.n)
    dataset = datasets.load(config.data.name, config.data.n, config.seed, **places, rows=rows)
    network, params = _make_model(config, data, model_key, layout)

    def apply(params: Any, image: jax.Array) -> jax.Array:
        return network(params, augmentation.scale(image))

    loss_fn = models.cross_entropy(apply)
    spec = _make_spec(config, data.n, loss_fn, params, dataset)
    canary_set, dataset = _make_canaries(config, canary_key, coin_key, params, dataset, layout)
    init, program = _make_program(spec, apply, loss_fn, layout, programs)
    return Run(
        spec,
        program,
        canary_set,
        Arrays(
            state=layout.run(init, params, canary_set.placed),
            key=layout.place(run_key),
            population=layout.place_rows(tuple(dataset.train), data.n),
            held_out=layout.place_rows(tuple(dataset.test), len(dataset.test.labels)),
        ),
        layout,
        dataset,
        workdir,
    )


def _warn_of_large_delta(config: ml_collections.ConfigDict, n: int) -> None:
    n += num_canaries(config) / 2
    if config.dp.delta * n > 1.0:
        warnings.warn(
            f'config.dp.delta = {config.dp.delta:g} is larger than 1/n = {1.0 / n:.3g}: an '
            'algorithm that publishes one example in n as it is would pass for private.',
            stacklevel=3,
        )


def _make_model(
    config: ml_collections.ConfigDict, data: datasets.Description, key: jax.Array, layout: Layout
) -> tuple[Callable[..., jax.Array], Any]:
    """The network as a function of its parameters, and w_0."""

    def build() -> nnx.Module:
        shape = config.model.name, tuple(data.image), data.classes
        return models.make(*shape, nnx.Rngs(key), **model_options(config))

    network, _ = models.split(nnx.eval_shape(build))
    return network, layout.make(lambda: models.split(build())[1])


def _train_loss(config: ml_collections.ConfigDict, loss_fn: LossFn) -> LossFn:
    return augmentation.mean_loss(loss_fn) if config.views else loss_fn


def _make_spec(
    config: ml_collections.ConfigDict,
    n: int,
    loss_fn: LossFn,
    params: Any,
    dataset: datasets.Dataset,
) -> Spec:
    dp, selected = config.dp, selection.select(config)
    batch = dp.sampling_prob * (n + num_canaries(config) / 2)
    sigma = dp.noise_multiplier
    if sigma is None:
        sigma = accounting.calibrate_noise(dp.eps, dp.sampling_prob, config.steps, dp.delta)
    images, labels = dataset.train
    shape = (config.views, *images.shape[1:]) if config.views else images.shape[1:]
    example = jax.ShapeDtypeStruct(shape, images.dtype), jax.ShapeDtypeStruct((), labels.dtype)
    strategy, size = choose_strategy(
        _train_loss(config, loss_fn), params, example, batch=batch, strategy=config.strategy
    )
    confidence = config.audit.confidence
    if selected.headline == 'best':  # all scores share it (Bonferroni), so that the best holds
        confidence = 1.0 - (1.0 - confidence) / len(selected.scores)
    mechanisms = selection.mechanisms(config, selected.scores, sigma, batch)
    return Spec(
        config=config,
        n=n,
        noise_multiplier=sigma,
        expected_batch_size=batch,
        clipping=Clipping(dp.clip_norm, config.microbatch_size or size, strategy),
        eps_ub=accounting.eps_upper_bound(sigma, dp.sampling_prob, config.steps, dp.delta),
        selection=selected,
        mechanisms=mechanisms,
        confidence=confidence,
        plan=plan_run(config, selected, mechanisms, confidence),
    )


def _make_canaries(
    config: ml_collections.ConfigDict,
    key: jax.Array,
    coin_key: jax.Array,
    params: Any,
    dataset: datasets.Dataset,
    layout: Layout,
) -> tuple[CanarySet, datasets.Dataset]:
    """The canaries, and the data set without the held-out examples that became some."""
    kind, m = config.audit.canaries, num_canaries(config)
    if kind == 'dirac':
        chosen = canaries.dirac(key, m, params)
    else:
        images, labels = dataset.test
        dataset = dataset._replace(test=datasets.Split(images[m:], labels[m:]))
        if kind == 'mislabeled':
            chosen = canaries.mislabeled(key, m, images[:m], labels[:m], dataset.classes)
        else:
            chosen = canaries.in_distribution(key, m, images[:m], labels[:m])
    placed, rows = sharded_canaries.shard(chosen, layout, params)
    coins = canaries.flip_coins(coin_key, config.audit.m)
    included = canaries.pair_up(coins) if config.audit.pairs else coins
    return CanarySet(chosen, placed, rows, coins, layout.place(included)), dataset


def _make_program(
    spec: Spec,
    apply: Callable[..., jax.Array],
    loss_fn: LossFn,
    layout: Layout,
    programs: dict[str, Program] | None,
) -> tuple[Callable[..., dpsgd.State], Program]:
    """The function that makes the first state, and the program."""
    config, q, batch = spec.config, spec.config.dp.sampling_prob, spec.expected_batch_size

    def attacks(on_devices: dpsgd.Canaries, sigma: Any = None) -> dict[str, dpsgd.Attack]:
        return attacks_for(
            spec.selection.scores,
            on_devices,
            clipping=spec.clipping,
            noise_multiplier=spec.noise_multiplier if sigma is None else sigma,
            sampling_prob=q,
            expected_batch_size=batch,
            loss_fn=loss_fn,
        )

    def algorithm(sigma: Any, learning_rate: Any) -> tuple[Any, Any]:
        return dpsgd.make_step(
            _train_loss(config, loss_fn),
            make_optimizer(config, learning_rate),
            noise_multiplier=sigma,
            sampling_prob=q,
            expected_batch_size=batch,
            attacks=lambda on_devices: attacks(on_devices, sigma),
            augment=augmentation.make_augment(config.views) if config.views else None,
            ema_decay=config.ema_decay,
            n=None if layout.mesh is None else spec.n,
            clipping=spec.clipping,
        )

    init, step = algorithm(spec.noise_multiplier, config.learning_rate)
    program = Program(apply, step, attacks)
    if programs is None or spec.noise_multiplier == 0.0:
        return init, program

    def shared_step(*arguments: Any) -> tuple[dpsgd.State, dpsgd.Stats]:
        *arguments, sigma, learning_rate = arguments
        return algorithm(sigma, learning_rate)[1](*arguments)

    values = settings.flatten(settings.as_json(config))
    key = json.dumps({name: values[name] for name in values if name not in SHARED_STEP_KEYS})
    shared = programs.setdefault(key, program._replace(step=shared_step))
    scalars = spec.noise_multiplier, config.learning_rate
    return init, shared._replace(attacks=attacks, scalars=scalars)
