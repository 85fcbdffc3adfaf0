"""Views: what they are, and that their mean gradient is clipped, not theirs."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from oneshot import audit, dpsgd
from oneshot.audit import canaries
from oneshot.data import augmentation, models
from oneshot.dpsgd import clipping

pytestmark = pytest.mark.usefixtures('quick_compilation')

NUMBER, CLIP = 3, 0.1


def _problem(name='cnn', image=(8, 8, 3), conv='patches'):
    widths = ((4,), (8,), (8,))
    model = models.make(name, image, 4, nnx.Rngs(0), hidden=(8,), widths=widths, conv=conv)
    apply, params = models.split(model)
    rng = np.random.default_rng(0)
    images = rng.normal(size=(6, *image)).astype(np.float32)
    return models.cross_entropy(apply), params, (jnp.asarray(images), jnp.arange(6) % 4)


def _augmented(examples, seed=0):
    keys = jax.random.split(jax.random.key(seed), len(examples[1]))
    return jax.vmap(augmentation.make_augment(NUMBER))(keys, examples)


def _norm(tree):
    return float(optax.tree.norm(tree))


@pytest.mark.parametrize('shape', [(32, 32, 3), (12, 12)])
def test_a_view_is_the_image_flipped_and_shifted(shape):
    image = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    label = jnp.int32(7)
    made, same = augmentation.make_augment(200)(jax.random.key(0), (jnp.asarray(image), label))
    assert made.shape == (200, *shape)
    assert same == label
    around = [(4, 4), (4, 4)] + [(0, 0)] * (len(shape) - 2)
    padded = np.pad(image, around, mode='reflect')
    possible = {}
    for down in range(9):
        for across in range(9):
            crop = padded[down : down + shape[0], across : across + shape[1]]
            possible[crop.tobytes()] = down, across, False
            possible[crop[:, ::-1].tobytes()] = down, across, True
    assert len(possible) == 162
    found = [possible[np.asarray(view).tobytes()] for view in made]
    # A place is missed by 200 with probability (8/9)^200 < 1e-10, a flip with 2^-199.
    assert {down for down, _, _ in found} == {across for _, across, _ in found} == set(range(9))
    assert {flipped for _, _, flipped in found} == {True, False}


def test_bytes_are_scaled():
    image = jnp.asarray([[0, 255]], jnp.uint8)
    np.testing.assert_array_equal(augmentation.scale(image), [[-1.0, 1.0]])
    assert augmentation.scale(jnp.float32([0.25])) == 0.25


@pytest.mark.parametrize(
    ('name', 'conv', 'strategy'),
    [
        ('mlp', 'xla', 'vmap'),
        ('mlp', 'xla', 'ghost'),
        ('cnn', 'xla', 'vmap'),
        ('cnn', 'xla', 'ghost'),
        ('cnn', 'patches', 'ghost'),
    ],
)
def test_the_mean_of_the_views_is_clipped(name, conv, strategy):
    """Of one example alone, and of the sum; against jax.grad of each view."""
    loss_fn, params, examples = _problem(name, conv=conv)
    seen = _augmented(examples)
    options = {'clip_norm': CLIP, 'microbatch_size': 4, 'strategy': strategy}
    loss, grad = augmentation.mean_loss(loss_fn), jax.jit(jax.grad(loss_fn))
    expected = []
    for images, label in zip(*seen, strict=True):
        grads = [grad(params, (image, label)) for image in images]
        mean = jax.tree.map(lambda *g: sum(g) / NUMBER, *grads)
        norm = _norm(mean)
        assert norm > CLIP
        expected.append(jax.tree.map(lambda g, n=norm: g * CLIP / n, mean))
    clipped_sum = jax.jit(functools.partial(clipping.clipped_grad_sum, loss, **options))
    total, stats = clipped_sum(params, seen, jnp.ones(6, bool))
    assert int(stats.clipped) == 6
    assert _norm(total) <= 6 * CLIP * (1 + 1e-5)
    whole = jax.tree.map(lambda *g: sum(g), *expected)
    for a, b in zip(jax.tree.leaves(total), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * CLIP)
    for i in range(6):
        alone, _ = clipped_sum(params, seen, jnp.arange(6) == i)
        assert _norm(alone) == pytest.approx(CLIP, rel=1e-5)


def test_views_in_a_step_are_fresh_for_each_example_and_step():
    """A loss whose gradient is the view itself: w moves by the sum of the means of views."""
    images = jnp.asarray(np.random.default_rng(1).normal(size=(5, 8, 8)), jnp.float32)
    given = images, jnp.zeros(5, jnp.int32)
    augment = augmentation.make_augment(NUMBER)

    def loss_fn(params, example):
        return jnp.vdot(params, example[0])

    init, step = dpsgd.make_step(
        augmentation.mean_loss(loss_fn),
        optax.sgd(1.0),
        clipping=dpsgd.Clipping(1e6, 2),
        noise_multiplier=0.0,
        sampling_prob=1.0,
        expected_batch_size=1.0,
        augment=augment,
    )
    state, run_key, sums = init(jnp.zeros((8, 8))), jax.random.key(0), []
    chosen, included = canaries.Inputs(given), jnp.ones(5, bool)
    for number in range(2):
        keys = jax.random.split(jax.random.fold_in(run_key, number), 5)
        new, _ = jax.jit(step)(state, run_key, given, chosen, included)
        for key in keys[3:]:  # of the population, and of the canaries
            own = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(5))
            sums.append(np.asarray(jax.vmap(augment)(own, given)[0].mean(1).sum(0)))
        np.testing.assert_allclose(state.params - new.params, sum(sums[-2:]), atol=1e-5)
        state = new
    assert all(not np.allclose(a, b) for a, b in itertools.combinations(sums, 2))


def test_three_steps_of_the_wrn():
    """WRN-16-4 with views and 5,000 canaries, at batch 64."""
    model = models.make('wrn', (32, 32, 3), 10, nnx.Rngs(0))
    apply, params = models.split(model)
    loss_fn = augmentation.mean_loss(
        models.cross_entropy(lambda params, image: apply(params, augmentation.scale(image)))
    )
    example = jnp.zeros((1, 32, 32, 3), jnp.uint8), jnp.int32(0)
    strategy, size = clipping.choose_strategy(loss_fn, params, example)
    assert strategy == 'ghost'
    own = clipping.Clipping(1.0, size, strategy)
    chosen, included = canaries.dirac(jax.random.key(1), 5000, params), jnp.ones(5000, bool)
    scores = audit.SCORES['iterates'], audit.SCORES['residual']
    init, step = dpsgd.make_step(
        loss_fn,
        optax.sgd(2.0),
        clipping=own,
        noise_multiplier=2.3,
        sampling_prob=1.0,
        expected_batch_size=64,
        attacks={'white_box': audit.white_box(chosen, scores, clipping=own)},
        augment=augmentation.make_augment(1),
        ema_decay=0.999,
    )
    rng = np.random.default_rng(0)
    images = jnp.asarray(rng.integers(0, 256, (64, 32, 32, 3), dtype=np.uint8))
    population = images, jnp.asarray(rng.integers(0, 10, 64, dtype=np.int32))
    state, step = init(params), jax.jit(step)
    for _ in range(3):
        state, stats = step(state, jax.random.key(0), population, chosen, included)
        assert int(stats.examples) == 64
        assert int(stats.nonfinite) == 0
    assert int(state.step) == 3
    assert np.isfinite(state.audits['white_box'].sum()).all()
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state.params))
