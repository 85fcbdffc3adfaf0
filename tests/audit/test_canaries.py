import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oneshot.audit import canaries
from oneshot.data import datasets
from oneshot.dpsgd.clipping import Clipping
from tests.chance import plausible


def test_coins_are_fair_and_independent():
    """9 coins over 4,000 keys; 45 checks of 1e-9."""
    keys = jax.random.split(jax.random.key(0), 4000)
    coins = np.asarray(jax.vmap(lambda key: canaries.flip_coins(key, 9))(keys))
    for i in range(9):
        assert plausible(coins[:, i].sum(), 4000, 0.5)
        for j in range(i):
            assert plausible((coins[:, i] & coins[:, j]).sum(), 4000, 0.25)


def test_pairs_have_one_of_two_in():
    coins = canaries.flip_coins(jax.random.key(1), 50)
    included = np.asarray(canaries.pair_up(coins)).reshape(50, 2)
    assert (included.sum(axis=1) == 1).all()
    assert (included[:, 0] == np.asarray(coins)).all()
    assert canaries.pair_scores(np.array([3.0, 1.0, 2.0, 5.0])).tolist() == [2.0, -3.0]


def test_dirac_coordinates_are_distinct_and_spread():
    params = {'a': jnp.zeros((30, 10)), 'b': jnp.zeros(100)}
    chosen = canaries.dirac(jax.random.key(0), 400, params)
    assert sorted(np.asarray(chosen.coordinates).tolist()) == list(range(400))
    few = np.concatenate(
        [canaries.dirac(jax.random.key(i), 20, params).coordinates for i in range(200)]
    )
    assert plausible(int(np.sum(few < 300)), few.size, 0.75)
    with pytest.raises(ValueError, match='from 0 to 400, but 401 was given'):
        canaries.dirac(jax.random.key(0), 401, params)
    many = jax.ShapeDtypeStruct((2**20, 2**12), jnp.float32)  # more than an index of int32 has
    chosen = np.asarray(canaries.dirac(jax.random.key(0), 10_000, many).coordinates)
    assert len(set(chosen.tolist())) == 10_000
    assert 0 <= chosen.min() < chosen.max() < 2**31 - 1
    assert plausible(int(np.sum(chosen < 2**30)), chosen.size, 0.5)


def test_dirac_gradients_are_c_on_a_coordinate():
    params = {'a': jnp.zeros((3, 2)), 'b': jnp.zeros(4)}
    chosen = canaries.Dirac(jnp.array([1, 6, 9]))
    summed = chosen.gradient_sum(params, jnp.array([True, False, True]), 2.5)
    assert np.asarray(summed['a']).ravel().tolist() == [0, 2.5, 0, 0, 0, 0]
    assert np.asarray(summed['b']).tolist() == [0, 0, 0, 2.5]


def test_input_canaries_are_held_out_examples():
    held = datasets.digits(1200, seed=0).test
    same = canaries.in_distribution(jax.random.key(0), 50, *held)
    wrong = canaries.mislabeled(jax.random.key(0), 500, *held, classes=10)
    for chosen, right in ((same, True), (wrong, False)):
        for image, label in zip(*map(np.asarray, chosen.examples), strict=True):
            (found,) = np.flatnonzero((held.images == image).all(axis=(1, 2)))
            assert (held.labels[found] == label) == right
    # Every wrong label is as likely as any other: a shift of 1 to 9.
    images, labels = map(np.asarray, wrong.examples)
    true = [held.labels[(held.images == image).all(axis=(1, 2))][0] for image in images]
    shifts = np.bincount((labels - np.array(true)) % 10, minlength=10)
    assert shifts[0] == 0
    assert all(plausible(count, 500, 1 / 9) for count in shifts[1:].tolist())


def test_more_canaries_than_examples():
    held = datasets.digits(1200, seed=0).test
    with pytest.raises(ValueError, match='from 1 to 597, but 598 was given'):
        canaries.mislabeled(jax.random.key(0), 598, *held, classes=10)


@pytest.mark.parametrize('m', [1, 5, 6, 60])  # with 60 parameters in 10 leaves: both ways
def test_dirac_dots_are_the_coordinates(m):
    tree = [
        jnp.asarray(np.random.default_rng(i).normal(size=(2, 3)), jnp.float32) for i in range(10)
    ]
    flat = np.concatenate([np.asarray(leaf).ravel() for leaf in tree])
    chosen = canaries.dirac(jax.random.key(m), m, tree)
    other = jax.tree.map(jnp.negative, tree)
    picked = [chosen.select(tree), chosen.select(other)]
    dots, squares = chosen.gradient_dots(None, tree, picked, Clipping(2.0, 1))
    expected = 2.0 * flat[np.asarray(chosen.coordinates)]
    np.testing.assert_array_equal(dots, [expected, -expected])
    np.testing.assert_array_equal(squares, np.full(m, 4.0))


@pytest.mark.parametrize('strategy', ['vmap', 'ghost'])
@pytest.mark.parametrize('clip_norm', [2.0, np.inf])
def test_input_dots_are_those_of_clipped_gradients(strategy, clip_norm):
    """The gradients of ⟨w, x⟩ are the x: short, long, 0, and not finite."""
    examples = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    examples[1] *= 10.0
    examples[2] = 0.0
    examples[3, 1], examples[4, 2] = np.nan, np.inf
    params, direction = jnp.zeros(3), jnp.array([1.0, -2.0, 0.5])
    chosen = canaries.Inputs(jnp.asarray(examples))
    picked = [chosen.select(direction), chosen.select(-direction)]
    options = Clipping(clip_norm, 4, strategy)
    dots, squares = chosen.gradient_dots(lambda w, x: x @ w, params, picked, options)
    norms = np.linalg.norm(examples, axis=1)
    assert norms[0] < 2.0 < norms[1]
    clipped = np.zeros((7, 3))
    for i in np.flatnonzero(np.isfinite(norms)):
        clipped[i] = examples[i] * min(1.0, clip_norm / max(norms[i], 1e-9))
    expected = clipped @ np.asarray(direction)
    np.testing.assert_allclose(dots, [expected, -expected], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(squares, np.sum(clipped**2, axis=1), rtol=1e-5)
