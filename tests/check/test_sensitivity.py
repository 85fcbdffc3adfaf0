"""What leaving one example out shows."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import examined_steps, fault_page, fault_table
from experiments import fault_steps as steps
from oneshot.check import sensitivity
from oneshot.check.runner import Runner
from tests.check.cases import CLAIM, leave_one_out_faults, noise_faults, small, suspicious

# What shows a fault on a model of two leaves: of one example left out, and of the noise.
# Faults that take more are in the results.
LEFT_OUT = {
    'mean_clipped': {'sensitivity', 'not finite'},
    'microbatch_clipped': {'sensitivity'},
    'clip_norm_ignored': {'sensitivity', 'not finite'},
    'layers_clipped_alone': {'sensitivity'},
    'views_clipped_one_by_one': {'sensitivity'},
    'raw_gradient_mixed_in': {'sensitivity', 'not finite'},
    'tied_counted_once': {'sensitivity'},
    'batch_norm': {'sensitivity', 'not finite'},
    'divided_by_the_drawn': {'sensitivity', 'not finite', 'batch size'},
    'not_finite_kept': {'not finite'},
}


@pytest.mark.parametrize('name', LEFT_OUT)
def test_a_fault_that_leaving_one_out_shows(name):
    faults = leave_one_out_faults(small(getattr(steps, name)))
    assert set(faults) == LEFT_OUT[name]
    assert all(one.cause and one.seen and one.expected for one in faults.values())


@pytest.mark.parametrize('name', ['layers_share_the_norm', 'normalized'])
def test_layers_that_share_the_norm_and_normalized_gradients_have_no_fault(name):
    assert not leave_one_out_faults(small(getattr(steps, name)))
    assert not noise_faults(small(getattr(steps, name)))


def test_float16_norms_are_found():
    claim = CLAIM._replace(c=1e-4)
    faults = leave_one_out_faults(small(steps.float16_norms, claim))
    assert list(faults) == ['sensitivity']
    assert 'float16' in faults['sensitivity'].cause


def test_padding_that_counts_is_found():
    def gradient(claim, loss_fn, params, batch, mask, key):
        return steps.right(claim, loss_fn, params, batch, jnp.ones_like(mask), key)

    assert 'padding' in leave_one_out_faults(small(gradient))


def test_rounding_is_no_fault():
    """Gradients in bfloat16 differ by more than c may, and that is known."""

    def gradient(claim, loss_fn, params, batch, mask, key):
        right = steps.right(claim, loss_fn, params, batch, mask, key)
        return jax.tree.map(lambda g: g.astype(jnp.bfloat16), right)

    runner = Runner(small(gradient))
    findings = sensitivity.examine(runner, jax.random.key(0))
    assert not suspicious(findings)


def test_the_step_of_optax_keeps_gradients_that_are_not_finite():
    """The fault that the doctor finds in optax; `experiments/FAULTS.md` has the minimal case."""
    step = dataclasses.replace(examined_steps.optax_dpsgd, model=fault_table.linear())
    assert list(leave_one_out_faults(step)) == ['not finite']
    with_it, without = fault_page.minimal_output().split()
    assert with_it == '[nan]'
    assert np.isfinite(float(without.strip('[]')))
