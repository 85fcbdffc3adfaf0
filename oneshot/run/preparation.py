"""From a config to a run that can start: data, model, canaries, coins, step and plan."""

import dataclasses
import itertools
import json
import os
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx
from ml_collections import ConfigDict

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
from oneshot.results import guess
from oneshot.results.methods import METHODS
from oneshot.run import selection, settings, validation
from oneshot.scores.front_door import Rule, choose_rule

# Keys of a config that a shared step takes as arguments, or does not ask for.
SHARED_STEP_KEYS = (
    *('seed', 'steps', 'learning_rate', 'audit.canaries'),
    *('dp.eps', 'dp.delta', 'dp.noise_multiplier'),
)


class Spec(NamedTuple):
    """What is run and how it is audited: the config, and what follows from it."""

    config: ConfigDict
    n: int  # examples to train on, in all processes
    noise_multiplier: float
    expected_batch_size: float
    clipping: Clipping
    eps_ub: float
    selection: selection.Selection
    mechanisms: dict[str, Scoring]  # the claim, for scores whose law follows from it
    confidence: float  # of each bound
    plan: dict[tuple[str, str], tuple[str, Rule]]  # of a score and a method: rule and guesses

    @property
    def plan_rows(self) -> list[dict[str, Any]]:
        """The plan as plan.json has it."""
        rows = []
        for (score, method), (rule, guesses) in self.plan.items():
            if isinstance(guesses, tuple):
                values = {'k_plus': guesses[0], 'k_minus': guesses[1]}
            elif isinstance(guesses, guess.Ranked):  # each weight, and for how many ranks
                runs = itertools.groupby(guesses.weights)
                values = {'weights': [(weight, len(tuple(ranks))) for weight, ranks in runs]}
            else:
                values = dataclasses.asdict(guesses)
            rows.append({'score': score, 'method': method, 'rule': rule} | values)
        return rows


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
        inputs = self.arrays.population, self.canaries.placed, self.canaries.included
        return *inputs, *self.program.scalars


def prepare(
    config: ConfigDict,
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
    validation.check(config)
    if workdir is not None and not isinstance(workdir, Workdir):
        workdir = settings.open_workdir(workdir, config)
    # One key for each purpose, by a number that never changes.
    seed = jax.random.key(config.seed)
    model_key, canary_key, coin_key, run_key = (jax.random.fold_in(seed, i) for i in range(4))
    layout = Layout(sharding.make_mesh(config.mesh.data, config.mesh.model))
    data = validation.describe_data(config)
    effective_n = data.n + validation.num_canaries(config) / 2
    if config.dp.delta * effective_n > 1.0:
        warnings.warn(
            f'config.dp.delta = {config.dp.delta:g} is larger than 1/n = {1 / effective_n:.3g}: an '
            'algorithm that publishes one example in n as it is would pass for private.',
            stacklevel=2,
        )
    source = {**config.data, 'data_dir': config.data_dir, 'rows': layout.rows_here(data.n)}
    dataset = datasets.load(seed=config.seed, **source)

    def build() -> nnx.Module:
        return models.make(**validation.model_options(config, data), rngs=nnx.Rngs(model_key))

    network, _ = models.split(nnx.eval_shape(build))
    params = layout.make(lambda: models.split(build())[1])

    def apply(params: Any, image: jax.Array) -> jax.Array:
        return network(params, augmentation.scale(image))

    loss_fn = models.cross_entropy(apply)
    train_loss = augmentation.mean_loss(loss_fn) if config.views else loss_fn
    canary_set, dataset = _make_canaries(config, canary_key, coin_key, params, dataset, layout)
    spec = _make_spec(config, data.n, train_loss, params, dataset)
    init, program = _make_program(spec, apply, loss_fn, train_loss, layout, programs)
    arrays = Arrays(
        state=layout.run(init, params, canary_set.placed),
        key=layout.place(run_key),
        population=layout.place_rows(tuple(dataset.train), data.n),
        held_out=layout.place_rows(tuple(dataset.test), len(dataset.test.labels)),
    )
    return Run(spec, program, canary_set, arrays, layout, dataset, workdir)


def _make_canaries(
    config: ConfigDict,
    key: jax.Array,
    coin_key: jax.Array,
    params: Any,
    dataset: datasets.Dataset,
    layout: Layout,
) -> tuple[CanarySet, datasets.Dataset]:
    """The canaries, and the data set without the held-out examples that became some."""
    m, (images, labels) = validation.num_canaries(config), dataset.test
    if config.audit.canaries == 'dirac':
        chosen = canaries.dirac(key, m, params)
    else:
        dataset = dataset._replace(test=datasets.Split(images[m:], labels[m:]))
        if config.audit.canaries == 'mislabeled':
            chosen = canaries.mislabeled(key, m, images[:m], labels[:m], dataset.classes)
        else:
            chosen = canaries.in_distribution(key, m, images[:m], labels[:m])
    placed, rows = sharded_canaries.shard(chosen, layout, params)
    coins = canaries.flip_coins(coin_key, config.audit.m)
    included = canaries.pair_up(coins) if config.audit.pairs else coins
    return CanarySet(chosen, placed, rows, coins, layout.place(included)), dataset


def _make_spec(
    config: ConfigDict, n: int, train_loss: LossFn, params: Any, dataset: datasets.Dataset
) -> Spec:
    dp, selected = config.dp, selection.select(config)
    batch = dp.sampling_prob * (n + validation.num_canaries(config) / 2)
    sigma = dp.noise_multiplier
    if sigma is None:
        sigma = accounting.calibrate_noise(dp.eps, dp.sampling_prob, config.steps, dp.delta)
    images, labels = dataset.train
    shape = (config.views, *images.shape[1:]) if config.views else images.shape[1:]
    example = jax.ShapeDtypeStruct(shape, images.dtype), jax.ShapeDtypeStruct((), labels.dtype)
    options = {'batch': batch, 'strategy': config.strategy}
    strategy, size = choose_strategy(train_loss, params, example, **options)
    confidence = config.audit.confidence
    if selected.headline == 'best':  # all scores share it (Bonferroni), so that the best holds
        confidence = 1.0 - (1.0 - confidence) / len(selected.scores)
    spec = Spec(
        config=config,
        n=n,
        noise_multiplier=sigma,
        expected_batch_size=batch,
        clipping=Clipping(dp.clip_norm, config.microbatch_size or size, strategy),
        eps_ub=accounting.eps_upper_bound(sigma, dp.sampling_prob, config.steps, dp.delta),
        selection=selected,
        mechanisms=selection.mechanisms(config, selected.scores, sigma, batch),
        confidence=confidence,
        plan={},
    )
    keys = ((score, method) for score, names in selected.methods.items() for method in names)
    return spec._replace(plan={key: _plan_guesses(spec, *key) for key in keys})


def _plan_guesses(spec: Spec, score: str, method: str) -> tuple[str, Rule]:
    """How guesses will be chosen: the name of the rule, and what `audit_scores` takes."""
    options, chosen = spec.config.audit, METHODS[method]
    if chosen.needs == 'samples':
        return 'fixed', (0, 0)  # it uses the scores, and no guesses
    guesses = options.guesses if options.k_plus is None else (options.k_plus, options.k_minus)
    if chosen.needs == 'confusion' or chosen.by_weights:  # by a threshold, or by weights
        guesses = 'planned'
    known = {'delta': spec.config.dp.delta, 'mechanism': spec.mechanisms.get(score)}
    return choose_rule(guesses, options.m, confidence=spec.confidence, method=method, **known)


def _make_program(
    spec: Spec,
    apply: Callable[..., jax.Array],
    loss_fn: LossFn,
    train_loss: LossFn,
    layout: Layout,
    programs: dict[str, Program] | None,
) -> tuple[Callable[..., dpsgd.State], Program]:
    """The function that makes the first state, and the program."""
    config, sigma = spec.config, spec.noise_multiplier
    known = {
        'clipping': spec.clipping,
        'sampling_prob': config.dp.sampling_prob,
        'expected_batch_size': spec.expected_batch_size,
    }

    def attacks(placed: dpsgd.Canaries, sigma: Any = sigma) -> dict[str, dpsgd.Attack]:
        scores = spec.selection.scores
        return attacks_for(scores, placed, loss_fn=loss_fn, noise_multiplier=sigma, **known)

    def algorithm(sigma: Any, learning_rate: Any) -> tuple[Any, Any]:
        return dpsgd.make_step(
            train_loss,
            validation.make_optimizer(config, learning_rate),
            noise_multiplier=sigma,
            attacks=lambda placed: attacks(placed, sigma),
            augment=augmentation.make_augment(config.views) if config.views else None,
            ema_decay=config.ema_decay,
            n=None if layout.mesh is None else spec.n,
            **known,
        )

    init, step = algorithm(sigma, config.learning_rate)
    program = Program(apply, step, attacks)
    if programs is None or sigma == 0.0:
        return init, program

    def shared_step(*arguments: Any) -> tuple[dpsgd.State, dpsgd.Stats]:
        *arguments, sigma, learning_rate = arguments
        return algorithm(sigma, learning_rate)[1](*arguments)

    values = settings.flatten(settings.as_json(config))
    key = json.dumps({name: values[name] for name in values if name not in SHARED_STEP_KEYS})
    shared = programs.setdefault(key, program._replace(step=shared_step))
    return init, shared._replace(attacks=attacks, scalars=(sigma, config.learning_rate))
