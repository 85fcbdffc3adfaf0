"""A small step to examine, and what the checks find in it.

A test that no fault is found looks for p-values below 1e-9: there are at most 20 in an
examination, so that it fails by chance less than once in 10⁷ choices of seeds.
"""

import functools

import jax

from experiments import fault_steps as steps
from experiments import fault_table
from oneshot import check
from oneshot.check import noise, sensitivity
from oneshot.check.runner import Runner

CLAIM = steps.Claim(sigma=5.15, c=1.0, batch=16.0, q=0.25)


def small(gradient=steps.right, claim=CLAIM, model='linear', **options):
    """A step on a model that is soon compiled."""
    sizes = {'clip_norm': claim.c, 'noise_multiplier': claim.sigma}
    sizes |= {'expected_batch_size': claim.batch, 'sampling_prob': claim.q, 'rows': 64}
    made = fault_table.MODELS[model]() if isinstance(model, str) else model
    return check.Step(functools.partial(gradient, claim), **sizes | {'model': made} | options)


def suspicious(findings):
    return {
        one.check: one
        for one in findings
        if one.wrong or (one.p_value is not None and one.p_value < 1e-9)
    }


def leave_one_out_faults(step):
    return suspicious(sensitivity.examine(Runner(step), jax.random.key(1)))


def noise_faults(step):
    runner = Runner(step)
    return suspicious(noise.examine(runner, *noise.noise_only_gradients(runner, jax.random.key(1))))
