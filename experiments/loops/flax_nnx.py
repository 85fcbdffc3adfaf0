"""Flax NNX with `nnx.Optimizer`, which changes the model in place.

python -m experiments.loops.flax_nnx
"""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from experiments.loops.problem import Problem, report
from oneshot import audit


class MLP(nnx.Module):
    def __init__(self, layers, rngs):
        shapes = [kernel.shape for _, kernel in layers]
        self.layers = nnx.List([nnx.Linear(*shape, rngs=rngs) for shape in shapes])
        for layer, (bias, kernel) in zip(self.layers, layers, strict=True):
            layer.bias[...], layer.kernel[...] = bias, kernel

    def __call__(self, image):
        first, second = self.layers
        return second(jnp.tanh(first(image.reshape(-1))))


def copied(model):
    """The parameters as they are now: those of `nnx.state` itself would change with the model."""
    return jax.tree.map(jnp.asarray, nnx.state(model, nnx.Param))


def run(problem: Problem):
    model = MLP(problem.layers, nnx.Rngs(0))
    graph, params = nnx.split(model, nnx.Param)
    optimizer = nnx.Optimizer(model, optax.sgd(problem.learning_rate), wrt=nnx.Param)
    audited = audit.start(
        problem.canaries, problem.coins, params, problem.claim, **problem.settings
    )

    def loss_fn(params, example):
        image, label = example
        logits = nnx.merge(graph, params)(image)
        return optax.softmax_cross_entropy_with_integer_labels(logits, label)

    @nnx.jit
    def step(model, optimizer, audited, number):
        sampling_key, canary_key, noise_key = problem.keys(number)
        params = copied(model)
        summed = problem.private_sum(loss_fn, params, sampling_key)
        summed, audited = audit.insert(audited, summed, canary_key)
        gradient = problem.noisy_mean(summed, noise_key)
        optimizer.update(model, gradient)  # in place
        new_params = copied(model)
        return audit.update(audited, params, new_params, gradient)

    for number in range(problem.steps):
        audited = step(model, optimizer, audited, number)
    return copied(model), audited


if __name__ == '__main__':
    report(run)
