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
from oneshot.dpsgd.clipping import Augment, Clipping, Group, Stats, poisson_clipped_grad_sums
from oneshot.dpsgd.clipping import clipped_grad_sum as clipped_grad_sum  # part of the kernel
from oneshot.dpsgd.gradients.strategy import LossFn, zeros

PyTree = Any


def gaussian_noise(key: jax.Array, like: PyTree, stddev: float) -> PyTree:
    """Independent N(0, stddev²) for every coordinate of `like`, a key for every leaf.

    On several devices it is what it is on one, bit for bit: each device draws its own part of
    it (`jax_threefry_partitionable`), and where all have the whole, all draw the same.
    """
    leaves, tree = jax.tree.flatten(like)
    keys = jax.random.split(key, len(leaves))
    noise = [
        stddev * jax.random.normal(k, x.shape, x.dtype) for k, x in zip(keys, leaves, strict=True)
    ]
    return sharding.constrain(jax.tree.unflatten(tree, noise))


class Canaries(Protocol):
    """What the step asks of canaries: see `oneshot.audit.canaries`."""

    @property
    def size(self) -> int:
        """How many scores there are: one for each canary, or for each row on the devices."""

    @property
    def coins(self) -> int:
        """How many canaries there are, perhaps with rows of padding."""

    def group(self, drawn: jax.Array, augment: Augment | None = None) -> Group | None:
        """The drawn canaries as examples that are clipped like all others, if they are any."""

    def gradient_sum(self, params: PyTree, drawn: jax.Array, clip_norm: float) -> PyTree:
        """Σ of the gradients of the drawn canaries, if they are no examples."""


class Observation(NamedTuple):
    """What an adversary may see of one step: all that an attack's update is given.

    Attributes:
        params: w_{t−1}.
        new_params: w_t.
        gradient: the privatized gradient g̃_t / B, with B the expected batch size.
        residual: g̃_t − G_t, with G_t the clipped sum of the drawn examples that are
            not canaries.
        iterates: w_{t−1} − w_t, what the paper's white-box adversary sees.

    Why the residual is fair: condition on everything that is drawn of, and
    contained in, the examples other than canary i. Given that, G_t is a function
    of w_{t−1} alone, so that an adversary who knows the others' data and draws can
    compute it from what the paper's adversary sees. The proof of (ε, δ) for
    Algorithm dpsgd under Poisson sampling holds for every such condition: the step
    is a fixed vector, plus ĝ_i with probability q if i is included, plus noise.
    Releasing G_t beside the iterates therefore leaves (ε, δ) for the coins as it is.
    """

    params: PyTree
    new_params: PyTree
    gradient: PyTree
    residual: PyTree

    @property
    def iterates(self) -> PyTree:
        return self.signal('iterates')

    def signal(self, name: str, pick: Callable[[PyTree], PyTree] = lambda tree: tree) -> PyTree:
        """What `pick` takes from a signal: what is not picked of iterates is not subtracted."""
        if name == 'iterates':
            return jax.tree.map(jnp.subtract, pick(self.params), pick(self.new_params))
        return pick(getattr(self, name))


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


def make_step(
    loss_fn: LossFn,
    optimizer: optax.GradientTransformation,
    *,
    clip_norm: float,
    noise_multiplier: float,
    sampling_prob: float,
    expected_batch_size: float,
    microbatch_size: int,
    strategy: str = 'vmap',
    attacks: Mapping[str, Attack] | Callable[[Canaries], Mapping[str, Attack]] | None = None,
    augment: Callable[[jax.Array, PyTree], PyTree] | None = None,
    ema_decay: float | None = None,
    n: int | None = None,
) -> tuple[Callable[..., State], Callable[..., tuple[State, Stats]]]:
    """One audited step of Algorithm dpsgd.

    sample → per-example clip → sum → noise → update → score. Each of the n examples
    and each included canary joins with probability q, independently at every step.
    Gaussian noise N(0, σ²c²I) is added once to the sum, which is divided by the
    expected batch size, a public number.

    Args:
        loss_fn: loss_fn(params, example), the loss of one example.
        optimizer: any optax transformation.
        clip_norm: c, the largest global norm of a gradient.
        noise_multiplier: σ; 0 adds no noise, and then c may be ∞. It may be traced, so that one
            compiled step serves several σ; it is then taken for more than 0, unchecked.
        sampling_prob: q in (0, 1].
        expected_batch_size: what the noisy sum is divided by.
        microbatch_size: how many examples are differentiated at once.
        strategy: 'vmap' or 'ghost', see `Clipping`; `choose` has a rule for both.
        attacks: named `Attack`s that watch the run, or a function that gives them for the
            canaries that `init` and `step` are given: these are then no constants of the
            compiled program, and may lie on several devices.
        augment: augment(key, example), what `loss_fn` is given in place of an example,
            such as K views of it (`oneshot.data.augmentation`); with a key of its own for every
            example and step. The gradient is clipped after it.
        ema_decay: in [0, 1), keeps an exponential moving average of the parameters in
            `State.average`; min(decay, (1 + t)/(10 + t)) at step t, so that the first
            steps are soon forgotten. It is computed from the iterates, which are private.
        n: how many rows of the population are examples. Further ones are padding, where each
            of several devices has to have as many rows (`oneshot.dpsgd.sharding`).

    Returns:
        `init(params, canaries)`, which gives a `State`, and
        `step(state, key, population, canaries, included)`, which gives the next
        `State` and the `Stats` of the step. Both are pure; jit them at will. `key` is
        the run's key: the step folds its own number into it. Inside of `jax.set_mesh` with a
        mesh of `oneshot.dpsgd.make_mesh`, the step is one for all devices of the mesh.
    """
    clipping = Clipping(clip_norm, microbatch_size, strategy).check()
    noisy = isinstance(noise_multiplier, jax.core.Tracer)
    if not noisy:
        noisy = inputs.real('noise_multiplier', noise_multiplier, 0.0, math.inf, open_high=True) > 0
    inputs.real('sampling_prob', sampling_prob, 0.0, 1.0, open_low=True)
    inputs.real(
        'expected_batch_size', expected_batch_size, 0.0, math.inf, open_low=True, open_high=True
    )
    if noisy and math.isinf(clip_norm):
        raise ValueError(
            'clip_norm must be finite where noise is added, '
            f'but {clip_norm!r} was given with noise_multiplier = {noise_multiplier!r}.'
        )
    if ema_decay is not None:
        inputs.real('ema_decay', ema_decay, 0.0, 1.0, open_high=True)

    def watching(canaries: Canaries | None) -> Mapping[str, Attack]:
        return attacks(canaries) if callable(attacks) else attacks or {}

    def init(params: PyTree, canaries: Canaries | None = None) -> State:
        audits = {name: attack.init(params) for name, attack in watching(canaries).items()}
        average = () if ema_decay is None else jax.tree.map(jnp.copy, params)
        return placed(State(params, optimizer.init(params), audits, jnp.int32(0), average))

    def placed(state: State) -> State:
        alike = sharding.constrain((state.params, state.opt_state, state.average))
        return State(*alike[:2], sharding.constrain_scores(state.audits), state.step, alike[2])

    def augmented(key: jax.Array) -> Augment | None:
        if augment is None:
            return None

        def one(index: jax.Array, example: PyTree) -> PyTree:
            return augment(jax.random.fold_in(key, index), example)

        return jax.vmap(one)

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
            drawn = sharding.fill(sampling.poisson(data_key, sampling_prob, everybody), rows)
            groups.append(Group(population, drawn, augmented(data_views_key)))
        if canaries is not None:
            check_coins(canaries, included)
            drawn = sampling.poisson(canary_key, sampling_prob, included)
            joining = canaries.group(drawn, augmented(canary_views_key))
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
        given = jax.tree.map(lambda g, w: g.astype(w.dtype), gradient, params)
        updates, opt_state = optimizer.update(given, state.opt_state, params)
        new_params = optax.apply_updates(params, updates)
        seen = Observation(params, new_params, gradient, residual)
        audits = {
            name: attack.update(state.audits[name], seen)
            for name, attack in watching(canaries).items()
        }
        average = state.average
        if ema_decay is not None:
            decay = jnp.minimum(ema_decay, (1.0 + state.step) / (10.0 + state.step))
            average = optax.incremental_update(new_params, average, 1.0 - decay)
        return placed(State(new_params, opt_state, audits, state.step + 1, average)), stats

    return init, step


def check_coins(canaries: Canaries, included: jax.Array | None) -> None:
    """Coins as −1 and +1 would pass for True, and too few would be broadcast."""
    m = canaries.coins
    fits = included is not None and included.dtype == bool and included.ndim == 1
    if not fits or m not in (included.size, sharding.padded(included.size)):
        given = 'None' if included is None else f'{included.dtype} of shape {included.shape}'
        raise ValueError(f'included must be {m} bools, one a canary, but {given} was given.')


def make_chunk(step: Callable[..., tuple[State, Stats]], length: int) -> Callable[..., Any]:
    """Up to `length` steps as one jitted `lax.scan`, with the state's buffers donated.

    The returned function takes (state, last, key, *arguments of the step) and stops at
    step `last`: the last chunk of a run is as long as it has to be, with the same
    program. It also stops after a step whose loss or parameters are not finite (`diverged`).
    It gives the state and the `Stats` of the steps, 0 for those not made.
    """

    def chunk(state: State, last: jax.Array, key: jax.Array, *arguments: PyTree):
        def advance(state: State) -> tuple[State, jax.Array, Stats]:
            state, stats = step(state, key, *arguments)
            return state, jnp.isfinite(stats.loss) & finite(state.params), stats

        def one(carry: tuple[State, jax.Array], _: None):
            state, good = carry
            state, good, stats = jax.lax.cond(
                good & (state.step < last),
                advance,
                lambda state: (state, good, Stats.none()),
                state,
            )
            return (state, good), stats

        (state, _), stats = jax.lax.scan(one, (state, jnp.bool_(True)), length=length)
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
