"""Two real processes with two devices each, over loopback."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from experiments import crash
from oneshot.keep import processes
from oneshot.run import outcome, training
from tests import small

ROOT = pathlib.Path(__file__).parents[2]
FLAGS = (
    '--config.steps=300',
    '--config.chunk=10',
    '--config.checkpoint_every=30',
    '--config.data.n=301',
    '--config.model.hidden=(16,)',
    '--config.dp.noise_multiplier=1.0',
    '--config.learning_rate=0.5',
    '--config.audit.m=203',
    '--config.audit.k_plus=20',
    '--config.audit.k_minus=20',
)


def _command(folder):
    flags = ['--config=configs/digits_wb.py', f'--workdir={folder}', *FLAGS]
    return [sys.executable, '-m', 'oneshot.main', *flags]


def _start(line, number=1, devices=1):
    """So many processes of the same command, joined by the usual environment variables."""
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    together = {'JAX_COORDINATOR_ADDRESS': f'127.0.0.1:{port}', 'JAX_NUM_PROCESSES': str(number)}
    started = []
    for index in range(number):
        env = os.environ | {'JAX_NUM_CPU_DEVICES': str(devices)}
        env |= together | {'JAX_PROCESS_ID': str(index)} if number > 1 else {}
        pipes = {'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE, 'text': True}
        started.append(subprocess.Popen(line, cwd=ROOT, env=env, **pipes))
    return started


def _end(started, status=0, timeout=120):
    """What they said, after all of them have ended with the status."""
    said = [process.communicate(timeout=timeout) for process in started]
    assert [process.returncode for process in started] == [status] * len(started), said
    return said


def _wait_for_a_checkpoint(started, folder):
    while not crash.newest(folder):
        assert all(process.poll() is None for process in started), _end(started)
        time.sleep(0.005)


def _alone(**changes):
    """The same run on one device of this process."""
    given = {'steps': 300, 'data__n': 301, 'learning_rate': 0.5, 'audit__m': 203}
    prepared = training.prepare(small.config(**given | changes))
    state = training.train(prepared)
    return prepared, state, training.collect_scores(prepared, state)


@pytest.fixture(scope='module')
def alone():
    return _alone()


@pytest.fixture(scope='module')
def two(tmp_path_factory):
    """Runs of two processes that nothing happened to; each says what it has of the data."""
    folder = tmp_path_factory.mktemp('two') / 'mlp'
    code = (
        'from oneshot.run import command_line, training\n'
        'import sys\n'
        'config = command_line.read("configs/digits_wb.py", command_line.split(sys.argv[2:])[1])\n'
        'prepared = training.prepare(config, sys.argv[1])\n'
        'print("part:", len(prepared.dataset.train.labels))\n'
        'training.audit_run(prepared)\n'
        'config.model.name, config.model.widths = "cnn", ((8,), (16,))\n'
        'config.steps = 50\n'
        'training.run(config, sys.argv[1].replace("mlp", "cnn"))\n'
    )
    said = _end(_start([sys.executable, '-c', code, str(folder), *FLAGS], 2, 2))
    return folder, said


def _check(folder, alone, *, devices, count):
    """The result of a folder is that of one device."""
    prepared, state, scores = alone
    record = json.loads((folder / 'result.json').read_text())
    assert (len(record['devices']), record['processes']) == (devices, count)
    assert record['n'] == 301
    results = outcome.audit_all(prepared, scores)
    assert record['eps_lb'] == outcome.headline(prepared, results)[1].eps_lb
    assert record['test_accuracy'] == training.test_accuracy(prepared, state)
    with np.load(folder / 'coins.npz') as file:
        np.testing.assert_array_equal(file['included'], prepared.canaries.coins)
    with np.load(folder / 'scores.npz') as file:
        for name, values in scores.items():
            assert np.max(np.abs(values - file[name])) < 1e-5 * np.max(np.abs(values)), name
    kept = jax.tree.leaves(crash.last_state(folder)[0]['params'])
    for ours, theirs in zip(jax.tree.leaves(state.params), kept, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)


def test_two_processes_give_what_one_device_gives(two, alone):
    folder, said = two
    _check(folder, alone, devices=4, count=2)
    cnn = {'model__name': 'cnn', 'model__widths': ((8,), (16,)), 'steps': 50}
    _check(folder.with_name('cnn'), _alone(**cnn), devices=4, count=2)
    parts = [int(out.split('part: ')[1].split()[0]) for out, _ in said]
    assert sum(parts) == 301  # each has loaded its own
    assert min(parts) > 140
    assert 'step 300 of 300' in said[0][0]  # the first tells
    assert 'verdict' in said[0][0]
    assert 'step' not in said[1][0]
    assert 'verdict' not in said[1][0]


def _lose(started, lost, folder):
    """Kills one of two after its first checkpoint: the other says so and ends."""
    _wait_for_a_checkpoint(started, folder)
    started[lost].kill()
    _, said = started[1 - lost].communicate(timeout=60)  # a minute, no more
    assert started[1 - lost].returncode == 1
    last = said.splitlines()[-1]
    assert last.startswith('oneshot: ')
    assert 'A process of this run was lost' in last
    assert 'Start all of them again' in last
    assert not (folder / 'result.json').exists()
    started[lost].communicate()


def test_a_process_that_is_lost_ends_the_run_which_goes_on_to_the_same_bits(two, tmp_path):
    folder = tmp_path / 'run'
    _lose(_start(_command(folder), 2, 2), 1, folder)
    said = _end(_start(_command(folder), 2, 2))
    assert 'Going on after step ' in said[0][0]
    assert crash.differences(two[0], folder) == []


def test_the_first_process_is_lost_and_eight_devices_go_on(alone, tmp_path):
    folder = tmp_path / 'run'
    _lose(_start(_command(folder), 2, 2), 0, folder)
    ((said, _),) = _end(_start(_command(folder), 1, 8))
    assert 'Going on after step ' in said
    _check(folder, alone, devices=8, count=1)


def test_from_eight_devices_to_two_processes_and_to_one_device(alone, tmp_path):
    """Two processes go on, and both stop when one is told to; a device of its own ends it."""
    folder = tmp_path / 'run'
    started = _start(_command(folder), 1, 8)
    _wait_for_a_checkpoint(started, folder)
    started[0].kill()
    started[0].communicate()
    first = crash.newest(folder)
    started = _start(_command(folder), 2, 2)
    while crash.newest(folder) == first:
        assert all(process.poll() is None for process in started), _end(started)
        time.sleep(0.005)
    started[1].send_signal(signal.SIGTERM)
    said = _end(started, 128 + signal.SIGTERM)
    assert f'Going on after step {first}' in said[0][0]
    assert all('Stopped by SIGTERM after step ' in err for _, err in said)
    _end(_start(_command(folder), 1, 1))
    _check(folder, alone, devices=1, count=1)


def test_what_is_wrong_is_said_by_all_of_them(tmp_path):
    line = [*_command(tmp_path / 'run'), '--config.mesh.data=3', '--config.dp.clip_norm=-1.0']
    for _, said in _end(_start(line, 2, 2), 2):
        assert '2 things are wrong with the config' in said
        assert 'in all, with several processes, the number of devices, 4, but 3 and 1' in said
        assert 'Traceback' not in said


@pytest.mark.parametrize(
    ('given', 'env', 'sentence'),
    [
        ((None, 2, 0), {}, 'address must be given'),
        (('localhost:1', 2, None), {}, "must be given together .* 'localhost:1', 2 and None"),
        (('localhost', 2, 1), {}, "must be HOST:PORT, but 'localhost' was given"),
        (('localhost:1', 2, 2), {}, 'id must be below number, but 2 and 2'),
        ((None, None, None), {'JAX_NUM_PROCESSES': 'two'}, "must be a number, but is 'two'"),
        ((None, None, None), {'JAX_COORDINATOR_ADDRESS': 'localhost:1'}, 'given together'),
    ],
)
def test_half_of_what_it_takes_gets_a_sentence(given, env, sentence, monkeypatch):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=sentence):
        processes.start(*given)


@pytest.mark.parametrize(
    ('given', 'env'),
    [
        ((None, None, None), {}),
        ((None, 1, None), {}),
        (('localhost:1', 1, 0), {}),
        ((None, None, None), {'SLURM_NTASKS': '1', 'SLURM_STEP_NODELIST': 'a'}),
        ((None, None, None), {'SLURM_NTASKS': '4', 'OMPI_COMM_WORLD_SIZE': '4'}),
        ((None, None, None), {'TPU_WORKER_HOSTNAMES': 'localhost'}),
    ],
)
def test_one_process_is_left_alone(given, env, monkeypatch):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    processes.start(*given)
    assert not jax.distributed.is_initialized()
    assert processes.on_first(lambda: 7) == 7
    assert processes.all_max(3, 0) == (3, 0)


def test_whatever_fails_in_the_first_process_ends_the_others():
    """They do not wait for it: an error of any kind is passed on, as one of theirs."""
    code = (
        'from oneshot.keep import processes, stopping\n'
        'processes.start(None, None, None)\n'
        'def fails(number):\n'
        '    raise (ValueError, OSError, KeyError)[number]("odd")\n'
        'for kind in range(3):\n'
        '    try:\n'
        '        processes.on_first(fails, kind)\n'
        '    except Exception as error:\n'
        '        print(type(error).__name__, error)\n'
        'print(processes.on_first(lambda: {"a": [1, "é" * 5000]})["a"][1] == "é" * 5000)\n'
        'import jax; print(processes.all_texts("x" * (1 + jax.process_index())))\n'
    )
    said = _end(_start([sys.executable, '-c', code], 2, 1))
    lines = ([x for x in out.splitlines() if '[Gloo]' not in x] for out, _ in said)
    first, other = lines
    both = ['ValueError odd', 'OSError odd']
    after = ['True', "['x', 'xx']"]
    assert first == [*both, "KeyError 'odd'", *after]
    assert other == [*both, "Failed The first process failed: KeyError: 'odd'", *after]
