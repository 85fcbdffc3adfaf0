"""A step and its examples, before it is run."""

import jax
import numpy as np
import pytest

from oneshot.check.runner import Runner
from oneshot.check.step import chosen_loss
from tests.check.cases import small


def test_chosen_examples_have_the_chosen_gradients():
    step = small()
    runner = Runner(step)
    batch = runner.zero_gradient_examples(3)
    batch.size[0], batch.places[0, :2] = 5.0, (3, 649)
    batch.dense[1] = 2.0
    batch.weight[2] = 1.0
    loss = chosen_loss(runner.model.loss_fn)
    grads = jax.vmap(jax.grad(loss), (None, 0))(runner.model.params, batch)
    flat = np.concatenate([g.reshape(3, -1) for g in jax.tree.leaves(grads)], 1)
    assert np.flatnonzero(flat[0]).tolist() == [3, 649]
    assert (flat[0][[3, 649]] == 5.0).all()
    assert (flat[1] == 2.0).all()
    natural = jax.grad(runner.model.loss_fn)(
        runner.model.params, jax.tree.map(lambda x: x[2], runner.model.examples)
    )
    natural = np.concatenate([g.reshape(-1) for g in jax.tree.leaves(natural)])
    np.testing.assert_allclose(flat[2], natural, rtol=1e-6)


@pytest.mark.parametrize(
    ('options', 'words'),
    [
        ({'sample': 3}, 'sample must be a function'),
        ({'sampling_prob': 0.0}, 'sampling_prob must'),
        ({'clip_norm': -1.0}, 'clip_norm must'),
        ({'rows': 3}, 'rows must'),
    ],
)
def test_a_step_with_bad_arguments(options, words):
    with pytest.raises(ValueError, match=words):
        small(**options)
