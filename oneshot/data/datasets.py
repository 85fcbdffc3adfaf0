"""The data sets: the embedded digits, and those of TFDS by name."""

import functools
import hashlib
import importlib.util
import os
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from rich.progress import track

from oneshot import inputs

_DIGITS = 1_797  # that are embedded
# Named where a name is not known; every other of TFDS with images and labels will do.
NAMES = ('digits', 'cifar10', 'cifar100', 'mnist', 'fashion_mnist')


class Split(NamedTuple):
    """Examples: images, float32 in [0, 1] or bytes, and int32 labels."""

    images: np.ndarray
    labels: np.ndarray


class Dataset(NamedTuple):
    """A data set in two parts."""

    train: Split
    test: Split
    classes: int


class Description(NamedTuple):
    """What is known of a data set before it is read."""

    image: tuple[int, ...]  # the shape of one
    classes: int
    n: int  # examples to train on
    held_out: int


def describe(
    name: str,
    n: int | None,
    *,
    train: str = 'train',
    test: str = 'test',
    data_dir: str | None = None,
    download: bool = True,
) -> Description | None:
    """What `load` will give; None if that is not known without a download, and `download` is not.

    Raises:
        ValueError: as `load` does.
    """
    if name == 'digits':
        inputs.choice('train, a split of digits,', train, ('train',))
        inputs.choice('test, a split of digits,', test, ('test',))
        n = inputs.count('n, the number of training examples,', n, 0, _DIGITS - 1)
        return Description((8, 8), 10, n, _DIGITS - n)
    builder = _open(name, data_dir, download)
    if builder is None:
        return None
    splits = tuple(builder.info.splits)
    inputs.choice(f'train, a split of {name},', train, splits)
    inputs.choice(f'test, a split of {name},', test, splits)
    classes = _classes(builder)
    size, held_out = (builder.info.splits[split].num_examples for split in (train, test))
    n = size if n is None else inputs.count('n, the training examples,', n, 0, size)
    return Description(builder.info.features['image'].shape, classes, n, held_out)


def load(
    name: str,
    n: int | None,
    seed: int,
    *,
    train: str = 'train',
    test: str = 'test',
    data_dir: str | None = None,
    rows: np.ndarray | None = None,
) -> Dataset:
    """A data set by its name: the embedded digits, or one of TFDS.

    Args:
        name: 'digits', or a data set of TFDS that has images of one size, and labels.
        n: how many examples to train on, drawn by the seed; None for all, 0 for none.
        seed: of the draw.
        train: the split that these are taken from.
        test: the split that is held out.
        data_dir: where TFDS keeps its data sets, if not at its default.
        rows: which of the n examples to train on are read, in order; all by default.

    Raises:
        ValueError: there is no such data set, split or number of examples, or it is not
            prepared and cannot be.
    """
    about = describe(name, n, train=train, test=test, data_dir=data_dir)
    rows = slice(None) if rows is None else rows
    if name == 'digits':
        dataset = digits(n, seed)
        return dataset._replace(train=Split(*(part[rows] for part in dataset.train)))
    builder = _open(name, data_dir, True)
    size = builder.info.splits[train].num_examples
    chosen = np.sort(np.random.default_rng(seed).permutation(size)[: about.n])[rows]
    return Dataset(_read(builder, train, chosen), _read(builder, test), about.classes)


def digits(n: int | None, seed: int) -> Dataset:
    """The 8×8 handwritten digits, 1,797 of them, n for training and the rest held out.

    Source: Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI Machine
    Learning Repository (CC BY 4.0), as shipped with scikit-learn.
    """
    with np.load(pathlib.Path(__file__).parent / 'embedded' / 'digits.npz') as file:
        images, labels = file['images'], file['labels']
    n = describe('digits', n).n
    order = np.random.default_rng(seed).permutation(len(labels))
    images = images[order].astype(np.float32) / 16.0
    labels = labels[order].astype(np.int32)
    return Dataset(Split(images[:n], labels[:n]), Split(images[n:], labels[n:]), 10)


@functools.lru_cache(maxsize=8)
def _open(name: str, data_dir: str | None, download: bool) -> Any:
    """The builder of a data set, which is prepared if it can be; None if it may not be."""
    import tensorflow_datasets as tfds  # takes a second, so only if it is needed

    try:
        builder = tfds.builder(name, data_dir=data_dir)
    except (ValueError, tfds.core.DatasetNotFoundError):  # no such name, or none at all
        names = ', '.join(NAMES)
        raise ValueError(
            f'name must be a data set of TFDS, or one of {names}, but {name!r} was given.'
        ) from None
    command = f'tfds build {name} --file_format=array_record'
    if builder.is_prepared():
        if builder.info.file_format.value != 'array_record':
            raise ValueError(
                f'{name} must be prepared as array_record, but at {builder.data_path} it is '
                f'{builder.info.file_format.value}; this prepares it at another place, for '
                f'data_dir = DIR: {command} --data_dir=DIR'
            )
        return builder
    builder = tfds.builder(name, data_dir=data_dir, file_format='array_record')
    command = f'{command} --data_dir={builder.data_dir_root}'
    if importlib.util.find_spec('tensorflow') is None:
        raise ValueError(
            f'{name} is not prepared at {builder.data_path}, which takes TensorFlow: '
            f'pip install tensorflow && {command}'
        )
    if not download:
        return None
    try:
        builder.download_and_prepare()
    except (OSError, tfds.download.DownloadError) as error:
        raise ValueError(
            f'{name} could not be downloaded and prepared ({error}); '
            f'where there is a network, this does it: {command}'
        ) from error
    return builder


def _classes(builder: Any) -> int:
    """How many there are, if this is a data set of images of one size with labels."""
    features = dict(builder.info.features.items())
    images = getattr(features.get('image'), 'shape', (None,))
    if None in images or not hasattr(features.get('label'), 'num_classes'):
        raise ValueError(
            f'name must be a data set of images of one size and labels, but {builder.name} has '
            f'{features}.'
        )
    return features['label'].num_classes


def _read(builder: Any, split: str, chosen: np.ndarray | slice = slice(None)) -> Split:
    """The chosen examples of a split, from a cache if they are there."""
    shape = builder.info.splits[split].num_examples, *builder.info.features['image'].shape
    folders = _folders(builder.data_path)
    for folder in folders:
        cached = _cached(folder, split, shape)
        if cached is not None:
            return Split(*(np.array(part[chosen]) for part in cached))
    source = builder.as_data_source(split=split)
    decoded = Split(np.empty(shape, np.uint8), np.empty(shape[0], np.int32))
    for i in track(range(shape[0]), description=f'Decoding {builder.name}, {split}, once'):
        example = source[i]
        decoded.images[i], decoded.labels[i] = example['image'], example['label']
    _keep(folders, split, decoded)
    return Split(*(part[chosen] for part in decoded))


def _folders(data_path: Any) -> tuple[pathlib.Path, pathlib.Path]:
    """Where caches are: beside the data set or, if it is read-only, with the user's caches."""
    beside = pathlib.Path(data_path)
    name = hashlib.sha256(str(beside.resolve()).encode()).hexdigest()[:16]
    caches = os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache'
    return beside, pathlib.Path(caches) / 'oneshot' / name


def _paths(folder: pathlib.Path, split: str) -> list[pathlib.Path]:
    return [folder / f'oneshot_{split}_{part}.npy' for part in Split._fields]


def _cached(folder: pathlib.Path, split: str, shape: tuple[int, ...]) -> Split | None:
    """The decoded split in a folder, if it is whole and of this shape.

    The arrays are mapped: what is not looked at is not read.
    """
    paths = _paths(folder, split)
    if not all(path.exists() for path in paths):
        return None
    try:
        cached = Split(*(np.load(path, mmap_mode='r') for path in paths))
    except (OSError, EOFError, ValueError) as error:
        print(f'The decoded images at {folder} cannot be read and are made anew: {error}')
        return None
    return cached if (cached.images.shape, cached.labels.shape) == (shape, shape[:1]) else None


def _keep(folders: Sequence[pathlib.Path], split: str, decoded: Split) -> None:
    """Writes to the first folder that can be written to, each array whole or not at all."""
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not folder.stat().st_mode & 0o222:  # which does not stop root
                raise PermissionError(f'{folder} is read-only')
            for path, array in zip(_paths(folder, split), decoded, strict=True):
                _save(path, array)
            return
        except OSError as error:
            reason = error
    print(f'The decoded images are not kept, because {folder} cannot be written: {reason}.')


def _save(path: pathlib.Path, array: np.ndarray) -> None:
    part = path.with_suffix(f'.{os.getpid()}.npy')
    try:
        np.save(part, array)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
