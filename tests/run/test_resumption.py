"""A run that is stopped, or fails, loses nothing: what is kept is there, and goes on the same."""

import contextlib
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from configs import digits_bb
from experiments import crash
from oneshot.keep.checkpoints import Checkpoints
from oneshot.keep.stopping import Diverged, Stopped
from oneshot.keep.workdir import Workdir
from oneshot.results import guess
from oneshot.run import outcome, settings, training
from oneshot.run.progress import Log
from oneshot.scores.front_door import audit_scores
from tests import small

ROOT = pathlib.Path(__file__).parents[2]


def _config(**changes):
    """Every kind of state: an optimizer, an average, views, and both attacks."""
    options = {
        'steps': 40,
        'checkpoint_every': 10,
        'optimizer': 'adam',
        'learning_rate': 0.01,
        'ema_decay': 0.9,
        'evaluate_every': 20,
    }
    return small.config(digits_bb, **options | changes)


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
    """A run that was never stopped."""
    folder = tmp_path_factory.mktemp('whole')
    training.run(_config(), folder)
    return folder


def _signal_at(monkeypatch, number, steps):
    """Sends a signal to this process while it makes some steps."""
    write = Log.write

    def wrapped(self, step, *seen):
        write(self, step, *seen)
        if step in steps:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(Log, 'write', wrapped)


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_told_to_stop_and_told_to_go_on(number, whole, tmp_path, monkeypatch, capfd):
    """Twice, and once of these before the first checkpoint is due."""
    before = signal.getsignal(number)
    with monkeypatch.context() as patched:
        _signal_at(patched, number, {10})
        with pytest.raises(
            Stopped, match=r'after step 10 of 40.*the same command goes on'
        ) as stopped:
            training.run(_config(checkpoint_every=15), tmp_path)
    assert stopped.value.received == number
    assert signal.getsignal(number) == before
    with monkeypatch.context() as patched:
        _signal_at(patched, number, {30})
        with pytest.raises(Stopped, match='after step 30 of 40'):
            training.run(_config(), tmp_path)
    told = capfd.readouterr()
    assert 'Going on after step 10 of 40.' in told.out
    assert 'stops after this chunk' in told.err
    assert not (tmp_path / 'result.json').exists()
    training.run(_config(), tmp_path)
    assert 'Going on after step 30 of 40.' in capfd.readouterr().out
    assert crash.differences(whole, tmp_path) == []


def test_the_plan_is_written_before_the_first_step_and_kept_to(tmp_path, monkeypatch):
    """In a run that ends at its first step there is a plan; the guesses of its result are these."""
    changes = {'audit__k_plus': None, 'audit__k_minus': None, 'audit__canaries': 'dirac'}
    config = _config(**changes, audit__attacks=('white_box',), audit__headline='residual')
    with monkeypatch.context() as patched:

        def stops(*_, **__):
            raise KeyboardInterrupt

        patched.setattr(training, 'train', stops)
        with pytest.raises(KeyboardInterrupt):
            training.run(config, tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert {'plan.json', 'coins.npz'} <= names
    assert 'result.json' not in names
    plan = json.loads((tmp_path / 'plan.json').read_text())
    training.run(config, tmp_path)
    rows = json.loads((tmp_path / 'result.json').read_text())['rows']
    keys = 'score', 'method', 'rule'
    assert [[row[key] for key in keys] for row in plan] == [
        [row[key] for key in keys] for row in rows
    ]
    assert {row['rule'] for row in plan} == {'planned', 'fixed'}
    files = [np.load(tmp_path / name) for name in ('scores.npz', 'coins.npz')]

    def ranked(pairs):
        return guess.Ranked(sum(((weight,) * ranks for weight, ranks in pairs), ()))

    rules = {'weights': ranked, 'value': guess.Threshold}
    kinds = set()
    for planned, row in zip(plan, rows, strict=True):
        (kind,) = {'k_plus', 'weights', 'value'} & planned.keys()
        kinds.add(kind)
        if kind == 'k_plus':
            assert planned.items() <= row.items()
            continue
        scores, coins = files[0][row['score']], files[1]['included']
        options = {'delta': row['delta'], 'method': row['method']}
        again = audit_scores(scores, coins, guesses=rules[kind](planned[kind]), **options)
        assert again.eps_lb == row['eps_lb']
    assert kinds == {'k_plus', 'weights', 'value'}
    assert json.loads((tmp_path / 'plan.json').read_text()) == plan


def test_another_plan_is_not_taken(whole, tmp_path):
    folder = shutil.copytree(whole, tmp_path / 'plan')
    text = (folder / 'plan.json').read_text()
    (folder / 'plan.json').write_text(text.replace('20', '21', 1))
    before = sorted(folder.rglob('*'))
    with pytest.raises(ValueError, match='has another plan than this code makes of the same'):
        training.run(_config(), folder)
    assert sorted(folder.rglob('*')) == before


def test_a_finished_run_is_not_trained_again(whole, tmp_path, capsys):
    """From Python it ends at once, with the same; the command shows it (below)."""
    folder = shutil.copytree(whole, tmp_path / 'again')
    training.run(_config(), folder)
    assert 'Going on after step 40 of 40.' in capsys.readouterr().out
    assert crash.differences(whole, folder) == []


def test_a_finished_run_is_shown_again(whole, tmp_path, capsys):
    folder = shutil.copytree(whole, tmp_path / 'again')
    directory = settings.open_workdir(folder, _config())
    assert directory.finished
    record = json.loads((folder / 'result.json').read_text())
    assert training.reprint(directory).eps_lb == record['eps_lb']
    assert 'has this result already; --overwrite starts anew.' in capsys.readouterr().out
    (folder / 'result.json').write_text('{"eps_lb": 3')
    with pytest.raises(ValueError, match=r'result.json cannot be read .* --overwrite starts anew'):
        training.reprint(directory)


def test_a_broken_checkpoint_costs_its_steps_and_no_more(whole, tmp_path):
    folder = shutil.copytree(whole, tmp_path / 'broken')
    for path in (folder / 'checkpoints' / '40').rglob('*'):
        if path.is_file():
            path.write_bytes(b'')
    (folder / 'result.json').unlink()
    run = training.prepare(_config(), folder)
    with pytest.warns(UserWarning, match=r'step 40 is broken .* the one of step 30 takes'):
        training.audit_run(run)
    assert crash.differences(whole, folder) == []
    assert (folder / 'checkpoints' / '40.broken').is_dir()


def test_other_data_is_noticed(whole, tmp_path, monkeypatch):
    folder = shutil.copytree(whole, tmp_path / 'other')
    run = training.prepare(_config(), folder)
    run.dataset.train.images[0, 0, 0] += 0.5
    with pytest.raises(ValueError, match='are of other data or another key'):
        training.audit_run(run)


@pytest.mark.parametrize('content', ['other', 'cut', 'gone'])
def test_other_coins_are_noticed(content, whole, tmp_path):
    folder = shutil.copytree(whole, tmp_path / 'coins')
    path = folder / 'coins.npz'
    if content == 'other':
        with np.load(path) as file:
            arrays = dict(file)
        arrays['included'][7] ^= True
        np.savez(path, **arrays)
    elif content == 'cut':
        path.write_bytes(path.read_bytes()[:50])
    else:
        path.unlink()
    before = sorted(folder.rglob('*'))
    with pytest.raises(ValueError, match=r'another game|cannot be read') as error:
        training.run(_config(), folder)
    assert str(error.value).endswith('--overwrite starts anew.')
    assert sorted(folder.rglob('*')) == before


def test_other_code_gets_a_warning(whole, tmp_path, monkeypatch):
    folder = shutil.copytree(whole, tmp_path / 'code')
    then = outcome.provenance()
    now = {'git': 'abc', 'versions': then['versions'] | {'jax': '99.0'}}
    monkeypatch.setattr(outcome, 'provenance', lambda: now)
    run = training.prepare(_config(), folder)
    made = f'commit {then["git"]}, jax {then["versions"]["jax"]}, which is not what goes on here'
    with pytest.warns(UserWarning, match=made):
        training.audit_run(run)


def test_divergence_keeps_what_was_before_it(tmp_path):
    """A learning rate near the end of float32: the first steps are fine, then none is."""
    huge = small.config(learning_rate=3e37, chunk=4, checkpoint_every=4)
    run = training.prepare(huge, tmp_path)
    with pytest.raises(Diverged, match='is not finite: the run diverged') as error:
        training.audit_run(run)
    last = error.value.step - 1
    message = str(error.value)
    assert f'At step {last + 1} of 25,' in message
    assert f'The state of step {last} is kept' in message
    assert 'smaller --config.learning_rate than 3e+37' in message
    assert not (tmp_path / 'result.json').exists()
    # What is kept is what a run of so many steps has.
    until = training.train(run, until=last)
    with Checkpoints(tmp_path / 'checkpoints', 3) as kept:
        found = kept.newest((run.arrays.state, run.arrays.key))
    assert found.step == last
    for a, b in zip(jax.tree.leaves(found.state[0]), jax.tree.leaves(until), strict=True):
        np.testing.assert_array_equal(a, b)
    scores = np.load(tmp_path / f'scores_until_{last}.npz')
    for name, values in training.collect_scores(run, until).items():
        np.testing.assert_array_equal(scores[name], values)
        assert np.isfinite(values).all()
    with pytest.raises(Diverged, match=f'At step {last + 1} of 25'):  # and again, the same
        training.run(huge, tmp_path)


def test_a_result_that_cannot_be_written_can_be_written_later(whole, tmp_path, monkeypatch):
    """The disk is full when the training is done: the second time it is not."""
    with monkeypatch.context() as patched:

        def full(self, record):
            raise OSError(28, 'No space left on device')

        patched.setattr(Workdir, 'write_result', full)
        with pytest.raises(OSError, match=r'The result cannot be written .*No space left'):
            training.run(_config(), tmp_path)
    assert not (tmp_path / 'result.json').exists()
    training.run(_config(), tmp_path)
    assert crash.differences(whole, tmp_path) == []


def test_without_a_workdir_divergence_is_told_too():
    with pytest.raises(Diverged, match='is not finite'):
        training.run(small.config(learning_rate=3e37))


def test_the_coins_are_in_their_own_file_alone(tmp_path, monkeypatch, capfd):
    """Of a run that was stopped before its verdict, no other file and no word has them."""
    with monkeypatch.context() as patched:
        _signal_at(patched, signal.SIGTERM, {20})
        run = training.prepare(_config(), tmp_path)
        with pytest.raises(Stopped):
            training.audit_run(run)
    coins = np.asarray(run.canaries.coins)
    with np.load(tmp_path / 'coins.npz') as file:
        np.testing.assert_array_equal(file['included'], coins)
    assert (tmp_path / 'coins.npz').stat().st_mode & 0o777 == 0o600
    forms = [
        coins.tobytes(),
        np.packbits(coins).tobytes(),
        np.packbits(coins, bitorder='little').tobytes(),
        coins.astype(np.int32).tobytes(),
        coins.astype(np.float32).tobytes(),
        ''.join('01'[int(one)] for one in coins).encode(),
        str(coins.astype(int).tolist())[1:-1].encode(),
    ]
    told = capfd.readouterr()
    texts = [told.out.encode(), told.err.encode()]
    files = [path for path in tmp_path.rglob('*') if path.is_file() and path.name != 'coins.npz']
    assert len(files) > 10
    for content in [*texts, *(path.read_bytes() for path in files)]:
        for form in forms:
            assert form not in content
    # Checkpoints are compressed: look at the arrays themselves.
    with Checkpoints(tmp_path / 'checkpoints', 3) as kept:
        state = kept.newest((run.arrays.state, run.arrays.key)).state[0]
    for leaf in jax.tree.leaves(state):
        assert np.asarray(leaf).dtype != bool
        assert len(np.unique(leaf)) != 2
    assert {path.name for path in (tmp_path / 'checkpoints').iterdir()} == {'10', '20'}


def test_coins_are_drawn_from_a_key_of_their_own():
    """Changing what else is drawn leaves them as they are, and no other draw has their key."""
    coins = np.asarray(training.prepare(_config()).canaries.coins)
    for change in ({'model__hidden': (8,)}, {'steps': 7}, {'audit__canaries': 'in_distribution'}):
        np.testing.assert_array_equal(training.prepare(_config(**change)).canaries.coins, coins)
    run = training.prepare(_config(seed=3))
    seed = jax.random.key(3)
    used = [jax.random.key_data(jax.random.fold_in(seed, i)).tolist() for i in range(4)]
    assert len({tuple(one) for one in used}) == 4
    key = jax.random.fold_in(seed, 2)
    np.testing.assert_array_equal(run.canaries.coins, jax.random.bernoulli(key, 0.5, (200,)))
    assert jax.random.key_data(run.arrays.key).tolist() == used[3]


@contextlib.contextmanager
def _small_disk(folder, mib):
    """A file system of so many MiB, if this machine allows it; False if it does not."""
    folder.mkdir()
    line = ['mount', '-t', 'tmpfs', '-o', f'size={mib}m', 'oneshot', str(folder)]
    mounted = shutil.which('mount') and not subprocess.run(line, capture_output=True).returncode
    try:
        yield bool(mounted)
    finally:
        if mounted:
            subprocess.run(['umount', '-l', str(folder)], check=True)


def _command(folder, *flags):
    line = [sys.executable, '-m', 'oneshot.main', '--config=configs/digits_wb.py']
    small_run = [
        '--config.data.n=300',
        '--config.model.hidden=(16,)',
        '--config.dp.noise_multiplier=1.0',
        '--config.audit.m=200',
        '--config.audit.k_plus=20',
        '--config.audit.k_minus=20',
        f'--workdir={folder}',
    ]
    return [*line, *small_run, *flags]


def _run(line, **options):
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=120, **options)


def _fill(path):
    with path.open('wb', buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1024))


def test_a_disk_that_is_full_from_the_start(tmp_path):
    """On a small file system or, where none can be had, with a limit on the size of files."""
    with _small_disk(tmp_path / 'disk', 1) as mounted:
        limit = None if mounted else lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2**16,) * 2)
        done = _run(_command(tmp_path / 'disk' / 'run'), preexec_fn=limit)
    assert done.returncode == 1
    assert done.stderr.startswith('oneshot: ')
    assert 'MiB' in done.stderr
    assert 'Traceback' not in done.stderr
    assert 'step' not in done.stdout  # before any was made


def test_a_disk_that_fills_up_on_the_way(tmp_path):
    """What was set aside is for the state at hand; when there is room, it goes on from there."""
    flags = ['--config.steps=8000', '--config.chunk=50', '--config.checkpoint_every=500']
    with _small_disk(tmp_path / 'disk', 16) as mounted:
        if not mounted:
            pytest.skip('no small file system can be had; the limit on files is tested above')
        folder = tmp_path / 'disk' / 'run'
        process = subprocess.Popen(
            _command(folder, *flags), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        while process.poll() is None and not list(folder.glob('checkpoints/[0-9]*')):
            time.sleep(0.005)
        _fill(tmp_path / 'disk' / 'fill')
        _, said = process.communicate(timeout=120)
        said = said.decode()
        assert process.returncode == 1, said
        assert said.startswith('oneshot: ')
        assert 'is kept; make room, and the same command goes on from there.' in said
        assert 'Traceback' not in said
        step = int(said.split('The state of step ')[1].split(' is kept')[0].replace(',', ''))
        assert f'after step {step:,}:' in said  # nothing is lost, not even the chunk at hand
        assert crash.newest(folder) == step
        (tmp_path / 'disk' / 'fill').unlink()
        done = _run(_command(folder, *flags))
        assert done.returncode == 0, done.stderr
        assert f'Going on after step {step:,} of 8,000.' in done.stdout
        kept = shutil.copytree(folder, tmp_path / 'kept')
    assert _run(_command(tmp_path / 'whole', *flags)).returncode == 0
    assert crash.differences(tmp_path / 'whole', kept) == []


def test_the_command_goes_on_shows_and_starts_anew(tmp_path):
    """SIGTERM, the same command, the same again, another config, --overwrite."""
    flags = ['--config.steps=100000', '--config.checkpoint_every=100000']
    process = subprocess.Popen(
        _command(tmp_path, *flags), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    while process.poll() is None and not (tmp_path / 'metrics.jsonl').exists():
        time.sleep(0.01)
    process.terminate()
    _, said = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM
    assert b'Stopped by SIGTERM after step ' in said
    assert b'Traceback' not in said
    other = _run(_command(tmp_path, '--config.steps=60', '--config.seed=1'))
    assert other.returncode == 2
    assert 'config.seed (0 there, 1 here), config.steps (100000 there, 60 here)' in other.stderr
    assert list((tmp_path / 'checkpoints').iterdir())  # as they were
    anew = _run(_command(tmp_path, '--config.steps=60', '--overwrite'))
    assert anew.returncode == 0
    again = _run(_command(tmp_path, '--config.steps=60'))
    assert again.returncode == 0
    assert 'has this result already; --overwrite starts anew.' in again.stdout
    assert 'steps/s' not in again.stdout

    def table(text):
        return [line for line in text.splitlines() if line[:1] in '│┃']

    assert table(again.stdout) == table(anew.stdout)


def test_runs_that_are_killed_end_the_same(tmp_path):
    """The fast cousin of experiments/crash.py: five of its runs."""
    rows = crash.crash(5, tmp_path, ('black_box',), (1,), ('saving', 'training'))
    assert [row['differs'] for row in rows] == [''] * 5
    assert all(row['kills'] for row in rows)
