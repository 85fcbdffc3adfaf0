"""All steps in one `lax.scan`: the audit is part of what is carried.

python -m experiments.loops.optax_scan
"""

import jax
import jax.numpy as jnp
import optax

from experiments.loops.problem import Problem, report
from experiments.loops.sgd import loss_fn
from oneshot import audit


def run(problem: Problem):
    optimizer = optax.sgd(problem.learning_rate)
    params = [{'bias': bias, 'kernel': kernel} for bias, kernel in problem.layers]
    audited = audit.start(
        problem.canaries, problem.coins, params, problem.claim, **problem.settings
    )

    def step(carried, number):
        params, opt_state, audited = carried
        sampling_key, canary_key, noise_key = problem.keys(number)
        summed = problem.private_sum(loss_fn, params, sampling_key)
        summed, audited = audit.insert(audited, summed, canary_key)
        gradient = problem.noisy_mean(summed, noise_key)
        updates, opt_state = optimizer.update(gradient, opt_state, params)
        new_params = optax.apply_updates(params, updates)
        audited = audit.update(audited, params, new_params, gradient)
        return (new_params, opt_state, audited), None

    carried = params, optimizer.init(params), audited
    (params, _, audited), _ = jax.lax.scan(step, carried, jnp.arange(problem.steps))
    return params, audited


if __name__ == '__main__':
    report(run)
