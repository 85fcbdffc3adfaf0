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
from jax.flatten_util import ravel_pytree

from oneshot import data
from oneshot.bounds import _check
from oneshot.gradients import LossFn

PyTree = Any

STEPS = 100  # of a run under examination
CANARIES = 1_300  # at most
PLACES = 20  # the most coordinates that an example can point at
LARGEST = 1_000_000  # parameters: a run is kept as a matrix of steps and coordinates

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
            given = getattr(self, name)
            if not callable(given) and (given is not None or name == 'gradient'):
                raise ValueError(f'{name} must be a function, but {given!r} was given.')
        for name in ('clip_norm', 'expected_batch_size'):
            given = getattr(self, name)
            _check.real(name, given, 0.0, math.inf, open_low=True, open_high=True)
        _check.real('noise_multiplier', self.noise_multiplier, 1e-2, 1e6)
        _check.real('sampling_prob', self.sampling_prob, 1e-3, 1.0)
        _check.count('rows', self.rows, 32)

    @property
    def deviation(self) -> float:
        """Of the noise, as it is claimed, in the gradient."""
        return self.noise_multiplier * self.clip_norm / self.expected_batch_size


class Example(NamedTuple):
    """An example whose gradient the doctor chooses.

    Its loss is weight·loss_fn(params, natural) + size·Σ_j w_j + dense·Σ_i w_i, with j the
    places and i all coordinates of the flattened parameters.
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
    images, labels = data.digits(n=256, seed=0).train
    rng = np.random.default_rng(0)
    sizes = [images[0].size, *[_WIDTH] * (_LAYERS - 1), 10]
    params = {
        f'layer_{i:02}': {
            'bias': jnp.zeros(size_out),
            'kernel': jnp.asarray(
                rng.standard_normal((size_in, size_out)) / math.sqrt(size_in), jnp.float32
            ),
        }
        for i, (size_in, size_out) in enumerate(itertools.pairwise(sizes))
    }

    def loss_fn(params: PyTree, example: tuple[jax.Array, jax.Array]) -> jax.Array:
        image, label = example
        first, *inner, last = params.values()
        x = image.reshape(-1) @ first['kernel'] + first['bias']
        for layer in inner:
            x = x + jnp.tanh(x) @ layer['kernel'] / _LAYERS + layer['bias']
        return -jax.nn.log_softmax(jnp.tanh(x) @ last['kernel'] + last['bias'])[label]

    return Model(loss_fn, params, (jnp.asarray(images), jnp.asarray(labels)))


class Leaf(NamedTuple):
    """Where a leaf stands among the flattened parameters."""

    name: str
    first: int
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def of(self, flat: np.ndarray) -> np.ndarray:
        """What of flattened gradients belongs to it."""
        return flat[..., self.first : self.first + self.size]


class Runner:
    """Runs a step on batches of `Example`s, and gives its gradients flattened."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.model = step.model or small_model()
        named = jax.tree_util.tree_flatten_with_path(self.model.params)[0]
        sizes = [leaf.size for _, leaf in named]
        firsts = np.concatenate([[0], np.cumsum(sizes)]).tolist()
        self.size = firsts[-1]
        if not 2 <= self.size <= LARGEST:
            raise ValueError(
                f'The model must have 2 to {LARGEST:,} parameters to be examined, but it has '
                f'{self.size:,}: give a narrower one with the same kinds of layers.'
            )
        self.room = max(CANARIES, step.rows)  # examples that runs choose from, all of one shape
        self.leaves = [
            Leaf(jax.tree_util.keystr(path, simple=True, separator='/'), first, jnp.shape(leaf))
            for (path, leaf), first in zip(named, firsts[:-1], strict=True)
        ]
        loss_fn, params = chosen_loss(self.model.loss_fn), self.model.params
        init = step.init or (lambda params, key: (key, jnp.int32(0)))

        def advance(state: PyTree, batch: Example, mask: jax.Array) -> tuple[PyTree, PyTree]:
            if step.init is None:
                key, number = state
                given = jax.random.fold_in(key, number)
                gradient = step.gradient(loss_fn, params, batch, mask, given)
                state = key, number + 1
            else:
                gradient, state = step.gradient(loss_fn, params, batch, mask, state)
            self._check(gradient)
            return gradient, state

        def first(key: jax.Array, batch: Example, mask: jax.Array) -> PyTree:
            return advance(init(params, key), batch, mask)[0]

        @jax.jit
        def run(key: jax.Array, examples: Example, indices: jax.Array) -> jax.Array:
            def one(state: PyTree, rows: jax.Array) -> tuple[PyTree, jax.Array]:
                batch = jax.tree.map(lambda x: x[jnp.maximum(rows, 0)], examples)
                gradient, state = advance(state, batch, rows >= 0)
                return state, ravel_pytree(gradient)[0]

            return jax.lax.scan(one, init(params, key), indices)[1]

        batch, mask = self.silent(step.rows), np.zeros(step.rows, bool)
        shapes = jax.tree.leaves(jax.eval_shape(first, jax.random.key(0), batch, mask))
        self.rounding = max(float(jnp.finfo(leaf.dtype).eps) for leaf in shapes)  # relative
        self._once = jax.jit(lambda *given: ravel_pytree(first(*given))[0])
        self._run = run

    def once(self, key: jax.Array, batch: Example, mask: np.ndarray) -> np.ndarray:
        """The gradient of the first step on one batch, of which the masked rows are real."""
        return np.asarray(self._once(key, batch, mask))

    def run(self, key: jax.Array, examples: Example, indices: np.ndarray) -> np.ndarray:
        """The gradients of as many steps as there are rows of indices; −1 is padding."""
        return np.asarray(self._run(key, examples, indices))

    def silent(self, count: int) -> Example:
        """As many examples whose gradient is 0, as NumPy arrays, to be changed."""
        taken = np.arange(count) % len(jax.tree.leaves(self.model.examples)[0])
        return Example(
            natural=jax.tree.map(lambda x: np.array(x)[taken], self.model.examples),
            weight=np.zeros(count, np.float32),
            places=np.full((count, PLACES), -1, np.int32),
            size=np.zeros(count, np.float32),
            dense=np.zeros(count, np.float32),
        )

    def _check(self, gradient: PyTree) -> None:
        expected, given = (jax.tree.map(jnp.shape, tree) for tree in (self.model.params, gradient))
        if jax.tree.structure(gradient) != jax.tree.structure(self.model.params):
            raise ValueError(
                'gradient must return a tree like the parameters, '
                f'{jax.tree.structure(self.model.params)}, but returned '
                f'{jax.tree.structure(gradient)}.'
            )
        if expected != given:
            raise ValueError(
                f'gradient must return arrays of the shapes {expected}, but returned {given}.'
            )


@functools.lru_cache(maxsize=2)
def runner(step: Step) -> Runner:
    """The runner of a step: what it compiles is kept from one examination to the next."""
    return Runner(step)
