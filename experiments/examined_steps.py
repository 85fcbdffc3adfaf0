"""DP steps of other libraries, for the doctor: that of optax and that of jax_privacy.

python -m oneshot.check experiments.examined_steps:optax_dpsgd
"""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax

from oneshot import check
from oneshot.check.step import CLAIM

CLIP, SIGMA, BATCH, Q = CLAIM.values()
ROWS = 256


def _optax_dpsgd() -> check.Step:
    """Its rate is 1 and its momentum none, so that an update is a gradient.

    It divides by the rows that it is given, so that their number must be public: padding is
    given as gradients of 0. It has no sampler.
    """

    def transform(seed: jax.Array | int) -> optax.GradientTransformation:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore', DeprecationWarning)  # of the seed, which it asks for
            return optax.contrib.dpsgd(1.0, CLIP, SIGMA, seed)

    def gradient(loss_fn, params, batch, mask, state):
        grads = jax.vmap(jax.grad(loss_fn), (None, 0))(params, batch)

        def real(g):
            return jnp.where(mask.reshape(-1, *[1] * (g.ndim - 1)), g, 0.0)

        update = transform(0).update  # the key that counts is in the state
        updates, state = update(jax.tree.map(real, grads), state, params)
        return jax.tree.map(jnp.negative, updates), state

    def init(params, key):
        return transform(jax.random.bits(key)).init(params)

    name = 'optax.contrib.dpsgd'
    return check.Step(gradient, CLIP, SIGMA, ROWS, Q, init, rows=ROWS, name=name)


def _jax_privacy_step() -> check.Step:
    """All parts are its own: sampler, padding, clipping, division, sensitivity and noise."""
    from jax_privacy import batch_selection, clipped_grad, noise_addition

    def clipped(loss_fn):
        return clipped_grad(loss_fn, l2_clip_norm=CLIP, normalize_by=BATCH, keep_batch_dim=False)

    def privatizer(key: jax.Array):
        deviation = SIGMA * clipped(jnp.vdot).sensitivity()
        return noise_addition.gaussian_privatizer(stddev=deviation, prng_key=key)

    def gradient(loss_fn, params, batch, mask, state):
        mean = clipped(loss_fn)(params, batch, is_padding_example=~mask)
        return privatizer(jax.random.key(0)).update(mean, state)  # the key is in the state

    def init(params, key):
        return privatizer(key).init(params)

    def sample(key, n, steps):
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).tolist())
        sampler = batch_selection.CyclicPoissonSampling(sampling_prob=Q, iterations=steps)
        counts = np.zeros((steps, n), int)
        for row, drawn in zip(counts, sampler.batch_iterator(n, rng), strict=True):
            np.add.at(row, drawn, 1)
        return counts

    return check.Step(gradient, CLIP, SIGMA, BATCH, Q, init, sample, name='jax_privacy')


_STEPS = {
    'optax_dpsgd': _optax_dpsgd,
    'jax_privacy_step': _jax_privacy_step,
}


def __getattr__(name: str) -> check.Step:
    """A step by its name; made when it is asked for, because a peer may not be installed."""
    if name not in _STEPS:
        raise AttributeError(name)
    return _STEPS[name]()
