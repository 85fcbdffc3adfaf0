"""The audit in any training loop: a pair of pure functions, `insert` and `update`.

    audited = audit.flip(key, m, params, claim, clip_norm=c, expected_batch_size=B)
    ...
    summed, audited = audit.insert(audited, summed, key)  # before the noise
    audited = audit.update(audited, params, new_params, gradient)  # after the step
    ...
    result = audit.result(audited, params, delta=1e-5)

What they carry is a pytree, `Audited`: it goes through `jit`, `scan`, `vmap` and sharding
like any other. It counts what is done with it, and what was done wrong is said when the
scores are read.
"""

import dataclasses
import hashlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from oneshot import accounting, sampling
from oneshot.attacks import black_box, score_names, white_box
from oneshot.bounds import _check
from oneshot.canaries import Dirac, Inputs, dirac, flip_coins
from oneshot.clipping import Clipping
from oneshot.dpsgd import Attack, Observation, check_coins
from oneshot.gradients import LossFn
from oneshot.laws import DPSGD
from oneshot.methods import METHODS, AuditResult
from oneshot.scores import audit_scores, pool

__all__ = [
    'Audited',
    'black_box',
    'flip',
    'insert',
    'result',
    'score_names',
    'scores',
    'start',
    'update',
    'white_box',
]

PyTree = Any
_MANY = 40  # coins: as many do not come twice by chance
_SOME = 8  # canaries: noise does not look like none on as many


@dataclasses.dataclass(frozen=True)
class _Settings:
    """What an audit knows before the run. It is part of the tree's structure, not of its data."""

    claim: DPSGD
    clipping: Clipping
    expected_batch_size: float
    in_data: bool
    signals: tuple[str, ...]
    scores: tuple[str, ...]
    loss_fn: LossFn | None
    tree: Any  # of the parameters
    shapes: tuple[tuple[int, ...], ...]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Audited:
    """An audit on its way: a pytree, to be carried beside the parameters.

    Attributes:
        canaries: all of them.
        included: the coins. `insert` looks at them, and nothing that scores does.
        attacks: the states of the attacks, by name.
        others: what stood at the canaries' coordinates before the last insertion.
        placed: what stood there after it.
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
        settings: what the audit knew before the run.
    """

    canaries: Dirac | Inputs
    included: jax.Array
    attacks: dict[str, PyTree]
    others: jax.Array
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
    settings: _Settings = dataclasses.field(metadata={'static': True})


class _Seen(NamedTuple):
    """An observation of which the residual is known at the canaries' coordinates only."""

    observed: Observation
    residual: jax.Array

    @property
    def params(self) -> PyTree:
        return self.observed.params

    def signal(self, name: str, pick: Any) -> PyTree:
        return self.residual if name == 'residual' else self.observed.signal(name, pick)


def flip(key: jax.Array, m: int, params: PyTree, claim: DPSGD, **options: Any) -> Audited:
    """Makes m Dirac canaries, flips a coin for each, and starts the audit.

    Args:
        key: for the canaries and the coins, used for nothing else. A fresh one for every run.
        m: the number of canaries, at most that of the parameters.
        params: w_0, any pytree.
        claim: `oneshot.DPSGD(noise_multiplier, sampling_prob, steps)`.
        **options: clip_norm, expected_batch_size and what else `start` takes.

    Returns:
        An `Audited`, for `insert` and `update`.
    """
    canary_key, coin_key = jax.random.split(key)
    return start(dirac(canary_key, m, params), flip_coins(coin_key, m), params, claim, **options)


def start(
    canaries: Dirac | Inputs,
    included: jax.Array,
    params: PyTree,
    claim: DPSGD,
    *,
    clip_norm: float,
    expected_batch_size: float,
    in_data: bool = False,
    signals: Sequence[str] | None = None,
    scores: Sequence[str] = ('dot', 'llr'),
    loss_fn: LossFn | None = None,
    microbatch_size: int = 32,
    strategy: str = 'vmap',
) -> Audited:
    """Starts the audit of one run with canaries and coins of one's own.

    Dirac canaries join the run by `insert`, at every step, or with the data. Canaries
    that are examples join with the data: `canaries.join(population, included)` is the
    data set to train on then, and `insert` is not called (`in_data`).

    With `insert` a canary enters as a clipped gradient, drawn with the claimed q: noise,
    division, optimizer and accounting are audited, and the loop's own sampling and
    clipping are not. With the data, they are (`oneshot.canaries.with_dirac` makes
    examples of Dirac canaries).

    Args:
        canaries: the canaries, included and excluded alike; none at all changes nothing.
        included: the coins, bools, one for each. Flip fresh ones for every run.
        params: w_0, any pytree.
        claim: `oneshot.DPSGD(noise_multiplier, sampling_prob, steps)`.
        clip_norm: c of the training.
        expected_batch_size: what the loop divides the noisy sum by. If it divides first,
            so that its noise is σc/B, say clip_norm=c/B and expected_batch_size=1.
        in_data: whether the canaries come with the data.
        signals: what is scored, any of `iterates` (the paper's), `gradient`, for
            optimizers other than plain SGD, and `residual`, which only `insert` can give.
            By default `iterates` and, where there is one, `residual`. None of them, `()`,
            leaves the black-box score `loss` of canaries that are examples.
        scores: how signals are weighed, any of `dot` and `llr`; see `white_box`.
        loss_fn: loss_fn(params, example), for canaries that are examples.
        microbatch_size: how many such canaries are differentiated at once.
        strategy: how, 'vmap' or 'ghost'.

    Returns:
        An `Audited`, for `insert` and `update`.
    """
    included = jnp.asarray(included)
    check_coins(canaries, included)
    if isinstance(canaries, Inputs) and not in_data:
        raise ValueError(
            'Canaries that are examples join with the data: train on '
            'canaries.join(population, included), and say in_data=True.'
        )
    if signals is None:
        signals = ('iterates',) if in_data else ('iterates', 'residual')
    if in_data and 'residual' in signals:
        raise ValueError(
            'The residual is known where canaries are inserted by audit.insert, but '
            f'signals = {tuple(signals)!r} was given with in_data=True.'
        )
    if isinstance(canaries, Dirac) and not signals:
        raise ValueError('Dirac canaries have no loss, so that signals must name one or more.')
    if isinstance(canaries, Inputs) and loss_fn is None:
        raise ValueError('loss_fn must be given for canaries that are examples, but None was.')
    if not isinstance(claim, DPSGD):
        raise ValueError(
            'claim must be oneshot.DPSGD(noise_multiplier, sampling_prob, steps), '
            f'but {claim!r} was given.'
        )
    batch = 'expected_batch_size', expected_batch_size, 0.0, math.inf
    _check.real(*batch, open_low=True, open_high=True)
    leaves, tree = jax.tree.flatten(params)
    settings = _Settings(
        claim=claim,
        clipping=Clipping(clip_norm, microbatch_size, strategy).check(),
        expected_batch_size=expected_batch_size,
        in_data=in_data,
        signals=tuple(signals),
        scores=tuple(scores),
        loss_fn=loss_fn,
        tree=tree,
        shapes=tuple(jnp.shape(leaf) for leaf in leaves),
    )
    attacks = _attacks(settings, canaries)
    m = included.shape[0]

    def zero(dtype: Any = jnp.int32) -> jax.Array:
        return jnp.zeros((), dtype)  # of its own: donated buffers must not be shared

    return Audited(
        canaries=jax.tree.map(jnp.copy, canaries),
        included=jnp.copy(included),
        attacks={name: attack.init(params) for name, attack in attacks.items()},
        others=jnp.zeros(m),
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
        settings=settings,
    )


def insert(audited: Audited, summed: PyTree, key: jax.Array) -> tuple[PyTree, Audited]:
    """Adds the included canaries to the sum of clipped gradients, before the noise.

    Each joins with the claimed q, independently at every step.

    Args:
        audited: the audit.
        summed: Σ of the clipped gradients of the drawn examples, like the parameters.
        key: a key for this step, used for nothing else.

    Returns:
        The sum with the canaries in it, and the audit.
    """
    settings, canaries = audited.settings, audited.canaries
    if settings.in_data:
        raise ValueError(
            'The canaries of this audit come with the data (in_data=True): do not insert them.'
        )
    _check_tree('summed', summed, settings)
    if audited.included.size == 0:
        return summed, dataclasses.replace(audited, inserted=audited.inserted + 1)
    drawn = sampling.poisson(key, settings.claim.sampling_prob, audited.included)
    whole = _gathered(summed)
    more, _ = canaries.gradient_sum(None, whole, drawn, settings.clipping)
    joined = jax.tree.map(lambda g, c: g + _spread(c.astype(g.dtype), g), summed, more)
    drawn_by = _bits(jax.random.key_data(key))
    again = (audited.inserted > 0) & (drawn_by == audited.drawn_by)
    audited = dataclasses.replace(
        audited,
        drawn_by=drawn_by,
        repeated=audited.repeated + again.astype(jnp.int32),
        others=canaries.pick(whole).astype(jnp.float32),
        placed=canaries.pick(_gathered(joined)).astype(jnp.float32),
        inserted=audited.inserted + 1,
    )
    return joined, audited


def update(
    audited: Audited, params: PyTree, new_params: PyTree, gradient: PyTree | None = None
) -> Audited:
    """Scores every canary by what one step showed. Call it once a step.

    Args:
        audited: the audit.
        params: w_{t−1}, what the step began with.
        new_params: w_t, what it gave.
        gradient: the privatized gradient that the optimizer was given, like the
            parameters. It may be left out if only `dot` of `iterates` is scored.

    Returns:
        The audit.
    """
    settings, canaries = audited.settings, audited.canaries
    for name, tree in (('params', params), ('new_params', new_params), ('gradient', gradient)):
        if tree is not None or name != 'gradient':
            _check_tree(name, tree, settings)
    counted = dataclasses.replace(audited, updated=audited.updated + 1)
    if audited.included.size == 0:
        return counted
    named = score_names(settings.signals, settings.scores)
    if gradient is None and set(named) - {'iterates'}:
        raise ValueError(
            f'gradient must be given for the scores {", ".join(named)}, but None was given.'
        )
    seen = Observation(*map(_gathered, (params, new_params, gradient)), None)
    if not settings.in_data:
        after = seen.signal('iterates' if gradient is None else 'gradient', canaries.pick)
        after, before = after.astype(jnp.float32), audited.placed
        counted = dataclasses.replace(
            counted,
            silent=audited.silent + _proportional(after, before).astype(jnp.int32),
            squares=audited.squares + jnp.vdot(before, before),
            products=audited.products + (0.0 if gradient is None else jnp.vdot(before, after)),
        )
        seen = _Seen(seen, settings.expected_batch_size * after - audited.others)
    # Behind barriers, so that the bits are those of the parameters that the step gives,
    # and not of a copy that the compiler computes anew and rounds otherwise.
    begin = _bits(jax.lax.optimization_barrier(params))
    last = _bits(jax.lax.optimization_barrier(new_params))
    attacks = _attacks(settings, canaries)
    return dataclasses.replace(
        counted,
        attacks={name: one.update(audited.attacks[name], seen) for name, one in attacks.items()},
        broken=audited.broken + (begin != audited.last).astype(jnp.int32),
        first=jnp.where(audited.updated == 0, last, audited.first),
        last=last,
    )


def scores(audited: Audited, params: PyTree) -> dict[str, np.ndarray]:
    """The scores of every canary by name, after a look at whether they mean anything.

    Args:
        audited: the audit, or several of them along leading axes, as `jax.vmap` gives.
        params: the parameters after the last update, along the same axes.

    Returns:
        A vector of m for each score, after those axes.

    Raises:
        ValueError: the loop makes a mistake, and which.
    """
    settings, axes = audited.settings, audited.updated.ndim
    if isinstance(audited.updated, jax.core.Tracer):
        raise ValueError('Scores are read outside of jit, where what was counted can be looked at.')
    _check_tree('params', params, settings, audited.updated.shape)
    if audited.included.shape[-1] == 0:
        raise ValueError('There are no scores, because the audit was started with no canaries.')
    _check_counts(audited)
    if np.any(np.asarray(_bits(params, axes)) != np.asarray(audited.last)):
        raise ValueError(
            'Scores must be read with the parameters that the last audit.update was given as '
            'new_params, but others were given.'
        )

    def read(audited: Audited, params: PyTree) -> dict[str, jax.Array]:
        found = {}
        for name, attack in _attacks(settings, audited.canaries).items():
            found |= attack.scores(audited.attacks[name], params)
        return found

    for _ in range(axes):
        read = jax.vmap(read)
    return {name: np.asarray(values) for name, values in read(audited, params).items()}


def result(
    audited: Audited,
    params: PyTree,
    *,
    delta: float,
    score: str | None = None,
    eps_claimed: float | None = None,
    **options: Any,
) -> AuditResult:
    """The lower bound on ε that the audit found.

    Guarantee: that of `oneshot.audit_scores`. Score, method and guesses have to be chosen
    before the coins are looked at; guesses are planned from the claim by default.

    Args:
        audited: the audit after the last step. Several of them along leading axes, each
            with coins of its own, are one audit of all their canaries (`oneshot.pool`).
        params: the parameters after the last step.
        delta: δ of the claim.
        score: which; by default `residual_llr`, for methods with a threshold `residual`, and
            where there is no residual, `iterates`. A threshold for `llr` is for noise as it is
            claimed, and goes blind where there is far less.
        eps_claimed: the claimed ε; by default what `oneshot.accounting` proves of the claim.
        **options: confidence, method and guesses, as in `oneshot.audit_scores`.

    Returns:
        An `AuditResult`.

    Raises:
        ValueError: the loop makes a mistake, or its coins were those of another run.
    """
    found, settings = scores(audited, params), audited.settings
    method = METHODS.get(options.get('method'))
    threshold = method is not None and method.takes == 'cells'
    score = (
        _headline(found, threshold) if score is None else _check.choice('score', score, list(found))
    )
    steps = np.unique(audited.updated).tolist()
    if steps != [settings.claim.steps]:
        raise ValueError(
            f'The claim is of {settings.claim.steps} steps, but the audit has seen {steps[-1]}.'
        )
    coins = np.asarray(audited.included).reshape(-1, audited.included.shape[-1])
    for run, first in zip(coins, np.ravel(audited.first), strict=True):
        _spend(run, int(first))
    if eps_claimed is None and _check.delta(delta) > 0.0:
        claim = settings.claim
        sizes = claim.noise_multiplier, claim.sampling_prob, claim.steps
        eps_claimed = accounting.eps_upper_bound(*sizes, delta)
    values = found[score].reshape(coins.shape)
    return audit_scores(
        *pool(list(zip(values, coins, strict=True))),
        delta=delta,
        mechanism=_mechanism(settings, audited.canaries, score, threshold),
        eps_claimed=eps_claimed,
        **options,
    )


def _attacks(settings: _Settings, canaries: Dirac | Inputs) -> dict[str, Attack]:
    attacks = {}
    if settings.signals:
        attacks['white_box'] = white_box(
            canaries,
            signals=settings.signals,
            scores=settings.scores,
            noise_multiplier=settings.claim.noise_multiplier,
            sampling_prob=settings.claim.sampling_prob,
            expected_batch_size=settings.expected_batch_size,
            loss_fn=settings.loss_fn,
            **settings.clipping._asdict(),
        )
    if isinstance(canaries, Inputs):
        size = settings.clipping.microbatch_size
        attacks['black_box'] = black_box(canaries, loss_fn=settings.loss_fn, microbatch_size=size)
    return attacks


def _headline(found: dict[str, np.ndarray], threshold: bool) -> str:
    first = () if threshold else ('residual_llr',)
    names = (*first, 'residual', 'iterates', 'gradient', *found)
    return next(name for name in names if name in found)


def _mechanism(
    settings: _Settings, canaries: Dirac | Inputs, score: str, threshold: bool
) -> DPSGD | None:
    """The claim as the score measures it, where that is known: Dirac canaries are of norm c."""
    signal, _, weighed = score.partition('_')
    if not isinstance(canaries, Dirac):
        return None
    c = settings.clipping.clip_norm
    scales = {'residual': c * c, 'gradient': c * c / settings.expected_batch_size}
    scale = 1.0 if weighed else scales.get(signal)
    if scale is None:  # that of the iterates is the learning rate's; a number of guesses has none
        if threshold:
            return None
        scale = 1.0
    return dataclasses.replace(settings.claim, score=weighed or 'dot', scale=scale)


def _gathered(tree: PyTree) -> PyTree:
    """The tree with leaves that are explicitly sharded in one piece; of others, XLA decides."""

    def one(leaf: jax.Array) -> jax.Array:
        return jax.sharding.reshard(leaf, PartitionSpec()) if _is_explicit(leaf) else leaf

    return jax.tree.map(one, tree)


def _spread(leaf: jax.Array, like: jax.Array) -> jax.Array:
    """A leaf, sharded like another if that is explicitly so."""
    return jax.sharding.reshard(leaf, jax.typeof(like).sharding) if _is_explicit(like) else leaf


def _is_explicit(leaf: jax.Array) -> bool:
    return bool(jax.typeof(leaf).sharding.mesh.explicit_axes)


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


def _check_tree(name: str, given: PyTree, settings: _Settings, axes: tuple[int, ...] = ()) -> None:
    leaves, tree = jax.tree.flatten(given)
    if tree != settings.tree:
        raise ValueError(
            f'{name} must be a tree like the parameters that the audit was started with, '
            f'{settings.tree}, but {tree} was given.'
        )
    for place, (leaf, shape) in enumerate(zip(leaves, settings.shapes, strict=True)):
        if jnp.shape(leaf) != axes + shape:
            path = jax.tree_util.keystr(jax.tree_util.tree_leaves_with_path(given)[place][0])
            raise ValueError(
                f'{name} must have the shapes of the parameters that the audit was started '
                f'with, {axes + shape} at {path}, but {jnp.shape(leaf)} was given.'
            )


def _check_counts(audited: Audited) -> None:
    """Says which mistake the loop makes, if what was counted shows one."""
    names = 'inserted', 'updated', 'repeated', 'silent', 'broken', 'squares', 'products'
    counts = [np.ravel(getattr(audited, name)).tolist() for name in names]
    for inserted, updated, repeated, silent, broken, squares, products in zip(*counts, strict=True):
        if updated == 0:
            raise ValueError(
                'audit.update must be called once in every step, but it was never called, or '
                'what it returned was not carried on.'
            )
        if inserted != updated and not audited.settings.in_data:
            raise ValueError(
                'audit.insert and audit.update must each be called once in every step, and what '
                f'they return be carried on, but insert was called {inserted} times and update '
                f'{updated} times.'
            )
        if broken > 0:
            raise ValueError(
                'audit.update must be called once in every step, with the parameters that the '
                'step began with and those that it gave, but in '
                f'{broken} of {updated} updates the first were not the last of the update before.'
            )
        if repeated > 0:
            raise ValueError(
                'audit.insert must be given a key of its own in every step, but in '
                f'{repeated} of {inserted} steps it was that of the step before.'
            )
        if silent == updated and audited.included.shape[-1] >= _SOME:
            raise ValueError(
                'Canaries must be inserted before the noise, into the sum of clipped gradients, '
                'but nothing was added to it after audit.insert. If they are, the loop adds no '
                'noise at all.'
            )
        divided = _divided_by(audited.settings, squares, products)
        if divided is not None:
            raise ValueError(
                'gradient must be the noisy sum divided by expected_batch_size, but '
                f'expected_batch_size = {audited.settings.expected_batch_size:g} was given, and '
                f'what audit.insert gave seems to be divided by {divided:.3g}.'
            )


def _divided_by(settings: _Settings, squares: float, products: float) -> float | None:
    """What the loop divides by, if it is not what the audit was told.

    B·products/squares is 1, with a deviation of at most σc/√squares. It is told if it is
    off by a tenth and by six deviations, which a right loop is once in 10⁹ audits.
    """
    if squares == 0.0 or products == 0.0:
        return None
    off = abs(settings.expected_batch_size * products / squares - 1.0)
    deviation = settings.claim.noise_multiplier * settings.clipping.clip_norm / math.sqrt(squares)
    return squares / products if off > max(0.1, 6.0 * deviation) else None


_spent: dict[bytes, int] = {}  # coins, and the run they were flipped for


def _spend(coins: np.ndarray, run: int) -> None:
    """A run may be looked at again; another with the same coins is no second audit."""
    if coins.size < _MANY:
        return
    digest = hashlib.sha256(np.packbits(coins).tobytes() + bytes([coins.size % 8])).digest()
    if _spent.setdefault(digest, run) != run:
        raise ValueError(
            'Coins must be flipped anew for every run, but these were those of another run '
            'before: what was learned from it may have made its way into this one.'
        )
