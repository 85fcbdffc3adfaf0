"""A DP step under examination, and the examples that it is given."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from oneshot import dpsgd, inputs
from oneshot.data import datasets
from oneshot.dpsgd import sampling
from oneshot.dpsgd.clipping import Clipping
from oneshot.dpsgd.gradients.strategy import LossFn
from oneshot.dpsgd.step import Attack

PyTree = Any
# The claim of `oneshot_step`: ε = 2 after 100 steps.
CLAIM = {'clip_norm': 1.0, 'noise_multiplier': 5.15, 'expected_batch_size': 64.0}
CLAIM |= {'sampling_prob': 0.25}
PLACES = 20  # the most coordinates that an example can point at

_LAYERS, _WIDTH = 20, 32  # of the small model


class Model(NamedTuple):
    """What is trained: loss_fn(params, example) of ONE example, and examples along an axis."""

    loss_fn: LossFn
    params: PyTree
    examples: PyTree


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """A DP step, as a function, and what it claims.

    Attributes:
        gradient: gradient(loss_fn, params, batch, mask, key), the privatized gradient that
            it gives to the optimizer, like the parameters. `loss_fn(params, example)` is
            the loss of ONE example, `batch` has examples along the leading axis of every
            leaf, and `mask` says which rows are real: what is drawn by Poisson sampling
            has no fixed size, and the rest is padding. It has to be traceable by JAX.
        clip_norm: c.
        noise_multiplier: σ: the noise on the sum is claimed to have the deviation σc.
        expected_batch_size: what the noisy sum is divided by; 1 if by nothing.
        sampling_prob: q, as it is accounted for.
        init: init(params, key), the state of a step that keeps one. `gradient` is given it
            in the place of the key then, and returns the gradient and the next state.
        sample: sample(key, n, steps), how often every step draws each of n examples, an
            array of steps × n, claimed to be Poisson sampling with q. Without it, batches
            are drawn with q by the doctor, and the sampling is not examined.
        model: what to train; by default a small MLP on digits.
        rows: of the batches that `gradient` is given, padding and all.
        name: what it is called in reports.
    """

    gradient: Callable[..., Any]
    clip_norm: float
    noise_multiplier: float
    expected_batch_size: float
    sampling_prob: float = 0.25
    init: Callable[[PyTree, jax.Array], PyTree] | None = None
    sample: Callable[[jax.Array, int, int], Any] | None = None
    model: Model | None = None
    rows: int = 256
    name: str = 'the step'

    def __post_init__(self) -> None:
        for name in ('gradient', 'init', 'sample'):
            value = getattr(self, name)
            if not callable(value) and (value is not None or name == 'gradient'):
                raise ValueError(f'{name} must be a function, but {value!r} was given.')
        for name in ('clip_norm', 'expected_batch_size'):
            inputs.real(name, getattr(self, name), 0.0, math.inf, ends='()')
        inputs.real('noise_multiplier', self.noise_multiplier, 1e-2, 1e6)
        inputs.real('sampling_prob', self.sampling_prob, 1e-3, 1.0)
        inputs.count('rows', self.rows, 32)

    @property
    def deviation(self) -> float:
        """Of the noise, as it is claimed, in the gradient."""
        return self.noise_multiplier * self.clip_norm / self.expected_batch_size


class Example(NamedTuple):
    """An example whose gradient the doctor chooses.

    Its loss is weight·loss_fn(params, natural) + size·Σ w_j over the places + dense·Σ w_i over all.
    """

    natural: PyTree
    weight: jax.Array
    places: jax.Array  # `PLACES` of them, −1 for none
    size: jax.Array
    dense: jax.Array


def chosen_loss(loss_fn: LossFn) -> LossFn:
    """The loss of an `Example`."""

    def loss(params: PyTree, example: Example) -> jax.Array:
        flat, _ = ravel_pytree(params)
        at = jnp.where(example.places < 0, 0.0, flat[jnp.maximum(example.places, 0)])
        pointed = example.size * jnp.sum(at) + example.dense * jnp.sum(flat)
        return example.weight * loss_fn(params, example.natural) + pointed

    return loss


@functools.cache
def small_model() -> Model:
    """An MLP with residual layers, many of them so that clipping them one by one shows."""
    images, labels = datasets.digits(n=256, seed=0).train
    rng = np.random.default_rng(0)
    sizes = [images[0].size, *[_WIDTH] * (_LAYERS - 1), 10]

    def make_layer(size_in: int, size_out: int) -> dict[str, jax.Array]:
        kernel = rng.standard_normal((size_in, size_out)) / math.sqrt(size_in)
        return {'bias': jnp.zeros(size_out), 'kernel': jnp.asarray(kernel, jnp.float32)}

    pairs = enumerate(itertools.pairwise(sizes))
    params = {f'layer_{i:02}': make_layer(*pair) for i, pair in pairs}

    def loss_fn(params: PyTree, example: tuple[jax.Array, jax.Array]) -> jax.Array:
        image, label = example
        first, *inner, last = params.values()
        x = image.reshape(-1) @ first['kernel'] + first['bias']
        for layer in inner:
            x = x + jnp.tanh(x) @ layer['kernel'] / _LAYERS + layer['bias']
        return -jax.nn.log_softmax(jnp.tanh(x) @ last['kernel'] + last['bias'])[label]

    return Model(loss_fn, params, (jnp.asarray(images), jnp.asarray(labels)))


def oneshot_step(strategy: str, model: Model | None = None) -> Step:
    """`oneshot.dpsgd.make_step`, whole, with all of the batch drawn: padding has a loss of 0."""

    def gradient(loss_fn, params, batch, mask, key):
        def loss(params: PyTree, example: tuple[PyTree, jax.Array]) -> jax.Array:
            inner, real = example
            return jnp.where(real, loss_fn(params, inner), 0.0)

        zeros = jax.tree.map(jnp.zeros_like, params)  # keeps the privatized gradient
        watch = Attack(lambda _: zeros, lambda state, seen: seen.gradient, lambda *_: {})
        init, advance = dpsgd.make_step(
            loss,
            optax.sgd(1.0),
            clipping=Clipping(CLAIM['clip_norm'], 32, strategy),
            noise_multiplier=CLAIM['noise_multiplier'],
            sampling_prob=1.0,
            expected_batch_size=CLAIM['expected_batch_size'],
            attacks={'watch': watch},
        )
        state, _ = advance(init(params), key, (batch, mask))
        return state.audits['watch']

    def sample(key, n, steps):
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(steps))
        everybody, q = jnp.ones(n, bool), CLAIM['sampling_prob']
        return jax.vmap(lambda key: sampling.poisson(key, q, everybody))(keys)

    return Step(gradient, **CLAIM, sample=sample, model=model, name=f'oneshot, {strategy}')
