"""The ghost strategy against vmap: the same norms, sums and inner products."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from oneshot import dpsgd
from oneshot.data import augmentation, models
from oneshot.dpsgd import clipping
from oneshot.dpsgd.clipping import Clipping
from oneshot.dpsgd.gradients import layers, traced_loss

pytestmark = pytest.mark.usefixtures('quick_compilation')


def _model(name, **options):
    """Our models, the residual network with one block a stage: it compiles faster."""
    if name == 'wrn':
        convolution = models.find_conv(options.get('conv', 'auto'))
        model = models.WideResNet(3, 10, nnx.Rngs(0), depth=10, conv=convolution)
    else:
        model = models.make(name, (16, 16, 3), 10, nnx.Rngs(0), hidden=(32,), **options)
    apply, params = models.split(model)
    # Away from the initial point, where biases are 0 and scales are 1.
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    moved = [x + 0.1 * jax.random.normal(key, x.shape) for x, key in zip(leaves, keys, strict=True)]
    return models.cross_entropy(apply), tree.unflatten(moved)


def _sites(loss_fn, params, example):
    return list(layers.find_sites(traced_loss.trace(loss_fn, params, example), params))


def _alone(loss_fn, params, batch, clip_norm):
    """The norm of the clipped gradient of each example, summed without the others."""
    clip = {'clip_norm': clip_norm, 'microbatch_size': 4, 'strategy': 'ghost'}
    total = jax.jit(lambda mask: dpsgd.clipped_grad_sum(loss_fn, params, batch, mask, **clip)[0])
    return [_norm(total(mask)) for mask in np.eye(len(batch[1]), dtype=bool)]


def _images(n, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 16, 16, 3)).astype(np.float32), rng.integers(0, 10, n)


def _norm(tree):
    return np.sqrt(sum(np.sum(np.square(np.asarray(x, np.float64))) for x in jax.tree.leaves(tree)))


def _differences(loss_fn, params, batch, directions=(), clip_norm=0.5):
    """Relative differences between the strategies: of the norms, the sum, the products."""

    @functools.partial(jax.jit, static_argnums=0)
    def look(name, batch, directions):
        strategy = Clipping(clip_norm, 4, name).strategy_for(loss_fn, params, batch)
        gradients = strategy.gradients(batch, jnp.ones(len(jax.tree.leaves(batch)[0]), bool))
        scale = jnp.minimum(1.0, clip_norm / gradients.norms)
        dots = [gradients.dot(strategy.prepare(d)) for d in directions]
        return gradients.losses, gradients.norms, strategy.finish(gradients.sum(scale)), dots

    one, two = (look(name, batch, directions) for name in ('vmap', 'ghost'))
    np.testing.assert_allclose(one[0], two[0], rtol=1e-5, atol=1e-6)
    assert jax.tree.structure(one[2]) == jax.tree.structure(two[2]) == jax.tree.structure(params)
    largest = 0.0
    for a, b in zip(one[3], two[3], strict=True):
        largest = max(largest, float(np.max(np.abs(a - b)) / np.max(np.abs(a))))
    return {
        'norms': float(np.max(np.abs(one[1] / two[1] - 1))),
        'sum': _norm(jax.tree.map(jnp.subtract, one[2], two[2])) / _norm(one[2]),
        'dots': largest,
    }


def _directions(params, number=2):
    leaves, tree = jax.tree.flatten(params)
    return [
        tree.unflatten(
            [
                jax.random.normal(key, x.shape)
                for key, x in zip(
                    jax.random.split(jax.random.key(i), len(leaves)), leaves, strict=True
                )
            ]
        )
        for i in range(number)
    ]


@pytest.mark.parametrize(
    ('name', 'convolution'),
    [('mlp', 'auto'), ('cnn', 'patches'), ('cnn', 'xla'), ('wrn', 'patches'), ('wrn', 'xla')],
)
def test_ghost_gives_what_vmap_gives_for_our_models(name, convolution):
    loss_fn, params = _model(name, conv=convolution)
    if name == 'wrn':  # one kernel has no variance at all, which standardization divides by

        def flat(path, leaf):
            constant = "'blocks'][1]['first']" in jax.tree_util.keystr(path)
            return jnp.full_like(leaf, 0.3) if constant else leaf

        params = jax.tree_util.tree_map_with_path(flat, params)
        assert any(float(jnp.ptp(leaf)) == 0 for leaf in jax.tree.leaves(params))
    found = _differences(loss_fn, params, _images(5), _directions(params))
    assert max(found.values()) < 1e-5, found
    example = jax.tree.map(lambda x: x[0], _images(1))
    found = _sites(loss_fn, params, example)
    sizes = [leaf.size for leaf in jax.tree.leaves(params)]
    assert sum(sizes[site.leaf] for site in found) > 0.98 * sum(sizes)
    if name == 'cnn':  # both ways to a norm: from x xᵀ, and from v
        assert {site.by_gram for site in found} == {True, False}


@pytest.mark.parametrize(
    ('name', 'convolution'), [('mlp', 'auto'), ('cnn', 'patches'), ('wrn', 'xla')]
)
def test_several_views_of_an_example(name, convolution):
    """A layer then has several images an example, whose gradients are one."""
    loss_fn, params = _model(name, conv=convolution)
    images, labels = _images(6)
    batch = images.reshape(2, 3, *images.shape[1:]), labels[:2]
    loss_fn = augmentation.mean_loss(loss_fn)
    found = _differences(loss_fn, params, batch, _directions(params))
    assert max(found.values()) < 1e-5, found
    example = jax.tree.map(lambda x: x[0], batch)
    sizes = [leaf.size for leaf in jax.tree.leaves(params)]
    assert sum(sizes[one.leaf] for one in _sites(loss_fn, params, example)) > 0.98 * sum(sizes)


# Losses that nobody built for this: each has parameters that are sites, and others.


def _dense(params, example):
    return jnp.sum(jnp.tanh(example @ params['a'] + params['b']) ** 2)


def _left(params, example):
    return jnp.sum(jnp.sin(params['a'].T @ example))


def _positions(params, example):
    """As in a transformer: a kernel at many positions."""
    tokens = example.reshape(2, 3) @ params['c']
    return jnp.sum(jax.nn.softmax(tokens @ tokens.T) @ tokens * params['b'][:1])


def _many_positions(params, example):
    tokens = jnp.outer(jnp.arange(40.0), example)
    return jnp.sum(jnp.sin(tokens @ params['a']))


def _tied(params, example):
    hidden = jnp.tanh(example @ params['a'])
    return jnp.sum(jnp.square(params['a'] @ hidden)) + jnp.sum(example @ params['d'])


def _looped(params, example):
    def step(hidden, x):
        return jnp.tanh(hidden @ params['s'] + x * params['b'][0]), None

    hidden, _ = jax.lax.scan(step, jnp.ones(4), example)
    return jnp.sum(hidden @ params['e'])


def _nested(params, example):
    inner = jax.jit(lambda a, x: jax.nn.relu(x @ a))
    return jnp.sum(jax.checkpoint(inner)(params['a'], example)) + jnp.sum(
        inner(params['d'], example) ** 2
    )


def _unused(params, example):
    jax.debug.callback(lambda x: None, example[0])  # an operation without a result
    return jnp.sum(example @ params['a'])


def _aside(params, example):
    """A product that does not see the example, and a kernel that is not one alone."""
    return jnp.sum(jnp.ones(6) @ params['a']) * example[0] + jnp.sum(example @ (2 * params['d']))


@pytest.mark.parametrize(
    ('loss_fn', 'names'),
    [
        (_dense, 'a'),
        (_left, ''),
        (_positions, 'c'),
        (_many_positions, 'a'),
        (_tied, 'd'),
        (_looped, 'e'),
        (_nested, 'd'),
        (_unused, 'a'),
        (_aside, 'a'),
    ],
)
def test_ghost_gives_what_vmap_gives_for_any_loss(loss_fn, names):
    shapes = {'a': (6, 4), 'b': (4,), 'c': (3, 5), 'd': (6, 4), 's': (4, 4), 'e': (4, 2)}
    rng = np.random.default_rng(0)
    params = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    batch = rng.normal(size=(7, 6)).astype(np.float32)
    found = _differences(loss_fn, params, batch, _directions(params))
    assert max(found.values()) < 1e-5, found
    found = _sites(loss_fn, params, batch[0])
    assert {sorted(params)[site.leaf] for site in found} == set(names)


def test_a_kernel_on_the_left():
    def loss_fn(params, example):
        return jnp.sum(jnp.sin(params['a'] @ example))

    rng = np.random.default_rng(0)
    params = {'a': rng.normal(size=(4, 6)).astype(np.float32)}
    for shape in [(7, 6), (7, 6, 3), (7, 6, 50)]:
        batch = rng.normal(size=shape).astype(np.float32)
        found = _differences(loss_fn, params, batch, _directions(params))
        assert max(found.values()) < 1e-5, found
        assert len(_sites(loss_fn, params, batch[0])) == 1


@pytest.mark.parametrize(
    ('name', 'poison'), [('mlp', np.nan), ('mlp', np.inf), ('mlp', 1e30), ('cnn', np.nan)]
)
def test_a_poisoned_example_counts_as_zero(name, poison):
    loss_fn, params = _model(name)
    images, labels = _images(6)
    images[2] = poison
    clip = {'clip_norm': 1.0, 'microbatch_size': 4, 'strategy': 'ghost'}
    total = jax.jit(
        lambda mask, images: dpsgd.clipped_grad_sum(loss_fn, params, (images, labels), mask, **clip)
    )
    poisoned, stats = total(jnp.ones(6, bool), images)
    clean, _ = total(jnp.arange(6) != 2, np.nan_to_num(images, nan=0, posinf=0) * (images < 1e9))
    if int(stats.nonfinite):  # norms make very large values harmless
        assert _norm(jax.tree.map(jnp.subtract, poisoned, clean)) < 1e-5 * _norm(clean)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(poisoned))
    assert int(stats.nonfinite) == 1 or poison == 1e30


@pytest.mark.parametrize('strategy', ['vmap', 'ghost'])
def test_a_microbatch_in_which_nobody_counts_adds_nothing(strategy):
    loss_fn, params = _model('cnn', conv='patches')
    images, labels = _images(8)
    images[4:] = np.nan
    clip = {'clip_norm': 1.0, 'microbatch_size': 4, 'strategy': strategy}
    total = jax.jit(lambda *given: dpsgd.clipped_grad_sum(loss_fn, params, *given, **clip))
    whole, stats = total((images, labels), jnp.arange(8) < 4)
    first, _ = total((images[:4], labels[:4]), jnp.ones(4, bool))
    assert _norm(jax.tree.map(jnp.subtract, whole, first)) < 1e-6 * _norm(first)
    assert (int(stats.examples), int(stats.nonfinite)) == (4, 0)


@pytest.mark.parametrize('name', ['mlp', 'cnn'])
def test_sensitivity_is_at_most_the_clip_norm(name):
    """The clipped gradient of one example, small and huge, is never longer than c."""
    loss_fn, params = _model(name)
    images, labels = _images(8)
    images = images * np.geomspace(1e-3, 1e3, 8, dtype=np.float32)[:, None, None, None]
    assert max(_alone(loss_fn, params, (images, labels), 0.01)) <= 0.01 * (1 + 1e-5)


@pytest.mark.parametrize('size', [1.0, 1e6])
def test_a_norm_that_cancels_is_never_too_small(size):
    """x is the same at all positions and δ sums to nearly 0: rounding alone is left."""

    def loss_fn(params, example):
        x, weights = example
        return jnp.sum(weights[:, None] * (x @ params['w']))

    rng = np.random.default_rng(0)
    params = {'w': rng.normal(size=(400, 300)).astype(np.float32)}
    x = np.repeat(rng.normal(size=(20, 1, 400)), 30, axis=1).astype(np.float32) * size
    weights = rng.normal(size=(20, 30)).astype(np.float32)
    weights -= weights.mean(1, keepdims=True)
    weights[:, 0] += np.geomspace(1e-9, 1e-1, 20)
    (site,) = _sites(loss_fn, params, (x[0], weights[0]))
    assert site.by_gram
    assert max(_alone(loss_fn, params, (x, weights), 1.0)) <= 1 + 1e-3


def test_bfloat16_keeps_norms_sums_and_scores_in_float32():
    """Products in bfloat16; everything that privacy hangs on is not."""
    loss_fn, params = _model('cnn', dtype='bfloat16', conv='xla')
    batch = _images(16)
    found = _sites(loss_fn, params, jax.tree.map(lambda x: x[0], batch))
    assert all(site.output.dtype == jnp.bfloat16 for site in found)
    (direction,) = _directions(params, 1)

    def look(batch):
        strategy = Clipping(1.0, 8, 'ghost').strategy_for(loss_fn, params, batch)
        gradients = strategy.gradients(batch, jnp.ones(len(batch[1]), bool))
        total = gradients.sum(jnp.minimum(1.0, 1.0 / gradients.norms))
        dots = gradients.dot(strategy.prepare(direction))
        return gradients.norms, total, strategy.finish(total), dots

    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(jax.eval_shape(look, batch)))


def _equations(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        for value in eqn.params.values():
            for item in value if isinstance(value, tuple) else (value,):
                if hasattr(item, 'eqns'):
                    yield from _equations(item)


@pytest.mark.parametrize('shape', [(6,), (3, 6), (50, 6)])
@pytest.mark.parametrize('name', ['vmap', 'ghost'])
def test_norms_sums_and_scores_ask_accelerators_for_float32(name, shape):
    """By default a TPU makes products in bfloat16. Those of the loss are as the loss says."""
    weights = {'w': jnp.ones((6, 7))}
    default, highest = jax.lax.Precision.DEFAULT, jax.lax.Precision.HIGHEST

    def loss_fn(params, x):
        return jnp.sum(jnp.tanh(jnp.dot(x, params['w'], precision=default)))

    def look(batch):
        strategy = Clipping(1.0, 4, name).strategy_for(loss_fn, weights, batch)
        gradients = strategy.gradients(batch, jnp.ones(4, bool))
        dots = gradients.dot(strategy.prepare(weights))
        return gradients.norms, gradients.sum(gradients.norms), dots

    found = _equations(jax.make_jaxpr(look)(jnp.ones((4, *shape))))
    products = [eqn.params['precision'] for eqn in found if eqn.primitive.name == 'dot_general']
    assert set(products) == {(default, default), (highest, highest)}


def test_bfloat16_is_close_and_never_longer_than_the_clip_norm():
    loss_fn, params = _model('mlp', dtype='bfloat16')
    exact_fn, _ = _model('mlp')
    batch = _images(16)

    @functools.partial(jax.jit, static_argnums=(0, 1))
    def total(loss_fn, strategy, mask):
        clip = {'clip_norm': 0.1, 'microbatch_size': 8, 'strategy': strategy}
        return dpsgd.clipped_grad_sum(loss_fn, params, batch, mask, **clip)[0]

    one, two = (total(loss_fn, strategy, jnp.ones(16, bool)) for strategy in ('ghost', 'vmap'))
    exact = total(exact_fn, 'ghost', jnp.ones(16, bool))
    assert _norm(jax.tree.map(jnp.subtract, one, two)) < 0.02 * _norm(two)
    assert 1e-5 < _norm(jax.tree.map(jnp.subtract, one, exact)) / _norm(exact) < 0.05
    for i in range(16):
        assert _norm(total(loss_fn, 'ghost', jnp.arange(16) == i)) <= 0.1 * (1 + 1e-5)


def test_ghost_needs_less_memory_than_vmap():
    """The gradients of a microbatch of 256 would be 200 MB."""
    apply, params = models.split(models.make('mlp', (32, 32, 3), 10, nnx.Rngs(0), hidden=(64,)))
    loss_fn = models.cross_entropy(apply)
    shapes = (
        jax.ShapeDtypeStruct((1024, 32, 32, 3), jnp.float32),
        jax.ShapeDtypeStruct((1024,), int),
    )

    def temporary(strategy):
        total = jax.jit(
            lambda batch: clipping.clipped_grad_sum(
                loss_fn,
                params,
                batch,
                jnp.ones(1024, bool),
                clip_norm=1.0,
                microbatch_size=256,
                strategy=strategy,
            )
        )
        return total.lower(shapes).compile().memory_analysis().temp_size_in_bytes

    assert temporary('vmap') > 200e6
    assert temporary('ghost') < 30e6
