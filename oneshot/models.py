"""The models, in Flax NNX, split into a loss of one example and its parameters."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

PyTree = Any


class MLP(nnx.Module):
    """Dense layers with tanh between them."""

    def __init__(self, inputs: int, hidden: Sequence[int], classes: int, rngs: nnx.Rngs) -> None:
        sizes = [inputs, *hidden, classes]
        self.layers = nnx.List([nnx.Linear(a, b, rngs=rngs) for a, b in itertools.pairwise(sizes)])

    def __call__(self, image: jax.Array) -> jax.Array:
        """Logits of one image."""
        x = image.reshape(-1)
        for layer in self.layers[:-1]:
            x = jnp.tanh(layer(x))
        return self.layers[-1](x)


def split(model: nnx.Module) -> tuple[Callable[[PyTree, jax.Array], jax.Array], PyTree]:
    """(apply, params): a pure function of the parameters, at the border of NNX."""
    graph, params = nnx.split(model, nnx.Param)
    return lambda params, image: nnx.merge(graph, params)(image), params


def cross_entropy(apply: Callable[[PyTree, jax.Array], jax.Array]) -> Callable[..., jax.Array]:
    """loss_fn(params, (image, label)) of one example."""

    def loss_fn(params: PyTree, example: tuple[jax.Array, jax.Array]) -> jax.Array:
        image, label = example
        return optax.softmax_cross_entropy_with_integer_labels(apply(params, image), label)

    return loss_fn
