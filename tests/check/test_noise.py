"""What the noise alone shows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import fault_steps as steps
from oneshot.check import noise, sensitivity
from oneshot.check.runner import Runner
from tests.chance import plausible
from tests.check.cases import CLAIM, leave_one_out_faults, noise_faults, small, suspicious

NOISE = {
    'noise_without_c': {'noise'},
    'noise_divided_twice': {'noise'},
    'sigma_as_variance': {'noise'},
    'noise_off_one_layer': {'noise'},
    'same_key_on_every_leaf': {'leaves'},
    'one_value_per_leaf': {'coordinates and shards'},
    'noise_on_the_first_part': {'noise'},
    'divided_by_the_drawn': {'noise', 'noise by batch size'},
}


@pytest.mark.parametrize('name', NOISE)
def test_a_fault_that_the_noise_shows(name):
    faults = noise_faults(small(getattr(steps, name), CLAIM._replace(c=8.0)))
    assert set(faults) == NOISE[name]
    assert all(one.cause and one.seen and one.expected for one in faults.values())


@pytest.mark.parametrize(('name', 'times'), [('sum_noise_on_the_mean', 16), ('replace_one', 2)])
def test_too_much_noise_gives_a_note_and_no_fault(name, times):
    runner = Runner(small(getattr(steps, name)))
    assert not suspicious(sensitivity.examine(runner, jax.random.key(0)))
    findings = noise.examine(runner, *noise.noise_only_gradients(runner, jax.random.key(0)))
    assert not suspicious(findings)
    (note,) = [one.note for one in findings if one.note]
    assert float(note.split()[3]) == pytest.approx(times, rel=0.02)


def test_the_same_key_at_every_step_is_found():
    assert set(noise_faults(small(steps.same_key_each_step, init=steps.keep_the_key))) == {'steps'}


def test_noise_from_numpy_is_found():
    """JAX calls it once, when it compiles."""

    def gradient(claim, loss_fn, params, batch, mask, key):
        summed = steps.clipped_sum(claim, loss_fn, params, batch, mask)
        rng = np.random.default_rng(0)
        noisy = jax.tree.map(lambda g: g + claim.sigma * rng.standard_normal(g.shape), summed)
        return steps.divide(noisy, claim.batch)

    assert set(leave_one_out_faults(small(gradient))) == {'key'}
    assert set(noise_faults(small(gradient))) == {'steps'}


def test_shards_that_share_their_noise_are_found():
    def gradient(claim, loss_fn, params, batch, mask, key):
        summed = steps.clipped_sum(claim, loss_fn, params, batch, mask)
        shard = steps.add_noise(key, jax.tree.map(lambda g: 0.0 * g[: len(g) // 2], summed), 5.15)
        both = jax.tree.map(lambda s: jnp.concatenate([s, s]), shard)
        return steps.divide(steps.add(summed, both), claim.batch)

    (fault,) = noise_faults(small(gradient)).values()
    assert fault.check == 'coordinates and shards'
    assert 'correlation 1' in fault.seen


def test_p_values_of_correlations_are_uniform():
    """Of 20,000 pairs, those below a level are binomial: an alarm once in 10⁹."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 20_000, 12))
    cosine = np.sum(x * y, 1) / np.linalg.norm(x, axis=1) / np.linalg.norm(y, axis=1)
    chances = noise.correlation_p_value(cosine, 12)
    for level in (0.5, 0.1, 0.01, 0.001):
        assert plausible(int(np.sum(chances <= level)), 20_000, level)
