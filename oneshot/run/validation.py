"""Everything that is wrong with a config, found before anything is run."""

from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import optax

from oneshot import inputs
from oneshot.data import datasets, models
from oneshot.dpsgd import sharding
from oneshot.run import selection, settings


def check(config: ml_collections.ConfigDict, problems: settings.Problems | None = None) -> None:
    """Looks for everything that is wrong with a config, before anything is run.

    Args:
        config: as in `configs/`.
        problems: what is known to be wrong already.

    Raises:
        ValueError: with all of it, a sentence each.
    """
    problems = settings.Problems() if problems is None else problems
    settings.check_values(config, problems)
    download = not problems.sentences  # nothing is downloaded for a config that is wrong
    problems.attempt(('mesh',), lambda: sharding.make_mesh(config.mesh.data, config.mesh.model))
    data = problems.attempt(('data', 'data_dir'), describe_data, config, download)
    if data is not None:
        shapes = problems.attempt(('model',), _param_shapes, config, data)
        keys = 'audit.m', 'audit.pairs', 'audit.canaries'
        problems.attempt(keys, _check_room_for_canaries, config, data, shapes)
    optimizer = 'optimizer', 'optimizer_options'
    problems.attempt((*optimizer, 'learning_rate'), _check_optimizer, config)
    keys = *optimizer, 'dp.noise_multiplier', 'audit.headline', 'audit.attacks'
    keys = *keys, 'audit.signals', 'audit.scores'
    scores = problems.attempt(keys, selection.scores, config)
    if scores is not None:
        keys = 'learning_rate', 'dp.noise_multiplier', 'audit.canaries', 'audit.pairs'
        problems.attempt((*keys, 'audit.method'), selection.methods, config, *scores)
    problems.raise_all()


def num_canaries(config: ml_collections.ConfigDict) -> int:
    """How many canaries there are: one for each coin, or two."""
    return 2 * config.audit.m if config.audit.pairs else config.audit.m


def describe_data(
    config: ml_collections.ConfigDict, download: bool = True
) -> datasets.Description | None:
    """The data set of a config; None if it is not known without a download."""
    data = config.data
    places = {'train': data.train, 'test': data.test, 'data_dir': config.data_dir}
    return datasets.describe(data.name, data.n, **places, download=download)


def model_options(config: ml_collections.ConfigDict) -> dict[str, Any]:
    """What `models.make` takes beside the name of a model."""
    options = config.model.to_dict()
    del options['name']
    return options | {'widths': tuple(map(tuple, options['widths']))}


def make_optimizer(config: ml_collections.ConfigDict, learning_rate: Any) -> Any:
    """The optimizer of a config. The learning rate may be traced."""
    return getattr(optax, config.optimizer)(learning_rate, **dict(config.optimizer_options))


def _param_shapes(config: ml_collections.ConfigDict, data: datasets.Description) -> Any:
    name, options = config.model.name, model_options(config)
    return models.shapes(name, tuple(data.image), data.classes, **options)


def _check_room_for_canaries(
    config: ml_collections.ConfigDict, data: datasets.Description, shapes: Any | None
) -> None:
    number = 'twice config.audit.m' if config.audit.pairs else 'config.audit.m'
    if config.audit.canaries != 'dirac':
        name = f'{number}, the number of held-out examples used as canaries,'
        inputs.count(name, num_canaries(config), 1, data.held_out - 1)
    elif shapes is not None:
        size = sum(leaf.size for leaf in jax.tree.leaves(shapes))
        inputs.count(f'{number}, the number of Dirac canaries,', num_canaries(config), 1, size)


def _check_optimizer(config: ml_collections.ConfigDict) -> None:
    """Whether there is an optimizer as the config names it."""
    name, options = config.optimizer, dict(config.optimizer_options)
    try:
        optimizer = make_optimizer(config, config.learning_rate)
        if not isinstance(optimizer, optax.GradientTransformation):
            raise TypeError(f'optax.{name} is none')
    except Exception as error:  # of whatever the name stands for
        raise ValueError(
            'config.optimizer and config.optimizer_options must be an optimizer of optax and its '
            f'options, but {name!r} and {options!r} were given ({inputs.one_line(error)}).'
        ) from error
    try:
        params = jax.ShapeDtypeStruct((2, 2), jnp.float32)
        jax.eval_shape(lambda w: optimizer.update(w, optimizer.init(w), w), params)
    except Exception as error:
        raise ValueError(
            'config.optimizer with config.optimizer_options must make do with gradients, because '
            f'losses are not privatized, but {name!r} with {options!r} was given '
            f'({inputs.one_line(error)}).'
        ) from error
