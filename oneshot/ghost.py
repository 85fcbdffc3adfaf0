"""Norms, sums and inner products of per-example gradients, without the gradients.

For a layer y = x·w the gradient of one example is v = xᵀδ, with δ the derivative of its
loss in y. So ‖v‖² = ⟨x xᵀ, δ δᵀ⟩, Σ_i s_i v_i is one matrix product, and
⟨d, v⟩ = ⟨x·d, δ⟩: x and δ are enough, and they come out of one backward pass for all
examples ("ghost norms", Goodfellow 2015, Li et al. 2022; "book-keeping", Bu et al. 2023).
Where positions are many and weights few, v itself is cheaper than x xᵀ; it is then made
for one layer and microbatch at a time (Bu et al. 2022).

The layers are found in the loss function itself, as JAX sees it: a parameter that is
used once, as the kernel of a matrix product or convolution, is a `Site`. This serves any
model, of any library. All other parameters (biases, scales of norms, what is used twice)
have their per-example gradients by vmap, side by side with the sites.
"""

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from oneshot import conv
from oneshot.gradients import (
    Gradients,
    LossFn,
    Strategy,
    dot,
    leave_out,
    precise,
    square,
    weighted_sum,
    zeros,
)

PyTree = Any

_EPSILON = 1e-4  # the smallest variance, times the fan-in, that a kernel is divided by
# Where terms cancel further than this, rounding would decide: the norm is taken as longer
# than it is, never as shorter.
_CANCELLED = 2.0**-13
# A standardized kernel with fewer entries is left to vmap, which costs nothing then.
_SMALLEST = 2**11
# A gradient's entry costs as much to write and read as this many multiply-adds.
_ENTRY_COST = 64


@jax.jit
def oneshot_standardize_kernel(kernel: jax.Array) -> jax.Array:
    """Weight standardization: mean 0 and norm 1 for each output channel, the last axis."""
    axes = tuple(range(kernel.ndim - 1))
    precise = kernel.astype(jnp.float32)
    centred = precise - jnp.mean(precise, axes)
    return (centred * jax.lax.rsqrt(_standard(precise))).astype(kernel.dtype)


def _standard(kernel: jax.Array) -> jax.Array:
    axes = tuple(range(kernel.ndim - 1))
    fan_in = kernel.size // kernel.shape[-1]
    return jnp.maximum(jnp.var(kernel, axes) * fan_in, _EPSILON)


class _Slot(NamedTuple):
    """The place of a value that is not known while the loss is traced."""

    index: int


class _Op(NamedTuple):
    """One operation of the loss, with the functions that it is nested in taken away."""

    eqn: core.JaxprEqn
    jaxpr: core.Jaxpr  # of this operation alone
    ins: list[Any]  # a _Slot, or a value
    outs: list[_Slot]

    @property
    def name(self) -> str:
        nested = self.eqn.primitive.name in _NESTED
        return self.eqn.params['name'] if nested else self.eqn.primitive.name

    def __call__(self, *ins: Any) -> Sequence[Any]:
        given = dict(_variables(self.eqn, ins))
        return core.jaxpr_as_fun(core.ClosedJaxpr(self.jaxpr, ()))(*given.values())


def _variables(eqn: core.JaxprEqn, ins: Sequence[Any]) -> list[tuple[core.Var, Any]]:
    """The inputs that are not written into the operation itself."""
    atoms = zip(eqn.invars, ins, strict=True)
    return [(atom, x) for atom, x in atoms if not isinstance(atom, core.Literal)]


_NESTED = ('jit', 'pjit')  # the second, in older releases of JAX
# What may stand between a parameter and the product that it is the kernel of.
_BETWEEN = ('convert_element_type', 'oneshot_standardize_kernel', 'oneshot_prepare_kernel')


class Site(NamedTuple):
    """A parameter that is the kernel of one product, and the product."""

    leaf: int  # which parameter
    op: _Op
    position: int  # of the kernel among the two operands
    between: tuple[_Op, ...]  # from the parameter to the kernel
    window: conv.Window | None  # of a convolution

    @property
    def standardized(self) -> bool:
        return any(op.name == 'oneshot_standardize_kernel' for op in self.between)

    @property
    def output(self) -> Any:
        """Shape and dtype of y, for one example."""
        return self.op.eqn.outvars[0].aval

    @property
    def by_gram(self) -> bool:
        """Whether ‖v‖² is had from x xᵀ, and not from v."""
        if self.window is None:
            d, p = self.kernel.shape[:: 1 if self.position else -1]
            positions = self.output.size // p
            return positions**2 * (d + p) <= _ENTRY_COST * d * p
        *area, channels, features = self.kernel.shape
        positions, area = np.prod(self.window.output), np.prod(area)
        inner = channels + area if self.window.strides == (1, 1) else channels * area
        work = positions**2 * (inner + features)
        return bool(work <= _ENTRY_COST * area * channels * features)

    @property
    def kernel(self) -> Any:
        """Shape and dtype of the parameter."""
        return (
            (self.between[0] if self.between else self.op)
            .eqn.invars[0 if self.between else self.position]
            .aval
        )

    def coordinates(self, leaf: jax.Array) -> jax.Array:
        """What v is the gradient in: the parameter as it enters the products, precisely."""
        kernel = leaf.astype(precise(leaf))
        kernel = oneshot_standardize_kernel(kernel) if self.standardized else kernel
        if self.window is not None:
            return conv.oneshot_prepare_kernel(kernel, self.window)
        return kernel.T if self.position else kernel  # (p, d), the fast order on CPU

    def operand(self, leaf: jax.Array) -> jax.Array:
        """The parameter as the operand of the product."""
        for op in self.between:
            (leaf,) = op(leaf)
        return leaf

    def product(self, x: jax.Array, operand: jax.Array) -> jax.Array:
        """y of one example."""
        return self.op(*((x, operand) if self.position else (operand, x)))[0]

    def sides(self, x: jax.Array, delta: jax.Array) -> tuple[jax.Array, jax.Array]:
        """x and δ of many examples in float32: as images, or as (N, positions, features)."""
        x, delta = x.astype(precise(x)), delta.astype(precise(delta))
        if self.window is not None:
            return x[:, 0], delta[:, 0]
        contracted = self.op.eqn.params['dimension_numbers'][0][1 - self.position][0]
        x = jnp.moveaxis(x, 1 + contracted, -1)
        x = x.reshape(x.shape[0], -1, x.shape[-1])
        if self.position:
            return x, delta.reshape(*x.shape[:2], -1)
        return x, jnp.swapaxes(delta.reshape(x.shape[0], -1, x.shape[1]), 1, 2)

    def grads(self, x: jax.Array, delta: jax.Array) -> jax.Array:
        """v of each example."""
        if self.window is not None:
            return conv.kernel_grads(x, delta, self.window)
        return jnp.einsum('ntp,ntd->npd', delta, x)

    def grad(self, x: jax.Array, delta: jax.Array) -> jax.Array:
        """Σ of v."""
        if self.window is not None:
            return conv.kernel_grad(x, delta, self.window)
        return jnp.einsum('ntp,ntd->pd', delta, x)

    def weighted(self, scale: jax.Array, grads: jax.Array, safe: bool) -> jax.Array:
        """Σ of scale·v, from v."""
        if self.window is None or not self.window.winograd:
            return weighted_sum(scale, grads, safe)
        weight = scale[None, :, None, None]
        return jnp.sum(weight * (jnp.where(weight != 0.0, grads, 0.0) if safe else grads), axis=1)

    def squares(self, x: jax.Array, delta: jax.Array, grads: jax.Array | None) -> jax.Array:
        """(N, features): ‖v‖² of each example, by output channel."""
        if grads is not None and self.window is not None:
            return conv.kernel_squares(grads, self.window)
        if grads is not None:
            return jnp.sum(jnp.square(grads), axis=2)
        if self.window is None and x.shape[1] == 1:
            return jnp.sum(jnp.square(x), axis=(1, 2))[:, None] * jnp.square(delta[:, 0])
        if self.window is None:
            products = jnp.einsum('ntd,nsd->nts', x, x)
        else:
            products = conv.gram(x, self.window)
        delta = delta.reshape(delta.shape[0], -1, delta.shape[-1])
        apart = jnp.einsum('ntt,ntp->np', products, jnp.square(delta))
        together = jnp.sum(delta * jnp.einsum('nts,nsp->ntp', products, delta), axis=1)
        return jnp.maximum(together, _CANCELLED * apart)

    def destandardized(
        self, leaf: jax.Array, squares: jax.Array, x: jax.Array, y: jax.Array, delta: jax.Array
    ) -> jax.Array:
        """‖Jᵀv‖² out of ‖v‖², with J the derivative of the standardization.

        With n the fan-in and ŵ the standardized kernel of a channel, of norm 1, Jᵀ takes
        the mean and the part along ŵ away from v and scales by a = 1/‖w − mean‖:
        ‖Jᵀv‖² = a²(‖v‖² − n·mean(v)² − ⟨ŵ, v⟩²). Both inner products are sums over δ:
        ⟨ŵ, v⟩ = ⟨y, δ⟩, and n·mean(v) = ⟨x·1, δ⟩.
        """
        leaf = leaf.astype(precise(leaf))
        variance = _standard(leaf)
        window = self.window._replace(channels=1)
        ones = jnp.sum(conv.windows(jnp.sum(x, -1, keepdims=True), window), -1, keepdims=True)
        mean = jnp.sum(ones * delta, axis=(1, 2))
        along = jnp.sum(y[:, 0].astype(delta.dtype) * delta, axis=(1, 2))
        along = jnp.where(variance > _EPSILON, along, 0.0)  # at the limit, a is a constant
        fan_in = leaf.size // leaf.shape[-1]
        less = squares - jnp.square(mean) / fan_in - jnp.square(along)
        return jnp.maximum(less, _CANCELLED * squares) / variance


class Program(NamedTuple):
    """The loss of one example as a list of operations, and the sites among them."""

    ops: list[_Op]
    leaves: list[_Slot]  # the parameters
    inputs: list[_Slot]  # the example
    loss: Any
    sites: list[Site]

    @property
    def widest(self) -> int:
        """The most values that x and y of a site have, for one example."""
        return max(
            (
                site.op.eqn.invars[1 - site.position].aval.size + site.output.size
                for site in self.sites
            ),
            default=1,
        )

    @property
    def rest(self) -> list[int]:
        """The parameters that are no sites."""
        return sorted(set(range(len(self.leaves))) - {site.leaf for site in self.sites})


def trace(loss_fn: LossFn, params: PyTree, example: PyTree) -> Program:
    """Finds the sites of a loss; `example` may be shapes."""
    leaves, tree = jax.tree.flatten(params)
    inputs, example_tree = jax.tree.flatten(example)
    closed = jax.make_jaxpr(
        lambda leaves, inputs: loss_fn(tree.unflatten(leaves), example_tree.unflatten(inputs))
    )(leaves, inputs)
    fresh = map(_Slot, itertools.count())
    slots = [next(fresh) for _ in (*leaves, *inputs)]
    ops: list[_Op] = []
    (loss,) = _flatten(closed, slots, fresh, ops)
    kernels, data = slots[: len(leaves)], slots[len(leaves) :]
    return Program(ops, kernels, data, loss, list(_sites(ops, kernels)))


def _flatten(
    closed: core.ClosedJaxpr, ins: Sequence[Any], fresh: Iterator[_Slot], ops: list[_Op]
) -> list[Any]:
    """Appends the operations of a function to `ops`, and gives its results."""
    values = dict(zip(closed.jaxpr.invars, ins, strict=True))
    values |= dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else values[atom]

    for eqn in closed.jaxpr.eqns:
        ins = [read(atom) for atom in eqn.invars]
        if eqn.primitive.name in _NESTED and eqn.params['name'] not in _BETWEEN:
            outs = _flatten(eqn.params['jaxpr'], ins, fresh, ops)
        else:
            outs = [next(fresh) for _ in eqn.outvars]
            given = dict(_variables(eqn, ins))
            alone = closed.jaxpr.replace(
                constvars=[], invars=list(given), outvars=eqn.outvars, eqns=[eqn]
            )
            ops.append(_Op(eqn, alone, ins, outs))
        values |= dict(zip(eqn.outvars, outs, strict=True))
    return [read(atom) for atom in closed.jaxpr.outvars]


def _sites(ops: list[_Op], leaves: list[_Slot]) -> Iterator[Site]:
    uses: dict[_Slot, list[_Op]] = {}
    for op in ops:
        for slot in op.ins:
            if isinstance(slot, _Slot):
                uses.setdefault(slot, []).append(op)
    for leaf, slot in enumerate(leaves):
        between: tuple[_Op, ...] = ()
        while len(users := uses.get(slot, [])) == 1 and users[0].name in _BETWEEN:
            between += (users[0],)
            slot = users[0].outs[0]
        if len(users) == 1 and (site := _site(leaf, users[0], slot, between)) is not None:
            yield site


def _site(leaf: int, op: _Op, slot: _Slot, between: tuple[_Op, ...]) -> Site | None:
    position = op.ins.index(slot)
    standardized = any(step.name == 'oneshot_standardize_kernel' for step in between)
    if len(op.ins) != 2 or not isinstance(op.ins[1 - position], _Slot):
        return None
    shapes = [atom.aval.shape for atom in op.eqn.invars]
    if op.name == 'dot_general':
        contracted, batch = op.eqn.params['dimension_numbers']
        plain = batch == ((), ()) and len(shapes[position]) == 2
        inner = contracted[position] == ((0,) if position else (1,))
        fits = plain and inner and not standardized
        return Site(leaf, op, position, between, None) if fits else None
    small = standardized and op.eqn.invars[1].aval.size < _SMALLEST
    if position != 1 or op.eqn.invars[0].aval.shape[:1] != (1,) or small:
        return None
    if op.name == 'oneshot_conv' and not op.eqn.params['transposed']:
        return Site(leaf, op, position, between, op.eqn.params['window'])
    if op.name == 'conv_general_dilated':
        options = dict(op.eqn.params)
        strides, padding = options.pop('window_strides'), options.pop('padding')
        window = conv.find_window(*shapes, strides, padding, **options)
        return None if window is None else Site(leaf, op, position, between, window)
    return None


def ghost(loss_fn: LossFn, params: PyTree, example: PyTree) -> Strategy:
    """The strategy of this file. `example` is one example, or its shapes."""
    program = trace(loss_fn, params, example)
    leaves, tree = jax.tree.flatten(params)
    sites, rest = program.sites, program.rest
    kernels = [leaves[site.leaf] for site in sites]
    # Made once, not once a microbatch.
    operands = [site.operand(kernel) for site, kernel in zip(sites, kernels, strict=True)]
    at = {site.op.outs[0]: number for number, site in enumerate(sites)}
    hidden = {op.outs[0] for site in sites for op in site.between}

    def run(others: list[jax.Array], taps: list[jax.Array], example: PyTree):
        """The loss of one example with `taps` added to the outputs of the sites."""
        values = {program.leaves[i]: x for i, x in zip(rest, others, strict=True)}
        values |= dict(zip(program.inputs, jax.tree.leaves(example), strict=True))
        seen: list[Any] = [None] * len(sites)

        def read(place: Any) -> Any:
            return values[place] if isinstance(place, _Slot) else place

        for op in program.ops:
            first = op.outs[0] if op.outs else None  # jax.debug.print has no result
            if first in hidden:
                continue
            if first in at:
                number = at[first]
                site = sites[number]
                x = read(op.ins[1 - site.position])
                y = site.product(x, operands[number])
                seen[number] = x, y
                values[first] = y + taps[number]
            else:
                values |= dict(zip(op.outs, op(*map(read, op.ins)), strict=True))
        return read(program.loss), seen

    def gradients(examples: PyTree) -> Gradients:
        others = [leaves[i] for i in rest]
        taps = [jnp.zeros(site.output.shape, site.output.dtype) for site in sites]
        differentiate = jax.value_and_grad(run, argnums=(0, 1), has_aux=True)
        (losses, seen), (grads, deltas) = jax.vmap(differentiate, (None, None, 0))(
            others, taps, examples
        )
        found = [
            (*site.sides(x, delta), y)
            for site, (x, y), delta in zip(sites, seen, deltas, strict=True)
        ]
        made = [
            None if site.by_gram else site.grads(x, delta)
            for site, (x, delta, _) in zip(sites, found, strict=True)
        ]
        squares = square(grads) if grads else 0.0
        for site, kernel, (x, delta, y), v in zip(sites, kernels, found, made, strict=True):
            by_channel = site.squares(x, delta, v)
            if site.standardized:
                by_channel = site.destandardized(kernel, by_channel, x, y, delta)
            squares += jnp.sum(by_channel, axis=1)

        norms = jnp.sqrt(jnp.maximum(squares, 0.0))

        def weigh(scale: jax.Array, safe: bool) -> PyTree:
            def one(site: Site, x: jax.Array, delta: jax.Array, v: jax.Array | None) -> jax.Array:
                if v is not None:
                    return site.weighted(scale, v, safe)
                if safe:
                    x, delta = leave_out(scale, x), leave_out(scale, delta)
                return site.grad(x, scale.reshape(-1, *[1] * (delta.ndim - 1)) * delta)

            sums = [
                one(site, x, delta, v)
                for site, (x, delta, _), v in zip(sites, found, made, strict=True)
            ]
            return weighted_sum(scale, grads, safe), sums

        def total(scale: jax.Array) -> PyTree:
            # A gradient that is not finite is rare, and leaving it out takes time.
            branches = functools.partial(weigh, safe=False), functools.partial(weigh, safe=True)
            return jax.lax.cond(jnp.all(jnp.isfinite(norms)), *branches, scale)

        def along(direction: PyTree) -> jax.Array:
            others, coordinates = direction
            product = dot(grads, others) if grads else 0.0
            for site, (x, delta, _), d in zip(sites, found, coordinates, strict=True):
                if site.window is not None:
                    y = conv.forward(x, d, site.window)
                else:
                    y = jnp.einsum('ntd,pd->ntp', x, d)
                product += jnp.sum(y * delta, axis=tuple(range(1, y.ndim)))
            return product

        return Gradients(losses, norms, total, along)

    def coordinates(kernels: list[jax.Array]) -> list[jax.Array]:
        return [site.coordinates(kernel) for site, kernel in zip(sites, kernels, strict=True)]

    precisely = [kernel.astype(precise(kernel)) for kernel in kernels]

    def finish(total: PyTree) -> PyTree:
        others, sums = total
        (found,) = jax.vjp(coordinates, precisely)[1](sums)
        whole = dict(zip(rest, others, strict=True))
        whole |= {site.leaf: grad for site, grad in zip(sites, found, strict=True)}
        return tree.unflatten([whole[i] for i in range(len(leaves))])

    def prepare(direction: PyTree) -> PyTree:
        parts = jax.tree.leaves(direction)
        tangents = [
            parts[site.leaf].astype(kernel.dtype)
            for site, kernel in zip(sites, precisely, strict=True)
        ]
        along = jax.jvp(coordinates, (precisely,), (tangents,))[1]
        return [parts[i] for i in rest], along

    nothing = zeros([leaves[i] for i in rest]), zeros(jax.eval_shape(coordinates, precisely))
    return Strategy(gradients, nothing, finish, prepare)
