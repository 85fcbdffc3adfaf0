"""Equinox: the model is the tree of parameters.

python -m experiments.loops.equinox_module
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from experiments.loops.problem import Problem, report
from oneshot import audit


class Dense(eqx.Module):
    bias: jax.Array
    kernel: jax.Array

    def __call__(self, x):
        return x @ self.kernel + self.bias


class MLP(eqx.Module):
    layers: list[Dense]

    def __call__(self, image):
        first, second = self.layers
        return second(jnp.tanh(first(image.reshape(-1))))


def loss_fn(model, example):
    image, label = example
    return optax.softmax_cross_entropy_with_integer_labels(model(image), label)


def run(problem: Problem):
    model = MLP([Dense(bias, kernel) for bias, kernel in problem.layers])
    optimizer = optax.sgd(problem.learning_rate)
    opt_state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
    audited = audit.start(problem.canaries, problem.coins, model, problem.claim, **problem.settings)

    @eqx.filter_jit
    def step(model, opt_state, audited, number):
        sampling_key, canary_key, noise_key = problem.keys(number)
        summed = problem.private_sum(loss_fn, model, sampling_key)
        summed, audited = audit.insert(audited, summed, canary_key)
        gradient = problem.noisy_mean(summed, noise_key)
        updates, opt_state = optimizer.update(gradient, opt_state, model)
        new_model = eqx.apply_updates(model, updates)
        audited = audit.update(audited, model, new_model, gradient)
        return new_model, opt_state, audited

    for number in range(problem.steps):
        model, opt_state, audited = step(model, opt_state, audited, jnp.int32(number))
    return model, audited


if __name__ == '__main__':
    report(run)
