"""Steps that cannot be run."""

import jax
import jax.numpy as jnp
import pytest

from experiments import fault_table
from oneshot.check.runner import Runner
from tests.check.cases import small


def test_a_gradient_of_another_tree():
    with pytest.raises(ValueError, match='a tree like the parameters'):
        Runner(small(lambda claim, loss_fn, params, batch, mask, key: (params,)))
    with pytest.raises(ValueError, match='arrays of the shapes'):
        Runner(small(lambda claim, loss_fn, params, *_: jax.tree.map(lambda x: x[:1], params)))


def test_a_model_that_is_too_large():
    large = fault_table.linear()._replace(params={'w': jnp.zeros(1_000_001)})
    with pytest.raises(ValueError, match='2 to 1,000,000 parameters'):
        Runner(small(model=large))
