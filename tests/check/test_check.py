"""The doctor: what it says of right steps, of wrong ones, and of bad input.

A test that no fault is found looks for p-values below 1e-9: there are at most 20 in an
examination, so that it fails by chance less than once in 10⁷ choices of seeds.
"""

import dataclasses
import functools
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from experiments import examined_steps, fault_page, fault_table
from experiments import fault_steps as steps
from oneshot import check
from oneshot.check import __main__ as command
from oneshot.check import canary_audit, noise, sampler, sensitivity
from oneshot.check.finding import Finding
from oneshot.check.runner import Runner
from oneshot.check.step import chosen_loss, oneshot_step
from tests.chance import plausible

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


def test_a_right_step_has_no_fault():
    step = small(sample=functools.partial(steps.poisson, CLAIM))
    for seed in range(2):
        report = check.examine(step, jax.random.key(seed))
        assert not suspicious(report.findings)
        assert not report.notes
        assert report.audit.eps_lb < 2.0 * report.audit.eps_claimed


def test_our_own_step_has_no_fault():
    report = check.examine(oneshot_step('ghost', fault_table.linear()), jax.random.key(0))
    assert not suspicious(report.findings)
    names = {finding.check for finding in report.findings}
    assert {'sensitivity', 'not finite', 'noise', 'steps', 'leaves', 'batch sizes'} <= names


def left_out(step):
    return suspicious(sensitivity.examine(Runner(step), jax.random.key(1)))


def listened(step):
    runner = Runner(step)
    return suspicious(noise.examine(runner, *noise.noise_only_gradients(runner, jax.random.key(1))))


@pytest.mark.parametrize('name', ['layers_share_the_norm', 'normalized'])
def test_other_ways_to_be_right_are_no_fault(name):
    assert not left_out(small(getattr(steps, name)))
    assert not listened(small(getattr(steps, name)))


@pytest.mark.parametrize(('name', 'times'), [('sum_noise_on_the_mean', 16), ('replace_one', 2)])
def test_too_careful_is_no_fault_but_a_note(name, times):
    runner = Runner(small(getattr(steps, name)))
    assert not suspicious(sensitivity.examine(runner, jax.random.key(0)))
    findings = noise.examine(runner, *noise.noise_only_gradients(runner, jax.random.key(0)))
    assert not suspicious(findings)
    (note,) = [one.note for one in findings if one.note]
    assert float(note.split()[3]) == pytest.approx(times, rel=0.02)


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


@pytest.mark.parametrize('name', LEFT_OUT)
def test_a_fault_that_leaving_one_out_shows(name):
    faults = left_out(small(getattr(steps, name)))
    assert set(faults) == LEFT_OUT[name]
    assert all(one.cause and one.seen and one.expected for one in faults.values())


@pytest.mark.parametrize('name', NOISE)
def test_a_fault_that_the_noise_shows(name):
    faults = listened(small(getattr(steps, name), CLAIM._replace(c=8.0)))
    assert set(faults) == NOISE[name]
    assert all(one.cause and one.seen and one.expected for one in faults.values())


def test_noise_that_is_missing_is_found_by_all_means():
    report = check.examine(small(steps.noise_missing), jax.random.key(1))
    assert {'key', 'noise'} <= {one.check for one in report.faults}
    assert report.audit.eps_lb > report.audit.eps_claimed


def test_the_same_key_at_every_step_is_found():
    assert set(listened(small(steps.same_key_each_step, init=steps.keep_the_key))) == {'steps'}


def test_float16_norms_are_found():
    claim = CLAIM._replace(c=1e-4)
    faults = left_out(small(steps.float16_norms, claim))
    assert list(faults) == ['sensitivity']
    assert 'float16' in faults['sensitivity'].cause


def test_noise_from_numpy_is_found():
    """JAX calls it once, when it compiles."""

    def gradient(claim, loss_fn, params, batch, mask, key):
        summed = steps.clipped_sum(claim, loss_fn, params, batch, mask)
        rng = np.random.default_rng(0)
        noisy = jax.tree.map(lambda g: g + claim.sigma * rng.standard_normal(g.shape), summed)
        return steps.divide(noisy, claim.batch)

    assert set(left_out(small(gradient))) == {'key'}
    assert set(listened(small(gradient))) == {'steps'}


def test_shards_that_share_their_noise_are_found():
    def gradient(claim, loss_fn, params, batch, mask, key):
        summed = steps.clipped_sum(claim, loss_fn, params, batch, mask)
        shard = steps.add_noise(key, jax.tree.map(lambda g: 0.0 * g[: len(g) // 2], summed), 5.15)
        both = jax.tree.map(lambda s: jnp.concatenate([s, s]), shard)
        return steps.divide(steps.add(summed, both), claim.batch)

    (fault,) = listened(small(gradient)).values()
    assert fault.check == 'coordinates and shards'
    assert 'correlation 1' in fault.seen


def test_padding_that_counts_is_found():
    def gradient(claim, loss_fn, params, batch, mask, key):
        return steps.right(claim, loss_fn, params, batch, jnp.ones_like(mask), key)

    assert 'padding' in left_out(small(gradient))


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
def test_draws(sample, found):
    step = small(sample=functools.partial(sample, CLAIM))
    wrong = set(suspicious(sampler.examine(step, jax.random.key(0))))
    assert found <= wrong if found else not wrong


@pytest.mark.parametrize('q', [0.001, 0.02, 0.25, 0.9, 1.0])
def test_draws_of_any_rate(q):
    claim = CLAIM._replace(q=q)
    step = small(claim=claim, sample=functools.partial(steps.poisson, claim))
    findings = sampler.examine(step, jax.random.key(0))
    assert not suspicious(findings)


def test_p_values_of_correlations_are_uniform():
    """Of 20,000 pairs, those below a level are binomial: an alarm once in 10⁹."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 20_000, 12))
    cosine = np.sum(x * y, 1) / np.linalg.norm(x, axis=1) / np.linalg.norm(y, axis=1)
    chances = noise.correlation_p_value(cosine, 12)
    for level in (0.5, 0.1, 0.01, 0.001):
        assert plausible(int(np.sum(chances <= level)), 20_000, level)


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


def test_the_rate_is_shared_by_the_checks():
    level = check.RATE / 2
    findings = [
        Finding('exact', '', ''),
        Finding('wrong', '', '', wrong=True),
        Finding('rare', '', '', p_value=0.9 * level),
        Finding('not so rare', '', '', p_value=1.1 * level),
    ]
    report = check.Report(small(), findings, None)
    assert [finding.check for finding in report.faults] == ['wrong', 'rare']


def test_canaries_stand_on_coordinates_of_their_own():
    step = oneshot_step('vmap')
    runner = Runner(step)
    placed = canary_audit.lay_out(runner, np.random.default_rng(0))
    taken = placed.places[placed.places >= 0]
    assert np.unique(taken).size == taken.size
    beside = placed.partners[placed.partners >= 0]
    assert not np.isin(beside, taken).any()
    assert np.sum(placed.widths > 1) == 440
    assert placed.widths.max() == 19
    leaves = np.searchsorted([leaf.first for leaf in runner.leaves], taken, side='right') - 1
    assert np.unique(leaves).size == len(runner.leaves)  # Dirac on every leaf
    first = np.array([leaf.first for leaf in runner.leaves])
    both = (placed.places >= 0) & (placed.partners >= 0)
    offsets = [x[both] - first[np.searchsorted(first, x[both], side='right') - 1] for x in placed]
    assert np.array_equal(*offsets)  # the same place in another leaf
    assert both.sum() > 5_000


def test_the_examples_have_the_gradients_that_they_should():
    step = small()
    runner = Runner(step)
    batch = runner.zero_gradient_examples(3)
    batch.size[0], batch.places[0, :2] = 5.0, (3, 649)
    batch.dense[1] = 2.0
    batch.weight[2] = 1.0
    loss = chosen_loss(runner.model.loss_fn)
    grads = jax.vmap(jax.grad(loss), (None, 0))(runner.model.params, batch)
    flat = np.concatenate([g.reshape(3, -1) for g in jax.tree.leaves(grads)], 1)
    assert np.flatnonzero(flat[0]).tolist() == [3, 649]
    assert (flat[0][[3, 649]] == 5.0).all()
    assert (flat[1] == 2.0).all()
    natural = jax.grad(runner.model.loss_fn)(
        runner.model.params, jax.tree.map(lambda x: x[2], runner.model.examples)
    )
    natural = np.concatenate([g.reshape(-1) for g in jax.tree.leaves(natural)])
    np.testing.assert_allclose(flat[2], natural, rtol=1e-6)


def test_rounding_is_no_fault():
    """Gradients in bfloat16 differ by more than c may, and that is known."""

    def gradient(claim, loss_fn, params, batch, mask, key):
        right = steps.right(claim, loss_fn, params, batch, mask, key)
        return jax.tree.map(lambda g: g.astype(jnp.bfloat16), right)

    runner = Runner(small(gradient))
    findings = sensitivity.examine(runner, jax.random.key(0))
    assert not suspicious(findings)


# The command line.

FILE = """
import jax, jax.numpy as jnp
from experiments import fault_table
from oneshot import check

def gradient(loss_fn, params, batch, mask, key):
    grads = jax.vmap(jax.grad(loss_fn), (None, 0))(params, batch)
    return jax.tree.map(lambda g: jnp.sum(g, 0), grads)

step = check.Step(gradient, 1.0, 2.0, 1.0, model=fault_table.linear(), rows=64)
number = 3
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / 'my_step.py'
    path.write_text(FILE)
    return path


def test_a_step_of_a_file(file, capsys, monkeypatch):
    monkeypatch.setattr(sys, 'path', sys.path.copy())
    assert command.main([f'{file}:step', '--json']) == 1
    found = json.loads(capsys.readouterr().out)
    assert {'key', 'not finite', 'padding', 'noise'} <= set(found['faults'])
    assert found['rate'] == check.RATE
    faults = [one for one in found['findings'] if one['fault']]
    assert [one['check'] for one in faults] == found['faults']


def test_a_function_of_a_file(file, monkeypatch):
    monkeypatch.setattr(sys, 'path', sys.path.copy())
    flags = ['--noise-multiplier=2', '--expected-batch-size=8', '--q=0.5']
    step = command._step(command._parser('check').parse_args([f'{file}:gradient', *flags]))
    assert (step.noise_multiplier, step.expected_batch_size) == (2.0, 8.0)
    assert (step.clip_norm, step.sampling_prob) == (1.0, 0.5)
    assert step.name == f'{file}:gradient'


@pytest.mark.parametrize(
    ('arguments', 'words'),
    [
        (['{file}'], 'must be FILE.py:NAME or MODULE:NAME'),
        (['{file}:other'], 'has no other'),
        (['nowhere.py:gradient'], 'no file nowhere.py'),
        (['no_such_module:gradient'], 'No module named'),
        (['{file}:number'], 'must be a check.Step or a function, but it is int'),
        (['{file}:gradient'], '--noise-multiplier must be given'),
        (['{file}:gradient', '--sigma=1'], '--expected-batch-size must be given'),
        (['{file}:gradient', '--sigma=0', '--expected-batch-size=1'], 'noise_multiplier must'),
        (['--sigma=1'], 'claim of its own'),
    ],
)
def test_bad_input_gets_a_sentence(arguments, words, file, capsys, monkeypatch):
    monkeypatch.setattr(sys, 'path', sys.path.copy())
    assert command.main([one.format(file=file) for one in arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert 'Traceback' not in error


@pytest.mark.parametrize(
    ('options', 'words'),
    [
        ({'sample': 3}, 'sample must be a function'),
        ({'sampling_prob': 0.0}, 'sampling_prob must'),
        ({'clip_norm': -1.0}, 'clip_norm must'),
        ({'rows': 3}, 'rows must'),
    ],
)
def test_a_step_that_cannot_be(options, words):
    with pytest.raises(ValueError, match=words):
        small(**options)


def test_a_gradient_of_another_tree():
    with pytest.raises(ValueError, match='a tree like the parameters'):
        Runner(small(lambda claim, loss_fn, params, batch, mask, key: (params,)))
    with pytest.raises(ValueError, match='arrays of the shapes'):
        Runner(small(lambda claim, loss_fn, params, *_: jax.tree.map(lambda x: x[:1], params)))


def test_a_model_that_is_too_large():
    large = fault_table.linear()._replace(params={'w': jnp.zeros(1_000_001)})
    with pytest.raises(ValueError, match='2 to 1,000,000 parameters'):
        Runner(small(model=large))


def test_a_sampler_of_another_shape():
    with pytest.raises(ValueError, match='steps × n'):
        sampler.examine(small(sample=lambda key, n, steps: np.zeros((n, steps))), jax.random.key(0))
    with pytest.raises(ValueError, match='bools, or how often'):
        sampler.examine(small(sample=lambda key, n, steps: np.zeros((steps, n))), jax.random.key(0))


def test_optax_keeps_what_is_not_finite():
    """The fault that the doctor finds in optax; `experiments/FAULTS.md` has the minimal case."""
    step = dataclasses.replace(examined_steps.optax_dpsgd, model=fault_table.linear())
    assert list(left_out(step)) == ['not finite']
    with_it, without = fault_page.minimal_output().split()
    assert with_it == '[nan]'
    assert np.isfinite(float(without.strip('[]')))
