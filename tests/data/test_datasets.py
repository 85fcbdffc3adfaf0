import subprocess
import sys

import numpy as np
import pytest
import tensorflow_datasets as tfds

from oneshot.data import datasets
from tests import tiny_tfds


def test_digits():
    """The counts are those of the UCI test set, as scikit-learn documents them."""
    train, test, classes = datasets.digits(1200, seed=0)
    assert train.images.shape == (1200, 8, 8)
    assert test.images.shape == (597, 8, 8)
    assert classes == 10
    labels = np.concatenate([train.labels, test.labels])
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert train.images.dtype == np.float32
    assert 0.0 <= train.images.min() < train.images.max() <= 1.0


def test_the_seed_fixes_the_split():
    one, two, other = datasets.digits(500, 1), datasets.digits(500, 1), datasets.digits(500, 2)
    assert (one.train.images == two.train.images).all()
    assert (one.train.labels != other.train.labels).any()


def test_bad_input():
    with pytest.raises(ValueError, match='from 0 to 1796, but 1797 was given'):
        datasets.digits(1797, 0)


CASES = [
    ('cifar10', '3.0.2', (32, 32, 3), 10),
    ('cifar100', '3.0.2', (32, 32, 3), 100),
    ('mnist', '3.0.1', (28, 28, 1), 10),
    ('fashion_mnist', '3.0.1', (28, 28, 1), 10),
]


@pytest.mark.parametrize(('name', 'version', 'shape', 'classes'), CASES)
def test_tfds_by_name(name, version, shape, classes, tmp_path, capsys):
    """Written as TFDS does, read through it, and then from the cache."""
    written = tiny_tfds.write(
        tmp_path, name, version, shape=shape, classes=classes, train=20, test=7
    )
    for told in (True, False):  # decoded, and then from the cache
        found = datasets.load(name, None, 0, data_dir=str(tmp_path))
        assert found.classes == classes
        for split, (images, labels) in zip(found[:2], written.values(), strict=True):
            assert split.images.dtype == np.uint8
            assert split.labels.dtype == np.int32
            np.testing.assert_array_equal(split.images, images)
            np.testing.assert_array_equal(split.labels, labels)
        assert (f'Decoding {name}' in capsys.readouterr().out) == told
    names = sorted(path.name for path in (tmp_path / name / version).glob('oneshot*'))
    parts = [
        f'oneshot_{split}_{part}.npy' for split in ('test', 'train') for part in found.train._fields
    ]
    assert names == sorted(parts)


def test_n_is_drawn_by_the_seed(tmp_path):
    images, _ = tiny_tfds.write(tmp_path, train=20, test=7)['train']
    one, same, other = (
        datasets.load('cifar10', 8, seed, data_dir=str(tmp_path)).train.images for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()
    chosen = {image.tobytes() for image in one}
    assert len(chosen) == 8
    assert chosen < {image.tobytes() for image in images}
    assert datasets.load('cifar10', 0, 0, data_dir=str(tmp_path)).train.images.shape == (
        0,
        32,
        32,
        3,
    )


@pytest.mark.parametrize('name', ['digits', 'cifar10'])
def test_a_process_reads_its_own_rows(name, tmp_path):
    tiny_tfds.write(tmp_path, train=20, test=7)
    whole = datasets.load(name, 12, 3, data_dir=str(tmp_path))
    for rows in (np.arange(5), np.array([0, 7, 11]), np.arange(0)):
        part = datasets.load(name, 12, 3, data_dir=str(tmp_path), rows=rows)
        for one, other in zip(part.train, whole.train, strict=True):
            np.testing.assert_array_equal(one, other[rows])
            assert not isinstance(one, np.memmap)  # of which nothing but these rows is read
        np.testing.assert_array_equal(part.test.images, whole.test.images)


def test_a_cache_of_another_size_is_not_used(tmp_path):
    written = tiny_tfds.write(tmp_path, train=20, test=7)
    cache = tmp_path / 'cifar10' / '3.0.2'
    np.save(cache / 'oneshot_train_images.npy', np.zeros((3, 32, 32, 3), np.uint8))
    np.save(cache / 'oneshot_train_labels.npy', np.zeros(3, np.int32))
    found = datasets.load('cifar10', None, 0, data_dir=str(tmp_path)).train
    np.testing.assert_array_equal(found.labels, written['train'][1])


@pytest.mark.parametrize('size', [0, 100, 40_000])
def test_a_cache_that_is_cut_off_is_made_anew(size, tmp_path, capsys):
    written = tiny_tfds.write(tmp_path, train=20, test=7)
    cache = tmp_path / 'cifar10' / '3.0.2' / 'oneshot_train_images.npy'
    datasets.load('cifar10', None, 0, data_dir=str(tmp_path))
    whole = cache.read_bytes()
    cache.write_bytes(whole[:size])
    found = datasets.load('cifar10', None, 0, data_dir=str(tmp_path)).train
    assert 'cannot be read and are made anew' in ' '.join(capsys.readouterr().out.split())
    np.testing.assert_array_equal(found.labels, written['train'][1])
    assert len(cache.read_bytes()) == len(whole)


@pytest.mark.parametrize('anywhere', [True, False])
def test_a_data_set_that_cannot_be_written_to(anywhere, tmp_path, capsys, monkeypatch):
    """The cache is then the user's; where nothing can be written, that is said."""
    tiny_tfds.write(tmp_path / 'tfds', train=5, test=3)
    (tmp_path / 'caches').mkdir()
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'caches' if anywhere else '/dev/null'))
    (tmp_path / 'tfds' / 'cifar10' / '3.0.2').chmod(0o555)
    for decoded in (True, not anywhere):
        found = datasets.load('cifar10', None, 0, data_dir=str(tmp_path / 'tfds'))
        assert len(found.train.labels) == 5
        told = ' '.join(capsys.readouterr().out.split())
        assert ('Decoding' in told) == decoded
        assert ('are not kept' in told) == ('Not a directory' in told) == (not anywhere)
    assert not list((tmp_path / 'tfds').rglob('oneshot*'))
    assert len(list((tmp_path / 'caches').rglob('oneshot*.npy'))) == (4 if anywhere else 0)


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'name': 'cifar11'}, "^name must be .* but 'cifar11' was given"),
        (
            {'train': 'trian'},
            "a split of cifar10, must be one of train, test, but 'trian' was given",
        ),
        ({'test': 'validation'}, "must be one of train, test, but 'validation' was given"),
        ({'n': 21}, 'n, the training examples, must be a whole number from 0 to 20'),
        (
            {'name': 'mnist'},
            'mnist is not prepared at .*tfds build mnist --file_format=array_record',
        ),
    ],
)
def test_unknown_names_splits_and_sizes_are_refused(options, message, tmp_path):
    tiny_tfds.write(tmp_path, train=20, test=7)
    given = {'name': 'cifar10', 'n': None, 'seed': 0, 'data_dir': str(tmp_path)} | options
    with pytest.raises(ValueError, match=message):
        datasets.load(**given)


def test_another_file_format(tmp_path):
    tiny_tfds.write(tmp_path, train=5, test=3, file_format='tfrecord')
    with pytest.raises(
        ValueError, match=r'must be prepared as array_record, but at .* it is tfrecord'
    ):
        datasets.load('cifar10', None, 0, data_dir=str(tmp_path))


def test_the_real_cifar10():
    """Where it is prepared at TFDS's default place: its well-known channel means."""
    if not tfds.builder('cifar10').is_prepared():
        pytest.skip('CIFAR-10 is not prepared at the default place of TFDS')
    found = datasets.load('cifar10', None, 0)
    assert found.train.images.shape == (50_000, 32, 32, 3)
    assert np.bincount(found.train.labels).tolist() == [5_000] * 10
    assert np.bincount(found.test.labels).tolist() == [1_000] * 10
    means = found.train.images.mean(axis=(0, 1, 2)) / 255
    np.testing.assert_allclose(means, [0.4914, 0.4822, 0.4465], atol=5e-4)


def test_no_tensorflow_is_loaded(tmp_path):
    tiny_tfds.write(tmp_path, train=5, test=3)
    code = f"""
import sys
from oneshot.data import datasets
datasets.load('cifar10', 4, 0, data_dir={str(tmp_path)!r})
print('tensorflow' in sys.modules, 'tensorflow_datasets' in sys.modules)
"""
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == 'False True'
