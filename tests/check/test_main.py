"""The command line."""

import json
import sys

import pytest

from oneshot import check
from oneshot.check import __main__ as command

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
    assert found['rate'] == check.FALSE_ALARM_RATE
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
