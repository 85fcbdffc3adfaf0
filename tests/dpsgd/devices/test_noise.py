"""The noise of every layout: as much as is promised, and in no two places the same."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats

from oneshot import dpsgd
from oneshot.dpsgd import sharding
from oneshot.dpsgd.layout import Layout

# Each of the tests below fails a right program with at most this probability, by a union bound.
ALARM = 1e-7
SHAPES = {
    'kernel': (64, 48),
    'other': (64, 48),
    'bias': (48,),
    'odd': (7, 3),
    'deep': (3, 3, 8, 40),
}
SIGMA, CLIP, BATCH, STEPS = 1.7, 0.3, 5.0, 6
LAYOUTS = [(1, 1), (8, 1), (4, 2), (2, 4), (1, 8)]


def _noise(layout):
    """The parameters after each step that adds nothing but noise, times B/σc, on the devices."""
    init, step = dpsgd.make_step(
        lambda params, example: 0.0 * jnp.sum(params['bias']) * example,
        optax.sgd(1.0),
        clipping=dpsgd.Clipping(CLIP, 4),
        noise_multiplier=SIGMA,
        sampling_prob=0.5,
        expected_batch_size=BATCH,
    )
    placed, params = Layout(sharding.make_mesh(*layout)), None
    population = placed.place_rows(np.zeros(16, np.float32), 16)
    scale = BATCH / (SIGMA * CLIP)
    with sharding.use_mesh(placed.mesh):
        params = jax.tree.map(jnp.zeros, SHAPES, is_leaf=lambda x: isinstance(x, tuple))
        state, drawn = init(params), []
        for _ in range(STEPS):
            after, _ = jax.jit(step)(state, jax.random.key(11), population)
            drawn.append(jax.tree.map(lambda a, b: scale * (a - b), state.params, after.params))
            state = after._replace(params=jax.tree.map(jnp.zeros_like, after.params))
    return drawn


@pytest.fixture(scope='module', params=LAYOUTS, ids=str)
def noise(request):
    return request.param, _noise(request.param)


def test_noise_has_the_promised_deviation(noise):
    """Σ z² over the whole vector and all steps, and over each shard, is χ² distributed."""
    _, drawn = noise
    whole = np.concatenate([np.ravel(x) for tree in drawn for x in jax.tree.leaves(tree)])
    parts = [whole] + [
        np.ravel(shard.data)
        for tree in drawn
        for leaf in jax.tree.leaves(tree)
        for shard in leaf.addressable_shards
    ]
    for part in parts:
        square = np.sum(np.square(part, dtype=np.float64))
        tails = scipy.stats.chi2.cdf(square, part.size), scipy.stats.chi2.sf(square, part.size)
        assert 2 * min(tails) > ALARM / len(parts)
    assert scipy.stats.kstest(whole, 'norm').pvalue > ALARM


def test_no_two_shards_share_their_noise(noise):
    """Nor do two steps: the correlation of independent normal vectors has a law, which is exact."""
    _, drawn = noise
    places = {}  # of all replicas of a shard, one
    for step, tree in enumerate(drawn):
        for name, leaf in tree.items():
            for shard in leaf.addressable_shards:
                places.setdefault((step, name, str(shard.index)), np.ravel(shard.data))
    pairs = [
        (one[: min(one.size, other.size)], other[: min(one.size, other.size)])
        for (place, one), (there, other) in itertools.combinations(places.items(), 2)
        if (place[0] == there[0] or place[1:] == there[1:]) and min(one.size, other.size) > 5
    ]
    for pair in pairs:
        assert scipy.stats.pearsonr(*pair).pvalue > ALARM / len(pairs)


def test_noise_is_that_of_one_device(noise):
    """In every bit; where all devices have it, all have the same."""
    layout, drawn = noise
    alone = _noise((1, 1))
    for tree, other in zip(drawn, alone, strict=True):
        for name, leaf in tree.items():
            np.testing.assert_array_equal(leaf, other[name])
            for shard in leaf.addressable_shards:
                np.testing.assert_array_equal(shard.data, np.asarray(leaf)[shard.index])
    if layout[1] > 1:
        split = {
            name: len({str(s.index) for s in leaf.addressable_shards})
            for name, leaf in tree.items()
        }
        assert split == {name: 1 if name == 'odd' else layout[1] for name in SHAPES}


def test_shards_that_share_noise_would_be_noticed():
    """The same key on every shard, as is easily written."""
    tree = {'kernel': jnp.tile(jax.random.normal(jax.random.key(0), (8, 48)), (8, 1))}
    placed = Layout(sharding.make_mesh(1, 8))
    leaf = jax.device_put(tree['kernel'], placed.sharding(sharding.SHARDS))
    with pytest.raises(AssertionError):
        test_no_two_shards_share_their_noise(((1, 8), [{'kernel': leaf}]))
    with pytest.raises(AssertionError):
        test_noise_has_the_promised_deviation(((1, 8), [{'kernel': 1.1 * _large(placed)}]))
    test_noise_has_the_promised_deviation(((1, 8), [{'kernel': _large(placed)}]))


def _large(placed):
    return jax.device_put(
        jax.random.normal(jax.random.key(1), (64, 480)), placed.sharding(sharding.SHARDS)
    )
