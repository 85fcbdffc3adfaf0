"""Everything that is wrong with a config, found before anything is run."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

from oneshot import inputs
from oneshot.data import datasets, models
from oneshot.dpsgd import sharding
from oneshot.run import selection, settings


def check(config: ConfigDict, problems: settings.Problems | None = None) -> None:
    """Raises a ValueError with all that is wrong with a config, a sentence each.

    That includes the `problems` that are known already. Nothing is run or made.
    """
    problems = settings.Problems() if problems is None else problems
    settings.check_values(config, problems)
    download = not problems.sentences  # nothing is downloaded for a config that is wrong
    problems.attempt(('mesh',), lambda: sharding.make_mesh(config.mesh.data, config.mesh.model))
    data = problems.attempt(('data', 'data_dir'), describe_data, config, download)
    if data is not None:
        size = problems.attempt(('model',), _num_params, config, data)
        keys = 'audit.m', 'audit.pairs', 'audit.canaries'
        problems.attempt(keys, _check_room_for_canaries, config, data, size)
    optimizer = 'optimizer', 'optimizer_options'
    problems.attempt((*optimizer, 'learning_rate'), _check_optimizer, config)
    keys = 'dp.noise_multiplier', 'audit.headline', 'audit.attacks', 'audit.signals', 'audit.scores'
    scores = problems.attempt((*optimizer, *keys), selection.scores, config)
    if scores is not None:
        keys = 'learning_rate', 'dp.noise_multiplier', 'audit.canaries', 'audit.pairs'
        problems.attempt((*keys, 'audit.method'), selection.methods, config, *scores)
    problems.raise_all()


def num_canaries(config: ConfigDict) -> int:
    """How many canaries there are: one for each coin, or two."""
    return 2 * config.audit.m if config.audit.pairs else config.audit.m


def describe_data(config: ConfigDict, download: bool = True) -> datasets.Description | None:
    """The data set of a config; None if it is not known without a download."""
    return datasets.describe(**config.data, data_dir=config.data_dir, download=download)


def model_options(config: ConfigDict, data: datasets.Description) -> dict[str, Any]:
    """The name and the options of a model for this data, with tuples for lists."""
    hidden, widths = tuple(config.model.hidden), tuple(map(tuple, config.model.widths))
    shape = {'image': tuple(data.image), 'classes': data.classes}
    return {**config.model, 'hidden': hidden, 'widths': widths, **shape}


def make_optimizer(config: ConfigDict, learning_rate: Any) -> Any:
    """The optimizer of a config. The learning rate may be traced."""
    return getattr(optax, config.optimizer)(learning_rate, **dict(config.optimizer_options))


def _num_params(config: ConfigDict, data: datasets.Description) -> int:
    return sum(x.size for x in jax.tree.leaves(models.shapes(**model_options(config, data))))


def _check_room_for_canaries(
    config: ConfigDict, data: datasets.Description, size: int | None
) -> None:
    """Whether there are as many held-out examples, or as many of `size` parameters."""
    kind, most = 'Dirac canaries', size
    if config.audit.canaries != 'dirac':
        kind, most = 'held-out examples used as canaries', data.held_out - 1
    if most is not None:
        twice = 'twice ' if config.audit.pairs else ''
        name = f'{twice}config.audit.m, the number of {kind},'
        inputs.count(name, num_canaries(config), 1, most)


def _check_optimizer(config: ConfigDict) -> None:
    """Whether there is an optimizer as the config names it, which makes do with gradients."""
    must = 'be an optimizer of optax and its options'
    try:
        optimizer = make_optimizer(config, config.learning_rate)
        if not isinstance(optimizer, optax.GradientTransformation):
            raise TypeError(f'optax.{config.optimizer} is none')
        must = 'make do with gradients, because losses are not privatized'
        params = jax.ShapeDtypeStruct((2, 2), jnp.float32)
        jax.eval_shape(lambda w: optimizer.update(w, optimizer.init(w), w), params)
    except Exception as error:  # of whatever the name stands for
        raise ValueError(
            f'config.optimizer and config.optimizer_options must {must}, but {config.optimizer!r} '
            f'and {dict(config.optimizer_options)!r} were given ({inputs.one_line(error)}).'
        ) from error
