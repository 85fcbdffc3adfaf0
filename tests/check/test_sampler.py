"""What the draws show."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from experiments import fault_steps as steps
from oneshot.check import sampler
from tests.check.cases import CLAIM, small, suspicious


@pytest.mark.parametrize(
    ('sample', 'found'),
    [
        (steps.poisson, set()),
        (steps.shuffled, {'batch sizes', 'draws of an example', 'steps that draw the same'}),
        (steps.every_batch_twice, {'draws of an example', 'steps that draw the same'}),
        (
            lambda claim, key, n, steps_: steps.eight_devices(
                claim._replace(q=claim.q / 8), key, n, steps_
            ),
            set(),
        ),
        (
            lambda claim, key, n, steps_: steps.poisson(
                claim._replace(q=1.2 * claim.q), key, n, steps_
            ),
            {'sampling rate'},
        ),
        (
            lambda claim, key, n, steps_: 2 * steps.poisson(claim, key, n, steps_).astype(int),
            {'draws in a batch'},
        ),
        (
            lambda claim, key, n, steps_: jnp.repeat(
                steps.poisson(claim, key, n // 2, steps_), 2, axis=1
            ),
            {'examples drawn together'},
        ),
    ],
)
def test_faults_of_samplers(sample, found):
    step = small(sample=functools.partial(sample, CLAIM))
    wrong = set(suspicious(sampler.examine(step, jax.random.key(0))))
    assert found <= wrong if found else not wrong


@pytest.mark.parametrize('q', [0.001, 0.02, 0.25, 0.9, 1.0])
def test_draws_of_any_rate(q):
    claim = CLAIM._replace(q=q)
    step = small(claim=claim, sample=functools.partial(steps.poisson, claim))
    findings = sampler.examine(step, jax.random.key(0))
    assert not suspicious(findings)


@pytest.mark.parametrize('check_of', ['batch sizes', 'draws of an example'])
def test_p_values_of_dispersions_are_not_too_small(check_of):
    """At most so many of 2,000 below a level as chance allows, but for once in 10⁹."""
    rng, q = np.random.default_rng(1), 0.05
    small = 0
    for _ in range(2_000):
        drawn = rng.random((100, 500)) < q
        sums, trials = (drawn.sum(1), 500) if check_of == 'batch sizes' else (drawn.sum(0), 100)
        small += sampler._dispersion(check_of, sums, trials).p_value <= 0.01
    assert scipy.stats.binom.sf(small - 1, 2_000, 0.01) > 1e-9


def test_a_sampler_of_another_shape():
    with pytest.raises(ValueError, match='steps × n'):
        sampler.examine(small(sample=lambda key, n, steps: np.zeros((n, steps))), jax.random.key(0))
    with pytest.raises(ValueError, match='bools, or how often'):
        sampler.examine(small(sample=lambda key, n, steps: np.zeros((steps, n))), jax.random.key(0))
