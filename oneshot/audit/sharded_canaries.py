"""Canaries on several devices."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from oneshot.audit.canaries import NOWHERE, Dirac, DiracGradients, Inputs, dirac_sum, values_at
from oneshot.dpsgd import sharding
from oneshot.dpsgd.layout import Layout

PyTree = Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ShardedDirac(DiracGradients):
    """Dirac canaries on parameters that lie on several devices (`oneshot.dpsgd.sharding`).

    Coordinate j lives on one shard of the parameters, or, where a parameter is not split, on
    all of them. Scores are kept in rows, and a row belongs to a device that has the shard: what
    the canary looks at is found there, and nothing is sent.
    """

    places: jax.Array  # (shards, m) int32, into the flattened shard; NOWHERE if it is on others
    rows: jax.Array  # int32, the canary of each row, or −1

    @property
    def num_canaries(self) -> int:
        return self.places.shape[1]

    @property
    def num_rows(self) -> int:
        return self.rows.shape[0]

    def gradient_sum(self, params: PyTree, drawn: jax.Array, clip_norm: float) -> PyTree:
        """c on the coordinate of every drawn canary, wherever it lives."""

        def local(shard: PyTree, places: jax.Array, drawn: jax.Array) -> PyTree:
            return dirac_sum(shard, places[0], drawn, clip_norm)

        arrays = (self.places, sharding.SHARDS), (drawn, sharding.REPLICATED)
        return sharding.map_shards(local, params, arrays)

    def select(self, direction: PyTree) -> jax.Array:
        """The values at the coordinates of the canaries, by row."""

        def local(shard: PyTree, places: jax.Array, rows: jax.Array) -> jax.Array:
            return values_at(shard, jnp.where(rows < 0, NOWHERE, places[0][rows]))

        arrays = (self.places, sharding.SHARDS), (self.rows, sharding.ROWS)
        return sharding.map_shards(local, direction, arrays, sharding.ROWS)


def shard(
    canaries: Dirac | Inputs, layout: Layout, params: PyTree
) -> tuple[Dirac | ShardedDirac | Inputs, np.ndarray]:
    """Canaries as they lie on the devices of a layout, for parameters of these shapes.

    Returns them for the step, and of each row of their scores which canary it is of; −1 is a row
    of none.
    """
    m = canaries.num_canaries
    if layout.mesh is None:
        return canaries, np.arange(m)
    if isinstance(canaries, Inputs):
        rows = np.pad(np.arange(m), (0, layout.padded_size(m) - m), constant_values=-1)
        return Inputs(layout.place_rows(canaries.examples, m)), rows
    shards, columns = layout.shape['model'], layout.shape['data']
    places = _places(np.asarray(canaries.coordinates), jax.tree.leaves(params), shards)
    homes = places != NOWHERE
    owners, numbers = np.argmax(homes, axis=0), np.sum(homes[:, np.sum(homes, axis=0) == 1], axis=1)
    for canary in np.flatnonzero(np.sum(homes, axis=0) > 1):  # at home on all shards
        owners[canary] = np.argmin(numbers)
        numbers[owners[canary]] += 1
    most = np.max(np.bincount(owners, minlength=shards), initial=0)
    rows = np.full((shards, -(-most // columns) * columns), -1)
    for owner, row in enumerate(rows):
        own = np.flatnonzero(owners == owner)
        row[: own.size] = own
    rows = rows.reshape(-1)
    sharded = ShardedDirac(
        layout.place(places, sharding.SHARDS), layout.place(rows.astype(np.int32), sharding.ROWS)
    )
    return sharded, rows


def _places(coordinates: np.ndarray, leaves: list[Any], shards: int) -> np.ndarray:
    """Where coordinates are on each shard, flattened; NOWHERE if they are not."""
    places = np.full((shards, coordinates.size), NOWHERE, np.int32)
    first = first_here = 0
    for leaf in leaves:
        part, size = sharding.spec(leaf.shape, shards), math.prod(leaf.shape)
        inside = np.flatnonzero((coordinates >= first) & (coordinates < first + size))
        place = coordinates[inside] - first
        size_here = size if part == sharding.REPLICATED else size // shards
        if part == sharding.REPLICATED:
            places[:, inside] = first_here + place
        else:
            axis, here = part.index(sharding.MODEL_AXIS), list(leaf.shape)
            here[axis] //= shards
            index = list(np.unravel_index(place, leaf.shape))
            shard, index[axis] = np.divmod(index[axis], here[axis])
            places[shard, inside] = first_here + np.ravel_multi_index(index, here)
        first_here += size_here
        first += size
    return places
