"""The canaries, and the coins that decide which of them are in."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from oneshot import inputs
from oneshot.dpsgd import sharding
from oneshot.dpsgd.clipping import Augment, Clipping, ExampleGroup, split_microbatches
from oneshot.dpsgd.gradients.strategy import LossFn, zeros
from oneshot.dpsgd.step import Canaries

PyTree = Any

NOWHERE = np.iinfo(np.int32).max  # beyond the end of any tree
_SHUFFLED = 2**26  # parameters; of more, an order of all of them would not fit a device


def flip_coins(key: jax.Array, m: int) -> jax.Array:
    """m independent fair coins: True is in."""
    return jax.random.bernoulli(key, 0.5, (m,))


def pair_up(coins: jax.Array) -> jax.Array:
    """Who of 2m canaries is in if each coin chooses one of a pair (Appendix A).

    Canaries 2i and 2i + 1 are a pair: the first is in if coin i is True, the second
    if it is not. The data set then has a fixed size.
    """
    return jnp.stack([coins, ~coins], axis=1).reshape(-1)


def pair_scores(scores: np.ndarray) -> np.ndarray:
    """One score for each pair: how much more the first looks like in than the second."""
    return np.asarray(scores)[0::2] - np.asarray(scores)[1::2]


class DiracGradients(Canaries):
    """What Dirac canaries share, on one device or on several: their gradients are c·e_j."""

    def gradient_dots(
        self, loss_fn: LossFn | None, params: PyTree, selected: list[jax.Array], clipping: Clipping
    ) -> tuple[jax.Array, jax.Array]:
        """⟨direction, ĝ_i⟩ for each selected direction and row; and all ‖ĝ_i‖²."""
        c = clipping.clip_norm
        products = c * jnp.stack(selected)
        return products, jnp.full(products.shape[1], c * c)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Dirac(DiracGradients):
    """Gradient canaries c·e_j, each with a coordinate j of its own. They need no data."""

    coordinates: jax.Array  # (m,) int32, into the flattened parameters, all distinct

    @property
    def num_canaries(self) -> int:
        return self.coordinates.shape[0]

    def gradient_sum(self, params: PyTree, drawn: jax.Array, clip_norm: float) -> PyTree:
        """c on the coordinate of every drawn canary."""
        return dirac_sum(params, self.coordinates, drawn, clip_norm)

    def select(self, direction: PyTree) -> jax.Array:
        """What the canaries look at: the values at their coordinates."""
        return values_at(direction, self.coordinates)

    def join(self, population: PyTree, included: jax.Array) -> tuple[PyTree, jax.Array]:
        """The data set with the included canaries at its end, for the loss of `with_dirac`.

        Beside each example is a coordinate: −1 for those of the population. A canary's own
        example is a copy of the first, which its loss does not look at.
        """
        joining = self.coordinates[_included_indices(included)]
        filler = jax.tree.map(lambda x: jnp.repeat(x[:1], joining.size, axis=0), population)
        size = jax.tree.leaves(population)[0].shape[0]
        coordinates = jnp.concatenate([jnp.full(size, -1, joining.dtype), joining])
        return _concatenate(population, filler), coordinates


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Inputs(Canaries):
    """Canaries that are examples, with whatever gradient the model gives them."""

    examples: PyTree  # m along the leading axis, and perhaps padding, as `Layout` has it

    @property
    def num_canaries(self) -> int:
        return jax.tree.leaves(self.examples)[0].shape[0]

    def as_examples(self, drawn: jax.Array, augment: Augment | None = None) -> ExampleGroup:
        """The canaries as examples: they are clipped, and augmented, as all examples are."""
        return ExampleGroup(self.examples, sharding.pad_rows(drawn, self.num_canaries), augment)

    def select(self, direction: PyTree) -> PyTree:
        """What the canaries look at: all of it."""
        return direction

    def join(self, population: PyTree, included: jax.Array) -> PyTree:
        """The data set with the included canaries at its end."""
        indices = _included_indices(included)
        return _concatenate(population, jax.tree.map(lambda x: x[indices], self.examples))

    def gradient_dots(
        self, loss_fn: LossFn, params: PyTree, selected: list[PyTree], clipping: Clipping
    ) -> tuple[jax.Array, jax.Array]:
        """⟨direction, ĝ_i⟩ for each selected direction and canary; and all ‖ĝ_i‖².

        No gradient is scaled or summed: ⟨direction, g_i⟩ is a directional derivative,
        and times the clip factor it is that of ĝ_i. In microbatches.
        """
        local = functools.partial(_input_dots, loss_fn, clipping)
        return sharding.map_rows(local, [params, *selected], self.examples)


def _input_dots(
    loss_fn: LossFn, clipping: Clipping, params: PyTree, *trees: PyTree
) -> tuple[jax.Array, jax.Array]:
    *selected, examples = trees
    strategy = clipping.strategy_for(loss_fn, params, examples)
    directions = [strategy.prepare(direction) for direction in selected]

    def microbatch(batch: tuple[PyTree, jax.Array]) -> tuple[jax.Array, jax.Array]:
        gradients = strategy.gradients(*batch)
        scale = clipping.scale(gradients.norms)
        products = jnp.stack([gradients.dot(direction) for direction in directions], axis=1)
        dots = jnp.where(scale[:, None] != 0.0, scale[:, None] * products, 0.0)
        return dots, jnp.where(scale != 0.0, jnp.square(scale * gradients.norms), 0.0)

    m = jax.tree.leaves(examples)[0].shape[0]
    batches = split_microbatches((examples, jnp.ones(m, bool)), clipping.microbatch_size)
    dots, squares = jax.lax.map(microbatch, batches)
    return dots.reshape(-1, len(selected))[:m].T, squares.reshape(-1)[:m]


def dirac_sum(params: PyTree, coordinates: jax.Array, drawn: jax.Array, clip_norm: float) -> PyTree:
    """Like the parameters, c at the coordinates that are drawn and not beyond its end."""
    flat, unravel = ravel_pytree(zeros(params))
    return unravel(flat.at[coordinates].add(clip_norm * drawn, mode='drop'))


def values_at(direction: PyTree, coordinates: jax.Array) -> jax.Array:
    """The values at some coordinates of the flattened tree; 0 beyond its end."""
    leaves = jax.tree.leaves(direction)
    if len(leaves) * coordinates.size > sum(leaf.size for leaf in leaves):
        return ravel_pytree(direction)[0].at[coordinates].get(mode='fill', fill_value=0.0)
    # Leaf by leaf, because flattening would copy more than is looked at.
    values, first = jnp.zeros(coordinates.shape), 0
    for leaf in leaves:
        place = coordinates - first
        inside = (place >= 0) & (place < leaf.size)
        values += jnp.where(inside, leaf.reshape(-1)[jnp.where(inside, place, 0)], 0.0)
        first += leaf.size
    return values


def _included_indices(included: jax.Array) -> np.ndarray:
    """The indices of the included canaries."""
    if isinstance(included, jax.core.Tracer):
        raise ValueError(
            'Canaries join a data set outside of jit and vmap, because how many there are of them '
            'is up to the coins.'
        )
    return np.flatnonzero(included)


def _concatenate(population: PyTree, more: PyTree) -> PyTree:
    return jax.tree.map(lambda x, y: jnp.concatenate([x, y]), population, more)


def with_dirac(loss_fn: LossFn, size: float) -> LossFn:
    """A loss for data sets with Dirac canaries in them, as `Dirac.join` gives.

    An example is a pair of what `loss_fn` takes and a coordinate. Where that is negative,
    the loss is that of `loss_fn`; elsewhere it is `size` times the parameter at that
    coordinate, whose gradient is a Dirac of that norm. The canary is sampled, differentiated
    and clipped as any example, so that all of that is audited. Choose `size` well above the
    clip norm, so that clipping is needed.
    """
    inputs.real('size, the norm of the gradients,', size, 0.0, np.inf, ends='()')

    def loss(params: PyTree, example: tuple[PyTree, jax.Array]) -> jax.Array:
        inner, coordinate = example
        canary = size * values_at(params, jnp.maximum(coordinate, 0)[None])[0]
        return jnp.where(coordinate < 0, loss_fn(params, inner), canary)

    return loss


def dirac(key: jax.Array, m: int, params: PyTree) -> Dirac:
    """m Dirac canaries on distinct random coordinates of `params`, or of its first 2³¹ − 1."""
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    inputs.count('m, the number of Dirac canaries,', m, 0, size)
    if size <= _SHUFFLED:
        return Dirac(jax.random.choice(key, size, (m,), replace=False).astype(jnp.int32))
    rng = np.random.default_rng(np.asarray(jax.random.bits(key, (4,))))
    return Dirac(jnp.asarray(rng.choice(min(size, NOWHERE), m, replace=False), jnp.int32))


def in_distribution(key: jax.Array, m: int, images: np.ndarray, labels: np.ndarray) -> Inputs:
    """m random examples of a held-out set."""
    inputs.count('m, the number of canaries from held-out examples,', m, 1, len(labels))
    chosen = jax.random.choice(key, len(labels), (m,), replace=False)
    return Inputs((jnp.asarray(images)[chosen], jnp.asarray(labels)[chosen]))


def mislabeled(
    key: jax.Array, m: int, images: np.ndarray, labels: np.ndarray, classes: int
) -> Inputs:
    """m random examples of a held-out set, each with a random wrong label."""
    choice_key, label_key = jax.random.split(key)
    chosen, right = in_distribution(choice_key, m, images, labels).examples
    shift = jax.random.randint(label_key, (m,), 1, classes)
    return Inputs((chosen, (right + shift) % classes))
