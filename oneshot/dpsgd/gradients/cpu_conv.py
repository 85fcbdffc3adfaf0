"""A convolution for CPU: patches and matrix products, in place of XLA's.

XLA's convolution is slow on CPU, and in a loop slower by another order of magnitude. Here a
convolution is a linear map of the images (`spread`), a matrix product with the kernel, and a
linear map to the output (`gather`):

- in general, the images are spread to their windows, and the product is the output;
- for 3×3 windows at stride 1 on images of even sides, the maps are those of Winograd's
  F(2×2, 3×3): tiles of 4×4 pixels and 16 products for 4 outputs, in place of 36 (Lavin
  and Gray, Fast Algorithms for Convolutional Neural Networks, 2015). The 16 parts, one for
  each pixel of the tiles, are never joined: XLA runs several products side by side, but has
  one thread for a product of many small matrices.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

Parts = Sequence[jax.Array] | jax.Array  # one for each product

# Winograd's F(2, 3), along each axis: the outputs are A[(G w) ∘ (B x)].
_B = np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]])
_G = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
_A = np.array([[1, 1, 1, 0], [0, 1, -1, -1]])

NORM_FLOOR = 1e-4  # of the squared norm that a kernel is divided by
# Below this, Winograd's additions cost more than the multiplications they save.
_WINOGRAD_CHANNELS = 32


class Window(NamedTuple):
    """How windows lie on images: all that is static about a convolution."""

    image: tuple[int, int]
    kernel: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[tuple[int, int], tuple[int, int]]
    channels: int

    @property
    def output(self) -> tuple[int, ...]:
        """How many windows there are, down and across."""
        axes = zip(self.image, self.kernel, self.strides, self.pads, strict=True)
        return tuple(
            (size + low + high - kernel) // stride + 1 for size, kernel, stride, (low, high) in axes
        )

    @property
    def winograd(self) -> bool:
        """Whether Winograd's tiles fit, and pay."""
        fits = self.kernel == (3, 3) and self.strides == (1, 1) and self.pads == ((1, 1), (1, 1))
        even = not any(size % 2 for size in self.image)
        return fits and even and self.channels >= _WINOGRAD_CHANNELS


def conv_general_dilated(
    lhs: jax.Array,
    rhs: jax.Array,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    **options: Any,
) -> jax.Array:
    """`jax.lax.conv_general_dilated` on images (N, H, W, C) and kernels (h, w, C, O).

    Options that our models do not use (dilation, groups, other layouts) are left to XLA.
    """
    window = find_window(lhs.shape, rhs.shape, window_strides, padding, **options)
    if window is None:
        return lax.conv_general_dilated(lhs, rhs, window_strides, padding, **options)
    return conv_p.bind(lhs, oneshot_prepare_kernel(rhs, window), window=window, transposed=False)


def find_window(
    images: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    *,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    **ignored: Any,
) -> Window | None:
    """The windows of a convolution, or None if it is not one of ours."""
    dilations = (*(lhs_dilation or ()), *(rhs_dilation or ()))
    layout = lax.ConvDimensionNumbers((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))
    factors = *dilations, feature_group_count, batch_group_count
    if len(images) != 4 or any(factor != 1 for factor in factors):
        return None
    if lax.conv_dimension_numbers(images, kernel, dimension_numbers) != layout:
        return None
    if isinstance(padding, str):
        padding = lax.padtype_to_pads(images[1:3], kernel[:2], strides, padding)
    pads = tuple((int(low), int(high)) for low, high in padding)
    return Window(tuple(images[1:3]), tuple(kernel[:2]), tuple(strides), pads, kernel[2])


@jax.jit
def oneshot_standardize_kernel(kernel: jax.Array) -> jax.Array:
    """Weight standardization: mean 0 and norm 1 for each output channel, the last axis."""
    exact = kernel.astype(jnp.float32)
    centred = exact - jnp.mean(exact, tuple(range(kernel.ndim - 1)))
    return (centred * lax.rsqrt(squared_norms(exact))).astype(kernel.dtype)


def squared_norms(kernel: jax.Array) -> jax.Array:
    """What standardization divides by: ‖w − mean‖² of each output channel, or its floor."""
    fan_in = kernel.size // kernel.shape[-1]
    return jnp.maximum(jnp.var(kernel, tuple(range(kernel.ndim - 1))) * fan_in, NORM_FLOOR)


@functools.partial(jax.jit, static_argnames='window')
def oneshot_prepare_kernel(kernel: jax.Array, window: Window) -> jax.Array:
    """The kernel as the right sides of the products: (1, h·w·C, O), or (16, C, O)."""
    return jnp.stack(prepare(kernel, window))


def prepare(kernel: jax.Array, window: Window) -> list[jax.Array]:
    """The parts of the prepared kernel."""
    if not window.winograd:
        return [kernel.reshape(-1, kernel.shape[-1])]
    rows = [[kernel[i, j] for j in range(3)] for i in range(3)]
    return [part for row in _transform(_G, rows) for part in row]


def forward(x: jax.Array, w: Parts, window: Window) -> jax.Array:
    """The convolution of images with a prepared kernel."""
    return gather([jnp.matmul(*pair) for pair in zip(spread(x, window), w, strict=True)], window)


def backward(y: jax.Array, w: Parts, window: Window) -> jax.Array:
    """The transpose of `forward` in the images."""
    pairs = zip(gather_transpose(y, window), w, strict=True)
    return spread_transpose([jnp.matmul(y, jnp.swapaxes(w, -1, -2)) for y, w in pairs], window)


def kernel_grad(x: Parts, y: Parts) -> list[jax.Array]:
    """The transpose of `forward` in the prepared kernel, from `spread` and `gather_transpose`."""
    pairs = ([a.reshape(-1, a.shape[-1]) for a in pair] for pair in zip(x, y, strict=True))
    # This order of the two is the fast one on CPU.
    return [jnp.einsum('to,tk->ok', y, x).T for x, y in pairs]


def kernel_grads(x: Parts, y: Parts, images: int) -> list[jax.Array]:
    """`kernel_grad` of each image: one of (N, h·w·C, O), or 16 of (N, C, O)."""
    pairs = ([a.reshape(images, -1, a.shape[-1]) for a in pair] for pair in zip(x, y, strict=True))
    return [jnp.einsum('ntk,nto->nko', x, y) for x, y in pairs]


def kernel_squares(grads: Parts, window: Window) -> jax.Array:
    """(N, O): the squares of what `kernel_grads` are for the kernel itself, summed."""
    entries = grads
    if window.winograd:
        entries = [entry for row in _transform(_G.T, _square(grads)) for entry in row]
    squares = sum(jnp.square(x) for x in entries)
    # As a product, because XLA's sums are slow on CPU.
    return jnp.einsum('k,nko->no', jnp.ones_like(squares[0, :, 0]), squares)


def gram(x: jax.Array, window: Window, examples: int) -> jax.Array:
    """(N, T, T): the inner products of an example's windows, in all its images."""
    if window.strides != (1, 1):
        rows = windows(x, window)
        rows = rows.reshape(examples, -1, rows.shape[-1])
        return jnp.einsum('ntk,nsk->nts', rows, rows)
    # Out of those of the pixels, which windows share.
    x = _pad(x, window.pads)
    x = x.reshape(examples, -1, *x.shape[1:])
    pixels, every = jnp.einsum('nkhwc,nlijc->nkhwlij', x, x), slice(None)
    products = sum(pixels[(every, every, *cut, every, *cut)] for cut in _cuts(window))
    return products.reshape(examples, -1, math.prod(products.shape[4:]))


def windows(x: jax.Array, window: Window) -> jax.Array:
    """The windows of images, flattened: (N, rows, columns, h·w·C)."""
    x = _pad(x, window.pads)
    return jnp.concatenate([x[(slice(None), *cut)] for cut in _cuts(window)], axis=-1)


def spread(x: jax.Array, window: Window) -> list[jax.Array]:
    """Images as the left sides of the products."""
    if not window.winograd:
        return [windows(x, window)]
    h, w = window.image
    x = _pad(x, window.pads)
    pixels = [[x[:, i : i + h - 1 : 2, j : j + w - 1 : 2] for j in range(4)] for i in range(4)]
    return _flat(_transform(_B, pixels))


def spread_transpose(parts: Parts, window: Window) -> jax.Array:
    """The transpose of `spread`."""
    if not window.winograd:
        (x,) = parts
        images = jax.ShapeDtypeStruct((x.shape[0], *window.image, window.channels), x.dtype)
        return jax.linear_transpose(lambda image: windows(image, window), images)(x)[0]
    h, w = window.image
    rows = [_overlap(_combine(_B.T, row), axis=2)[:, :, 1 : w + 1] for row in _tiles(parts, window)]
    return _overlap(_combine(_B.T, rows), axis=1)[:, 1 : h + 1]


def _overlap(tiles: Sequence[jax.Array], axis: int) -> jax.Array:
    """Adds up what the tiles say of a pixel: it is first or third of one, and of the next."""

    def shift(x: jax.Array, by: int) -> jax.Array:
        return jnp.pad(x, [(by, 1 - by) if i == axis else (0, 0) for i in range(x.ndim)])

    return _join([shift(tiles[p], 0) + shift(tiles[p + 2], 1) for p in (0, 1)], axis)


def _join(pixels: Sequence[jax.Array], axis: int) -> jax.Array:
    """Sets the pixels of tiles side by side: first, second, first, second …"""
    x = jnp.stack(pixels, axis=axis + 1)
    return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])


def gather(parts: Parts, window: Window) -> jax.Array:
    """The products as the output of the convolution."""
    if not window.winograd:
        return parts[0]
    rows = _transform(_A, _tiles(parts, window))
    return _join([_join(row, axis=2) for row in rows], axis=1)


def gather_transpose(y: jax.Array, window: Window) -> list[jax.Array]:
    """The transpose of `gather`."""
    if not window.winograd:
        return [y]
    return _flat(_transform(_A.T, [[y[:, p::2, q::2] for q in (0, 1)] for p in (0, 1)]))


def _flat(tiles: Sequence[Sequence[jax.Array]]) -> list[jax.Array]:
    """A pixel of all tiles in each part: (tiles, C)."""
    return [pixel.reshape(-1, pixel.shape[-1]) for row in tiles for pixel in row]


def _tiles(parts: Parts, window: Window) -> list[list[jax.Array]]:
    """`_flat`, undone: 4×4 of (N, h/2, w/2, C)."""
    h, w = window.image
    return _square([part.reshape(-1, h // 2, w // 2, part.shape[-1]) for part in parts])


def _square(parts: Parts) -> list[list[jax.Array]]:
    """The 16 parts, as they lie on a tile."""
    return [list(parts[i : i + 4]) for i in range(0, 16, 4)]


def _transform(matrix: np.ndarray, tiles: Sequence[Sequence[jax.Array]]) -> list[list[jax.Array]]:
    """matrix · tiles · matrixᵀ, for a square of arrays."""
    rows = [_combine(matrix, row) for row in tiles]
    return list(zip(*(_combine(matrix, column) for column in zip(*rows, strict=True)), strict=True))


def _combine(matrix: np.ndarray, arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """The product of a matrix with a vector of arrays, in additions."""

    def dot(row: np.ndarray) -> jax.Array:
        terms = [x if c == 1 else float(c) * x for c, x in zip(row, arrays, strict=True) if c]
        return sum(terms[1:], terms[0])

    return [dot(row) for row in matrix]


def _cuts(window: Window) -> list[tuple[slice, slice]]:
    """Where the first, second … pixels of all windows lie on the padded image."""

    def cut(axis: int, first: int) -> slice:
        stride = window.strides[axis]
        return slice(first, first + stride * (window.output[axis] - 1) + 1, stride)

    h, w = window.kernel
    return [(cut(0, i), cut(1, j)) for i in range(h) for j in range(w)]


def _pad(x: jax.Array, pads: Sequence[tuple[int, int]]) -> jax.Array:
    return jnp.pad(x, [(0, 0), *pads, (0, 0)])


# A primitive: bilinear, with the transposes above; under vmap, one batch of images.
conv_p = Primitive('oneshot_conv')


def _apply(x: jax.Array, w: jax.Array, *, window: Window, transposed: bool) -> jax.Array:
    return (backward if transposed else forward)(x, w, window)


def _abstract(x: Any, w: Any, **static: Any) -> Any:
    out = jax.eval_shape(functools.partial(_apply, **static), x, w)
    return jax.core.ShapedArray(out.shape, out.dtype)


def _transpose_images(ct: Any, x: Any, w: Any, *, window: Window, transposed: bool) -> jax.Array:
    return conv_p.bind(ct, w, window=window, transposed=not transposed)


def _transpose_kernel(ct: Any, x: Any, w: Any, *, window: Window, transposed: bool) -> jax.Array:
    x, y = (ct, x) if transposed else (x, ct)
    return jnp.stack(kernel_grad(spread(x, window), gather_transpose(y, window)))


def _batch(arrays: Sequence[jax.Array], axes: Sequence[int | None], **static: Any) -> Any:
    (x, w), (x_axis, w_axis) = arrays, axes
    if w_axis is not None:  # a kernel for each example has nothing to share
        return jax.vmap(functools.partial(_apply, **static), axes)(x, w), 0
    x = jnp.moveaxis(x, x_axis, 0)
    out = conv_p.bind(x.reshape(-1, *x.shape[2:]), w, **static)
    return out.reshape(*x.shape[:2], *out.shape[1:]), 0


conv_p.def_impl(jax.jit(_apply, static_argnames=('window', 'transposed')))
conv_p.def_abstract_eval(_abstract)
ad.defbilinear(conv_p, _transpose_images, _transpose_kernel)
batching.primitive_batchers[conv_p] = _batch
mlir.register_lowering(conv_p, mlir.lower_fun(_apply, multiple_results=False))
