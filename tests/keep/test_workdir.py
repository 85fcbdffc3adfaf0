import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from oneshot import files
from oneshot.run.settings import open_workdir
from tests import small

ROOT = pathlib.Path(__file__).parents[2]


def test_another_config_is_refused_with_the_keys_that_differ(tmp_path):
    with open_workdir(tmp_path, small.config()):
        pass
    other = small.config(seed=1, dp__clip_norm=2.0, model__hidden=(8, 8))
    with pytest.raises(ValueError, match='belongs to another config') as error:
        open_workdir(tmp_path, other)
    assert str(error.value) == (
        f'{tmp_path} belongs to another config, which differs in config.dp.clip_norm (1.0 there, '
        '2.0 here), config.model.hidden ([16] there, [8, 8] here), config.seed (0 there, 1 here). '
        'Choose another --workdir, or start anew with --overwrite.'
    )


def test_what_does_not_change_the_result_may_differ(tmp_path):
    with open_workdir(tmp_path, small.config()):
        pass
    with open_workdir(tmp_path, small.config(checkpoint_every=7, checkpoint_keep=9, data_dir='/x')):
        pass
    assert json.loads((tmp_path / 'config.json').read_text())['checkpoint_every'] == 7


@pytest.mark.parametrize('content', [b'', b'{"seed": 0', b'[]', b'3', b'\xff\xfe'])
def test_a_config_that_cannot_be_read(tmp_path, content):
    (tmp_path / 'config.json').write_bytes(content)
    with pytest.raises(ValueError, match=r'config|differs'):
        open_workdir(tmp_path, small.config())


def test_a_run_without_its_config_is_not_taken_over(tmp_path):
    (tmp_path / 'result.json').write_text('{}')
    with pytest.raises(ValueError, match=r'has a run in it without its config.json'):
        open_workdir(tmp_path, small.config())


def test_two_runs_do_not_share_a_workdir(tmp_path):
    holds = (
        'import sys; sys.path.insert(0, ".")\n'
        'from oneshot.run.settings import open_workdir; from tests import small\n'
        f'with open_workdir({str(tmp_path)!r}, small.config()):\n'
        '    print("in", flush=True); sys.stdin.read()'
    )
    other = subprocess.Popen(
        [sys.executable, '-c', holds], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    )
    assert other.stdout.readline() == b'in\n'
    ours = open_workdir(tmp_path, small.config())
    with pytest.raises(ValueError, match=f'in use by another run, process {other.pid};'), ours:
        pass
    other.kill()  # a lock of a process that is gone is gone
    other.communicate()
    with ours:
        pass


def test_overwrite_deletes_what_a_run_left_and_nothing_else(tmp_path):
    with open_workdir(tmp_path, small.config()):
        pass
    for name in ('result.json', 'metrics.jsonl', 'scores_until_3.npz', 'mine.txt'):
        (tmp_path / name).write_text('')
    for name in ('checkpoints', 'events', 'plots', 'my_folder'):
        (tmp_path / name / 'inner').mkdir(parents=True)
    with open_workdir(tmp_path, small.config(seed=1), overwrite=True) as directory:
        assert not directory.finished
        left = {path.name for path in tmp_path.iterdir()}
    assert left == {'config.json', '.lock', 'mine.txt', 'my_folder'}
    assert json.loads((tmp_path / 'config.json').read_text())['seed'] == 1


def test_a_file_is_there_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / 'result.json'
    files.write(path, b'old')

    def fails(*_):
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(os, 'fsync', fails)
    with pytest.raises(OSError, match='No space'):
        files.write(path, b'new and longer')
    assert path.read_bytes() == b'old'
    assert [one.name for one in tmp_path.iterdir()] == ['result.json']


def test_the_mode_of_a_secret_holds_whatever_the_umask_is(tmp_path):
    path = tmp_path / 'coins.npz'
    (tmp_path / 'coins.npz.partial').write_text('left behind, for everybody to read')
    before = os.umask(0)
    try:
        files.write_arrays(path, mode=0o600, included=np.ones(3, bool))
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_folder_that_may_not_be_written_to(tmp_path):
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(PermissionError, match='may not be written to'):
            open_workdir(tmp_path, small.config())
    finally:
        tmp_path.chmod(0o755)
    (tmp_path / 'file').write_text('')
    with pytest.raises(OSError, match='File exists'):
        open_workdir(tmp_path / 'file', small.config())


def test_room_is_looked_for_and_set_aside(tmp_path):
    with open_workdir(tmp_path, small.config()) as directory:
        directory.reserve(2**20, 2**20)
        assert (tmp_path / '.reserve').stat().st_size == 2**20
        assert (tmp_path / '.reserve').stat().st_blocks * 512 >= 2**20  # it is really there
        with pytest.raises(OSError, match=r'has .* MiB left, and the run needs .* MiB'):
            directory.reserve(2**60, 0)
    assert not (tmp_path / '.reserve').exists()
