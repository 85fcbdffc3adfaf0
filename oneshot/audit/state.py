"""What an audit carries through a loop."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from oneshot.audit.attacks import attacks_for
from oneshot.audit.canaries import Dirac, Inputs
from oneshot.audit.misuse import Counts
from oneshot.audit.score import Score
from oneshot.claims.claim import DPSGD
from oneshot.dpsgd.clipping import Clipping
from oneshot.dpsgd.gradients.strategy import LossFn
from oneshot.dpsgd.step import Attack, Observation

PyTree = Any


@dataclasses.dataclass(frozen=True)
class Settings:
    """What an audit knows before the run. It is part of the tree's structure, not of its data."""

    claim: DPSGD
    clipping: Clipping
    expected_batch_size: float
    in_data: bool
    scores: tuple[Score, ...]
    loss_fn: LossFn | None
    tree: Any  # of the parameters
    shapes: tuple[tuple[int, ...], ...]

    def attacks(self, canaries: Dirac | Inputs) -> dict[str, Attack]:
        """The attacks that watch the loop, by name."""
        return attacks_for(
            self.scores,
            canaries,
            clipping=self.clipping,
            noise_multiplier=self.claim.noise_multiplier,
            sampling_prob=self.claim.sampling_prob,
            expected_batch_size=self.expected_batch_size,
            loss_fn=self.loss_fn,
        )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Audited:
    """The state of an audit: a pytree, to be carried beside the parameters."""

    canaries: Dirac | Inputs
    included: jax.Array  # the coins; `insert` looks at them, the attacks never do
    attacks: dict[str, PyTree]  # their states
    sum_without_canaries: jax.Array  # at the canaries' coordinates, before the last insertion
    counts: Counts  # of what the loop did with the audit
    settings: Settings = dataclasses.field(metadata={'static': True})


class SeenAtCanaries(Observation):
    """An observation of which the residual is known at the canaries' coordinates only."""

    def signal(self, name: str, select: Callable[[PyTree], PyTree]) -> PyTree:
        return self.residual if name == 'residual' else super().signal(name, select)


def gathered(tree: PyTree) -> PyTree:
    """The tree with leaves that are explicitly sharded in one piece; of others, XLA decides."""

    def whole(leaf: jax.Array) -> jax.Array:
        return jax.sharding.reshard(leaf, PartitionSpec()) if _is_explicit(leaf) else leaf

    return jax.tree.map(whole, tree)


def spread_like(leaf: jax.Array, like: jax.Array) -> jax.Array:
    """A leaf, sharded like another if that is explicitly so."""
    return jax.sharding.reshard(leaf, jax.typeof(like).sharding) if _is_explicit(like) else leaf


def _is_explicit(leaf: jax.Array) -> bool:
    return bool(jax.typeof(leaf).sharding.mesh.explicit_axes)


def check_tree(name: str, value: PyTree, settings: Settings, axes: tuple[int, ...] = ()) -> None:
    """Raises a ValueError where a tree is not like the parameters, after some leading axes."""
    leaves, tree = jax.tree_util.tree_flatten_with_path(value)
    if tree != settings.tree:
        raise ValueError(
            f'{name} must be a tree like the parameters that the audit was started with, '
            f'{settings.tree}, but {tree} was given.'
        )
    for (path, leaf), shape in zip(leaves, settings.shapes, strict=True):
        if jnp.shape(leaf) != axes + shape:
            raise ValueError(
                f'{name} must have the shapes of the parameters that the audit was started with, '
                f'{axes + shape} at {jax.tree_util.keystr(path)}, but {jnp.shape(leaf)} was given.'
            )
