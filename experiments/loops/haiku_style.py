"""Plain nested dictionaries by module, as Haiku has them, and buffers that are donated.

python -m experiments.loops.haiku_style
"""

import functools

import jax
import jax.numpy as jnp
import optax

from experiments.loops.problem import Problem, report
from oneshot import audit


def linear(params, x):
    return x @ params['w'] + params['b']


def apply(params, image):
    hidden = jnp.tanh(linear(params['mlp/~/linear_0'], image.reshape(-1)))
    return linear(params['mlp/~/linear_1'], hidden)


def loss_fn(params, example):
    image, label = example
    return optax.softmax_cross_entropy_with_integer_labels(apply(params, image), label)


def run(problem: Problem):
    params = {
        f'mlp/~/linear_{place}': {'w': jnp.copy(kernel), 'b': jnp.copy(bias)}
        for place, (bias, kernel) in enumerate(problem.layers)
    }
    optimizer = optax.sgd(problem.learning_rate)
    opt_state = optimizer.init(params)
    audited = audit.start(
        problem.canaries, problem.coins, params, problem.claim, **problem.settings
    )

    @functools.partial(jax.jit, donate_argnums=(0, 1, 2))
    def step(params, opt_state, audited, number):
        sampling_key, canary_key, noise_key = problem.keys(number)
        summed = problem.private_sum(loss_fn, params, sampling_key)
        summed, audited = audit.insert(audited, summed, canary_key)
        gradient = problem.noisy_mean(summed, noise_key)
        updates, opt_state = optimizer.update(gradient, opt_state, params)
        new_params = optax.apply_updates(params, updates)
        audited = audit.update(audited, params, new_params, gradient)
        return new_params, opt_state, audited

    for number in range(problem.steps):
        params, opt_state, audited = step(params, opt_state, audited, number)
    return params, audited


if __name__ == '__main__':
    report(run)
