import itertools
import logging

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats

from oneshot import dpsgd
from oneshot.audit import canaries
from oneshot.dpsgd import sampling
from oneshot.dpsgd.clipping import STRATEGIES, Clipping, ExampleGroup, poisson_clipped_grad_sums
from oneshot.dpsgd.gradients.strategy import zeros
from tests.chance import plausible


def _params(seed=0):
    """A pytree of several kinds of nodes and shapes."""
    keys = jax.random.split(jax.random.key(seed), 3)
    return {
        'layers': [(jax.random.normal(keys[0], (5, 4)), jax.random.normal(keys[1], (4,)))],
        'scale': jax.random.normal(keys[2], ()),
    }


def _loss(params, example):
    x, y = example
    weight, bias = params['layers'][0]
    return jnp.sum((params['scale'] * jnp.tanh(x @ weight + bias) - y) ** 2)


def _data(n, seed=1):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 5)).astype(np.float32), rng.normal(size=(n, 4)).astype(np.float32)


def _literal_sum(params, batch, mask, clip_norm):
    """Line by line: one gradient at a time, in float64 NumPy."""
    total = [np.zeros(leaf.shape) for leaf in jax.tree.leaves(params)]
    for i in np.flatnonzero(mask):
        grad = jax.grad(_loss)(params, jax.tree.map(lambda x, i=i: x[i], batch))
        leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(grad)]
        norm = np.sqrt(sum(np.sum(leaf**2) for leaf in leaves))
        for one, leaf in zip(total, leaves, strict=True):
            one += min(1.0, clip_norm / norm) * leaf
    return total


@pytest.mark.parametrize(
    ('batch_size', 'microbatch_size', 'clip_norm', 'strategy'),
    [
        *itertools.product([1, 7, 32], [1, 5, 32, 50], [0.3, 4.0, np.inf], ['vmap']),
        *[
            (1, 5, 0.3, 'ghost'),
            (7, 1, np.inf, 'ghost'),
            (32, 5, 0.3, 'ghost'),
            (7, 50, 4.0, 'ghost'),
        ],
    ],
)
def test_clipped_sum_is_that_of_the_definition(batch_size, microbatch_size, clip_norm, strategy):
    params, batch = _params(), _data(batch_size)
    mask = np.random.default_rng(2).random(batch_size) < 0.7
    clipping = Clipping(clip_norm, microbatch_size, strategy)
    ours, stats = dpsgd.clipped_grad_sum(
        _loss, params, batch, jnp.asarray(mask), **clipping._asdict()
    )
    groups = [ExampleGroup(batch, jnp.asarray(mask))]
    (drawn,), _ = poisson_clipped_grad_sums(_loss, params, groups, clipping)
    for one, two, literal in zip(
        jax.tree.leaves(ours),
        jax.tree.leaves(drawn),
        _literal_sum(params, batch, mask, clip_norm),
        strict=True,
    ):
        np.testing.assert_allclose(one, literal, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(two, literal, rtol=1e-4, atol=1e-5)
    assert int(stats.examples) == mask.sum()


def test_stats_count_what_happens():
    params, batch = _params(), _data(40)
    norms = np.array(
        [optax.tree.norm(jax.grad(_loss)(params, (batch[0][i], batch[1][i]))) for i in range(40)]
    )
    clip_norm = float(np.median(norms))
    _, stats = dpsgd.clipped_grad_sum(
        _loss, params, batch, jnp.ones(40, bool), clip_norm=clip_norm, microbatch_size=8
    )
    assert int(stats.clipped) == np.sum(norms > clip_norm)
    losses = [_loss(params, (batch[0][i], batch[1][i])) for i in range(40)]
    assert float(stats.loss) == pytest.approx(float(sum(losses)), rel=1e-5)
    assert int(stats.nonfinite) == 0


@pytest.mark.parametrize('clip_norm', [0.1, 1.0, 10.0])
def test_sensitivity_is_at_most_the_clip_norm(clip_norm):
    """Measured by taking each example out in turn, with gradients small and huge."""
    params, (x, y) = _params(), _data(30)
    batch = (x * np.geomspace(1e-3, 1e3, 30, dtype=np.float32)[:, None], y)

    @jax.jit
    def total(mask):
        grads, _ = dpsgd.clipped_grad_sum(
            _loss, params, batch, mask, clip_norm=clip_norm, microbatch_size=8
        )
        return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(grads)])

    everybody = total(jnp.ones(30, bool))
    for i in range(30):
        moved = jnp.linalg.norm(everybody - total(jnp.arange(30) != i))
        assert float(moved) <= clip_norm * (1 + 1e-5)


@pytest.mark.parametrize('strategy', STRATEGIES)
@pytest.mark.parametrize('poison', [np.nan, np.inf, -np.inf, 1e30])
def test_a_poisoned_example_counts_as_zero(poison, strategy):
    params, (x, y) = _params(), _data(20)
    x, y = x.copy(), y.copy()
    y[3], x[11] = poison, 0.0
    clipping = {'clip_norm': 1.0, 'microbatch_size': 8, 'strategy': strategy}
    poisoned, stats = dpsgd.clipped_grad_sum(_loss, params, (x, y), jnp.ones(20, bool), **clipping)
    clean, _ = dpsgd.clipped_grad_sum(_loss, params, (x, y), jnp.arange(20) != 3, **clipping)
    for one, two in zip(jax.tree.leaves(poisoned), jax.tree.leaves(clean), strict=True):
        np.testing.assert_array_equal(one, two)
    assert int(stats.nonfinite) == 1
    assert np.isfinite(stats.loss)


def _step(loss_fn=_loss, **changes):
    sizes = {name: changes.pop(name) for name in Clipping._fields if name in changes}
    options = {
        'clipping': Clipping(**{'clip_norm': 1.0, 'microbatch_size': 8} | sizes),
        'noise_multiplier': 0.0,
        'sampling_prob': 1.0,
        'expected_batch_size': 20.0,
    }
    return dpsgd.make_step(loss_fn, changes.pop('optimizer', optax.sgd(0.1)), **options | changes)


def test_without_noise_clip_and_sampling_it_is_gradient_descent():
    params, data = _params(), _data(20)
    init, step = _step(clip_norm=np.inf)
    state, step = init(params), jax.jit(step)
    mean = jax.jit(jax.grad(lambda p: jnp.mean(jax.vmap(_loss, (None, 0))(p, data))))
    for _ in range(25):
        state, _ = step(state, jax.random.key(0), data)
        params = jax.tree.map(lambda w, g: w - 0.1 * g, params, mean(params))
    for one, two in zip(jax.tree.leaves(state.params), jax.tree.leaves(params), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)


def _noise(steps=4000, sigma=1.7, clip_norm=0.6):
    """The updates of steps without data, in units of the promised deviation."""
    init, step = _step(
        clip_norm=clip_norm,
        noise_multiplier=sigma,
        sampling_prob=0.5,
        optimizer=optax.sgd(1.0),
        expected_batch_size=4.0,
    )
    empty = jax.tree.map(lambda x: np.zeros_like(x), _data(1))
    params = jax.tree.map(jnp.zeros_like, _params())

    def one(state, _):
        new, _ = step(state._replace(params=params), jax.random.key(5), empty)
        return new, jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(new.params)])

    _, updates = jax.lax.scan(one, init(params), length=steps)
    return -np.asarray(updates) * 4.0 / (sigma * clip_norm)


def test_noise_has_the_promised_deviation_and_is_independent():
    """Coordinates, leaves and steps. 25 + 25 + 300 checks of 1e-9 each: below 1e-6 in all."""
    noise = _noise()
    steps, size = noise.shape
    assert size == 25
    for column in noise.T:
        square = np.sum(column**2)  # χ² with `steps` degrees of freedom
        tails = scipy.stats.chi2.cdf(square, steps), scipy.stats.chi2.sf(square, steps)
        assert min(tails) > 5e-10
        assert scipy.stats.kstest(column, 'norm').pvalue > 1e-9
        # A product of independent normals has variance 1: the mean is normal to 1e-2 at n = 4000.
        assert abs(np.mean(column[:-1] * column[1:])) * np.sqrt(steps) < 6.5
    for i, j in itertools.combinations(range(size), 2):
        assert abs(np.mean(noise[:, i] * noise[:, j])) * np.sqrt(steps) < 6.5


def test_the_sum_is_divided_by_the_expected_size_not_the_drawn_one():
    params, data = _params(), _data(40)
    init, step = _step(sampling_prob=0.4, expected_batch_size=16.0, optimizer=optax.sgd(1.0))
    sizes = set()
    for seed in range(4):
        state, stats = jax.jit(step)(init(params), jax.random.key(seed), data)
        key, _, _ = jax.random.split(jax.random.fold_in(jax.random.key(seed), 0), 3)
        drawn = np.asarray(sampling.poisson(key, 0.4, jnp.ones(40, bool)))
        assert int(stats.examples) == drawn.sum()
        sizes.add(int(drawn.sum()))
        literal = _literal_sum(params, data, drawn, 1.0)
        moved = jax.tree.map(jnp.subtract, params, state.params)
        for one, two in zip(jax.tree.leaves(moved), literal, strict=True):
            np.testing.assert_allclose(one, two / 16.0, rtol=1e-4, atol=1e-5)
    assert len(sizes) > 1  # the drawn size does vary


def test_included_canaries_are_sampled_like_everybody():
    """σ = 0 and no data: what moves is the drawn canaries, over 3,000 steps."""
    params = jax.tree.map(jnp.zeros_like, _params())
    chosen = canaries.dirac(jax.random.key(0), 10, params)
    included = jnp.arange(10) < 6
    empty = jax.tree.map(lambda x: x[:1] * 0, _data(1))

    def silent(params, example):
        return 0.0 * _loss(params, example)

    init, step = _step(
        silent,
        optimizer=optax.sgd(1.0),
        clip_norm=2.0,
        sampling_prob=0.3,
        expected_batch_size=1.0,
    )
    state, _ = jax.lax.scan(
        lambda s, _: step(s, jax.random.key(1), empty, chosen, included), init(params), length=3000
    )
    flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(state.params)])
    counts = -flat[np.asarray(chosen.coordinates)] / 2.0
    assert all(plausible(round(float(c)), 3000, 0.3) for c in counts[:6])
    assert (counts[6:] == 0).all()
    assert np.count_nonzero(flat) == 6


@pytest.mark.parametrize('optimizer', [optax.sgd(0.1, momentum=0.9), optax.adam(1e-2)])
def test_a_chunk_is_its_steps_and_compiles_once(optimizer, caplog):
    """11 steps in chunks of 4: the same bits, and one program for all of them."""
    params, data = _params(), _data(30)
    init, step = _step(noise_multiplier=0.5, sampling_prob=0.4, optimizer=optimizer)
    one_by_one = init(params)
    for _ in range(11):
        one_by_one, _ = jax.jit(step)(one_by_one, jax.random.key(7), data)
    chunk = dpsgd.make_chunk(step, 4)
    state = init(jax.tree.map(jnp.copy, params))
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        for _ in range(3):
            state, stats = chunk(state, jnp.int32(11), jax.random.key(7), data)
    assert int(state.step) == 11
    assert int(stats.examples[-1]) == 0 < int(stats.examples[-2])
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(one_by_one), strict=True):
        np.testing.assert_array_equal(a, b)
    compiled = [r.message for r in caplog.records if r.message.startswith('Compiling jit(chunk)')]
    assert len(compiled) == 1


def test_the_state_is_donated():
    init, step = _step()
    state = init(jax.tree.map(jnp.copy, _params()))
    dpsgd.make_chunk(step, 2)(state, jnp.int32(2), jax.random.key(0), _data(8))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state.params))


@pytest.mark.parametrize(
    'changes',
    [
        {'clip_norm': 0.0},
        {'noise_multiplier': -1.0},
        {'sampling_prob': 0.0},
        {'sampling_prob': 1.5},
        {'clip_norm': np.inf, 'noise_multiplier': 1.0},
        {'clip_norm': np.nan},
        {'noise_multiplier': np.nan},
        {'noise_multiplier': np.inf},
        {'sampling_prob': np.nan},
        {'expected_batch_size': 0.0},
        {'microbatch_size': 0},
        {'strategy': 'magic'},
    ],
)
def test_bad_input(changes):
    with pytest.raises(ValueError, match=r'must be .* given'):
        _step(**changes)


def _temporary(function, *arguments):
    """Bytes that the compiled program needs beside its arguments and results."""
    return function.lower(*arguments).compile().memory_analysis().temp_size_in_bytes


def test_memory_grows_with_neither_the_batch_nor_the_steps():
    """The fast cousin of experiments/bench_memory.py."""
    params, data = _params(), _data(5000)

    def chunk_memory(q, length):
        init, step = _step(sampling_prob=q, noise_multiplier=1.0)
        chunk = dpsgd.make_chunk(step, length)
        return _temporary(chunk, init(params), jnp.int32(9), jax.random.key(0), data)

    assert chunk_memory(0.01, 2) == chunk_memory(0.9, 2) == chunk_memory(0.01, 200)

    def sum_memory(n):
        batch = _data(n)
        function = jax.jit(
            lambda params, batch, mask: dpsgd.clipped_grad_sum(
                _loss, params, batch, mask, clip_norm=1.0, microbatch_size=8
            )
        )
        return _temporary(function, params, batch, jnp.ones(n, bool))

    assert sum_memory(80) == sum_memory(8000)


@pytest.mark.parametrize('dtype', [jnp.bfloat16, jnp.float16])
def test_half_precision_parameters_keep_the_guarantee(dtype):
    """Clipped norms, sums and noise are float32, whatever the parameters are."""
    params = {'w': jnp.zeros(1000, dtype)}

    def loss(params, example):
        return jnp.vdot(params['w'], example.astype(dtype))

    examples = np.random.default_rng(0).normal(size=(64, 1000)).astype(np.float32)
    for i in range(8):
        total, _ = dpsgd.clipped_grad_sum(
            loss, params, examples, jnp.arange(64) == i, clip_norm=1.0, microbatch_size=8
        )
        assert float(jnp.linalg.norm(total['w'])) <= 1 + 1e-5
    ones = np.zeros((4096, 1000), np.float32)
    ones[:, 0] = 1.0
    total, _ = dpsgd.clipped_grad_sum(
        loss, params, ones, jnp.ones(4096, bool), clip_norm=1.0, microbatch_size=8
    )
    assert total['w'][0] == 4096
    noise = dpsgd.gaussian_noise(jax.random.key(0), zeros({'w': jnp.zeros(10**5, dtype)}), 1.0)
    assert noise['w'].dtype == jnp.float32
    assert scipy.stats.kstest(np.asarray(noise['w']), 'norm').pvalue > 1e-9
    init, step = _step(loss, noise_multiplier=1.0, sampling_prob=0.5, expected_batch_size=32.0)
    state, _ = jax.jit(step)(init(params), jax.random.key(0), examples)
    assert state.params['w'].dtype == dtype


@pytest.mark.parametrize('included', [[1, 1, -1, -1], [True], None])
def test_coins_must_be_bools_one_a_canary(included):
    params = _params()
    chosen = canaries.dirac(jax.random.key(0), 4, params)
    init, step = _step()
    coins = None if included is None else jnp.asarray(included)
    with pytest.raises(ValueError, match='included must be 4 bools, one a canary, but'):
        step(init(params), jax.random.key(0), _data(4), chosen, coins)


def test_the_average_forgets_the_first_steps():
    """Against the formula: w̄_t = d_t·w̄_{t−1} + (1 − d_t)·w_t, d_t = min(d, (1 + t)/(10 + t))."""
    population = (jnp.asarray(np.random.default_rng(0).normal(size=(20, 3)), jnp.float32),)
    init, step = dpsgd.make_step(
        lambda params, example: jnp.vdot(params, example[0]) ** 2 + jnp.vdot(params, example[0]),
        optax.sgd(0.1),
        clipping=Clipping(1.0, 4),
        noise_multiplier=1.0,
        sampling_prob=0.5,
        expected_batch_size=10,
        ema_decay=0.4,
    )
    state, step = init(jnp.float32([1, 2, 3])), jax.jit(step)
    average = np.float64([1, 2, 3])
    for t in range(8):
        state, _ = step(state, jax.random.key(0), population)
        decay = min(0.4, (1 + t) / (10 + t))
        average = decay * average + (1 - decay) * np.asarray(state.params, np.float64)
        np.testing.assert_allclose(state.average, average, rtol=1e-5)


def test_a_run_of_canaries_alone():
    """m = n: the population is empty."""
    population = (jnp.zeros((0, 3)),)
    chosen = canaries.Inputs((jnp.eye(3),))
    init, step = dpsgd.make_step(
        lambda params, example: jnp.vdot(params, example[0]),
        optax.sgd(1.0),
        clipping=Clipping(10.0, 2),
        noise_multiplier=0.0,
        sampling_prob=1.0,
        expected_batch_size=1.0,
    )
    included = jnp.asarray([True, False, True])
    state, stats = jax.jit(step)(
        init(jnp.zeros(3)), jax.random.key(0), population, chosen, included
    )
    np.testing.assert_allclose(state.params, [-1.0, 0.0, -1.0])
    assert int(stats.examples) == 2
