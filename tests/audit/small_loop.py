"""A small private loop with the audit in it, for the tests of the audit."""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

import oneshot
from oneshot import audit
from oneshot.audit import canaries

ROOT = pathlib.Path(__file__).parents[2]


M, STEPS, CLIP, SIGMA, Q, BATCH, RATE = 60, 6, 0.5, 1.5, 0.5, 20.0, 0.3


CLAIM = oneshot.DPSGD(SIGMA, Q, STEPS)


SIZES = {'clip_norm': CLIP, 'expected_batch_size': BATCH}


PARAMS = {'a': jnp.full((8, 10), 0.1), 'b': jnp.linspace(-0.2, 0.2, 10)}


def start_audit(seed=0, m=M, params=PARAMS, claim=CLAIM, **options):
    chosen = canaries.dirac(jax.random.key(seed), m, params)
    coins = canaries.flip_coins(jax.random.key(seed + 100), m)
    return audit.start(chosen, coins, params, claim, **SIZES | options)


def step_keys(t, seed=0):
    return jax.random.split(jax.random.fold_in(jax.random.key(seed + 200), t), 3)


def batch_gradients(params, key):
    """What a batch would give: the loop under test does not care."""
    shift = jax.random.uniform(key)
    return jax.tree.map(lambda w: 2.0 * jnp.sin(99.0 * (w + jnp.arange(10.0) + shift)), params)


def draw_noise(key, deviation=SIGMA * CLIP):
    flat = deviation * jax.random.normal(key, (90,))  # compiled faster than leaf by leaf
    return {'a': flat[:80].reshape(8, 10), 'b': flat[80:]}


def noisy_mean(summed, key):
    noise = draw_noise(key)
    return jax.tree.map(lambda g, z: (g + z) / BATCH, summed, noise)


def descend(params, gradient):
    return jax.tree.map(lambda w, g: w - RATE * g, params, gradient)


@functools.partial(jax.jit, static_argnames='seed')
def private_step(params, audited, t, seed=0):
    data_key, canary_key, noise_key = step_keys(t, seed)
    summed = batch_gradients(params, data_key)
    summed, audited = audit.insert(audited, summed, canary_key)
    gradient = noisy_mean(summed, noise_key)
    new_params = descend(params, gradient)
    return new_params, audit.update(audited, params, new_params, gradient)


def run_loop(step=private_step, audited=None, steps=STEPS):
    params, audited = PARAMS, start_audit() if audited is None else audited
    step = step if step is private_step else jax.jit(step)
    for t in range(steps):
        params, audited = step(params, audited, t)
    return params, audited


def flatten(tree):
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)])


def example_loss(params, example):
    x, label = example
    logits = x @ params['a'] + params['b']
    return jax.nn.logsumexp(logits) - logits[label]


def make_examples(n, seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 8)).astype(np.float32), rng.integers(0, 10, n).astype(np.int32)
