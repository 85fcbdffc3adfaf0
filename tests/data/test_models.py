"""The models against the same formulas in NumPy, float64."""

import jax
import numpy as np
import optax
import pytest
from flax import nnx

from oneshot.data import models
from oneshot.dpsgd.gradients import cpu_conv


def _pure(params):
    return jax.tree.map(lambda x: np.asarray(x, np.float64), nnx.to_pure_dict(params))


def _conv(x, kernel, stride=1):
    """One image (H, W, C), padded as SAME is, by the definition of a convolution."""
    size = kernel.shape[0]
    pads = []
    for length in x.shape[:2]:
        total = max((-(-length // stride) - 1) * stride + size - length, 0)
        pads.append((total // 2, total - total // 2))
    x = np.pad(x, [*pads, (0, 0)])
    windows = np.lib.stride_tricks.sliding_window_view(x, (size, size), (0, 1))
    return np.einsum('hwcij,ijco->hwo', windows[::stride, ::stride], kernel)


def _standardize(kernel):
    flat = kernel.reshape(-1, kernel.shape[-1])
    flat = (flat - flat.mean(0)) / np.sqrt(flat.var(0) * len(flat))
    return flat.reshape(kernel.shape)


def _group_norm(x, norm, groups=16):
    parts = x.reshape(*x.shape[:2], groups, -1)
    mean, var = (f(parts, axis=(0, 1, 3), keepdims=True) for f in (np.mean, np.var))
    normal = ((parts - mean) / np.sqrt(var + 1e-5)).reshape(x.shape)
    return normal * norm['scale'] + norm['bias']


def _block(x, block, stride):
    h = _group_norm(np.maximum(x, 0), block['norms'][0])
    shortcut = x
    if 'shortcut' in block:
        shortcut = _conv(h, _standardize(block['shortcut']['kernel']), stride)
    h = _conv(h, _standardize(block['first']['kernel']), stride)
    h = _group_norm(np.maximum(h, 0), block['norms'][1])
    return shortcut + _conv(h, _standardize(block['second']['kernel']))


def _moved(params):
    """Away from the initial point, where biases are 0 and scales are 1."""
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    pairs = zip(leaves, keys, strict=True)
    return tree.unflatten([x + 0.1 * jax.random.normal(key, x.shape) for x, key in pairs])


def test_mlp_is_the_formula():
    apply, params = models.split(models.MLP((6, 5, 4, 3), rngs=nnx.Rngs(jax.random.key(0))))
    image = np.random.default_rng(0).random((2, 3)).astype(np.float32)
    x = image.reshape(-1)
    layers = nnx.to_pure_dict(params)['layers']
    for i in range(3):
        x = x @ np.asarray(layers[i]['kernel']) + np.asarray(layers[i]['bias'])
        x = np.tanh(x) if i < 2 else x
    np.testing.assert_allclose(apply(params, image), x, rtol=1e-5)
    loss = models.cross_entropy(apply)(params, (image, 1))
    np.testing.assert_allclose(loss, np.log(np.exp(x).sum()) - x[1], rtol=1e-5)


def test_parameters_are_a_plain_pytree():
    """Per-example gradients and optax take them as they are."""
    apply, params = models.split(models.MLP((64, 128, 10), rngs=nnx.Rngs(jax.random.key(0))))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 64 * 128 + 128 + 128 * 10 + 10
    batch = np.zeros((3, 8, 8), np.float32), np.arange(3)
    grads = jax.vmap(jax.grad(models.cross_entropy(apply)), (None, 0))(params, batch)
    assert all(leaf.shape[0] == 3 for leaf in jax.tree.leaves(grads))
    optimizer = optax.sgd(0.1)
    updates, _ = optimizer.update(params, optimizer.init(params), params)
    optax.apply_updates(params, updates)


@pytest.mark.parametrize(
    ('name', 'count'),
    [
        ('mlp', 197_322),
        ('cnn', 402_986),
        ('wrn', 2_748_890),
    ],  # the last is WRN-16-4's published count
)
def test_parameter_counts(name, count):
    model = models.make(name, (32, 32, 3), 10, nnx.Rngs(0), hidden=(64,))
    assert sum(leaf.size for leaf in jax.tree.leaves(models.split(model)[1])) == count


@pytest.mark.parametrize('name', ['patches', 'xla'])
@pytest.mark.parametrize('stride', [1, 2])
def test_cnn_is_the_formula(name, stride):
    model = models.make('cnn', (16, 16, 3), 10, nnx.Rngs(0), conv=name, stride=stride)
    apply, params = models.split(model)
    params = _moved(params)
    image = np.random.default_rng(0).random((16, 16, 3)).astype(np.float32)
    w, x = _pure(params), np.asarray(image, np.float64)
    for i in range(5):
        kernel, bias = w['convs'][i]['kernel'], w['convs'][i]['bias']
        x = np.tanh(_conv(x, kernel, 1 if i else stride) + bias)
        if i in (1, 3, 4):
            h, v, c = x.shape
            x = x.reshape(h // 2, 2, v // 2, 2, c).mean(axis=(1, 3))
    x = np.tanh(x.reshape(-1) @ w['hidden']['kernel'] + w['hidden']['bias'])
    x = x @ w['logits']['kernel'] + w['logits']['bias']
    np.testing.assert_allclose(jax.jit(apply)(params, image), x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('name', ['patches', 'xla'])
def test_wide_resnet_is_the_formula_block_by_block(name):
    model = models.make('wrn', (16, 16, 3), 10, nnx.Rngs(0), conv=name)
    graph, params = nnx.split(model, nnx.Param)
    params = _moved(params)
    w = _pure(params)

    @jax.jit
    def stages(params, image):
        model = nnx.merge(graph, params)
        seen = [model.first(image[None])]
        for block in model.blocks:
            seen.append(block(seen[-1]))
        return seen, model(image)

    image = np.random.default_rng(0).random((16, 16, 3)).astype(np.float32)
    seen, logits = stages(params, image)
    x = _conv(np.asarray(image, np.float64), _standardize(w['first']['kernel']))
    np.testing.assert_allclose(seen[0][0], x, rtol=1e-4, atol=1e-5)
    strides = (1, 1, 2, 1, 2, 1)
    widths = (64, 64, 128, 128, 256, 256)
    for i, (stride, width) in enumerate(zip(strides, widths, strict=True)):
        x = _block(x, w['blocks'][i], stride)
        assert x.shape[-1] == width
        np.testing.assert_allclose(seen[i + 1][0], x, rtol=1e-3, atol=1e-4)
    x = _group_norm(np.maximum(x, 0), w['norm']).mean(axis=(0, 1))
    x = x @ w['logits']['kernel'] + w['logits']['bias']
    np.testing.assert_allclose(logits, x, rtol=1e-3, atol=1e-4)


def test_the_convolution_is_chosen_by_backend():
    ours, xla = cpu_conv.conv_general_dilated, jax.lax.conv_general_dilated
    assert models.find_conv('auto', 'cpu') is ours
    assert models.find_conv('auto', 'gpu') is models.find_conv('auto', 'tpu') is xla
    assert models.find_conv('patches', 'gpu') is ours
    assert models.find_conv('xla', 'cpu') is xla


def test_bad_input():
    for changes, message in (
        ({'name': 'vgg'}, r"model must be one of mlp, cnn, wrn.* 'vgg'"),
        ({'conv': 'fft'}, r"convolution must be one of auto, patches, xla.* 'fft'"),
        ({'dtype': 'int8'}, r"dtype must be one of float32, bfloat16.* 'int8'"),
        ({'image': (28, 28)}, 'multiples of 8 .* 28×28 was given'),
    ):
        options = {'name': 'cnn', 'image': (8, 8), 'classes': 3, 'rngs': nnx.Rngs(0)} | changes
        with pytest.raises(ValueError, match=message):
            models.make(**options)
