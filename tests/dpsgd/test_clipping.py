import inspect

import jax
import numpy as np
import pytest
from flax import nnx

from oneshot.data import models
from oneshot.dpsgd import clipping


def _loss(name):
    model = models.make(name, (32, 32, 3), 10, nnx.Rngs(0), hidden=(64,))
    apply, params = models.split(model)
    example = np.zeros((32, 32, 3), np.float32), np.int32(0)
    return models.cross_entropy(apply), params, example


@pytest.mark.parametrize(('name', 'size'), [('mlp', 256), ('cnn', 16), ('wrn', 8)])
def test_the_choices_of_the_rule(name, size):
    """The same run must give the same bits: a change here changes everybody's results."""
    given = _loss(name)
    assert clipping.choose_strategy(*given, backend='cpu') == ('ghost', size)
    assert clipping.choose_strategy(*given, backend='gpu') == clipping.choose_strategy(
        *given, backend='tpu'
    )
    assert clipping.choose_strategy(*given, backend='gpu')[1] > size
    assert clipping.choose_strategy(*given, strategy='vmap')[0] == 'vmap'
    assert clipping.choose_strategy(*given, batch=20)[1] <= 5


def test_the_rule_chooses_vmap_where_there_is_no_layer():
    def loss_fn(params, example):
        return jax.numpy.sum(jax.numpy.sin(params['a'] * example))

    params = {'a': np.ones(50, np.float32)}
    strategy, size = clipping.choose_strategy(loss_fn, params, np.ones(50, np.float32))
    assert strategy == 'vmap'
    assert size == 1024


def test_the_rule_measures_no_time():
    assert 'time' not in vars(clipping)
    assert 'time' not in inspect.getsource(clipping.choose_strategy).replace('at a time', '')
