"""Where the arrays of a run lie, outside of its steps."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from oneshot.dpsgd.sharding import (
    AXES,
    REPLICATED,
    ROWS,
    constrain_by,
    constrain_scores,
    spec,
    use,
)

PyTree = Any


@jax.jit  # one program for all checkpoints of a run
def _sort(tree: PyTree, order: jax.Array) -> PyTree:
    """The entries of the last axis in an order, on every device."""
    return constrain_by(
        jax.tree.map(lambda leaf: leaf[..., order], tree), lambda mesh, leaf: REPLICATED
    )


class Layout:
    """Where the arrays of a run lie, outside of its steps.

    Args:
        mesh: as `make` gives it. Without one, everything lies on one device as it is.
    """

    def __init__(self, mesh: Mesh | None) -> None:
        self.mesh = mesh

    @property
    def devices(self) -> list[jax.Device]:
        """Those that are used, by all processes."""
        return jax.devices()[:1] if self.mesh is None else list(self.mesh.devices.flat)

    @property
    def shape(self) -> dict[str, int]:
        """How many devices there are, along each axis."""
        return dict.fromkeys(AXES, 1) if self.mesh is None else dict(self.mesh.shape)

    def sharding(self, part: PartitionSpec = REPLICATED) -> NamedSharding | None:
        return None if self.mesh is None else NamedSharding(self.mesh, part)

    def like_params(self, tree: PyTree) -> PyTree:
        """The shardings of a tree like the parameters, or of shapes."""
        model = self.mesh.shape['model']
        return jax.tree.map(lambda leaf: self.sharding(spec(leaf.shape, model)), tree)

    def make(self, function: Callable[[], PyTree]) -> PyTree:
        """What the function gives, like parameters; no device ever has more than its part."""
        if self.mesh is None:
            return function()
        with use(self.mesh):
            shapes = jax.eval_shape(function)
            return jax.jit(function, out_shardings=self.like_params(shapes))()

    def call(self, function: Callable[..., PyTree], *given: PyTree) -> PyTree:
        """function(*given), on all devices as one program."""
        if self.mesh is None:
            return function(*given)
        with use(self.mesh):
            return jax.jit(function)(*given)

    def rows_here(self, number: int) -> np.ndarray:
        """Which of so many rows lie on devices of this process, in order."""
        if self.mesh is None:
            return np.arange(number)
        places = self.sharding(ROWS).addressable_devices_indices_map((self.padded(number),))
        found = [np.arange(*index[0].indices(self.padded(number))) for index in places.values()]
        rows = np.unique(np.concatenate(found))
        return rows[rows < number]

    def padded(self, number: int) -> int:
        """The number of rows that come out even."""
        return -(-number // len(self.devices)) * len(self.devices)

    def place_rows(self, tree: PyTree, number: int) -> PyTree:
        """Arrays with rows, split over all devices, and zeros after the last.

        Args:
            tree: the rows of this process, or all of them.
            number: how many there are in all.
        """
        if self.mesh is None:
            return jax.tree.map(jnp.asarray, tree)
        here = self.rows_here(number)

        def one(x: Any) -> jax.Array:
            x = np.asarray(x)
            ids = np.arange(number) if len(x) == number else here

            def part(index: tuple[slice, ...]) -> np.ndarray:
                first, last, _ = index[0].indices(self.padded(number))
                found = x[slice(*np.searchsorted(ids, (first, last)))]
                return np.concatenate(
                    [found, np.zeros((last - first - len(found), *x.shape[1:]), x.dtype)]
                )

            shape = self.padded(number), *x.shape[1:]
            return jax.make_array_from_callback(shape, self.sharding(ROWS), part)

        return jax.tree.map(one, tree)

    def place(self, x: Any, part: PartitionSpec = REPLICATED) -> jax.Array:
        """An array that every process has in whole, split over the devices."""
        if self.mesh is None:
            return x
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            impl = jax.random.key_impl(x)
            return jax.random.wrap_key_data(self.place(jax.random.key_data(x), part), impl=impl)
        x = np.asarray(x)
        return jax.make_array_from_callback(x.shape, self.sharding(part), lambda index: x[index])

    def in_order(self, tree: PyTree, rows: np.ndarray) -> PyTree:
        """Scores by row, in the order of the canaries, as every process can read them.

        Args:
            tree: arrays with an entry for each row in their last axis.
            rows: of each row, which canary it is of; −1 is a row of none.
        """
        if self.mesh is None:
            return tree
        order = np.empty(np.sum(rows >= 0), np.int32)
        order[rows[rows >= 0]] = np.flatnonzero(rows >= 0)
        with use(self.mesh):
            return _sort(tree, order)

    def in_rows(self, tree: PyTree, rows: np.ndarray) -> PyTree:
        """What `in_order` gives, by row again, split over the devices."""
        if self.mesh is None:
            return tree

        def spread(tree: PyTree) -> PyTree:
            return constrain_scores(
                jax.tree.map(
                    lambda leaf: jnp.where(rows < 0, 0.0, leaf[..., np.maximum(rows, 0)]), tree
                )
            )

        with use(self.mesh):
            return jax.jit(spread)(tree)
