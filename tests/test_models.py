import jax
import numpy as np
import optax
from flax import nnx

from oneshot import models


def test_mlp_is_the_formula():
    apply, params = models.split(models.MLP(6, (5, 4), 3, nnx.Rngs(jax.random.key(0))))
    image = np.random.default_rng(0).random((2, 3)).astype(np.float32)
    x = image.reshape(-1)
    layers = nnx.to_pure_dict(params)['layers']
    for i in range(3):
        x = x @ np.asarray(layers[i]['kernel']) + np.asarray(layers[i]['bias'])
        x = np.tanh(x) if i < 2 else x
    np.testing.assert_allclose(apply(params, image), x, rtol=1e-5)
    loss = models.cross_entropy(apply)(params, (image, 1))
    np.testing.assert_allclose(loss, np.log(np.exp(x).sum()) - x[1], rtol=1e-5)


def test_parameters_are_a_plain_pytree():
    """Per-example gradients and optax take them as they are."""
    apply, params = models.split(models.MLP(64, (128,), 10, nnx.Rngs(jax.random.key(0))))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 64 * 128 + 128 + 128 * 10 + 10
    batch = np.zeros((3, 8, 8), np.float32), np.arange(3)
    grads = jax.vmap(jax.grad(models.cross_entropy(apply)), (None, 0))(params, batch)
    assert all(leaf.shape[0] == 3 for leaf in jax.tree.leaves(grads))
    optimizer = optax.sgd(0.1)
    updates, _ = optimizer.update(params, optimizer.init(params), params)
    optax.apply_updates(params, updates)
