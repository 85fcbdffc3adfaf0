"""What every check is given, a `Runner` of the step, and what it gives, a `Finding`."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from oneshot.check.step import PLACES, Example, Step, chosen_loss, small_model

PyTree = Any

STEPS = 100  # of a run under examination
CANARIES = 1_300  # at most
LARGEST = 1_000_000  # parameters: a run is kept as a matrix of steps and coordinates


@dataclasses.dataclass(frozen=True)
class Finding:
    """What one check found. Whether a p-value is too small depends on how many there are."""

    check: str  # its name
    expected: str  # what a right step would show
    seen: str  # what this one showed
    p_value: float | None = None  # that a right step shows as much; None if the check is exact
    wrong: bool = False  # whether an exact check failed
    cause: str = ''  # what usually causes it
    note: str = ''  # what is worth a word and no fault, such as more noise than claimed


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
        named = jax.tree_util.tree_leaves_with_path(self.model.params)
        *firsts, self.size = np.cumsum([0, *(leaf.size for _, leaf in named)]).tolist()
        if not 2 <= self.size <= LARGEST:
            raise ValueError(
                f'The model must have 2 to {LARGEST:,} parameters to be examined, but it has '
                f'{self.size:,}: give a narrower one with the same kinds of layers.'
            )
        self.room = max(CANARIES, step.rows)  # examples that runs choose from, all of one shape
        self.leaves = [
            Leaf(jax.tree_util.keystr(path, simple=True, separator='/'), first, jnp.shape(leaf))
            for (path, leaf), first in zip(named, firsts, strict=True)
        ]
        loss_fn, params = chosen_loss(self.model.loss_fn), self.model.params
        init = step.init or (lambda params, key: (key, jnp.int32(0)))

        def advance(state: PyTree, batch: Example, mask: jax.Array) -> tuple[PyTree, PyTree]:
            if step.init is None:
                key, number = state
                step_key = jax.random.fold_in(key, number)
                gradient = step.gradient(loss_fn, params, batch, mask, step_key)
                state = key, number + 1
            else:
                gradient, state = step.gradient(loss_fn, params, batch, mask, state)
            self._check(gradient)
            return gradient, state

        def first(key: jax.Array, batch: Example, mask: jax.Array) -> PyTree:
            return advance(init(params, key), batch, mask)[0]

        @jax.jit
        def run(key: jax.Array, examples: Example, indices: jax.Array) -> jax.Array:
            def body(state: PyTree, rows: jax.Array) -> tuple[PyTree, jax.Array]:
                batch = jax.tree.map(lambda x: x[jnp.maximum(rows, 0)], examples)
                gradient, state = advance(state, batch, rows >= 0)
                return state, ravel_pytree(gradient)[0]

            return jax.lax.scan(body, init(params, key), indices)[1]

        batch, mask = self.zero_gradient_examples(step.rows), np.zeros(step.rows, bool)
        shapes = jax.tree.leaves(jax.eval_shape(first, jax.random.key(0), batch, mask))
        self.rounding = max(float(jnp.finfo(leaf.dtype).eps) for leaf in shapes)  # relative
        self._first_gradient = jax.jit(lambda *batch: ravel_pytree(first(*batch))[0])
        self._run = run

    def first_gradient(self, key: jax.Array, batch: Example, mask: np.ndarray) -> np.ndarray:
        """The gradient of the first step on one batch, of which the masked rows are real."""
        return np.asarray(self._first_gradient(key, batch, mask))

    def run(self, key: jax.Array, examples: Example, indices: np.ndarray) -> np.ndarray:
        """The gradients of as many steps as there are rows of indices; −1 is padding."""
        return np.asarray(self._run(key, examples, indices))

    def zero_gradient_examples(self, count: int) -> Example:
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
        trees = self.model.params, gradient
        expected, returned = map(jax.tree.structure, trees)
        if expected != returned:
            raise ValueError(
                f'gradient must return a tree like the parameters, {expected}, but returned '
                f'{returned}.'
            )
        expected, returned = (jax.tree.map(jnp.shape, tree) for tree in trees)
        if expected != returned:
            raise ValueError(
                f'gradient must return arrays of the shapes {expected}, but returned {returned}.'
            )


# What a runner compiles is kept from one examination of a step to the next.
runner = functools.lru_cache(maxsize=2)(Runner)
