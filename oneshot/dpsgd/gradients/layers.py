"""Sites: the parameters of a loss that are the kernel of one product.

For a layer y = x·w the gradient of one example is v = xᵀδ, with δ the derivative of its loss in
y. So ‖v‖² = ⟨x xᵀ, δ δᵀ⟩, Σ_i s_i v_i is one matrix product, and ⟨d, v⟩ = ⟨x·d, δ⟩: x and δ are
enough ("ghost norms", Goodfellow 2015, Li et al. 2022). Where v itself is cheaper than x xᵀ, it
is made for one layer and microbatch at a time (Bu et al. 2022).
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from oneshot.dpsgd.gradients import cpu_conv
from oneshot.dpsgd.gradients.strategy import at_least_float32, full_precision, per_example
from oneshot.dpsgd.gradients.traced_loss import KERNEL_FUNCTIONS, Op, Program, Slot

PyTree = Any

# What may stand between a parameter and the product that it is the kernel of.
_BETWEEN = ('convert_element_type', *KERNEL_FUNCTIONS)
# Where terms cancel further than this, rounding would decide: the norm is then taken as longer.
_CANCELLED = 2.0**-13
_SMALLEST = 2**11  # entries; a smaller standardized kernel is left to vmap, at no cost
_ENTRY_COST = 64  # multiply-adds that cost as much as to write and read a gradient's entry


class Site(NamedTuple):
    """A parameter that is the kernel of one product, and the product."""

    leaf: int  # which parameter
    kernel: tuple[int, ...]  # its shape
    op: Op
    position: int  # of the kernel among the two operands
    between: tuple[Op, ...]  # from the parameter to the kernel
    window: cpu_conv.Window | None  # of a convolution

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
            d, p = self.kernel[:: 1 if self.position else -1]
            positions = self.output.size // p
            return positions**2 * (d + p) <= _ENTRY_COST * d * p
        *area, channels, features = self.kernel
        positions, area = self.output.size // features, math.prod(area)
        inner = channels + area if self.window.strides == (1, 1) else channels * area
        work = positions**2 * (inner + features)
        return work <= _ENTRY_COST * area * channels * features

    @property
    def width(self) -> int:
        """How many values x and y have, for one example."""
        return self.op.eqn.invars[1 - self.position].aval.size + self.output.size

    def coordinates(self, leaf: jax.Array) -> list[jax.Array]:
        """What v is the gradient in: the parameter as it enters the products, precisely."""
        kernel = leaf.astype(at_least_float32(leaf))
        kernel = cpu_conv.oneshot_standardize_kernel(kernel) if self.standardized else kernel
        if self.window is not None:
            return cpu_conv.prepare(kernel, self.window)
        return [kernel.T if self.position else kernel]  # (p, d), the fast order on CPU

    def operand(self, leaf: jax.Array) -> jax.Array:
        """The parameter as the operand of the product."""
        for op in self.between:
            (leaf,) = op(leaf)
        return leaf

    def product(self, x: jax.Array, operand: jax.Array) -> jax.Array:
        """y of one example."""
        return self.op(*((x, operand) if self.position else (operand, x)))[0]

    def sides(self, x: jax.Array, delta: jax.Array) -> tuple[jax.Array, jax.Array]:
        """x and δ of many examples in float32: images, (N, positions, d) or (N, d)."""
        x, delta = x.astype(at_least_float32(x)), delta.astype(at_least_float32(delta))
        if self.window is not None:
            return _images(x), _images(delta)
        if x.ndim == 2:
            return x, delta
        contracted = self.op.eqn.params['dimension_numbers'][0][1 - self.position][0]
        x = jnp.moveaxis(x, 1 + contracted, -1)
        x = x.reshape(x.shape[0], -1, x.shape[-1])
        if self.position:
            return x, delta.reshape(*x.shape[:2], -1)
        return x, jnp.swapaxes(delta.reshape(x.shape[0], -1, x.shape[1]), 1, 2)

    def factors(self, x: jax.Array, delta: jax.Array) -> tuple[list[jax.Array], list[jax.Array]]:
        """What v is the product of, in parts, as the passes have made it.

        Of XLA's convolution, the images: spread, those of all layers would take too much memory.
        """
        if self.op.name != 'oneshot_conv':
            return [x], [delta]
        return cpu_conv.spread(x, self.window), cpu_conv.gather_transpose(delta, self.window)

    def _spread(
        self, x: cpu_conv.Parts, delta: cpu_conv.Parts
    ) -> tuple[cpu_conv.Parts, cpu_conv.Parts]:
        """The factors of a convolution, also where they are still images."""
        if self.op.name == 'oneshot_conv':
            return x, delta
        return cpu_conv.spread(*x, self.window), cpu_conv.gather_transpose(*delta, self.window)

    @full_precision
    def grads(self, x: cpu_conv.Parts, delta: cpu_conv.Parts, examples: int) -> list[jax.Array]:
        """v of each example, from the factors."""
        if self.window is None:
            return [jnp.einsum('ntp,ntd->npd', *delta, *x)]
        return cpu_conv.kernel_grads(*self._spread(x, delta), examples)

    @full_precision
    def grad(self, scale: jax.Array, x: cpu_conv.Parts, delta: cpu_conv.Parts) -> list[jax.Array]:
        """Σ of scale·v, from the factors."""
        delta = [per_example(scale, part) * part for part in delta]
        if self.window is None:
            axes = tuple(range(x[0].ndim - 1))
            return [jnp.tensordot(*delta, *x, axes=(axes, axes))]
        return cpu_conv.kernel_grad(*self._spread(x, delta))

    @full_precision
    def squares(
        self, x: jax.Array, delta: jax.Array, grads: cpu_conv.Parts | None, examples: int
    ) -> jax.Array:
        """(N, features): ‖v‖² of each example, by output channel."""
        if grads is not None and self.window is not None:
            return cpu_conv.kernel_squares(grads, self.window)
        if grads is not None:
            return jnp.sum(jnp.square(grads[0]), axis=2)
        if x.ndim == 2:
            return jnp.sum(jnp.square(x), axis=1)[:, None] * jnp.square(delta)
        if self.window is None:
            products = jnp.einsum('ntd,nsd->nts', x, x)
        else:
            products = cpu_conv.gram(x, self.window, examples)
        delta = delta.reshape(examples, -1, delta.shape[-1])
        apart = jnp.einsum('ntt,ntp->np', products, jnp.square(delta))
        together = jnp.sum(delta * jnp.einsum('nts,nsp->ntp', products, delta), axis=1)
        return jnp.maximum(together, _CANCELLED * apart)

    @full_precision
    def along(
        self, x: jax.Array, delta: jax.Array, direction: cpu_conv.Parts, examples: int
    ) -> jax.Array:
        """⟨direction, v⟩ = ⟨x·direction, δ⟩ of each example."""
        if self.window is None:
            y = x @ direction[0].T
        else:
            y = cpu_conv.forward(x, direction, self.window)
        return jnp.sum((y * delta).reshape(examples, -1), axis=1)

    def destandardized(
        self, leaf: jax.Array, squares: jax.Array, x: jax.Array, y: jax.Array, delta: jax.Array
    ) -> jax.Array:
        """‖Jᵀv‖² out of ‖v‖², with J the derivative of the standardization.

        With n the fan-in and ŵ the standardized kernel of a channel, of norm 1, Jᵀ takes
        the mean and the part along ŵ away from v and scales by a = 1/‖w − mean‖:
        ‖Jᵀv‖² = a²(‖v‖² − n·mean(v)² − ⟨ŵ, v⟩²). Both inner products are sums over δ:
        ⟨ŵ, v⟩ = ⟨y, δ⟩, and n·mean(v) = ⟨x·1, δ⟩.
        """
        leaf = leaf.astype(at_least_float32(leaf))
        squared = cpu_conv.squared_norms(leaf)
        window = self.window._replace(channels=1)
        ones = jnp.sum(cpu_conv.windows(jnp.sum(x, -1, keepdims=True), window), -1, keepdims=True)
        mean = self._by_channel(ones * delta, len(squares))
        along = self._by_channel(_images(y).astype(delta.dtype) * delta, len(squares))
        # At the limit, a is a constant.
        along = jnp.where(squared > cpu_conv.NORM_FLOOR, along, 0.0)
        fan_in = leaf.size // leaf.shape[-1]
        less = squares - jnp.square(mean) / fan_in - jnp.square(along)
        return jnp.maximum(less, _CANCELLED * squares) / squared

    @staticmethod
    def _by_channel(images: jax.Array, examples: int) -> jax.Array:
        """(N, features): the sums over the images of each example."""
        return jnp.sum(images.reshape(examples, -1, images.shape[-1]), axis=1)


def _images(x: jax.Array) -> jax.Array:
    """All images of all examples in a row."""
    return x.reshape(-1, *x.shape[2:])


def find_sites(program: Program, params: PyTree) -> Iterator[Site]:
    """The sites of a loss, in the order of the parameters."""
    users = program.users()
    for leaf, (slot, x) in enumerate(zip(program.leaves, jax.tree.leaves(params), strict=True)):
        between: tuple[Op, ...] = ()
        while len(ops := users.get(slot, [])) == 1 and ops[0].name in _BETWEEN:
            between += (ops[0],)
            slot = ops[0].outs[0]
        if len(ops) == 1 and slot in ops[0].ins:
            site = Site(leaf, x.shape, ops[0], ops[0].ins.index(slot), between, None)
            yield from _accept(site)


def _accept(site: Site) -> Iterator[Site]:
    """The site with its window, if its product is one that is known here."""
    op, position = site.op, site.position
    if len(op.ins) != 2 or not isinstance(op.ins[1 - position], Slot):
        return
    shapes = [atom.aval.shape for atom in op.eqn.invars]
    if op.name == 'dot_general':
        contracted, batch = op.eqn.params['dimension_numbers']
        plain = batch == ((), ()) and len(shapes[position]) == 2
        if plain and contracted[position] == ((0,) if position else (1,)) and not site.standardized:
            yield site
        return
    if position != 1 or (site.standardized and math.prod(site.kernel) < _SMALLEST):
        return
    window = None
    if op.name == 'oneshot_conv' and not op.eqn.params['transposed']:
        window = op.eqn.params['window']
    if op.name == 'conv_general_dilated':
        options = dict(op.eqn.params)
        strides, padding = options.pop('window_strides'), options.pop('padding')
        window = cpu_conv.find_window(*shapes, strides, padding, **options)
    if window is not None:
        yield site._replace(window=window)
