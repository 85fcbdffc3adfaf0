"""Mistakes of a loop with the audit: what is counted on the way, and a sentence for each.

Mistakes happen inside of `jit`, where no error can be raised. So the audit counts, and raises
the error when the scores are read.
"""

import hashlib
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

PyTree = Any
_MANY = 40  # coins: as many do not come twice by chance
_SOME = 8  # canaries: noise does not look like none on as many


class Counts(NamedTuple):
    """What was done with an audit."""

    inserted_values: jax.Array  # the sum at the canaries' coordinates after the last insertion
    last_key: jax.Array  # the bits of the last key that `insert` was given
    repeated_keys: jax.Array  # how often that was the key of the step before
    inserted: jax.Array  # how often `insert` was called
    updated: jax.Array  # how often `update` was called
    noiseless_steps: jax.Array  # in which nothing was added after the insertion
    squares: jax.Array  # Σ over the steps of ‖inserted_values‖²
    products: jax.Array  # Σ of ⟨inserted_values, gradient⟩: squares/B but for the noise
    jumps: jax.Array  # the steps that did not begin where the one before ended
    first_fingerprint: jax.Array  # a sum over the bits of w_1, by which runs are told apart
    last_fingerprint: jax.Array  # the same of w_t

    @classmethod
    def start(cls, params: PyTree, m: int) -> 'Counts':
        """Before the first step."""
        dtypes = dict.fromkeys(('last_key', 'first_fingerprint'), jnp.uint32)
        dtypes |= dict.fromkeys(('squares', 'products'), jnp.float32)
        # An array for each: donated buffers must not be shared.
        zeros = [jnp.zeros((), dtypes.get(name, jnp.int32)) for name in cls._fields[1:-1]]
        return cls(jnp.zeros(m), *zeros, _bits(params))

    def called_insert(self) -> 'Counts':
        return self._replace(inserted=self.inserted + 1)

    def called_update(self) -> 'Counts':
        return self._replace(updated=self.updated + 1)

    def insert(self, key: jax.Array, values: jax.Array) -> 'Counts':
        """After an insertion with this key, which gave these values."""
        key_bits = _bits(jax.random.key_data(key))
        again = (self.inserted > 0) & (key_bits == self.last_key)
        return self.called_insert()._replace(
            inserted_values=values,
            last_key=key_bits,
            repeated_keys=self.repeated_keys + again.astype(jnp.int32),
        )

    def compare(self, after: jax.Array, is_gradient: bool) -> 'Counts':
        """With the values after the noise, of the gradient or of the iterates."""
        before = self.inserted_values
        noiseless = _proportional(after, before).astype(jnp.int32)
        return self._replace(
            noiseless_steps=self.noiseless_steps + noiseless,
            squares=self.squares + jnp.vdot(before, before),
            products=self.products + (jnp.vdot(before, after) if is_gradient else 0.0),
        )

    def update(self, params: PyTree, new_params: PyTree) -> 'Counts':
        """After a step from these parameters to those."""
        # Behind barriers, so that the bits are those of the parameters that the step gives,
        # and not of a copy that the compiler computes anew and rounds otherwise.
        begin = _bits(jax.lax.optimization_barrier(params))
        last = _bits(jax.lax.optimization_barrier(new_params))
        return self.called_update()._replace(
            jumps=self.jumps + (begin != self.last_fingerprint).astype(jnp.int32),
            first_fingerprint=jnp.where(self.updated == 0, last, self.first_fingerprint),
            last_fingerprint=last,
        )

    def raise_mistakes(self, params: PyTree, batch: float, deviation: float, in_data: bool) -> None:
        """Raises a ValueError that names the mistake of the loop, if the counts show one.

        The loop is claimed to divide by `batch`, and to add noise of deviation σc. Canaries that
        come with the data are not inserted. Scores are read with `params`.
        """
        runs = zip(*(np.ravel(counted).tolist() for counted in self[2:9]), strict=True)
        for repeated, inserted, updated, noiseless, *sums, jumps in runs:
            noise_is_missing = noiseless == updated and self.inserted_values.shape[-1] >= _SOME
            divided_by = _divided_by(batch, deviation, *sums)
            mistakes = {
                'audit.update must be called once in every step, but it was never called, or what '
                'it returned was not carried on.': updated == 0,
                'audit.insert and audit.update must each be called once in every step, and what '
                f'they return be carried on, but insert was called {inserted} times and update '
                f'{updated} times.': inserted != updated and not in_data,
                'audit.update must be called once in every step, with the parameters that the step '
                f'began with and those that it gave, but in {jumps} of {updated} updates the first '
                'were not the last of the update before.': jumps > 0,
                'audit.insert must be given a key of its own in every step, but in '
                f'{repeated} of {inserted} steps it was that of the step before.': repeated > 0,
                'Canaries must be inserted before the noise, into the sum of clipped gradients, '
                'but nothing was added to it after audit.insert. If they are, the loop adds no '
                'noise at all.': noise_is_missing,
                'gradient must be the noisy sum divided by expected_batch_size, but '
                f'expected_batch_size = {batch:g} was given, and what audit.insert gave seems to '
                f'be divided by {divided_by or batch:.3g}.': divided_by is not None,
            }
            for sentence, is_made in mistakes.items():
                if is_made:
                    raise ValueError(sentence)
        last = _bits(params, axes=self.updated.ndim)
        if np.any(np.asarray(last) != np.asarray(self.last_fingerprint)):
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
    residue = after - factor * before
    return jnp.vdot(residue, residue) <= 1e-10 * jnp.vdot(after, after)


def _divided_by(batch: float, deviation: float, squares: float, products: float) -> float | None:
    """What the loop divides by, where it is not `batch`; else None.

    B·products/squares is 1, with a deviation of at most σc/√squares. A fault is one by a tenth
    and by six deviations, which a right loop has once in 10⁹ audits.
    """
    if squares == 0.0 or products == 0.0:
        return None
    off = abs(batch * products / squares - 1.0)
    return squares / products if off > max(0.1, 6.0 * deviation / math.sqrt(squares)) else None


# The digests of coins, and the run that they were flipped for. It is of the whole process: the
# mistake is to use coins for two audits, which know nothing of each other.
USED_COINS: dict[bytes, int] = {}


def forbid_reused_coins(coins: np.ndarray, run: int) -> None:
    """Raises a ValueError where another run of this process had the same coins."""
    if coins.size < _MANY:
        return
    digest = hashlib.sha256(np.packbits(coins).tobytes() + bytes([coins.size % 8])).digest()
    if USED_COINS.setdefault(digest, run) != run:
        raise ValueError(
            'Coins must be flipped anew for every run, but these were those of another run '
            'before: what was learned from it may have made its way into this one.'
        )
