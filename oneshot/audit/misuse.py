"""What a loop can do wrong with the audit: what is counted on the way, and a sentence for each.

Mistakes happen inside of `jit`, where nothing can be said. So the audit carries counts with
it, and they are looked at when the scores are read.
"""

import dataclasses
import hashlib
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

PyTree = Any
_MANY = 40  # coins: as many do not come twice by chance
_SOME = 8  # canaries: noise does not look like none on as many


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Counts:
    """What was done with an audit: a pytree.

    Attributes:
        placed: what stood at the canaries' coordinates after the last insertion.
        drawn_by: the bits of the last key that `insert` was given.
        repeated: how often that was the key of the step before.
        inserted: how often `insert` was called.
        updated: how often `update` was called.
        silent: the steps in which nothing was added after the insertion.
        squares: Σ over the steps of ‖placed‖².
        products: Σ of ⟨placed, gradient⟩ at these coordinates, which is squares/B but for
            the noise.
        broken: the steps that did not begin where the one before ended.
        first: a sum over the bits of w_1, by which runs are told apart.
        last: the same of w_t.
    """

    placed: jax.Array
    drawn_by: jax.Array
    repeated: jax.Array
    inserted: jax.Array
    updated: jax.Array
    silent: jax.Array
    squares: jax.Array
    products: jax.Array
    broken: jax.Array
    first: jax.Array
    last: jax.Array

    @classmethod
    def start(cls, params: PyTree, m: int) -> 'Counts':
        """Before the first step."""

        def zero(dtype: Any = jnp.int32) -> jax.Array:
            return jnp.zeros((), dtype)  # of its own: donated buffers must not be shared

        return cls(
            placed=jnp.zeros(m),
            drawn_by=zero(jnp.uint32),
            repeated=zero(),
            inserted=zero(),
            updated=zero(),
            silent=zero(),
            squares=zero(jnp.float32),
            products=zero(jnp.float32),
            broken=zero(),
            first=zero(jnp.uint32),
            last=_bits(params),
        )

    def called_insert(self) -> 'Counts':
        return dataclasses.replace(self, inserted=self.inserted + 1)

    def called_update(self) -> 'Counts':
        return dataclasses.replace(self, updated=self.updated + 1)

    def insert(self, key: jax.Array, placed: jax.Array) -> 'Counts':
        """After an insertion with this key."""
        drawn_by = _bits(jax.random.key_data(key))
        again = (self.inserted > 0) & (drawn_by == self.drawn_by)
        return dataclasses.replace(
            self.called_insert(),
            placed=placed,
            drawn_by=drawn_by,
            repeated=self.repeated + again.astype(jnp.int32),
        )

    def compare(self, after: jax.Array, is_gradient: bool) -> 'Counts':
        """With what stands at the coordinates after the noise: the gradient, or the iterates."""
        products = jnp.vdot(self.placed, after) if is_gradient else 0.0
        return dataclasses.replace(
            self,
            silent=self.silent + _proportional(after, self.placed).astype(jnp.int32),
            squares=self.squares + jnp.vdot(self.placed, self.placed),
            products=self.products + products,
        )

    def update(self, params: PyTree, new_params: PyTree) -> 'Counts':
        """After a step from these parameters to those."""
        # Behind barriers, so that the bits are those of the parameters that the step gives,
        # and not of a copy that the compiler computes anew and rounds otherwise.
        begin = _bits(jax.lax.optimization_barrier(params))
        last = _bits(jax.lax.optimization_barrier(new_params))
        return dataclasses.replace(
            self.called_update(),
            broken=self.broken + (begin != self.last).astype(jnp.int32),
            first=jnp.where(self.updated == 0, last, self.first),
            last=last,
        )

    def check(self, params: PyTree, batch: float, deviation: float, in_data: bool) -> None:
        """Says which mistake the loop makes, if what was counted shows one.

        Args:
            params: the parameters that the scores are read with.
            batch: B, what the loop is said to divide by.
            deviation: σc, of the noise as claimed.
            in_data: whether the canaries come with the data, so that none are inserted.
        """
        names = 'inserted', 'updated', 'repeated', 'silent', 'broken', 'squares', 'products'
        counts = [np.ravel(getattr(self, name)).tolist() for name in names]
        for inserted, updated, repeated, silent, broken, *sums in zip(*counts, strict=True):
            if updated == 0:
                raise ValueError(
                    'audit.update must be called once in every step, but it was never called, or '
                    'what it returned was not carried on.'
                )
            if inserted != updated and not in_data:
                raise ValueError(
                    'audit.insert and audit.update must each be called once in every step, and '
                    'what they return be carried on, but insert was called '
                    f'{inserted} times and update {updated} times.'
                )
            if broken > 0:
                raise ValueError(
                    'audit.update must be called once in every step, with the parameters that the '
                    'step began with and those that it gave, but in '
                    f'{broken} of {updated} updates the first were not the last of the update '
                    'before.'
                )
            if repeated > 0:
                raise ValueError(
                    'audit.insert must be given a key of its own in every step, but in '
                    f'{repeated} of {inserted} steps it was that of the step before.'
                )
            if silent == updated and self.placed.shape[-1] >= _SOME:
                raise ValueError(
                    'Canaries must be inserted before the noise, into the sum of clipped '
                    'gradients, but nothing was added to it after audit.insert. If they are, '
                    'the loop adds no noise at all.'
                )
            divided = _divided_by(batch, deviation, *sums)
            if divided is not None:
                raise ValueError(
                    'gradient must be the noisy sum divided by expected_batch_size, but '
                    f'expected_batch_size = {batch:g} was given, and '
                    f'what audit.insert gave seems to be divided by {divided:.3g}.'
                )
        axes = self.updated.ndim
        if np.any(np.asarray(_bits(params, axes)) != np.asarray(self.last)):
            raise ValueError(
                'Scores must be read with the parameters that the last audit.update was given as '
                'new_params, but others were given.'
            )


def _bits(params: PyTree, axes: int = 0) -> jax.Array:
    """A sum over all bits of the parameters, exact in any order; after some leading axes."""
    total = jnp.uint32(0)
    for place, leaf in enumerate(jax.tree.leaves(params)):
        leaf = jnp.asarray(leaf)
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            width = min(8 * leaf.dtype.itemsize, 32)
            leaf = jax.lax.bitcast_convert_type(leaf, f'uint{width}')
        kept = tuple(range(axes, leaf.ndim))
        total += jnp.sum(leaf.astype(jnp.uint32), kept, jnp.uint32) * jnp.uint32(2 * place + 1)
    return total


def _proportional(after: jax.Array, before: jax.Array) -> jax.Array:
    """Whether one is the other times a number, up to rounding."""
    factor = jnp.vdot(after, before) / jnp.maximum(jnp.vdot(before, before), 1e-30)
    rest = after - factor * before
    return jnp.vdot(rest, rest) <= 1e-10 * jnp.vdot(after, after)


def _divided_by(batch: float, deviation: float, squares: float, products: float) -> float | None:
    """What the loop divides by, if it is not what the audit was told.

    B·products/squares is 1, with a deviation of at most σc/√squares. It is told if it is
    off by a tenth and by six deviations, which a right loop is once in 10⁹ audits.
    """
    if squares == 0.0 or products == 0.0:
        return None
    off = abs(batch * products / squares - 1.0)
    return squares / products if off > max(0.1, 6.0 * deviation / math.sqrt(squares)) else None


_spent: dict[bytes, int] = {}  # coins, and the run they were flipped for


def spend(coins: np.ndarray, run: int) -> None:
    """A run may be looked at again; another with the same coins is no second audit."""
    if coins.size < _MANY:
        return
    digest = hashlib.sha256(np.packbits(coins).tobytes() + bytes([coins.size % 8])).digest()
    if _spent.setdefault(digest, run) != run:
        raise ValueError(
            'Coins must be flipped anew for every run, but these were those of another run '
            'before: what was learned from it may have made its way into this one.'
        )
