"""The audit in any loop: what it gives."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import oneshot
from oneshot import audit
from oneshot.audit import canaries
from oneshot.audit.score import white_box_scores
from oneshot.dpsgd.clipping import Clipping
from oneshot.dpsgd.step import Observation
from tests.audit.small_loop import (
    BATCH,
    CLAIM,
    CLIP,
    PARAMS,
    RATE,
    ROOT,
    SIGMA,
    SIZES,
    STEPS,
    M,
    Q,
    batch_gradients,
    descend,
    draw_noise,
    example_loss,
    flatten,
    make_examples,
    noisy_mean,
    private_step,
    run_loop,
    start_audit,
    step_keys,
)


def test_scores_by_hand():
    """Every score, from all that happened, in float64."""
    audited = start_audit()
    coordinates, included = np.asarray(audited.canaries.coordinates), np.asarray(audited.included)
    expected = {name: np.zeros(M) for name in ('iterates', 'residual', 'residual_llr')}
    params = PARAMS
    for t in range(STEPS):
        data_key, canary_key, noise_key = step_keys(t)
        drawn = np.asarray(oneshot.dpsgd.sampling.poisson(canary_key, Q, included))
        noise = flatten(draw_noise(noise_key))[coordinates]
        residual = CLIP * drawn + noise
        seen = (flatten(batch_gradients(params, data_key))[coordinates] + residual) / BATCH
        expected['iterates'] += CLIP * RATE * seen
        expected['residual'] += CLIP * residual
        exponent = (2 * CLIP * residual - CLIP**2) / (2 * SIGMA**2 * CLIP**2)
        expected['residual_llr'] += np.log(1 - Q + Q * np.exp(exponent))
        params, audited = private_step(params, audited, t)
    found = audit.scores(audited, params)
    assert tuple(found) == ('iterates', 'residual', 'iterates_llr', 'residual_llr')
    for name, values in expected.items():
        scale = np.abs(values).max()
        np.testing.assert_allclose(found[name], values, atol=3e-6 * scale, rtol=0)


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
    params, audited = run_loop(audited=again)
    assert audit.result(audited, params, delta=1e-5).m == M


def test_the_mean_before_the_noise():
    """A loop that divides first has a clip norm of c/B and noise of σc/B."""

    def step(params, audited, t):
        data_key, canary_key, noise_key = step_keys(t)
        mean = jax.tree.map(lambda g: g / BATCH, batch_gradients(params, data_key))
        mean, audited = audit.insert(audited, mean, canary_key)
        noise = draw_noise(noise_key, SIGMA * CLIP / BATCH)
        gradient = jax.tree.map(jnp.add, mean, noise)
        new_params = descend(params, gradient)
        return new_params, audit.update(audited, params, new_params, gradient)

    params, audited = run_loop()
    first = start_audit(clip_norm=CLIP / BATCH, expected_batch_size=1.0)
    other_params, other = run_loop(step, first)
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
            summed, audited = audit.insert(audited, batch_gradients(params, data_key), canary_key)
            gradient = noisy_mean(summed, noise_key)
            new_params = descend(params, gradient)
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
    audited = start_audit()
    coins = audited.included
    step = jax.jit(private_step, donate_argnums=(0, 1))
    params = jax.tree.map(jnp.copy, PARAMS)
    mine = jnp.copy(coins)
    audited = audit.start(audited.canaries, mine, params, CLAIM, **SIZES)
    for t in range(STEPS):
        params, audited = step(params, audited, t)
    assert mine.tolist() == coins.tolist()  # not donated
    assert audit.scores(audited, params)['residual'].shape == (M,)


def test_parameters_in_half_precision():
    params = jax.tree.map(lambda x: x.astype(jnp.bfloat16), PARAMS)
    audited = start_audit(params=params)

    @jax.jit
    def step(params, audited, t):
        data_key, canary_key, noise_key = step_keys(t)
        summed = jax.tree.map(lambda g: g.astype(jnp.float32), batch_gradients(params, data_key))
        summed, audited = audit.insert(audited, summed, canary_key)
        gradient = noisy_mean(summed, noise_key)
        new_params = jax.tree.map(lambda w, g: (w - RATE * g).astype(w.dtype), params, gradient)
        return new_params, audit.update(audited, params, new_params, gradient)

    for t in range(STEPS):
        params, audited = step(params, audited, t)
    assert audit.scores(audited, params)['residual_llr'].dtype == np.float32


def test_dirac_canaries_as_examples():
    population = make_examples(5, 0)
    chosen = canaries.dirac(jax.random.key(0), 7, PARAMS)
    included = np.array([True, False, True, True, False, False, True])
    (images, labels), coordinates = chosen.join(population, included)
    assert images.shape == (9, 8)
    assert labels.shape == (9,)
    assert coordinates.tolist() == [-1] * 5 + chosen.coordinates[included].tolist()
    loss = canaries.with_dirac(example_loss, 100.0)
    gradients = jax.vmap(jax.grad(loss), (None, 0))(PARAMS, ((images, labels), coordinates))
    plain = jax.vmap(jax.grad(example_loss), (None, 0))(PARAMS, population)
    for place in range(9):
        found = flatten(jax.tree.map(lambda g, place=place: g[place], gradients))
        if place < 5:
            one = jax.tree.map(lambda g, place=place: g[place], plain)
            np.testing.assert_array_equal(found, flatten(one))
        else:
            np.testing.assert_array_equal(found, 100.0 * np.eye(90)[coordinates[place]])


def test_examples_as_canaries():
    """Scores of canaries that come with the data are those of the attacks themselves."""
    chosen = canaries.in_distribution(jax.random.key(0), 12, *make_examples(20, 1))
    coins = canaries.flip_coins(jax.random.key(1), 12)
    images, labels = chosen.join(make_examples(5, 0), coins)
    assert len(labels) == 5 + int(coins.sum())
    np.testing.assert_array_equal(images[5:], chosen.examples[0][np.asarray(coins)])
    signals = 'iterates', 'gradient'
    options = {'loss_fn': example_loss, 'microbatch_size': 5, 'signals': signals}
    audited = audit.start(chosen, coins, PARAMS, CLAIM, in_data=True, **SIZES, **options)
    white = audit.white_box(
        chosen,
        white_box_scores(signals, ('dot', 'llr')),
        clipping=Clipping(CLIP, 5),
        noise_multiplier=SIGMA,
        sampling_prob=Q,
        expected_batch_size=BATCH,
        loss_fn=example_loss,
    )
    black = audit.black_box(chosen, loss_fn=example_loss)
    params, states = PARAMS, (white.init(PARAMS), black.init(PARAMS))

    @jax.jit
    def step(params, audited, states, t):
        gradient = noisy_mean(batch_gradients(params, step_keys(t)[0]), step_keys(t)[2])
        new_params = descend(params, gradient)
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
        chosen, coins, PARAMS, CLAIM, in_data=True, **SIZES, loss_fn=example_loss, signals=()
    )
    black_only = audit.update(black_only, PARAMS, params)
    assert list(audit.scores(black_only, params)) == ['loss']


def test_raw_keys_are_accepted():
    audited = start_audit()
    summed, after = audit.insert(audited, PARAMS, jax.random.PRNGKey(3))
    same, _ = audit.insert(audited, PARAMS, jax.random.key(3))
    assert flatten(summed).tolist() == flatten(same).tolist()
    assert int(after.counts.inserted) == 1


def test_without_canaries():
    params, audited = run_loop(audited=start_audit(m=0))
    assert (int(audited.counts.inserted), int(audited.counts.updated)) == (STEPS, STEPS)
    with pytest.raises(ValueError, match='started with no canaries'):
        audit.scores(audited, params)


def test_bad_input():
    chosen = canaries.dirac(jax.random.key(0), M, PARAMS)
    coins = canaries.flip_coins(jax.random.key(1), M)
    examples = canaries.in_distribution(jax.random.key(0), M, *make_examples(M, 1))
    with pytest.raises(ValueError, match='included must be 60 bools, one a canary, but int32'):
        audit.start(chosen, 2 * coins.astype(jnp.int32) - 1, PARAMS, CLAIM, **SIZES)
    with pytest.raises(ValueError, match='included must be 60 bools'):
        audit.start(chosen, coins[:5], PARAMS, CLAIM, **SIZES)
    with pytest.raises(ValueError, match=r'claim must be oneshot\.DPSGD'):
        audit.start(chosen, coins, PARAMS, 8.0, **SIZES)
    with pytest.raises(ValueError, match='expected_batch_size must be a number in'):
        start_audit(expected_batch_size=0.0)
    with pytest.raises(ValueError, match='clip_norm must be a number in'):
        start_audit(clip_norm=-1.0)
    with pytest.raises(ValueError, match='examples join with the data'):
        audit.start(examples, coins, PARAMS, CLAIM, **SIZES)
    with pytest.raises(ValueError, match='loss_fn must be given for canaries that are examples'):
        audit.start(examples, coins, PARAMS, CLAIM, in_data=True, **SIZES)
    with pytest.raises(ValueError, match='residual is known where canaries are inserted'):
        start_audit(in_data=True, signals=('residual',))
    with pytest.raises(ValueError, match='signals must name one or more'):
        start_audit(signals=())
    with pytest.raises(ValueError, match='do not insert them'):
        audit.insert(start_audit(in_data=True), PARAMS, jax.random.key(0))
    with pytest.raises(ValueError, match='gradient must be given for the scores iterates, resid'):
        audit.update(start_audit(), PARAMS, PARAMS)
    params, audited = run_loop()
    with pytest.raises(ValueError, match=r"score must be one of iterates, .* but 'loss' was given"):
        audit.result(audited, params, delta=1e-5, score='loss')
    with pytest.raises(ValueError, match='join a data set outside of jit and vmap'):
        jax.jit(lambda coins: examples.join(make_examples(5, 0), coins))(coins)
    with pytest.raises(ValueError, match='size, the norm of the gradients, must be a number'):
        canaries.with_dirac(example_loss, np.inf)
    with pytest.raises(ValueError, match='delta must be'):
        audit.result(audited, params, delta=2.0)


EXPLICIT = """
import sys
import jax, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
import tests.audit.small_loop as test
from oneshot import audit

mesh = jax.make_mesh((2,), ('devices',), axis_types=(AxisType.Explicit,))

def spread(tree):
    spec = PartitionSpec('devices')  # all leading axes are even
    return jax.tree.map(lambda x: jax.sharding.reshard(x, NamedSharding(mesh, spec)), tree)

@jax.jit
def step(params, audited, t):
    data_key, canary_key, noise_key = test.step_keys(t)
    whole = jax.sharding.reshard(params, PartitionSpec())
    summed = spread(test.batch_gradients(whole, data_key))
    summed, audited = audit.insert(audited, summed, canary_key)
    gradient = spread(test.noisy_mean(jax.sharding.reshard(summed, PartitionSpec()), noise_key))
    new_params = test.descend(params, gradient)
    return new_params, audit.update(audited, params, new_params, gradient)

with jax.set_mesh(mesh):
    params = spread(test.PARAMS)
    audited = test.start_audit(params=params)
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
    params, audited = run_loop()
    with np.load(tmp_path / 'scores.npz') as found:
        for name, values in audit.scores(audited, params).items():
            scale = np.abs(values).max()
            np.testing.assert_allclose(found[name], values, atol=1e-5 * scale, rtol=0)
