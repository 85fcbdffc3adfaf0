"""Many devices: what lies where, and what is done by all of them together.

The mesh has two axes, `data` and `model`. Examples and canaries are rows: they are split
over all devices, and a device differentiates its own. Parameters, and all that is like them
(sums, noise, the optimizer's state), are split over `model` along one of their axes, or lie
on every device where that axis is of size 1 (`spec`).

A step is written for one device. Inside of `jax.set_mesh` with a mesh of `make`, the same
function is one for many: `gradient_sums`, `totals` and `by_row` run what they are given on
the rows of each device, and `constrain` says where a result belongs. Without a mesh they do
nothing but call it. The gradient is summed over the devices once a step; what belongs to one
example never leaves its device.
"""

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, PartitionSpec

PyTree = Any

AXES = 'data', 'model'
_ALL = 'model', 'data'  # in the order of rows: those of one shard of the parameters are neighbours
ROWS = PartitionSpec(_ALL)
SHARDS = PartitionSpec('model')  # a row for each shard of the parameters
REPLICATED = PartitionSpec()


def make_mesh(data: int | None = None, model: int = 1) -> Mesh | None:
    """The mesh of data × model devices, or None if that is a single one.

    Args:
        data: over how many groups of devices the rows are split; as many as there are, by
            default.
        model: over how many devices the parameters are split.

    Raises:
        ValueError: there are not as many devices.
    """
    devices = jax.devices()
    data = max(1, len(devices) // model) if data is None else data
    size, everybody = data * model, jax.process_count() == 1
    if size > len(devices) or not (everybody or size == len(devices)):
        allowed = 'at most' if everybody else 'in all, with several processes,'
        raise ValueError(
            f'config.mesh.data times config.mesh.model must be {allowed} the number of devices, '
            f'{len(devices)}, but {data} and {model} were given.'
        )
    if size == 1:
        return None
    return jax.make_mesh(
        (data, model), AXES, axis_types=(AxisType.Auto,) * 2, devices=devices[:size]
    )


def use(mesh: Mesh | None) -> contextlib.AbstractContextManager[Any]:
    """Inside of it, what is traced is for all devices of the mesh."""
    return contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh)


def current() -> Any | None:
    """The mesh of `make` that is in use; None without one, and on a device of its own."""
    mesh = jax.sharding.get_abstract_mesh()
    automatic = mesh.axis_types == (AxisType.Auto,) * 2
    return mesh if mesh.axis_names == AXES and automatic else None


def spec(shape: Sequence[int], model: int) -> PartitionSpec:
    """How an array like a parameter is split: along its longest axis that comes out even."""
    even = [size if size % model == 0 else 0 for size in shape]
    if model == 1 or not any(even):
        return REPLICATED
    return PartitionSpec(*[None] * even.index(max(even)), 'model')


def padded(number: int) -> int:
    """The number of rows that come out even on the mesh in use, if there is one."""
    mesh = current()
    return number if mesh is None else math.ceil(number / mesh.size) * mesh.size


def constrain(tree: PyTree) -> PyTree:
    """Arrays like parameters, where they belong."""
    return constrain_by(tree, lambda mesh, leaf: spec(leaf.shape, mesh.shape['model']))


def constrain_scores(tree: PyTree) -> PyTree:
    """Arrays with one entry for each row of the canaries, in their last axis, by these rows."""
    return constrain_by(tree, lambda mesh, leaf: _last(leaf, mesh.size))


def constrain_by(tree: PyTree, choose: Callable[[Any, jax.Array], PartitionSpec]) -> PyTree:
    """Arrays as a function of the mesh and of each of them says."""
    mesh = current()
    if mesh is None:
        return tree
    return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, choose(mesh, x)), tree)


def _last(leaf: Any, devices: int) -> PartitionSpec:
    even = leaf.ndim > 0 and leaf.shape[-1] % devices == 0
    return PartitionSpec(*[None] * (leaf.ndim - 1), _ALL) if even else REPLICATED


def gradient_sums(
    function: Callable[..., tuple[list[PyTree], PyTree]], params: PyTree, *rows: PyTree
) -> tuple[list[PyTree], PyTree]:
    """function(params, *rows), on the rows of each device, and summed over all of them.

    Of gradients and statistics there is one reduction. Split parameters are brought together
    before it, and each device keeps its own part of the sum: a reduce-scatter over `model`
    and an all-reduce over `data`.

    Args:
        function: gives sums of gradients, each like the parameters, and numbers.
        params: the parameters.
        *rows: arrays with a leading axis, for `function` in parts.
    """
    mesh = current()
    if mesh is None:
        return function(params, *rows)
    rows, parts = _fill(rows, mesh.size), _specs(params, mesh)
    made, numbers = jax.eval_shape(function, params, *rows)
    gives = [parts] * len(made), jax.tree.map(lambda _: REPLICATED, numbers)

    def local(params: PyTree, *rows: PyTree) -> tuple[list[PyTree], PyTree]:
        sums, counted = function(_whole(params, parts), *rows)
        # Counts travel as floats, exact up to 2²⁴, so that one reduction takes it all.
        floats = jax.tree.map(lambda x: x.astype(jnp.float32), counted)
        sums, floats = _reduce((sums, floats), gives)
        return sums, jax.tree.map(lambda x, like: x.astype(like.dtype), floats, numbers)

    return _on_devices(local, (parts, *(ROWS for _ in rows)), gives)(params, *rows)


def totals(function: Callable[..., PyTree], params: PyTree, *rows: PyTree) -> PyTree:
    """function(params, *rows), on the rows of each device: numbers, summed over all of them."""
    mesh = current()
    if mesh is None:
        return function(params, *rows)
    parts = _specs(params, mesh)

    def local(params: PyTree, *rows: PyTree) -> PyTree:
        return jax.lax.psum(function(_whole(params, parts), *rows), _ALL)

    return _on_devices(local, (parts, *(ROWS for _ in rows)), REPLICATED)(params, *rows)


def by_row(function: Callable[..., PyTree], trees: Sequence[PyTree], *rows: PyTree) -> PyTree:
    """function(*trees, *rows), on the rows of each device.

    Args:
        function: gives arrays with an entry for each row in their last axis.
        trees: each like the parameters; every device gets them whole.
        *rows: arrays with a leading axis, for `function` in parts.
    """
    mesh = current()
    if mesh is None:
        return function(*trees, *rows)
    number = jax.tree.leaves(rows)[0].shape[0]
    rows, parts = _fill(rows, mesh.size), [_specs(tree, mesh) for tree in trees]
    found = jax.eval_shape(function, *trees, *rows)
    specs = jax.tree.map(lambda leaf: _last(leaf, mesh.size), found)

    def local(*given: PyTree) -> PyTree:
        whole = [_whole(*pair) for pair in zip(given[: len(trees)], parts, strict=True)]
        return function(*whole, *given[len(trees) :])

    made = _on_devices(local, (*parts, *(ROWS for _ in rows)), specs)(*trees, *rows)
    return jax.tree.map(lambda leaf: leaf[..., :number], made)


def on_shards(
    function: Callable[..., PyTree], tree: PyTree, given: Sequence[Any], gives: Any = None
) -> PyTree:
    """function(tree, *arrays) on the shards of a tree like the parameters, on each device.

    Args:
        function: of the shards, and of the parts of the arrays.
        tree: like the parameters.
        given: pairs of an array and how it is split.
        gives: how the result is split; by default like the tree.
    """
    parts = _specs(tree, current())
    arrays, specs = zip(*given, strict=True)
    gives = parts if gives is None else gives
    return _on_devices(function, (parts, *specs), gives)(tree, *arrays)


def _on_devices(function: Callable[..., PyTree], given: Any, gives: Any) -> Callable[..., PyTree]:
    # Not checked by JAX: a derivative in parameters that all devices have would be summed over
    # the devices at once, example by example.
    return jax.shard_map(function, in_specs=given, out_specs=gives, check_vma=False)


def _specs(tree: PyTree, mesh: Any) -> PyTree:
    return jax.tree.map(lambda leaf: spec(leaf.shape, mesh.shape['model']), tree)


def _whole(tree: PyTree, parts: PyTree) -> PyTree:
    """Every leaf in one piece, on every device."""

    def one(leaf: jax.Array, part: PartitionSpec) -> jax.Array:
        if part == REPLICATED:
            return leaf
        return jax.lax.all_gather(leaf, 'model', axis=part.index('model'), tiled=True)

    return jax.tree.map(one, tree, parts)


def _reduce(tree: PyTree, parts: PyTree) -> PyTree:
    """The sum over all devices, of which each keeps its part."""
    (leaves, structure), parts = jax.tree.flatten(tree), jax.tree.leaves(parts)
    split = [i for i, part in enumerate(parts) if part != REPLICATED]
    rest = [i for i, part in enumerate(parts) if part == REPLICATED]
    scattered = [
        jax.lax.psum_scatter(
            leaves[i], 'model', scatter_dimension=parts[i].index('model'), tiled=True
        )
        for i in split
    ]
    found = dict(zip(split, jax.lax.psum(scattered, 'data'), strict=True))
    found |= dict(zip(rest, jax.lax.psum([leaves[i] for i in rest], _ALL), strict=True))
    return structure.unflatten([found[i] for i in range(len(leaves))])


def _fill(rows: PyTree, devices: int) -> PyTree:
    """Rows that come out even; those of `Layout` do already."""

    def one(x: jax.Array) -> jax.Array:
        return fill(x, math.ceil(x.shape[0] / devices) * devices)

    return jax.tree.map(one, rows)


def fill(x: jax.Array, number: int) -> jax.Array:
    """x with zeros, or False, after its last row."""
    more = number - x.shape[0]
    return jnp.pad(x, [(0, more)] + [(0, 0)] * (x.ndim - 1)) if more else x
