"""Loops of others: the scores of `oneshot.main`, and nothing changed without canaries."""

import importlib
import os
import pathlib
import runpy
import subprocess
import sys

import jax
import numpy as np
import optax
import pytest

from experiments.loops import optax_jit, optax_vmap, problem
from oneshot import audit
from oneshot.run import training
from oneshot.run.preparation import prepare

ROOT = pathlib.Path(__file__).parents[2]
FILES = sorted(path.stem for path in (ROOT / 'experiments/loops').glob('*.py'))
LOOPS = [name for name in FILES if name not in ('__init__', 'problem', 'optax_vmap')]


def _small(seed=0):
    config = problem.small(seed)
    config.steps, config.data.n, config.audit.m = 40, 400, 300
    return config


def _main(config):
    """The scores of `oneshot.main`, which prepares, trains and collects."""
    run = prepare(config)
    return training.collect_scores(run, training.train(run))


@pytest.fixture(scope='module')
def expected():
    return _main(_small())


def _run(name, made):
    return importlib.import_module(f'experiments.loops.{name}').run(made)


def _close(found, expected):
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=0, atol=1e-5 * np.abs(values).max())


@pytest.mark.parametrize('name', LOOPS)
def test_the_scores_are_those_of_main(name, expected):
    params, audited = _run(name, problem.make(_small()))
    _close(audit.scores(audited, params), expected)


@pytest.mark.parametrize('name', [*LOOPS, 'optax_vmap'])
def test_each_file_is_a_program(name, monkeypatch):
    """It reports on its loop; that the report prints a result is tested once, below."""
    reported = []
    monkeypatch.setattr(problem, 'report', reported.append)
    names = runpy.run_path(str(ROOT / f'experiments/loops/{name}.py'), run_name='__main__')
    (loop,) = reported
    assert loop in (names['run'], names.get('adam')) or name == 'optax_vmap'
    assert f'python -m experiments.loops.{name}' in names['__doc__']


def test_a_program_prints_its_result():
    command = [sys.executable, '-m', 'experiments.loops.optax_vmap']
    done = subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True)
    assert f'm={optax_vmap.SEEDS * problem.small().audit.m},' in done.stdout
    assert "kind='bound'" in done.stdout


def test_seeds_side_by_side(expected):
    """Each seed has the scores of its own run, and the result is that of all canaries."""
    problems = [problem.make(_small(seed)) for seed in range(2)]
    params, audited = optax_vmap.run(problems)
    found = audit.scores(audited, params)
    for seed, scores in enumerate((expected, _main(_small(1)))):
        _close({name: values[seed] for name, values in found.items()}, scores)
    result = audit.result(audited, params, delta=1e-5)
    assert result.m == 600
    assert result.rule == 'planned'


def test_another_optimizer():
    config = _small()
    config.optimizer, config.learning_rate = 'adam', 1e-3
    params, audited = optax_jit.adam(problem.make(config))
    _close(audit.scores(audited, params), _main(config))


def test_two_devices(tmp_path, expected):
    """In a process of its own, because the number of devices is fixed at the start."""
    script = (
        'import sys, jax, numpy as np\n'
        'from experiments.loops import optax_sharded, problem\n'
        'from oneshot import audit\n'
        f'from {__name__} import _small\n'
        'assert jax.device_count() == 2\n'
        'params, audited = optax_sharded.run(problem.make(_small()))\n'
        "assert len(params[0]['kernel'].sharding.device_set) == 2\n"
        "assert not params[0]['kernel'].sharding.is_fully_replicated\n"
        'np.savez(sys.argv[1], **audit.scores(audited, params))\n'
    )
    flags = {'XLA_FLAGS': '--xla_force_host_platform_device_count=2'}
    file = tmp_path / 'scores.npz'
    subprocess.run(
        [sys.executable, '-c', script, str(file)], check=True, cwd=ROOT, env=os.environ | flags
    )
    with np.load(file) as found:
        _close(dict(found), expected)


def _without_audit(monkeypatch):
    """The loop as it was before: nothing is carried, nothing is done."""
    monkeypatch.setattr(audit, 'start', lambda *given, **settings: None)
    monkeypatch.setattr(audit, 'insert', lambda audited, summed, key: (summed, audited))
    monkeypatch.setattr(audit, 'update', lambda audited, *seen: audited)


@pytest.mark.parametrize('name', LOOPS)
def test_without_canaries_nothing_changes(name, monkeypatch):
    made = problem.make(_small(), m=0)._replace(steps=12)
    params, audited = _run(name, made)
    assert int(audited.counts.updated) == 12
    with monkeypatch.context() as patched:
        _without_audit(patched)
        bare, nothing = _run(name, made)
    assert nothing is None
    leaves = jax.tree.leaves(params), jax.tree.leaves(bare)
    for with_audit, without in zip(*leaves, strict=True):
        assert np.asarray(with_audit).tobytes() == np.asarray(without).tobytes()
    first = jax.tree.leaves(made.layers)
    assert any(not np.array_equal(one, other) for one, other in zip(first, leaves[0], strict=False))


def test_momentum_is_no_plain_sgd():
    """The iterates of momentum mix steps; the privatized gradient does not."""
    made = problem.make(_small())
    optimizer = optax.sgd(0.5, momentum=0.9)
    params, audited = optax_jit.run(made, optimizer, ('iterates', 'gradient', 'residual'))
    found = audit.scores(audited, params)
    np.testing.assert_array_equal(found['iterates_llr'], found['gradient_llr'])
    ratio = found['iterates'] / found['gradient']
    assert np.ptp(ratio) > 0.1 * np.abs(np.median(ratio))
