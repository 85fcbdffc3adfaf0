"""The command of a run: python -m oneshot.main."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from oneshot import main
from oneshot.run import training

ROOT = pathlib.Path(__file__).parents[1]


def _main(config, *flags):
    line = [sys.executable, '-m', 'oneshot.main', f'--config=configs/{config}.py', *flags]
    narrow = os.environ | {'COLUMNS': '80'}
    return subprocess.run(line, capture_output=True, text=True, cwd=ROOT, check=False, env=narrow)


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        (['--config.dp.sampling_prob=1.5'], 'oneshot: config.dp.sampling_prob must be a number'),
        (['--workdir=README.md', '--config.dp.noise_multiplier=1.0'], 'File exists'),
        (['extra'], 'No arguments are taken beside the flags'),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(flags, message):
    done = _main('digits_wb', *flags)
    assert done.returncode == 2
    assert message in done.stderr
    assert 'Traceback' not in done.stderr


SMALL = '--config.steps=20 --config.data.n=300 --config.model.hidden=(16,) --config.audit.m=200'
SMALL = [*SMALL.split(), '--config.dp.noise_multiplier=1.0']


def test_a_large_delta_is_told_once():
    done = _main('digits_wb', *SMALL, '--config.dp.delta=0.01')
    assert done.returncode == 0
    told = done.stderr
    assert told.count('oneshot: warning: config.dp.delta = 0.01 is larger than 1/n') == 1
    assert told.count('warning') == 1


def test_with_delta_0_there_is_a_result(tmp_path, capfd):
    flags = [*SMALL, '--config.dp.delta=0', f'--workdir={tmp_path}']
    assert main.main(['--config=digits_wb', *flags]) == 0
    record = json.loads((tmp_path / 'result.json').read_text())
    assert (record['delta'], record['eps_ub'], record['rule']) == (0.0, 'inf', 'planned')
    assert 'consistent with the claim' in ' '.join(capfd.readouterr().out.split())


def test_a_config_is_read_from_any_folder(tmp_path):
    line = [sys.executable, '-m', 'oneshot.main', f'--config={ROOT}/configs/cifar_wb.py:cpus']
    done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert 'After the colon of --config may stand, with commas, cpu, smoke' in done.stderr


@pytest.mark.parametrize('place', ['train', 'collect_scores'])
def test_an_error_after_the_training_has_begun_is_status_1(place, tmp_path, monkeypatch, capfd):
    def fails(*_, **__):
        raise ValueError('Something is odd.')

    monkeypatch.setattr(training, place, fails)
    for workdir in ([], [f'--workdir={tmp_path}']):
        assert main.main(['digits_wb', *SMALL, *workdir]) == 1
        assert capfd.readouterr().err == 'oneshot: The run failed: Something is odd.\n'


@pytest.mark.parametrize(
    ('flags', 'sentence'),
    [
        ([], 'A config must be given, such as digits_wb.'),
        (['digits'], '--config must be a file of Python, or one of cifar_bb, cifar_wb, digits_bb'),
        (['digits_wb', '--config=digits_bb'], "but ['digits_wb'] were given"),
        (['digits_wb', '--nothing'], 'unrecognized arguments: --nothing.'),
    ],
)
def test_flags_that_are_wrong(flags, sentence, capfd):
    assert main.main(flags) == 2
    told = capfd.readouterr()
    assert told.out == ''
    assert told.err.startswith('oneshot: ')
    assert sentence in told.err


def test_importing_the_command_installs_nothing():
    code = (
        'import logging, signal, sys, warnings\n'
        'def hooks():\n'
        '    loggers = [logging.getLogger(name) for name in ("absl", "asyncio")]\n'
        '    return (sys.unraisablehook, sys.excepthook, warnings.formatwarning,\n'
        '            [signal.getsignal(n) for n in (2, 6, 15)], [x.filters[:] for x in loggers])\n'
        'before = hooks()\n'
        'sys.modules["fcntl"] = None  # as on Windows\n'
        'import oneshot.main\n'
        'assert before == hooks()\n'
    )
    subprocess.run([sys.executable, '-c', code], check=True, cwd=ROOT)
