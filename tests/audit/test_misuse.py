"""Mistakes of a loop, each made in a small one: each has a sentence."""

import jax
import jax.numpy as jnp
import pytest

import oneshot
from oneshot import audit
from tests.audit.small_loop import (
    BATCH,
    CLIP,
    RATE,
    STEPS,
    Q,
    batch_gradients,
    descend,
    draw_noise,
    noisy_mean,
    private_step,
    run_loop,
    start_audit,
    step_keys,
)


def check_message(message, params, audited):
    for read in (audit.scores, lambda *given: audit.result(*given, delta=1e-5)):
        with pytest.raises(ValueError, match=message):
            read(audited, params)


@pytest.mark.parametrize('divided', [True, False])
@pytest.mark.parametrize('signals', [('iterates', 'residual'), ('iterates',)])
def test_inserted_after_the_noise(divided, signals):
    """Into the noisy sum, or into what the optimizer is given."""

    def step(params, audited, t):
        data_key, canary_key, noise_key = step_keys(t)
        gradient = noisy_mean(batch_gradients(params, data_key), noise_key)
        if divided:
            gradient, audited = audit.insert(audited, gradient, canary_key)
        else:
            noisy = jax.tree.map(lambda g: BATCH * g, gradient)
            noisy, audited = audit.insert(audited, noisy, canary_key)
            gradient = jax.tree.map(lambda g: g / BATCH, noisy)
        new_params = descend(params, gradient)
        shown = gradient if 'residual' in signals else None
        return new_params, audit.update(audited, params, new_params, shown)

    options = {'signals': signals, 'scores': ('dot',)}
    check_message('must be inserted before the noise', *run_loop(step, start_audit(**options)))
    if not divided:  # with one canary, any noise looks like none
        params, audited = run_loop(step, start_audit(m=1, **options))
        assert int(audited.counts.noiseless_steps) == STEPS
        audit.scores(audited, params)


@pytest.mark.parametrize('sigma', [0.01, 1.0, 100.0])
@pytest.mark.parametrize('m', [8, 60])
def test_little_noise_is_not_taken_for_none(sigma, m):
    def step(params, audited, t):
        data_key, canary_key, noise_key = step_keys(t)
        summed, audited = audit.insert(audited, batch_gradients(params, data_key), canary_key)
        noise = draw_noise(noise_key, sigma * CLIP)
        gradient = jax.tree.map(lambda g, z: (g + z) / BATCH, summed, noise)
        new_params = descend(params, gradient)
        return new_params, audit.update(audited, params, new_params, gradient)

    params, audited = run_loop(step, start_audit(m=m, claim=oneshot.DPSGD(sigma, Q, STEPS)))
    assert int(audited.counts.noiseless_steps) == 0
    audit.scores(audited, params)


def test_updated_twice():
    def step(params, audited, t):
        new_params, audited = private_step(params, audited, t)
        return new_params, audit.update(audited, params, new_params, params)

    check_message('insert was called 6 times and update 12 times', *run_loop(step))


def test_updated_twice_with_the_data():
    def step(params, audited, t):
        gradient = noisy_mean(batch_gradients(params, step_keys(t)[0]), step_keys(t)[2])
        new_params = descend(params, gradient)
        audited = audit.update(audited, params, new_params, gradient)
        return new_params, audit.update(audited, params, new_params, gradient)

    message = 'in 6 of 12 updates the first were not the last of the update before'
    check_message(message, *run_loop(step, start_audit(in_data=True)))


def test_never_updated():
    def step(params, audited, t):
        new_params, _ = private_step(params, audited, t)
        return new_params, audited

    check_message('was never called, or what it returned was not carried on', *run_loop(step))


def test_the_return_value_of_insert_is_dropped():
    def step(params, audited, t):
        summed, _ = audit.insert(audited, batch_gradients(params, step_keys(t)[0]), step_keys(t)[1])
        gradient = noisy_mean(summed, step_keys(t)[2])
        new_params = descend(params, gradient)
        return new_params, audit.update(audited, params, new_params, gradient)

    check_message('insert was called 0 times and update 6 times', *run_loop(step))


def test_a_step_without_an_update():
    params, audited = run_loop(steps=2)
    params, _ = private_step(params, audited, 2)
    for t in (3, 4):
        params, audited = private_step(params, audited, t)
    check_message('in 1 of 4 updates the first were not the last', params, audited)


def test_before_and_after_exchanged():
    def step(params, audited, t):
        summed, audited = audit.insert(
            audited, batch_gradients(params, step_keys(t)[0]), step_keys(t)[1]
        )
        gradient = noisy_mean(summed, step_keys(t)[2])
        new_params = descend(params, gradient)
        return new_params, audit.update(audited, new_params, params, gradient)

    check_message('in 6 of 6 updates the first were not the last', *run_loop(step))


def test_another_tree():
    params, audited = run_loop()
    check_message(
        'params must be a tree like the parameters that the audit was', {'a': 1.0}, audited
    )
    other = params | {'a': jnp.zeros((8, 11))}
    check_message(r"\(8, 10\) at \['a'\], but \(8, 11\) was given", other, audited)
    moved = params | {'a': params['a'].at[3, 4].add(1e-3)}
    check_message('must be read with the parameters that the last audit.update', moved, audited)
    with pytest.raises(ValueError, match='summed must be a tree like'):
        audit.insert(audited, list(params.values()), jax.random.key(0))
    for place, name in enumerate(('params', 'new_params', 'gradient')):
        given = [params] * 3
        given[place] = [params['a'], params['b']]
        with pytest.raises(ValueError, match=f'^{name} must be a tree like'):
            audit.update(audited, *given)


def test_one_key_for_all_steps():
    def step(params, audited, t):
        summed = batch_gradients(params, step_keys(t)[0])
        summed, audited = audit.insert(audited, summed, jax.random.key(7))
        gradient = noisy_mean(summed, step_keys(t)[2])
        new_params = descend(params, gradient)
        return new_params, audit.update(audited, params, new_params, gradient)

    check_message('in 5 of 6 steps it was that of the step before', *run_loop(step))


def test_coins_of_another_run():
    params, audited = run_loop()
    result = audit.result(audited, params, delta=1e-5)
    assert audit.result(audited, params, delta=1e-5) == result  # a second look
    again_params, again = run_loop()
    assert audit.result(again, again_params, delta=1e-5) == result  # the same run
    other = run_loop(lambda params, audited, t: private_step(params, audited, t, seed=1))
    with pytest.raises(ValueError, match='Coins must be flipped anew for every run'):
        audit.result(other[1], other[0], delta=1e-5)
    fresh = run_loop(
        lambda params, audited, t: private_step(params, audited, t, seed=1), start_audit(seed=5)
    )
    audit.result(fresh[1], fresh[0], delta=1e-5)


@pytest.mark.parametrize('wrong', [2.0 * BATCH, 1.0])
def test_another_batch_size(wrong):
    """The residual would be that of another sum."""
    params, audited = run_loop(audited=start_audit(expected_batch_size=wrong))
    check_message(
        f'expected_batch_size = {wrong:g} was given, and .* divided by (19|20|21)', params, audited
    )


def test_an_update_in_the_place_of_the_gradient():
    def step(params, audited, t):
        summed, audited = audit.insert(
            audited, batch_gradients(params, step_keys(t)[0]), step_keys(t)[1]
        )
        update = jax.tree.map(lambda g: -RATE * g, noisy_mean(summed, step_keys(t)[2]))
        new_params = jax.tree.map(jnp.add, params, update)
        return new_params, audit.update(audited, params, new_params, update)

    check_message('gradient must be the noisy sum divided by', *run_loop(step))
