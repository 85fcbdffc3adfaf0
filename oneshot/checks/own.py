"""Our own step, for the doctor."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from oneshot import dpsgd, sampling
from oneshot.checks.step import Model, Step
from oneshot.dpsgd import Attack

PyTree = Any
SIGMA, CLIP, BATCH, Q = 5.15, 1.0, 64.0, 0.25  # ε = 2 after 100 steps


def _watch(gradient: PyTree) -> Attack:
    """An attack that keeps the privatized gradient, which is all that the doctor asks for."""
    return Attack(lambda params: gradient, lambda state, seen: seen.gradient, lambda *_: {})


def step(strategy: str, model: Model | None = None) -> Step:
    """`oneshot.dpsgd.make_step`, whole, with all of the batch drawn: padding has a loss of 0."""

    def gradient(loss_fn, params, batch, mask, key):
        def loss(params: PyTree, example: tuple[PyTree, jax.Array]) -> jax.Array:
            inner, real = example
            return jnp.where(real, loss_fn(params, inner), 0.0)

        init, advance = dpsgd.make_step(
            loss,
            optax.sgd(1.0),
            clip_norm=CLIP,
            noise_multiplier=SIGMA,
            sampling_prob=1.0,
            expected_batch_size=BATCH,
            microbatch_size=32,
            strategy=strategy,
            attacks={'watch': _watch(jax.tree.map(jnp.zeros_like, params))},
        )
        state, _ = advance(init(params), key, (batch, mask))
        return state.audits['watch']

    def sample(key, n, steps):
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(steps))
        return jax.vmap(lambda key: sampling.poisson(key, Q, jnp.ones(n, bool)))(keys)

    name = f'oneshot, {strategy}'
    return Step(gradient, CLIP, SIGMA, BATCH, Q, sample=sample, model=model, name=name)
