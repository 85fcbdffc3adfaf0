"""The models, in Flax NNX, split into a loss of one example and its parameters."""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from oneshot import inputs

inputs.require('run', 'jax', 'optax', 'flax')

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from oneshot.dpsgd.gradients import cpu_conv
from oneshot.dpsgd.gradients.cpu_conv import oneshot_standardize_kernel

PyTree = Any
Convolution = Callable[..., jax.Array]
MODELS = ('mlp', 'cnn', 'wrn')
CONVS = ('auto', 'patches', 'xla')
DTYPES = ('float32', 'bfloat16')


def make(
    name: str,
    image: Sequence[int],
    classes: int,
    rngs: nnx.Rngs,
    *,
    hidden: Sequence[int] = (128,),
    widths: Sequence[Sequence[int]] = ((32, 32), (64, 64), (128,)),
    stride: int = 1,
    conv: str = 'auto',
    dtype: str = 'float32',
) -> nnx.Module:
    """A model by name.

    Args:
        name: 'mlp', 'cnn' or 'wrn' (WRN-16-4).
        image: the shape of an image, (height, width) or (height, width, channels).
        classes: the number of logits.
        rngs: for the initial parameters.
        hidden: the sizes of the MLP's hidden layers.
        widths: the channels of the CNN's convolutions, from pool to pool.
        stride: of the CNN's first convolution; 2 halves the sides of the image at once.
        conv: 'patches', 'xla', or 'auto' for the one that suits the backend.
        dtype: what is computed in, 'float32' or 'bfloat16'. Parameters are float32.
    """
    inputs.choice('The model', name, MODELS)
    inputs.choice('The dtype', dtype, DTYPES)
    convolution = find_conv(conv)
    height, width, channels = (*image, 1)[:3]
    if name == 'mlp':
        return MLP((height * width * channels, *hidden, classes), dtype=dtype, rngs=rngs)
    multiple = stride * 2 ** len(widths) if name == 'cnn' else 8
    if height % multiple or width % multiple:
        raise ValueError(
            f'The sides of images must be multiples of {multiple} for the model {name!r}, '
            f'but {height}×{width} was given.'
        )
    options = {'conv': convolution, 'dtype': dtype, 'rngs': rngs}
    if name == 'cnn':
        return CNN((height, width, channels), widths, stride, classes, **options)
    return WideResNet(channels, classes, **options)


@functools.lru_cache(maxsize=64)
def shapes(name: str, image: tuple[int, ...], classes: int, **options: Any) -> PyTree:
    """The shapes of the parameters of `make(name, image, classes, …)`, which are not made."""
    model = nnx.eval_shape(lambda: make(name, image, classes, nnx.Rngs(0), **options))
    return split(model)[1]


def find_conv(name: str, backend: str | None = None) -> Convolution:
    """The convolution by name; 'auto' is ours on CPU, and XLA's on GPU and TPU."""
    inputs.choice('The convolution', name, CONVS)
    if name == 'auto':
        backend = jax.default_backend() if backend is None else backend
        name = 'patches' if backend == 'cpu' else 'xla'
    return cpu_conv.conv_general_dilated if name == 'patches' else jax.lax.conv_general_dilated


class MLP(nnx.Module):
    """Dense layers with tanh between them."""

    def __init__(self, sizes: Sequence[int], **options: Any) -> None:
        pairs = itertools.pairwise(sizes)
        self.layers = nnx.List([nnx.Linear(*pair, **options) for pair in pairs])

    def __call__(self, image: jax.Array) -> jax.Array:
        """Logits of one image."""
        x = image.reshape(-1)
        for layer in self.layers[:-1]:
            x = jnp.tanh(layer(x))
        return self.layers[-1](x)


class CNN(nnx.Module):
    """3×3 convolutions with tanh and average pools, then two dense layers.

    With five convolutions, of 32, 32 · 64, 64 · 128 channels, 402,986 parameters for images
    of 32×32×3 and ten classes (Papernot et al., Tempered Sigmoid Activations for Deep
    Learning with Differential Privacy, 2020, with one convolution less).
    """

    def __init__(
        self,
        image: tuple[int, int, int],
        widths: Sequence[Sequence[int]],
        stride: int,
        classes: int,
        *,
        conv: Convolution = jax.lax.conv_general_dilated,
        **options: Any,
    ) -> None:
        height, width, channels = image
        channels = (channels, *itertools.chain(*widths))
        strides = (stride, *[1] * (len(channels) - 2))
        self.convs = nnx.List(
            [
                nnx.Conv(a, b, (3, 3), strides=s, conv_general_dilated=conv, **options)
                for (a, b), s in zip(itertools.pairwise(channels), strides, strict=True)
            ]
        )
        # The number of convolutions before each pool.
        self.pooled = tuple(itertools.accumulate(map(len, widths)))
        pixels = height * width // stride**2 // 4 ** len(widths)
        self.hidden = nnx.Linear(pixels * widths[-1][-1], 128, **options)
        self.logits = nnx.Linear(128, classes, **options)

    def __call__(self, image: jax.Array) -> jax.Array:
        """Logits of one image."""
        x = image.reshape(*image.shape[:2], -1)
        for number, layer in enumerate(self.convs, start=1):
            x = jnp.tanh(layer(x))
            if number in self.pooled:
                x = nnx.avg_pool(x, (2, 2), (2, 2))
        return self.logits(jnp.tanh(self.hidden(x.reshape(-1))))


class WSConv(nnx.Conv):
    """A convolution without bias, its kernel standardized (Qiao et al. 2019)."""

    def __init__(
        self, inputs: int, outputs: int, size: int, stride: int, conv: Convolution, **options: Any
    ) -> None:
        def standardized(lhs: jax.Array, rhs: jax.Array, *args: Any, **options: Any) -> jax.Array:
            return conv(lhs, oneshot_standardize_kernel(rhs), *args, **options)

        options |= {'use_bias': False, 'conv_general_dilated': standardized}
        super().__init__(inputs, outputs, (size, size), (stride, stride), **options)


def _norm(features: int, rngs: nnx.Rngs) -> nnx.GroupNorm:
    return nnx.GroupNorm(features, 16, epsilon=1e-5, rngs=rngs)  # statistics in float32


class Block(nnx.Module):
    """Two times relu, norm, convolution, and the shortcut around them."""

    def __init__(self, inputs: int, outputs: int, stride: int, **options: Any) -> None:
        self.norms = nnx.List([_norm(n, options['rngs']) for n in (inputs, outputs)])
        self.first = WSConv(inputs, outputs, 3, stride, **options)
        self.second = WSConv(outputs, outputs, 3, 1, **options)
        same = inputs == outputs and stride == 1
        self.shortcut = nnx.data(None) if same else WSConv(inputs, outputs, 1, stride, **options)

    def __call__(self, x: jax.Array) -> jax.Array:
        """(1, H, W, inputs) to (1, H/stride, W/stride, outputs)."""
        h = self.norms[0](jax.nn.relu(x))
        shortcut = x if self.shortcut is None else self.shortcut(h)
        h = self.norms[1](jax.nn.relu(self.first(h)))
        return shortcut + self.second(h)


class WideResNet(nnx.Module):
    """WRN-16-4 for private training: group norms, standardized kernels, no batch norm.

    De et al., Unlocking High-Accuracy Differentially Private Image Classification through
    Scale (2022): norms of 16 groups come after the activations. The parameters are those
    of Zagoruyko and Komodakis (2016), 2,748,890 for CIFAR-10: kernels have neither bias
    nor gain, and a shortcut shares the norm of its block.
    """

    def __init__(
        self, channels: int, classes: int, rngs: nnx.Rngs, *, depth: int = 16, **options: Any
    ) -> None:
        options = {'conv': jax.lax.conv_general_dilated, 'dtype': 'float32', 'rngs': rngs} | options
        self.first = WSConv(channels, 16, 3, 1, **options)
        blocks, inputs = [], 16
        for stage in range(3):
            for number in range((depth - 4) // 6):
                outputs, stride = 64 * 2**stage, 2 if stage and not number else 1
                blocks.append(Block(inputs, outputs, stride, **options))
                inputs = outputs
        self.blocks = nnx.List(blocks)
        self.norm = _norm(inputs, rngs)
        self.logits = nnx.Linear(inputs, classes, rngs=rngs)

    def __call__(self, image: jax.Array) -> jax.Array:
        """Logits of one image."""
        x = self.first(image.reshape(1, *image.shape[:2], -1))
        for block in self.blocks:
            x = block(x)
        x = self.norm(jax.nn.relu(x))
        return self.logits(jnp.mean(x, axis=(0, 1, 2)))


def split(model: nnx.Module) -> tuple[Callable[[PyTree, jax.Array], jax.Array], PyTree]:
    """(apply, params): a pure function of the parameters, at the border of NNX."""
    graph, params = nnx.split(model, nnx.Param)
    return lambda params, image: nnx.merge(graph, params)(image), params


def cross_entropy(apply: Callable[[PyTree, jax.Array], jax.Array]) -> Callable[..., jax.Array]:
    """loss_fn(params, (image, label)) of one example, in float32."""

    def loss_fn(params: PyTree, example: tuple[jax.Array, jax.Array]) -> jax.Array:
        image, label = example
        logits = apply(params, image).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, label)

    return loss_fn
