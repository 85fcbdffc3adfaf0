"""What is saved comes back bit for bit, and what is broken is noticed, whatever is broken."""

import logging
import os
import pathlib
import pickle
import shutil
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oneshot.dpsgd.step import State
from oneshot.keep import checkpoints
from oneshot.keep.checkpoints import Checkpoints


def _state(number):
    """A state of every kind of leaf, another one for every number."""
    key = jax.random.key(number)
    params = {'w': jax.random.normal(key, (40, 30)), 'b': jnp.float32(number) + jnp.arange(7.0)}
    audits = {'white_box': (jnp.full((2, 9), 0.1 * number), jnp.full((2, 9), 1e-9))}
    return State(params, (), audits, jnp.int32(number), params['w'] + 1.0), key


def _same(one, other):
    def bits(leaf):
        typed = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(leaf) if typed else leaf).tobytes()

    assert jax.tree.structure(one) == jax.tree.structure(other)
    return all(bits(a) == bits(b) for a, b in zip(*map(jax.tree.leaves, (one, other)), strict=True))


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp('saved')
    with Checkpoints(folder, 3) as kept:
        for step in (1, 2, 3, 4):
            kept.save(step, _state(step), {'said': f'step {step}', 'eps': float('inf')})
        kept.wait()
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return pathlib.Path(shutil.copytree(saved, tmp_path / 'checkpoints'))


def test_the_newest_few_are_kept_and_come_back(folder):
    with Checkpoints(folder, 3) as kept:
        assert kept.steps() == [4, 3, 2]
        found = kept.newest(_state(0))
    assert sorted(path.name for path in folder.iterdir()) == ['2', '3', '4']
    assert found.step == 4
    assert found.notes == {'said': 'step 4', 'eps': 'inf'}
    assert _same(found.state, _state(4))


def test_no_checkpoint_is_no_error(tmp_path):
    with Checkpoints(tmp_path / 'none', 1) as kept:
        assert kept.newest(_state(0)) is None
    assert not (tmp_path / 'none').exists()


def test_the_state_may_be_donated_as_soon_as_it_is_saved(tmp_path):
    """What is written is a copy: large, so that it is still being written when it is gone."""
    spoil = jax.jit(lambda x: jax.tree.map(lambda y: y * 0 - 1, x), donate_argnums=0)
    with Checkpoints(tmp_path, 9) as kept:
        for step in range(1, 5):
            large = {'w': jax.random.normal(jax.random.key(step), (2000, 500))}
            kept.save(step, large, {})
            assert (spoil(large)['w'] == -1).all()
            kept.wait()
            again = {'w': jax.random.normal(jax.random.key(step), (2000, 500))}
            assert _same(kept.newest(again).state, again)


def test_a_step_is_saved_once(folder):
    before = (folder / '4' / 'checkpoint.json').stat().st_mtime_ns
    with Checkpoints(folder, 3) as kept:
        kept.save(4, _state(4), {})
        kept.wait()
    assert (folder / '4' / 'checkpoint.json').stat().st_mtime_ns == before


def _cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _empty(path):
    path.write_bytes(b'')


def _flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 0x10
    path.write_bytes(content)


def _break(folder, how):
    """A broken copy of the folder's step 4 for each of its files."""
    for path in sorted(path for path in (folder / '4').rglob('*') if path.is_file()):
        content = path.read_bytes()
        yield path.relative_to(folder), how(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@pytest.mark.parametrize('how', [_cut, _empty, _flip, pathlib.Path.unlink])
def test_every_broken_file_is_noticed(folder, how, capfd):
    """Flipped bits in the data are read by Orbax itself without an error."""
    seen = 0
    for name, _ in _break(folder, how):
        with (
            Checkpoints(folder, 3) as kept,
            pytest.warns(UserWarning, match=r'step 4 is broken \(.*\) and was put aside') as told,
        ):
            found = kept.newest(_state(0))
        assert found.step == 3, name
        assert _same(found.state, _state(3))
        assert len(told) == 1
        aside = folder / '4.broken'
        assert aside.is_dir()
        aside.rename(folder / '4')
        seen += 1
    assert seen >= 10
    assert 'Traceback' not in capfd.readouterr().err


def test_what_is_half_written_has_no_name(folder):
    """The folder that a killed save leaves is passed over, and is gone with the next save."""
    (folder / '4').rename(folder / 'unfinished')
    (folder / 'unfinished' / 'checkpoint.json').unlink()
    with warnings.catch_warnings(), Checkpoints(folder, 3) as kept:
        warnings.simplefilter('error')
        assert kept.newest(_state(0)).step == 3
        kept.save(4, _state(4), {})
        kept.wait()
        assert kept.newest(_state(0)).step == 4
    assert not (folder / 'unfinished').exists()


def test_an_empty_folder_with_a_name_is_broken(folder):
    (folder / '5').mkdir()
    with Checkpoints(folder, 3) as kept, pytest.warns(UserWarning, match='json is missing'):
        assert kept.newest(_state(0)).step == 4


def test_another_shape_is_broken(folder):
    params = {'w': jnp.zeros((40, 31)), 'b': jnp.zeros(7)}
    state, key = _state(0)
    with Checkpoints(folder, 3) as kept, pytest.raises(ValueError, match='its shapes are not'):
        kept.newest((state._replace(params=params), key))


def test_if_none_is_whole_nothing_is_deleted(folder):
    for path in folder.rglob('*'):
        if path.is_file():
            _cut(path)
    before = sorted(folder.rglob('*'))
    with Checkpoints(folder, 3) as kept, pytest.raises(ValueError, match='is whole') as error:
        kept.newest(_state(0))
    message = str(error.value)
    assert all(f'step {step}: ' in message for step in (2, 3, 4))
    assert message.endswith('Nothing was deleted; --overwrite starts the run anew.')
    assert sorted(folder.rglob('*')) == before


class _Bomb:
    """Unpickled, it makes a folder."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_no_file_of_a_checkpoint_runs_code(folder, tmp_path):
    """Each file in turn is a pickle, with a manifest that says that this is right."""
    bomb = pickle.dumps(_Bomb(tmp_path / 'ran'))
    for path in sorted(path for path in (folder / '4').rglob('*') if path.is_file()):
        content = path.read_bytes()
        path.write_bytes(bomb)
        if path.name != 'checkpoint.json':
            manifest = checkpoints._read_manifest(folder / '4' / 'checkpoint.json')
            name = str(path.relative_to(folder / '4'))
            forged = manifest['files'] | {name: checkpoints._digest(path)}
            checkpoints._write_manifest(
                folder / '4' / 'checkpoint.json', manifest | {'files': forged}
            )
        with warnings.catch_warnings(), Checkpoints(folder, 3) as kept:
            warnings.simplefilter('ignore')
            assert kept.newest(_state(0)).step in (3, 4)
        assert not (tmp_path / 'ran').exists(), path
        if (folder / '4.broken').exists():
            (folder / '4.broken').rename(folder / '4')
        path.write_bytes(content)
    pickle.loads(bomb)
    assert (tmp_path / 'ran').exists()  # the bomb is one


def test_hooks_are_undone(tmp_path):
    def hooks():
        loggers = [logging.getLogger(name) for name in ('absl', 'asyncio')]
        return sys.unraisablehook, [logger.filters[:] for logger in loggers]

    before = hooks()
    with Checkpoints(tmp_path, 1):
        assert hooks() != before
    assert hooks() == before
