"""The data sets: the embedded digits."""

import pathlib
from typing import NamedTuple

import numpy as np

from oneshot.bounds import _check


class Split(NamedTuple):
    """Examples: float32 images in [0, 1] and int32 labels."""

    images: np.ndarray
    labels: np.ndarray


class Dataset(NamedTuple):
    """A data set in two parts."""

    train: Split
    test: Split
    classes: int


def digits(n: int, seed: int) -> Dataset:
    """The 8×8 handwritten digits, 1,797 of them, n for training and the rest held out.

    Source: Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI Machine
    Learning Repository (CC BY 4.0), as shipped with scikit-learn.
    """
    with np.load(pathlib.Path(__file__).parent / 'embedded' / 'digits.npz') as file:
        images, labels = file['images'], file['labels']
    n = _check.count('n, the number of training examples,', n, 1, len(labels) - 1)
    order = np.random.default_rng(seed).permutation(len(labels))
    images = images[order].astype(np.float32) / 16.0
    labels = labels[order].astype(np.int32)
    return Dataset(Split(images[:n], labels[:n]), Split(images[n:], labels[n:]), 10)
