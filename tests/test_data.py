import numpy as np
import pytest

from oneshot import data


def test_digits():
    """The counts are those of the UCI test set, as scikit-learn documents them."""
    train, test, classes = data.digits(1200, seed=0)
    assert train.images.shape == (1200, 8, 8)
    assert test.images.shape == (597, 8, 8)
    assert classes == 10
    labels = np.concatenate([train.labels, test.labels])
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert train.images.dtype == np.float32
    assert 0.0 <= train.images.min() < train.images.max() <= 1.0


def test_the_seed_fixes_the_split():
    one, two, other = data.digits(500, 1), data.digits(500, 1), data.digits(500, 2)
    assert (one.train.images == two.train.images).all()
    assert (one.train.labels != other.train.labels).any()


def test_bad_input():
    with pytest.raises(ValueError, match='from 1 to 1796, but 1797 was given'):
        data.digits(1797, 0)
