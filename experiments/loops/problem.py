"""What the loops have in common: the data, the model's first parameters, the keys, the claim.

And the private gradient, as such loops have it before anybody audits them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import optax
from flax import nnx
from rich import print

import oneshot
from configs import digits_wb
from oneshot import AuditResult, audit
from oneshot.audit import canaries
from oneshot.data import datasets, models

PyTree = Any


def small(seed: int = 0) -> ml_collections.ConfigDict:
    """The default audit, smaller: seconds a loop."""
    config = digits_wb.get_config()
    config.seed, config.steps, config.data.n, config.audit.m = seed, 100, 600, 800
    config.model.hidden, config.dp.noise_multiplier = (32,), 1.0
    return config


class Problem(NamedTuple):
    """All that a loop is given. The same as `oneshot.main` makes of the same config."""

    examples: tuple[jax.Array, jax.Array]  # images and labels
    layers: list[tuple[jax.Array, jax.Array]]  # bias and kernel of each, to begin with
    canaries: canaries.Dirac
    coins: jax.Array
    claim: oneshot.DPSGD
    clip_norm: float
    batch: float  # the expected size
    learning_rate: float
    steps: int
    key: jax.Array  # of the run

    @property
    def settings(self) -> dict[str, float]:
        """What the audit has to know of the loop."""
        return {'clip_norm': self.clip_norm, 'expected_batch_size': self.batch}

    def keys(self, step: jax.Array) -> tuple[jax.Array, ...]:
        """Keys for the sampling, the canaries and the noise of a step."""
        return tuple(jax.random.split(jax.random.fold_in(self.key, step), 5)[:3])

    def private_sum(
        self, loss_fn: Callable[[PyTree, PyTree], jax.Array], params: PyTree, key: jax.Array
    ) -> PyTree:
        """Poisson sampling, and the sum of the clipped gradients of what is drawn."""
        size = self.examples[1].shape[0]
        bits = jax.random.bits(key, (size,), jnp.uint32)
        drawn = bits < round(self.claim.sampling_prob * 2**32)
        gradients = jax.vmap(jax.grad(loss_fn), (None, 0))(params, self.examples)
        norms = jax.vmap(optax.tree.norm)(gradients)
        scale = drawn * jnp.minimum(1.0, self.clip_norm / norms)
        return jax.tree.map(lambda g: jnp.tensordot(scale, g, 1), gradients)

    def noisy_mean(self, summed: PyTree, key: jax.Array) -> PyTree:
        """Gaussian noise, once, and division by the expected size of a batch."""
        leaves, tree = jax.tree.flatten(summed)
        deviation = self.claim.noise_multiplier * self.clip_norm
        keys = jax.random.split(key, len(leaves))
        noisy = [
            (leaf + deviation * jax.random.normal(one, leaf.shape)) / self.batch
            for leaf, one in zip(leaves, keys, strict=True)
        ]
        return jax.tree.unflatten(tree, noisy)


def make(config: ml_collections.ConfigDict, m: int | None = None) -> Problem:
    """The problem of a config, with as many canaries as it says, or others."""
    m = config.audit.m if m is None else m
    seed = jax.random.key(config.seed)
    model_key, canary_key, coin_key, run_key = (jax.random.fold_in(seed, i) for i in range(4))
    images, labels = datasets.digits(config.data.n, config.seed).train
    hidden = config.model.hidden
    model = models.make('mlp', images.shape[1:], 10, nnx.Rngs(model_key), hidden=hidden)
    layers = [(layer.bias[...], layer.kernel[...]) for layer in model.layers]
    dp = config.dp
    return Problem(
        examples=(jnp.asarray(images), jnp.asarray(labels)),
        layers=layers,
        canaries=canaries.dirac(canary_key, m, layers),
        coins=canaries.flip_coins(coin_key, m),
        claim=oneshot.DPSGD(dp.noise_multiplier, dp.sampling_prob, config.steps),
        clip_norm=dp.clip_norm,
        batch=dp.sampling_prob * (len(labels) + config.audit.m / 2),
        learning_rate=config.learning_rate,
        steps=config.steps,
        key=run_key,
    )


def report(run: Callable[[Problem], tuple[PyTree, audit.Audited]]) -> AuditResult:
    """Runs a loop, and prints what the audit found."""
    params, audited = run(make(small()))
    result = audit.result(audited, params, delta=1e-5)
    print(result)
    return result
