"""The audit in any loop: what it gives, and what it says of mistakes.

The loop is a small one, and each test of a mistake makes it in that loop.
"""

import functools
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import oneshot
from oneshot import audit
from oneshot.audit import canaries, misuse
from oneshot.audit.score import white_box_scores
from oneshot.dpsgd.clipping import Clipping
from oneshot.dpsgd.step import Observation
from oneshot.plan import Scoring

ROOT = pathlib.Path(__file__).parents[2]
M, STEPS, CLIP, SIGMA, Q, BATCH, RATE = 60, 6, 0.5, 1.5, 0.5, 20.0, 0.3
CLAIM = oneshot.DPSGD(SIGMA, Q, STEPS)
SIZES = {'clip_norm': CLIP, 'expected_batch_size': BATCH}
PARAMS = {'a': jnp.full((8, 10), 0.1), 'b': jnp.linspace(-0.2, 0.2, 10)}


@pytest.fixture(autouse=True)
def _fresh_memory():
    """Tests share coins, runs must not."""
    misuse.USED_COINS.clear()


def _start(seed=0, m=M, params=PARAMS, claim=CLAIM, **options):
    chosen = canaries.dirac(jax.random.key(seed), m, params)
    coins = canaries.flip_coins(jax.random.key(seed + 100), m)
    return audit.start(chosen, coins, params, claim, **SIZES | options)


def _keys(t, seed=0):
    return jax.random.split(jax.random.fold_in(jax.random.key(seed + 200), t), 3)


def _gradients(params, key):
    """What a batch would give: the loop under test does not care."""
    shift = jax.random.uniform(key)
    return jax.tree.map(lambda w: 2.0 * jnp.sin(99.0 * (w + jnp.arange(10.0) + shift)), params)


def _noise(key, deviation=SIGMA * CLIP):
    flat = deviation * jax.random.normal(key, (90,))  # compiled faster than leaf by leaf
    return {'a': flat[:80].reshape(8, 10), 'b': flat[80:]}


def _noisy(summed, key):
    noise = _noise(key)
    return jax.tree.map(lambda g, z: (g + z) / BATCH, summed, noise)


def _descend(params, gradient):
    return jax.tree.map(lambda w, g: w - RATE * g, params, gradient)


@functools.partial(jax.jit, static_argnames='seed')
def _step(params, audited, t, seed=0):
    data_key, canary_key, noise_key = _keys(t, seed)
    summed = _gradients(params, data_key)
    summed, audited = audit.insert(audited, summed, canary_key)
    gradient = _noisy(summed, noise_key)
    new_params = _descend(params, gradient)
    return new_params, audit.update(audited, params, new_params, gradient)


def _loop(step=_step, audited=None, steps=STEPS):
    params, audited = PARAMS, _start() if audited is None else audited
    step = step if step is _step else jax.jit(step)
    for t in range(steps):
        params, audited = step(params, audited, t)
    return params, audited


def _flat(tree):
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)])


def test_scores_by_hand():
    """Every score, from all that happened, in float64."""
    audited = _start()
    coordinates, included = np.asarray(audited.canaries.coordinates), np.asarray(audited.included)
    expected = {name: np.zeros(M) for name in ('iterates', 'residual', 'residual_llr')}
    params = PARAMS
    for t in range(STEPS):
        data_key, canary_key, noise_key = _keys(t)
        drawn = np.asarray(oneshot.dpsgd.sampling.poisson(canary_key, Q, included))
        noise = _flat(_noise(noise_key))[coordinates]
        residual = CLIP * drawn + noise
        seen = (_flat(_gradients(params, data_key))[coordinates] + residual) / BATCH
        expected['iterates'] += CLIP * RATE * seen
        expected['residual'] += CLIP * residual
        exponent = (2 * CLIP * residual - CLIP**2) / (2 * SIGMA**2 * CLIP**2)
        expected['residual_llr'] += np.log(1 - Q + Q * np.exp(exponent))
        params, audited = _step(params, audited, t)
    found = audit.scores(audited, params)
    assert tuple(found) == ('iterates', 'residual', 'iterates_llr', 'residual_llr')
    for name, values in expected.items():
        scale = np.abs(values).max()
        np.testing.assert_allclose(found[name], values, atol=3e-6 * scale, rtol=0)


def test_the_result_is_that_of_the_scores():
    params, audited = _loop()
    result = audit.result(audited, params, delta=1e-5)
    scores = audit.scores(audited, params)['residual_llr']
    mechanism = Scoring(CLAIM, 'llr')
    known = {'delta': 1e-5, 'mechanism': mechanism, 'eps_claimed': result.eps_claimed}
    assert result == oneshot.audit_scores(scores, audited.included, **known)
    assert result.rule == 'planned'
    assert result.eps_claimed == oneshot.claims.accounting.eps_upper_bound(SIGMA, Q, STEPS, 1e-5)
    one = audit.result(audited, params, delta=1e-5, method='cp_gdp')  # of the residual
    scores = audit.scores(audited, params)['residual']
    mechanism = Scoring(CLAIM, 'dot', scale=CLIP**2)
    known |= {'mechanism': mechanism, 'method': 'cp_gdp'}
    assert one == oneshot.audit_scores(scores, audited.included, **known)
    assert audit.result(audited, params, delta=0.0).eps_claimed is None
    paper = audit.result(audited, params, delta=1e-5, score='iterates')
    assert paper.rule == 'planned'  # of a number of guesses, in whatever unit
    with pytest.raises(ValueError, match="'cp_gdp' needs every canary guessed by a threshold"):
        audit.result(audited, params, delta=1e-5, score='iterates', method='cp_gdp')


def test_canaries_and_coins_from_a_key():
    key = jax.random.key(3)
    audited = audit.flip(key, M, PARAMS, CLAIM, signals=('gradient', 'residual'), **SIZES)
    assert len(set(audited.canaries.coordinates.tolist())) == M
    names = [score.name for score in audited.settings.scores]
    assert names == ['gradient', 'residual', 'gradient_llr', 'residual_llr']
    again = audit.flip(key, M, PARAMS, CLAIM, **SIZES)
    other = audit.flip(jax.random.key(4), M, PARAMS, CLAIM, **SIZES)
    assert again.included.tolist() == audited.included.tolist() != other.included.tolist()
    coins = canaries.flip_coins(key, M)  # the key itself is not used, but split
    assert coins.tolist() != audited.included.tolist()
    params, audited = _loop(audited=again)
    assert audit.result(audited, params, delta=1e-5).m == M


def test_the_mean_before_the_noise():
    """A loop that divides first has a clip norm of c/B and noise of σc/B."""

    def step(params, audited, t):
        data_key, canary_key, noise_key = _keys(t)
        mean = jax.tree.map(lambda g: g / BATCH, _gradients(params, data_key))
        mean, audited = audit.insert(audited, mean, canary_key)
        noise = _noise(noise_key, SIGMA * CLIP / BATCH)
        gradient = jax.tree.map(jnp.add, mean, noise)
        new_params = _descend(params, gradient)
        return new_params, audit.update(audited, params, new_params, gradient)

    params, audited = _loop()
    first = _start(clip_norm=CLIP / BATCH, expected_batch_size=1.0)
    other_params, other = _loop(step, first)
    for name in ('iterates_llr', 'residual_llr'):
        expected = audit.scores(audited, params)[name]
        found = audit.scores(other, other_params)[name]
        np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max(), rtol=0)


def test_under_scan_and_vmap():
    def run(seed):
        chosen = canaries.dirac(jax.random.key(0), M, PARAMS)
        coins = canaries.flip_coins(jax.random.fold_in(jax.random.key(1), seed), M)
        audited = audit.start(chosen, coins, PARAMS, CLAIM, **SIZES)

        def step(carried, t):
            key = jax.random.fold_in(jax.random.key(2), seed)
            data_key, canary_key, noise_key = jax.random.split(jax.random.fold_in(key, t), 3)
            params, audited = carried
            summed, audited = audit.insert(audited, _gradients(params, data_key), canary_key)
            gradient = _noisy(summed, noise_key)
            new_params = _descend(params, gradient)
            return (new_params, audit.update(audited, params, new_params, gradient)), None

        return jax.lax.scan(step, (PARAMS, audited), jnp.arange(STEPS))[0]

    params, audited = jax.jit(jax.vmap(run))(jnp.arange(3))
    scores = audit.scores(audited, params)['residual_llr']
    assert scores.shape == (3, M)
    for seed in range(3):
        one_params, one = jax.jit(run)(seed)
        alone = audit.scores(one, one_params)['residual_llr']
        np.testing.assert_allclose(scores[seed], alone, atol=1e-5)
    assert audit.result(audited, params, delta=1e-5).m == 3 * M
    params, audited = jax.jit(jax.vmap(lambda seed: run(0 * seed)))(jnp.arange(3))
    with pytest.raises(ValueError, match='fresh coins, but runs 0 and 1 have the same'):
        audit.result(audited, params, delta=1e-5)


def test_donated_buffers():
    audited = _start()
    coins = audited.included
    step = jax.jit(_step, donate_argnums=(0, 1))
    params = jax.tree.map(jnp.copy, PARAMS)
    mine = jnp.copy(coins)
    audited = audit.start(audited.canaries, mine, params, CLAIM, **SIZES)
    for t in range(STEPS):
        params, audited = step(params, audited, t)
    assert mine.tolist() == coins.tolist()  # not donated
    assert audit.scores(audited, params)['residual'].shape == (M,)


def test_parameters_in_half_precision():
    params = jax.tree.map(lambda x: x.astype(jnp.bfloat16), PARAMS)
    audited = _start(params=params)

    @jax.jit
    def step(params, audited, t):
        data_key, canary_key, noise_key = _keys(t)
        summed = jax.tree.map(lambda g: g.astype(jnp.float32), _gradients(params, data_key))
        summed, audited = audit.insert(audited, summed, canary_key)
        gradient = _noisy(summed, noise_key)
        new_params = jax.tree.map(lambda w, g: (w - RATE * g).astype(w.dtype), params, gradient)
        return new_params, audit.update(audited, params, new_params, gradient)

    for t in range(STEPS):
        params, audited = step(params, audited, t)
    assert audit.scores(audited, params)['residual_llr'].dtype == np.float32


# Canaries that come with the data.


def _loss(params, example):
    x, label = example
    logits = x @ params['a'] + params['b']
    return jax.nn.logsumexp(logits) - logits[label]


def _examples(n, seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 8)).astype(np.float32), rng.integers(0, 10, n).astype(np.int32)


def test_dirac_canaries_as_examples():
    population = _examples(5, 0)
    chosen = canaries.dirac(jax.random.key(0), 7, PARAMS)
    included = np.array([True, False, True, True, False, False, True])
    (images, labels), coordinates = chosen.join(population, included)
    assert images.shape == (9, 8)
    assert labels.shape == (9,)
    assert coordinates.tolist() == [-1] * 5 + chosen.coordinates[included].tolist()
    loss = canaries.with_dirac(_loss, 100.0)
    gradients = jax.vmap(jax.grad(loss), (None, 0))(PARAMS, ((images, labels), coordinates))
    plain = jax.vmap(jax.grad(_loss), (None, 0))(PARAMS, population)
    for place in range(9):
        found = _flat(jax.tree.map(lambda g, place=place: g[place], gradients))
        if place < 5:
            one = jax.tree.map(lambda g, place=place: g[place], plain)
            np.testing.assert_array_equal(found, _flat(one))
        else:
            np.testing.assert_array_equal(found, 100.0 * np.eye(90)[coordinates[place]])


def test_examples_as_canaries():
    """Scores of canaries that come with the data are those of the attacks themselves."""
    chosen = canaries.in_distribution(jax.random.key(0), 12, *_examples(20, 1))
    coins = canaries.flip_coins(jax.random.key(1), 12)
    images, labels = chosen.join(_examples(5, 0), coins)
    assert len(labels) == 5 + int(coins.sum())
    np.testing.assert_array_equal(images[5:], chosen.examples[0][np.asarray(coins)])
    signals = 'iterates', 'gradient'
    options = {'loss_fn': _loss, 'microbatch_size': 5, 'signals': signals}
    audited = audit.start(chosen, coins, PARAMS, CLAIM, in_data=True, **SIZES, **options)
    white = audit.white_box(
        chosen,
        white_box_scores(signals, ('dot', 'llr')),
        clipping=Clipping(CLIP, 5),
        noise_multiplier=SIGMA,
        sampling_prob=Q,
        expected_batch_size=BATCH,
        loss_fn=_loss,
    )
    black = audit.black_box(chosen, loss_fn=_loss)
    params, states = PARAMS, (white.init(PARAMS), black.init(PARAMS))

    @jax.jit
    def step(params, audited, states, t):
        gradient = _noisy(_gradients(params, _keys(t)[0]), _keys(t)[2])
        new_params = _descend(params, gradient)
        audited = audit.update(audited, params, new_params, gradient)
        seen = Observation(params, new_params, gradient, None)
        return new_params, audited, (white.update(states[0], seen), black.update(states[1], seen))

    for t in range(STEPS):
        params, audited, states = step(params, audited, states, t)
    expected = white.scores(states[0], params) | black.scores(states[1], params)
    found = audit.scores(audited, params)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-6)
    assert audit.result(audited, params, delta=1e-5).rule == 'preset'  # of no known law
    black_only = audit.start(
        chosen, coins, PARAMS, CLAIM, in_data=True, **SIZES, loss_fn=_loss, signals=()
    )
    black_only = audit.update(black_only, PARAMS, params)
    assert list(audit.scores(black_only, params)) == ['loss']


# Mistakes. Each has a sentence.


def _says(message, params, audited):
    for read in (audit.scores, lambda *given: audit.result(*given, delta=1e-5)):
        with pytest.raises(ValueError, match=message):
            read(audited, params)


@pytest.mark.parametrize('divided', [True, False])
@pytest.mark.parametrize('signals', [('iterates', 'residual'), ('iterates',)])
def test_inserted_after_the_noise(divided, signals):
    """Into the noisy sum, or into what the optimizer is given."""

    def step(params, audited, t):
        data_key, canary_key, noise_key = _keys(t)
        gradient = _noisy(_gradients(params, data_key), noise_key)
        if divided:
            gradient, audited = audit.insert(audited, gradient, canary_key)
        else:
            noisy = jax.tree.map(lambda g: BATCH * g, gradient)
            noisy, audited = audit.insert(audited, noisy, canary_key)
            gradient = jax.tree.map(lambda g: g / BATCH, noisy)
        new_params = _descend(params, gradient)
        shown = gradient if 'residual' in signals else None
        return new_params, audit.update(audited, params, new_params, shown)

    options = {'signals': signals, 'scores': ('dot',)}
    _says('must be inserted before the noise', *_loop(step, _start(**options)))
    if not divided:  # with one canary, any noise looks like none
        params, audited = _loop(step, _start(m=1, **options))
        assert int(audited.counts.noiseless_steps) == STEPS
        audit.scores(audited, params)


@pytest.mark.parametrize('sigma', [0.01, 1.0, 100.0])
@pytest.mark.parametrize('m', [8, 60])
def test_little_noise_is_not_no_noise(sigma, m):
    def step(params, audited, t):
        data_key, canary_key, noise_key = _keys(t)
        summed, audited = audit.insert(audited, _gradients(params, data_key), canary_key)
        noise = _noise(noise_key, sigma * CLIP)
        gradient = jax.tree.map(lambda g, z: (g + z) / BATCH, summed, noise)
        new_params = _descend(params, gradient)
        return new_params, audit.update(audited, params, new_params, gradient)

    params, audited = _loop(step, _start(m=m, claim=oneshot.DPSGD(sigma, Q, STEPS)))
    assert int(audited.counts.noiseless_steps) == 0
    audit.scores(audited, params)


def test_updated_twice():
    def step(params, audited, t):
        new_params, audited = _step(params, audited, t)
        return new_params, audit.update(audited, params, new_params, params)

    _says('insert was called 6 times and update 12 times', *_loop(step))


def test_updated_twice_with_the_data():
    def step(params, audited, t):
        gradient = _noisy(_gradients(params, _keys(t)[0]), _keys(t)[2])
        new_params = _descend(params, gradient)
        audited = audit.update(audited, params, new_params, gradient)
        return new_params, audit.update(audited, params, new_params, gradient)

    message = 'in 6 of 12 updates the first were not the last of the update before'
    _says(message, *_loop(step, _start(in_data=True)))


def test_never_updated():
    def step(params, audited, t):
        new_params, _ = _step(params, audited, t)
        return new_params, audited

    _says('was never called, or what it returned was not carried on', *_loop(step))


def test_what_insert_returned_is_dropped():
    def step(params, audited, t):
        summed, _ = audit.insert(audited, _gradients(params, _keys(t)[0]), _keys(t)[1])
        gradient = _noisy(summed, _keys(t)[2])
        new_params = _descend(params, gradient)
        return new_params, audit.update(audited, params, new_params, gradient)

    _says('insert was called 0 times and update 6 times', *_loop(step))


def test_a_step_without_an_update():
    params, audited = _loop(steps=2)
    params, _ = _step(params, audited, 2)
    for t in (3, 4):
        params, audited = _step(params, audited, t)
    _says('in 1 of 4 updates the first were not the last', params, audited)


def test_before_and_after_exchanged():
    def step(params, audited, t):
        summed, audited = audit.insert(audited, _gradients(params, _keys(t)[0]), _keys(t)[1])
        gradient = _noisy(summed, _keys(t)[2])
        new_params = _descend(params, gradient)
        return new_params, audit.update(audited, new_params, params, gradient)

    _says('in 6 of 6 updates the first were not the last', *_loop(step))


def test_another_tree():
    params, audited = _loop()
    _says('params must be a tree like the parameters that the audit was', {'a': 1.0}, audited)
    other = params | {'a': jnp.zeros((8, 11))}
    _says(r"\(8, 10\) at \['a'\], but \(8, 11\) was given", other, audited)
    moved = params | {'a': params['a'].at[3, 4].add(1e-3)}
    _says('must be read with the parameters that the last audit.update', moved, audited)
    with pytest.raises(ValueError, match='summed must be a tree like'):
        audit.insert(audited, list(params.values()), jax.random.key(0))
    for place, name in enumerate(('params', 'new_params', 'gradient')):
        given = [params] * 3
        given[place] = [params['a'], params['b']]
        with pytest.raises(ValueError, match=f'^{name} must be a tree like'):
            audit.update(audited, *given)


def test_one_key_for_all_steps():
    def step(params, audited, t):
        summed = _gradients(params, _keys(t)[0])
        summed, audited = audit.insert(audited, summed, jax.random.key(7))
        gradient = _noisy(summed, _keys(t)[2])
        new_params = _descend(params, gradient)
        return new_params, audit.update(audited, params, new_params, gradient)

    _says('in 5 of 6 steps it was that of the step before', *_loop(step))


def test_old_keys_will_do():
    audited = _start()
    summed, after = audit.insert(audited, PARAMS, jax.random.PRNGKey(3))
    same, _ = audit.insert(audited, PARAMS, jax.random.key(3))
    assert _flat(summed).tolist() == _flat(same).tolist()
    assert int(after.counts.inserted) == 1


def test_coins_of_another_run():
    params, audited = _loop()
    result = audit.result(audited, params, delta=1e-5)
    assert audit.result(audited, params, delta=1e-5) == result  # a second look
    again_params, again = _loop()
    assert audit.result(again, again_params, delta=1e-5) == result  # the same run
    other = _loop(lambda params, audited, t: _step(params, audited, t, seed=1))
    with pytest.raises(ValueError, match='Coins must be flipped anew for every run'):
        audit.result(other[1], other[0], delta=1e-5)
    fresh = _loop(lambda params, audited, t: _step(params, audited, t, seed=1), _start(seed=5))
    audit.result(fresh[1], fresh[0], delta=1e-5)


@pytest.mark.parametrize('wrong', [2.0 * BATCH, 1.0])
def test_another_batch_size(wrong):
    """The residual would be that of another sum."""
    params, audited = _loop(audited=_start(expected_batch_size=wrong))
    _says(
        f'expected_batch_size = {wrong:g} was given, and .* divided by (19|20|21)', params, audited
    )


def test_an_update_is_no_gradient():
    def step(params, audited, t):
        summed, audited = audit.insert(audited, _gradients(params, _keys(t)[0]), _keys(t)[1])
        update = jax.tree.map(lambda g: -RATE * g, _noisy(summed, _keys(t)[2]))
        new_params = jax.tree.map(jnp.add, params, update)
        return new_params, audit.update(audited, params, new_params, update)

    _says('gradient must be the noisy sum divided by', *_loop(step))


def test_a_part_of_the_claim():
    params, audited = _loop(steps=4)
    assert audit.scores(audited, params)['residual'].shape == (M,)
    with pytest.raises(ValueError, match='claim is of 6 steps, but the audit has seen 4'):
        audit.result(audited, params, delta=1e-5)


def test_read_inside_of_jit():
    params, audited = _loop()
    with pytest.raises(ValueError, match='read outside of jit'):
        jax.jit(audit.scores)(audited, params)


def test_without_canaries():
    params, audited = _loop(audited=_start(m=0))
    assert (int(audited.counts.inserted), int(audited.counts.updated)) == (STEPS, STEPS)
    with pytest.raises(ValueError, match='started with no canaries'):
        audit.scores(audited, params)


def test_bad_input():
    chosen = canaries.dirac(jax.random.key(0), M, PARAMS)
    coins = canaries.flip_coins(jax.random.key(1), M)
    examples = canaries.in_distribution(jax.random.key(0), M, *_examples(M, 1))
    with pytest.raises(ValueError, match='included must be 60 bools, one a canary, but int32'):
        audit.start(chosen, 2 * coins.astype(jnp.int32) - 1, PARAMS, CLAIM, **SIZES)
    with pytest.raises(ValueError, match='included must be 60 bools'):
        audit.start(chosen, coins[:5], PARAMS, CLAIM, **SIZES)
    with pytest.raises(ValueError, match=r'claim must be oneshot\.DPSGD'):
        audit.start(chosen, coins, PARAMS, 8.0, **SIZES)
    with pytest.raises(ValueError, match='expected_batch_size must be a number in'):
        _start(expected_batch_size=0.0)
    with pytest.raises(ValueError, match='clip_norm must be a number in'):
        _start(clip_norm=-1.0)
    with pytest.raises(ValueError, match='examples join with the data'):
        audit.start(examples, coins, PARAMS, CLAIM, **SIZES)
    with pytest.raises(ValueError, match='loss_fn must be given for canaries that are examples'):
        audit.start(examples, coins, PARAMS, CLAIM, in_data=True, **SIZES)
    with pytest.raises(ValueError, match='residual is known where canaries are inserted'):
        _start(in_data=True, signals=('residual',))
    with pytest.raises(ValueError, match='signals must name one or more'):
        _start(signals=())
    with pytest.raises(ValueError, match='do not insert them'):
        audit.insert(_start(in_data=True), PARAMS, jax.random.key(0))
    with pytest.raises(ValueError, match='gradient must be given for the scores iterates, resid'):
        audit.update(_start(), PARAMS, PARAMS)
    params, audited = _loop()
    with pytest.raises(ValueError, match=r"score must be one of iterates, .* but 'loss' was given"):
        audit.result(audited, params, delta=1e-5, score='loss')
    with pytest.raises(ValueError, match='join a data set outside of jit and vmap'):
        jax.jit(lambda coins: examples.join(_examples(5, 0), coins))(coins)
    with pytest.raises(ValueError, match='size, the norm of the gradients, must be a number'):
        canaries.with_dirac(_loss, np.inf)
    with pytest.raises(ValueError, match='delta must be'):
        audit.result(audited, params, delta=2.0)


EXPLICIT = """
import sys
import jax, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
import tests.audit.test_loop as test
from oneshot import audit

mesh = jax.make_mesh((2,), ('devices',), axis_types=(AxisType.Explicit,))

def spread(tree):
    spec = PartitionSpec('devices')  # all leading axes are even
    return jax.tree.map(lambda x: jax.sharding.reshard(x, NamedSharding(mesh, spec)), tree)

@jax.jit
def step(params, audited, t):
    data_key, canary_key, noise_key = test._keys(t)
    whole = jax.sharding.reshard(params, PartitionSpec())
    summed = spread(test._gradients(whole, data_key))
    summed, audited = audit.insert(audited, summed, canary_key)
    gradient = spread(test._noisy(jax.sharding.reshard(summed, PartitionSpec()), noise_key))
    new_params = test._descend(params, gradient)
    return new_params, audit.update(audited, params, new_params, gradient)

with jax.set_mesh(mesh):
    params = spread(test.PARAMS)
    audited = test._start(params=params)
    for t in range(test.STEPS):
        params, audited = jax.block_until_ready(step(params, audited, t))
    assert jax.typeof(params['a']).sharding.spec == PartitionSpec('devices', None)
    np.savez(sys.argv[1], **audit.scores(audited, params))
"""


def test_explicit_sharding(tmp_path):
    """Parameters that are explicitly sharded have the scores of those that are not."""
    flags = {'XLA_FLAGS': '--xla_force_host_platform_device_count=2'}
    command = [sys.executable, '-c', EXPLICIT, str(tmp_path / 'scores.npz')]
    subprocess.run(command, check=True, cwd=ROOT, env=os.environ | flags)
    params, audited = _loop()
    with np.load(tmp_path / 'scores.npz') as found:
        for name, values in audit.scores(audited, params).items():
            scale = np.abs(values).max()
            np.testing.assert_allclose(found[name], values, atol=1e-5 * scale, rtol=0)
