"""Our convolution against XLA's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from oneshot.dpsgd.gradients import cpu_conv
from oneshot.dpsgd.gradients.strategy import weighted_sum

LAYOUT = ('NHWC', 'HWIO', 'NHWC')

# (image, channels, features, kernel, stride, padding): all that the models use, and more.
CASES = [
    ((8, 8), 3, 16, 3, 1, 'SAME'),
    ((8, 8), 16, 64, 3, 1, 'SAME'),
    ((8, 8), 64, 64, 3, 1, 'SAME'),  # Winograd
    ((8, 8), 64, 128, 3, 2, 'SAME'),
    ((8, 8), 16, 64, 1, 1, 'SAME'),
    ((8, 8), 64, 128, 1, 2, 'SAME'),
    ((2, 4), 256, 5, 3, 1, 'SAME'),  # Winograd, one tile high
    ((9, 8), 33, 5, 3, 1, 'SAME'),
    ((8, 7), 33, 5, 3, 2, 'SAME'),
    ((8, 8), 40, 5, 3, 1, 'VALID'),
    ((11, 9), 4, 5, 5, 3, ((0, 3), (2, 1))),
]


def _case(image, channels, features, kernel, stride, padding):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, *image, channels)).astype(np.float32)
    w = rng.normal(size=(kernel, kernel, channels, features)) / kernel / np.sqrt(channels)

    def apply(function):
        return lambda x, w: function(x, w, (stride, stride), padding, dimension_numbers=LAYOUT)

    return x, w.astype(np.float32), apply(cpu_conv.conv_general_dilated), apply(_precise)


def _precise(x, w, *args, **options):
    return jax.lax.conv_general_dilated(x, w, *args, precision='highest', **options)


def _assert_close(ours, xla):
    for one, two in zip(jax.tree.leaves(ours), jax.tree.leaves(xla), strict=True):
        scale = np.max(np.abs(two))
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=5e-6 * scale)


@pytest.mark.parametrize('case', CASES, ids=str)
def test_value_and_derivatives_are_those_of_xla(case):
    x, w, ours, xla = _case(*case)

    def look(function):
        """Values, gradients of all and of each, and a directional derivative."""

        def loss(x, w):
            return jnp.sum(jnp.sin(function(x, w)) ** 2)

        @jax.jit
        def values(x, w):
            each = jax.vmap(lambda x: jax.grad(loss, 1)(x[None], w))(x)
            tangent = jax.jvp(function, (x, w), (x[::-1], w[::-1]))[1]
            return function(x, w), jax.grad(loss, (0, 1))(x, w), each, tangent

        return values(x, w)

    _assert_close(look(ours), look(xla))


def test_windows_that_take_winograd():
    def window(image, channels, features, kernel, stride, padding):
        shapes = (1, *image, channels), (kernel, kernel, channels, features)
        return cpu_conv.find_window(*shapes, (stride, stride), padding, dimension_numbers=LAYOUT)

    assert sum(window(*case).winograd for case in CASES) == 2


def test_a_kernel_for_each_example():
    x, w, ours, xla = _case((8, 8), 32, 6, 3, 1, 'SAME')
    kernels = np.stack([w, 2 * w, w[::-1]])
    _assert_close(
        jax.vmap(lambda x, w: ours(x[None], w))(x, kernels),
        jax.vmap(lambda x, w: xla(x[None], w))(x, kernels),
    )


@pytest.mark.parametrize(
    'options',
    [
        {'feature_group_count': 4},
        {'kernel_dilation': 2},
        {'input_dilation': 2, 'padding': 2},
        {'padding': 'CIRCULAR'},
        {'padding': 1},
        {'strides': (1, 2)},
        {},
    ],
)
def test_it_takes_the_place_of_the_convolution_of_nnx(options):
    """What it does not do itself, it leaves to XLA."""

    def layer(**more):
        return nnx.Conv(4, 8, (3, 3), rngs=nnx.Rngs(0), **options, **more)

    x = np.random.default_rng(0).normal(size=(6, 7, 4)).astype(np.float32)
    ours = layer(conv_general_dilated=cpu_conv.conv_general_dilated)
    np.testing.assert_allclose(ours(x), layer()(x), rtol=1e-4, atol=1e-5)


def test_other_convolutions_are_left_to_xla():
    shapes = (1, 8, 8, 4), (3, 3, 4, 8)
    assert cpu_conv.find_window(*shapes, (1, 1), 'SAME', dimension_numbers=LAYOUT) is not None
    for options in (
        {'lhs_dilation': (2, 1)},
        {'rhs_dilation': (1, 2)},
        {'feature_group_count': 2},
        {'batch_group_count': 2},
        {'dimension_numbers': ('NHWC', 'OIHW', 'NHWC')},
    ):
        options = {'dimension_numbers': LAYOUT} | options
        assert cpu_conv.find_window(*shapes, (1, 1), 'SAME', **options) is None


@pytest.mark.parametrize('case', CASES, ids=str)
def test_maps_are_transposes_of_each_other(case):
    image, channels, features, kernel, stride, padding = case
    shapes = (2, *image, channels), (kernel, kernel, channels, features)
    window = cpu_conv.find_window(*shapes, (stride, stride), padding, dimension_numbers=LAYOUT)
    rng = np.random.default_rng(1)
    x = rng.normal(size=shapes[0]).astype(np.float32)
    w = np.asarray(cpu_conv.oneshot_prepare_kernel(rng.normal(size=shapes[1]), window), np.float32)
    y = rng.normal(size=(2, *window.output, features)).astype(np.float32)
    left = float(jnp.vdot(cpu_conv.forward(x, w, window), y))
    size = float(np.linalg.norm(x) * np.linalg.norm(w) * np.linalg.norm(y))
    assert left == pytest.approx(
        float(jnp.vdot(x, cpu_conv.backward(y, w, window))), abs=1e-6 * size
    )
    factors = cpu_conv.spread(x, window), cpu_conv.gather_transpose(y, window)
    grad = np.stack(cpu_conv.kernel_grad(*factors))
    assert left == pytest.approx(float(jnp.vdot(grad, w)), abs=1e-6 * size)
    grads = cpu_conv.kernel_grads(*factors, images=2)
    scale = np.float32([0.5, 2.0])
    scaled = cpu_conv.gather_transpose(scale[:, None, None, None] * y, window)
    total = np.stack(cpu_conv.kernel_grad(factors[0], scaled))
    weighted = np.stack(weighted_sum(scale, grads, safe=False))
    np.testing.assert_allclose(weighted, total, rtol=1e-3, atol=1e-4 * np.abs(total).max())
    rows = cpu_conv.windows(x, window).reshape(2, -1, kernel * kernel * channels)
    np.testing.assert_allclose(
        cpu_conv.gram(x, window, 2), rows @ np.swapaxes(rows, 1, 2), rtol=1e-3, atol=1e-3
    )
    both = rows.reshape(-1, rows.shape[-1])  # the two images as those of one example
    np.testing.assert_allclose(cpu_conv.gram(x, window, 1)[0], both @ both.T, rtol=1e-3, atol=1e-3)
    pairs = zip(rows, y.reshape(2, rows.shape[1], features), strict=True)
    exact = [np.sum((one.T @ two) ** 2, axis=0) for one, two in pairs]
    np.testing.assert_allclose(cpu_conv.kernel_squares(grads, window), exact, rtol=1e-4)
