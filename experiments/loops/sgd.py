"""A loop by hand: SGD, a dictionary a layer, `jit`.

python -m experiments.loops.sgd
"""

import jax
import jax.numpy as jnp

from experiments.loops.problem import Problem, report
from oneshot import audit


def loss_fn(params, example):
    image, label = example
    first, second = params
    hidden = jnp.tanh(image.reshape(-1) @ first['kernel'] + first['bias'])
    logits = hidden @ second['kernel'] + second['bias']
    return jax.nn.logsumexp(logits) - logits[label]


def run(problem: Problem):
    params = [{'bias': bias, 'kernel': kernel} for bias, kernel in problem.layers]
    audited = audit.start(
        problem.canaries, problem.coins, params, problem.claim, **problem.settings
    )

    @jax.jit
    def step(params, audited, number):
        sampling_key, canary_key, noise_key = problem.keys(number)
        summed = problem.private_sum(loss_fn, params, sampling_key)
        summed, audited = audit.insert(audited, summed, canary_key)
        gradient = problem.noisy_mean(summed, noise_key)
        new_params = jax.tree.map(lambda w, g: w - problem.learning_rate * g, params, gradient)
        audited = audit.update(audited, params, new_params, gradient)
        return new_params, audited

    for number in range(problem.steps):
        params, audited = step(params, audited, number)
    return params, audited


if __name__ == '__main__':
    report(run)
