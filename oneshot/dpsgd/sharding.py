"""Many devices: what lies where, and what is done by all of them together.

The mesh has two axes, `data` and `model`. Examples and canaries are rows: they are split over
all devices, and a device differentiates its own. Parameters, and all that is like them (sums,
noise, the optimizer's state), are split over `model` along one of their axes (`spec`).

A step is written for one device. Inside of `jax.set_mesh` with a mesh of `make_mesh`, the same
function is one for many: `gradient_sums`, `sum_over_devices` and `map_rows` run a function on
the rows of each device. The gradient is summed over the devices once a step; what belongs to
one example never leaves its device.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, PartitionSpec

PyTree = Any

# Of our own, so that a user's mesh is never taken for one of `make_mesh`.
DATA_AXIS, MODEL_AXIS = 'oneshot_data', 'oneshot_model'
_ALL = MODEL_AXIS, DATA_AXIS  # in the order of rows: those of one shard are neighbours
ROWS = PartitionSpec(_ALL)
SHARDS = PartitionSpec(MODEL_AXIS)  # a row for each shard of the parameters
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
            f'The product data × model must be {allowed} the number of devices, {len(devices)}, '
            f'but {data} and {model} were given.'
        )
    if size == 1:
        return None
    return jax.make_mesh(
        (data, model),
        (DATA_AXIS, MODEL_AXIS),
        axis_types=(AxisType.Auto,) * 2,
        devices=devices[:size],
    )


def use_mesh(mesh: Mesh | None) -> contextlib.AbstractContextManager[Any]:
    """Inside of it, what is traced is for all devices of the mesh."""
    return contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh)


def current() -> Any | None:
    """The mesh of `make_mesh` that is in use; None without one, and inside of `shard_map`."""
    mesh = jax.sharding.get_abstract_mesh()
    automatic = mesh.axis_types == (AxisType.Auto,) * 2
    return mesh if mesh.axis_names == (DATA_AXIS, MODEL_AXIS) and automatic else None


def spec(shape: Sequence[int], model: int) -> PartitionSpec:
    """How an array like a parameter is split: along its longest axis that comes out even."""
    even = [size if size % model == 0 else 0 for size in shape]
    if model == 1 or not any(even):
        return REPLICATED
    return PartitionSpec(*[None] * even.index(max(even)), MODEL_AXIS)


def padded_size(number: int) -> int:
    """The number of rows that come out even on the mesh in use, if there is one."""
    mesh = current()
    return number if mesh is None else -(-number // mesh.size) * mesh.size


def constrain(tree: PyTree) -> PyTree:
    """Arrays like parameters, where they belong."""
    return constrain_by(tree, lambda mesh, leaf: spec(leaf.shape, mesh.shape[MODEL_AXIS]))


def constrain_scores(tree: PyTree) -> PyTree:
    """Arrays with one entry for each row of the canaries, in their last axis, by these rows."""
    return constrain_by(tree, _spec_by_last_axis)


def constrain_by(tree: PyTree, choose: Callable[[Any, jax.Array], PartitionSpec]) -> PyTree:
    """Arrays where a function of the mesh and of each of them says."""
    mesh = current()
    if mesh is None:
        return tree
    return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, choose(mesh, x)), tree)


def _spec_by_last_axis(mesh: Any, leaf: Any) -> PartitionSpec:
    even = leaf.ndim > 0 and leaf.shape[-1] % mesh.size == 0
    return PartitionSpec(*[None] * (leaf.ndim - 1), _ALL) if even else REPLICATED


def gradient_sums(
    function: Callable[..., tuple[list[PyTree], PyTree]], params: PyTree, *rows: PyTree
) -> tuple[list[PyTree], PyTree]:
    """function(params, *rows), on the rows of each device, and summed over all of them.

    There is one reduction for gradients and statistics. Split parameters are gathered before
    it, and each device keeps its own part of the sum: a reduce-scatter over `model` and an
    all-reduce over `data`. The function gives sums, each like the parameters, and numbers.
    """
    mesh = current()
    if mesh is None:
        return function(params, *rows)
    rows = _pad_evenly(rows, mesh.size)
    sum_shapes, number_shapes = jax.eval_shape(function, params, *rows)
    specs = [_specs(params, mesh)] * len(sum_shapes)
    out_specs = specs, jax.tree.map(lambda _: REPLICATED, number_shapes)

    def local(params: PyTree, *rows: PyTree) -> tuple[list[PyTree], PyTree]:
        sums, numbers = function(params, *rows)
        # Counts travel as floats, exact up to 2²⁴, so that one reduction takes it all.
        floats = jax.tree.map(lambda x: x.astype(jnp.float32), numbers)
        sums, floats = _reduce((sums, floats), out_specs)
        return sums, jax.tree.map(lambda x, like: x.astype(like.dtype), floats, number_shapes)

    return _on_rows(local, [params], rows, out_specs)


def sum_over_devices(function: Callable[..., PyTree], params: PyTree, *rows: PyTree) -> PyTree:
    """function(params, *rows), on the rows of each device: counts, summed over all of them."""
    return gradient_sums(lambda *arguments: ([], function(*arguments)), params, *rows)[1]


def map_rows(function: Callable[..., PyTree], trees: Sequence[PyTree], *rows: PyTree) -> PyTree:
    """function(*trees, *rows), on the rows of each device, for trees like the parameters.

    The function gives arrays with an entry for each row in their last axis.
    """
    mesh = current()
    if mesh is None:
        return function(*trees, *rows)
    number = jax.tree.leaves(rows)[0].shape[0]
    rows = _pad_evenly(rows, mesh.size)
    shapes = jax.eval_shape(function, *trees, *rows)
    out_specs = jax.tree.map(lambda leaf: _spec_by_last_axis(mesh, leaf), shapes)
    out = _on_rows(function, trees, rows, out_specs)
    return jax.tree.map(lambda leaf: leaf[..., :number], out)


def map_shards(
    function: Callable[..., PyTree],
    tree: PyTree,
    arrays: Sequence[tuple[jax.Array, PartitionSpec]],
    out_specs: Any = None,
) -> PyTree:
    """function(tree, *arrays) on each device, with its shards of a tree like the parameters.

    Each array comes with how it is split. By default the result is split like the tree.
    """
    specs = _specs(tree, current())
    values, value_specs = zip(*arrays, strict=True)
    out_specs = specs if out_specs is None else out_specs
    return _on_devices(function, (specs, *value_specs), out_specs)(tree, *values)


def _on_rows(
    function: Callable[..., PyTree], trees: Sequence[PyTree], rows: Sequence[PyTree], out_specs: Any
) -> PyTree:
    """function(*trees, *rows) on each device, with its rows and the whole of the trees."""
    specs = [_specs(tree, current()) for tree in trees]

    def local(*arguments: PyTree) -> PyTree:
        whole = [_gather(*pair) for pair in zip(arguments[: len(trees)], specs, strict=True)]
        return function(*whole, *arguments[len(trees) :])

    return _on_devices(local, (*specs, *(ROWS for _ in rows)), out_specs)(*trees, *rows)


def _on_devices(function: Callable[..., PyTree], in_specs: Any, out_specs: Any) -> Callable:
    # Not checked by JAX: a derivative in parameters that all devices have would be summed over
    # the devices at once, example by example.
    return jax.shard_map(function, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def _specs(tree: PyTree, mesh: Any) -> PyTree:
    return jax.tree.map(lambda leaf: spec(leaf.shape, mesh.shape[MODEL_AXIS]), tree)


def _gather(tree: PyTree, specs: PyTree) -> PyTree:
    """Every leaf in one piece, on every device."""

    def gather(leaf: jax.Array, part: PartitionSpec) -> jax.Array:
        if part == REPLICATED:
            return leaf
        return jax.lax.all_gather(leaf, MODEL_AXIS, axis=part.index(MODEL_AXIS), tiled=True)

    return jax.tree.map(gather, tree, specs)


def _reduce(tree: PyTree, specs: PyTree) -> PyTree:
    """The sum over all devices, of which each keeps its part."""
    (leaves, structure), parts = jax.tree.flatten(tree), jax.tree.leaves(specs)
    split = [i for i, part in enumerate(parts) if part != REPLICATED]
    whole = [i for i, part in enumerate(parts) if part == REPLICATED]
    scattered = [
        jax.lax.psum_scatter(
            leaves[i], MODEL_AXIS, scatter_dimension=parts[i].index(MODEL_AXIS), tiled=True
        )
        for i in split
    ]
    sums = dict(zip(split, jax.lax.psum(scattered, DATA_AXIS), strict=True))
    sums |= dict(zip(whole, jax.lax.psum([leaves[i] for i in whole], _ALL), strict=True))
    return structure.unflatten([sums[i] for i in range(len(leaves))])


def _pad_evenly(rows: PyTree, devices: int) -> PyTree:
    """Rows that come out even; those of `Layout` do already."""
    return jax.tree.map(lambda x: pad_rows(x, -(-x.shape[0] // devices) * devices), rows)


def pad_rows(x: jax.Array, number: int) -> jax.Array:
    """x with zeros, or False, after its last row."""
    more = number - x.shape[0]
    return jnp.pad(x, [(0, more)] + [(0, 0)] * (x.ndim - 1)) if more else x
