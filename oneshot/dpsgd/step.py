"""The kernel: Algorithm dpsgd, one jitted step, with the audit fused in."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax

from oneshot import inputs
from oneshot.dpsgd import sampling, sharding
from oneshot.dpsgd.clipping import Augment, Clipping, ExampleGroup, Stats, poisson_clipped_grad_sums
from oneshot.dpsgd.gradients.strategy import LossFn, zeros

PyTree = Any


def gaussian_noise(key: jax.Array, like: PyTree, stddev: float) -> PyTree:
    """Independent N(0, stddev²) for every coordinate of `like`, a key for every leaf.

    On several devices it is what it is on one, bit for bit (`jax_threefry_partitionable`).
    """
    leaves, tree = jax.tree.flatten(like)
    keys = jax.random.split(key, len(leaves))
    pairs = zip(keys, leaves, strict=True)
    noise = [stddev * jax.random.normal(key, x.shape, x.dtype) for key, x in pairs]
    return sharding.constrain(jax.tree.unflatten(tree, noise))


class Canaries(Protocol):
    """What the step asks of canaries. Those of `oneshot.audit.canaries` inherit it."""

    @property
    def num_canaries(self) -> int:
        """How many there are, perhaps with rows of padding."""

    @property
    def num_rows(self) -> int:
        """How many scores there are: one for each canary, or for each row on the devices."""
        return self.num_canaries

    def as_examples(self, drawn: jax.Array, augment: Augment | None = None) -> ExampleGroup | None:
        """The drawn canaries as examples that are clipped like all others, if they are any."""

    def gradient_sum(self, params: PyTree, drawn: jax.Array, clip_norm: float) -> PyTree:
        """Σ of the gradients of the drawn canaries, if they are no examples."""


class Observation(NamedTuple):
    """What an adversary may see of one step: all that an attack's update is given.

    Attributes:
        params: w_{t−1}.
        new_params: w_t.
        gradient: the privatized gradient g̃_t / B, with B the expected batch size.
        residual: g̃_t − G_t, with G_t the clipped sum of the drawn examples but canaries.

    The signal `iterates`, w_{t−1} − w_t, is what the paper's white-box adversary sees.

    Why the residual is fair: condition on everything that is drawn of, and contained in, the
    examples other than canary i. Given that, G_t is a function of w_{t−1} alone, so that an
    adversary who knows the others' data and draws can compute it from what the paper's
    adversary sees. The proof of (ε, δ) for Algorithm dpsgd under Poisson sampling holds for
    every such condition: the step is a fixed vector, plus ĝ_i with probability q if i is
    included, plus noise. Releasing G_t beside the iterates therefore leaves (ε, δ) for the
    coins as it is.
    """

    params: PyTree
    new_params: PyTree
    gradient: PyTree
    residual: PyTree

    def signal(self, name: str, select: Callable[[PyTree], PyTree]) -> PyTree:
        """What `select` takes from a signal; of the iterates, only this is subtracted."""
        if name == 'iterates':
            return jax.tree.map(jnp.subtract, select(self.params), select(self.new_params))
        return select(getattr(self, name))


class Attack(NamedTuple):
    """An attack as a triple of pure functions, in the idiom of an optax transformation.

    The last axis of every array in its state is that of the canaries.
    """

    init: Callable[[PyTree], PyTree]  # params -> state
    update: Callable[[PyTree, Observation], PyTree]  # state, observation -> state
    scores: Callable[[PyTree, PyTree], dict[str, jax.Array]]  # state, params -> scores by name


class State(NamedTuple):
    """Everything that a run carries from step to step."""

    params: PyTree
    opt_state: PyTree
    audits: dict[str, PyTree]
    step: jax.Array
    average: PyTree = ()  # of the parameters, where it is asked for


# Over 80 lines with what it returns: it reads like Algorithm dpsgd, line by line.
def make_step(
    loss_fn: LossFn,
    optimizer: optax.GradientTransformation,
    *,
    clipping: Clipping,
    noise_multiplier: float,
    sampling_prob: float,
    expected_batch_size: float,
    attacks: Mapping[str, Attack] | Callable[[Canaries], Mapping[str, Attack]] | None = None,
    augment: Callable[[jax.Array, PyTree], PyTree] | None = None,
    ema_decay: float | None = None,
    n: int | None = None,
) -> tuple[Callable[..., State], Callable[..., tuple[State, Stats]]]:
    """One audited step of Algorithm dpsgd: sample → clip → sum → noise → update → score.

    Each of the n examples and each included canary joins with probability q, independently at
    every step. Gaussian noise N(0, σ²c²I) is added once to the sum, which is divided by the
    expected batch size, a public number.

    Args:
        loss_fn: loss_fn(params, example), the loss of one example.
        optimizer: any optax transformation.
        clipping: the clip norm c, the microbatch size and the strategy.
        noise_multiplier: σ; 0 adds no noise, and then c may be ∞. It may be traced, so that one
            compiled step serves several σ; it is then taken for more than 0, unchecked.
        sampling_prob: q in (0, 1].
        expected_batch_size: what the noisy sum is divided by.
        attacks: named `Attack`s that watch the run, or a function that gives them for the
            canaries that `init` and `step` are given: these are then no constants of the
            compiled program, and may lie on several devices.
        augment: augment(key, example), what `loss_fn` is given in place of an example, such as
            K views of it, with a fresh key for every example and step. Clipping comes after it.
        ema_decay: in [0, 1), keeps an exponential moving average of the parameters in
            `State.average`; min(decay, (1 + t)/(10 + t)) at step t, so that the first
            steps are soon forgotten. It is computed from the iterates, which are private.
        n: how many rows of the population are examples; the others are padding.

    Returns:
        `init(params, canaries)`, which gives a `State`, and
        `step(state, key, population, canaries, included)`, which gives the next `State` and
        the `Stats` of the step. Both are pure; jit them at will. `key` is the run's key: the
        step folds its own number into it. Inside of `jax.set_mesh` with a mesh of
        `oneshot.dpsgd.make_mesh`, the step is one for all devices of the mesh.
    """
    clip_norm = clipping.validate().clip_norm
    noisy = _check(clip_norm, noise_multiplier, sampling_prob, expected_batch_size, ema_decay)

    def attacks_on(canaries: Canaries | None) -> Mapping[str, Attack]:
        return attacks(canaries) if callable(attacks) else attacks or {}

    def init(params: PyTree, canaries: Canaries | None = None) -> State:
        audits = {name: attack.init(params) for name, attack in attacks_on(canaries).items()}
        average = () if ema_decay is None else jax.tree.map(jnp.copy, params)
        return constrained(State(params, optimizer.init(params), audits, jnp.int32(0), average))

    def constrained(state: State) -> State:
        placed = sharding.constrain(state._replace(audits=(), step=()))
        return placed._replace(audits=sharding.constrain_scores(state.audits), step=state.step)

    def step(
        state: State,
        key: jax.Array,
        population: PyTree,
        canaries: Canaries | None = None,
        included: jax.Array | None = None,
    ) -> tuple[State, Stats]:
        params = state.params
        keys = jax.random.split(jax.random.fold_in(key, state.step), 5)
        data_key, canary_key, noise_key, data_views_key, canary_views_key = keys
        rows = jax.tree.leaves(population)[0].shape[0]
        groups, drawn, joining = [], None, None
        if rows > 0:
            everybody = jnp.ones(rows if n is None else n, bool)
            drawn = sharding.pad_rows(sampling.poisson(data_key, sampling_prob, everybody), rows)
            groups.append(ExampleGroup(population, drawn, _with_key(augment, data_views_key)))
        if canaries is not None:
            check_coins(canaries, included)
            drawn = sampling.poisson(canary_key, sampling_prob, included)
            joining = canaries.as_examples(drawn, _with_key(augment, canary_views_key))
            groups += [] if joining is None else [joining]
        sums, stats = poisson_clipped_grad_sums(loss_fn, params, groups, clipping)
        data_sum = sums.pop(0) if rows > 0 else zeros(params)
        if joining is not None:
            residual = sums.pop()
        elif canaries is not None:
            residual = canaries.gradient_sum(params, drawn, clip_norm)
        else:
            residual = zeros(params)
        if noisy:
            noise = gaussian_noise(noise_key, residual, noise_multiplier * clip_norm)
            residual = jax.tree.map(jnp.add, residual, noise)
        gradient = jax.tree.map(lambda g, r: (g + r) / expected_batch_size, data_sum, residual)
        rounded = jax.tree.map(lambda g, w: g.astype(w.dtype), gradient, params)
        updates, opt_state = optimizer.update(rounded, state.opt_state, params)
        new_params = optax.apply_updates(params, updates)
        seen = Observation(params, new_params, gradient, residual)
        attacking = attacks_on(canaries).items()
        audits = {name: attack.update(state.audits[name], seen) for name, attack in attacking}
        average = state.average
        if ema_decay is not None:
            decay = jnp.minimum(ema_decay, (1.0 + state.step) / (10.0 + state.step))
            average = optax.incremental_update(new_params, average, 1.0 - decay)
        return constrained(State(new_params, opt_state, audits, state.step + 1, average)), stats

    return init, step


def _check(clip_norm: float, sigma: float, q: float, batch: float, ema_decay: float | None) -> bool:
    """Whether noise is added; raises a ValueError where a number is out of range."""
    noisy = isinstance(sigma, jax.core.Tracer)
    if not noisy:
        noisy = inputs.real('noise_multiplier', sigma, 0.0, math.inf, ends='[)') > 0
    inputs.real('sampling_prob', q, 0.0, 1.0, ends='(]')
    inputs.real('expected_batch_size', batch, 0.0, math.inf, ends='()')
    if noisy and math.isinf(clip_norm):
        raise ValueError(
            'clip_norm must be finite where noise is added, '
            f'but {clip_norm!r} was given with noise_multiplier = {sigma!r}.'
        )
    if ema_decay is not None:
        inputs.real('ema_decay', ema_decay, 0.0, 1.0, ends='[)')
    return noisy


def _with_key(augment: Callable[..., PyTree] | None, key: jax.Array) -> Augment | None:
    """`augment` of many examples, each with a key of its own."""
    if augment is None:
        return None
    return jax.vmap(lambda index, example: augment(jax.random.fold_in(key, index), example))


def check_coins(canaries: Canaries, included: jax.Array | None) -> None:
    """Coins as −1 and +1 would pass for True, and too few would be broadcast."""
    m = canaries.num_canaries
    fits = included is not None and included.dtype == bool and included.ndim == 1
    if not fits or m not in (included.size, sharding.padded_size(included.size)):
        shape = 'None' if included is None else f'{included.dtype} of shape {included.shape}'
        raise ValueError(f'included must be {m} bools, one a canary, but {shape} was given.')


def make_chunk(step: Callable[..., tuple[State, Stats]], length: int) -> Callable[..., Any]:
    """Up to `length` steps as one jitted `lax.scan`, with the state's buffers donated.

    The returned function takes (state, last, key, *arguments of the step) and stops at step
    `last`, or after a step whose loss or parameters are not finite (`diverged`). It gives the
    state and the `Stats` of the steps, 0 for those not made.
    """

    def chunk(state: State, last: jax.Array, key: jax.Array, *arguments: PyTree):
        def advance(state: State) -> tuple[State, jax.Array, Stats]:
            state, stats = step(state, key, *arguments)
            return state, jnp.isfinite(stats.loss) & finite(state.params), stats

        def body(carry: tuple[State, jax.Array], _: None):
            state, good = carry
            state, good, stats = jax.lax.cond(
                good & (state.step < last),
                advance,
                lambda state: (state, good, Stats.none()),
                state,
            )
            return (state, good), stats

        (state, _), stats = jax.lax.scan(body, (state, jnp.bool_(True)), length=length)
        return state, stats

    return jax.jit(chunk, donate_argnums=0)


@jax.jit
def finite(tree: PyTree) -> jax.Array:
    """Whether every number in it is."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))


def diverged(state: State, stats: Stats) -> str | None:
    """What is not finite after a chunk, with the stats of the steps that it made."""
    if not np.isfinite(stats.loss).all():
        return 'the loss'
    return None if finite(state.params) else 'a parameter'
