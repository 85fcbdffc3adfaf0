"""Any optimizer of optax, under `jit`.

    python -m experiments.loops.optax_jit

Where the update is not a step of plain SGD, the paper's score looks at the privatized
gradient in the place of the iterates: signals=('gradient', 'residual').
"""

import functools

import jax
import optax

from experiments.loops.problem import Problem, report
from experiments.loops.sgd import loss_fn
from oneshot import audit


def run(problem: Problem, optimizer=None, signals=('iterates', 'residual')):
    optimizer = optax.sgd(problem.learning_rate) if optimizer is None else optimizer
    params = [{'bias': bias, 'kernel': kernel} for bias, kernel in problem.layers]
    opt_state = optimizer.init(params)
    audited = audit.start(
        problem.canaries,
        problem.coins,
        params,
        problem.claim,
        signals=signals,
        **problem.settings,
    )

    @jax.jit
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


adam = functools.partial(run, optimizer=optax.adam(1e-3), signals=('gradient', 'residual'))

if __name__ == '__main__':
    report(adam)
