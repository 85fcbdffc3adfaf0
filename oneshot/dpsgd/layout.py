"""Where the arrays of a run lie, outside of its steps."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from oneshot.dpsgd import sharding
from oneshot.dpsgd.sharding import REPLICATED, ROWS, use_mesh

PyTree = Any


@jax.jit  # one program for all checkpoints of a run
def _sort(tree: PyTree, order: jax.Array) -> PyTree:
    """The entries of the last axis in an order, on every device."""
    ordered = jax.tree.map(lambda leaf: leaf[..., order], tree)
    return sharding.constrain_by(ordered, lambda mesh, leaf: REPLICATED)


@jax.jit
def _spread(tree: PyTree, rows: jax.Array) -> PyTree:
    """The entries of the last axis by row, split over the devices; 0 in a row of none."""
    return sharding.constrain_scores(
        jax.tree.map(lambda leaf: jnp.where(rows < 0, 0.0, leaf[..., jnp.maximum(rows, 0)]), tree)
    )


class Layout:
    """Where the arrays of a run lie on a mesh of `make_mesh`; without one, all on one device."""

    def __init__(self, mesh: Mesh | None) -> None:
        self.mesh = mesh

    @property
    def devices(self) -> list[jax.Device]:
        """Those that are used, by all processes."""
        return jax.devices()[:1] if self.mesh is None else list(self.mesh.devices.flat)

    @property
    def shape(self) -> dict[str, int]:
        """How many devices there are, along each axis."""
        sizes = (1, 1) if self.mesh is None else self.mesh.devices.shape
        return dict(zip(('data', 'model'), sizes, strict=True))

    def sharding(self, part: PartitionSpec = REPLICATED) -> NamedSharding | None:
        return None if self.mesh is None else NamedSharding(self.mesh, part)

    def like_params(self, tree: PyTree) -> PyTree:
        """The shardings of a tree like the parameters, or of shapes."""
        shards = self.shape['model']
        return jax.tree.map(lambda leaf: self.sharding(sharding.spec(leaf.shape, shards)), tree)

    def make(self, function: Callable[[], PyTree]) -> PyTree:
        """What the function gives, like parameters; no device ever has more than its part."""
        if self.mesh is None:
            return function()
        with use_mesh(self.mesh):
            shapes = jax.eval_shape(function)
            return jax.jit(function, out_shardings=self.like_params(shapes))()

    def run(self, function: Callable[..., PyTree], *arguments: PyTree) -> PyTree:
        """function(*arguments), on all devices as one program."""
        if self.mesh is None:
            return function(*arguments)
        with use_mesh(self.mesh):
            return jax.jit(function)(*arguments)

    def rows_here(self, number: int) -> np.ndarray:
        """Which of so many rows lie on devices of this process, in order."""
        if self.mesh is None:
            return np.arange(number)
        size = self.padded_size(number)
        places = self.sharding(ROWS).addressable_devices_indices_map((size,)).values()
        rows = np.unique(np.concatenate([np.arange(size)[index] for index in places]))
        return rows[rows < number]

    def padded_size(self, number: int) -> int:
        """The number of rows that come out even."""
        return -(-number // len(self.devices)) * len(self.devices)

    def place_rows(self, tree: PyTree, number: int) -> PyTree:
        """Arrays with so many rows in all, or those of this process, split over all devices."""
        if self.mesh is None:
            return jax.tree.map(jnp.asarray, tree)
        here = self.rows_here(number)

        def place(x: Any) -> jax.Array:
            x = np.asarray(x)
            ids = np.arange(number) if len(x) == number else here
            shape = self.padded_size(number), *x.shape[1:]

            def part(index: tuple[slice, ...]) -> np.ndarray:
                first, last, _ = index[0].indices(shape[0])
                rows = x[slice(*np.searchsorted(ids, (first, last)))]
                padding = np.zeros((last - first - len(rows), *x.shape[1:]), x.dtype)
                return np.concatenate([rows, padding])

            return jax.make_array_from_callback(shape, self.sharding(ROWS), part)

        return jax.tree.map(place, tree)

    def place(self, x: Any, part: PartitionSpec = REPLICATED) -> jax.Array:
        """An array that every process has in whole, split over the devices."""
        if self.mesh is None:
            return x
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            impl = jax.random.key_impl(x)
            return jax.random.wrap_key_data(self.place(jax.random.key_data(x), part), impl=impl)
        x = np.asarray(x)
        return jax.make_array_from_callback(x.shape, self.sharding(part), lambda index: x[index])

    def gather_scores(self, tree: PyTree, rows: np.ndarray) -> PyTree:
        """Scores by row in the order of the canaries, as every process can read them.

        `rows` says of each row which canary it is of; −1 is a row of none.
        """
        if self.mesh is None:
            return tree
        order = np.empty(np.sum(rows >= 0), np.int32)
        order[rows[rows >= 0]] = np.flatnonzero(rows >= 0)
        with use_mesh(self.mesh):
            return _sort(tree, order)

    def scatter_scores(self, tree: PyTree, rows: np.ndarray) -> PyTree:
        """What `gather_scores` gives, by row again, split over the devices."""
        if self.mesh is None:
            return tree
        with use_mesh(self.mesh):
            return _spread(tree, rows)
