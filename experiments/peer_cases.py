"""Minimal cases for `experiments.audit_peers`: a peer, used as its claim does not foresee.

Every example is a vector x with the loss ⟨w, x⟩, so that its gradient is x. A case is
many small runs with one coin each, which are one audit of as many coins (`oneshot.pool`).
The ε that is claimed is what the peer's accountant says of such a run, or dp_accounting
where it has none: both say it for adding or removing one example. Scores, numbers of
guesses and thresholds stand here, before any coin is flipped.
"""

import dataclasses
import logging
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from jax_privacy import batch_selection, clipped_grad, noise_addition
from jax_privacy.accounting import accountants, analysis
from opacus import PrivacyEngine
from rich.progress import track
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import oneshot
from oneshot.claims import accounting
from oneshot.results import guess

METHODS = ('one_run', 'fdp', 'cp_gdp')  # the first is the headline
DELTA, CLIP = 1e-5, 1.0

PyTree = Any
Runs = Sequence[tuple[list[float], list[bool]]]
warnings.filterwarnings('ignore', 'Secure RNG turned off')
warnings.filterwarnings('ignore', 'Full backward hook is firing')
warnings.filterwarnings('ignore', 'Optimal order is the largest alpha')
logging.getLogger('opacus.data_loader').setLevel(logging.ERROR)  # on empty batches


@dataclasses.dataclass(frozen=True)
class Case:
    """A peer in use, and what was found.

    Attributes:
        peer: its name.
        use: how it is used.
        claimed: ε by the accountant of the peer, None if it has none.
        ours: ε by `oneshot.claims`.
        results: by method.
        reason: of a violation.
        seconds: of a run with the audit, and without it.
        kilobytes: what the audit keeps until its end, or hands over as files.
        test_accuracy: of the audited run.
    """

    peer: str
    use: str
    claimed: float | None
    ours: float
    results: dict[str, oneshot.AuditResult]
    reason: str = ''
    seconds: tuple[float, float] = (math.nan, math.nan)
    kilobytes: float = math.nan
    test_accuracy: float = math.nan

    @property
    def claim(self) -> float:
        return self.ours if self.claimed is None else self.claimed


def jax_privacy_eps(sigma: float, size: int, n: int, steps: int, **options: Any) -> float:
    """ε by the accountant of jax_privacy, for batches of this size of n examples."""
    sizes = {'noise_multipliers': sigma, 'batch_size': size, 'num_samples': n}
    accountant = analysis.DpsgdTrainingAccountant(accountants.PldAccountantConfig())
    return accountant.compute_epsilon(steps, analysis.DpParams(delta=DELTA, **sizes, **options))


def one_coin_runs(score: Callable[[int, bool], float], title: str, coins: int, seed: int) -> Runs:
    """score(seed, included) of as many runs as coins, each with a coin of its own."""
    coin_seed, run_seed = np.random.SeedSequence([seed, *title.encode()]).spawn(2)
    included = (np.random.default_rng(coin_seed).random(coins) < 0.5).tolist()
    seeds = run_seed.generate_state(coins).tolist()
    pairs = track(list(zip(seeds, included, strict=True)), title)
    return [([score(seed, coin)], [coin]) for seed, coin in pairs]


def audit_runs(
    runs: Runs, claim: float, shares: tuple[float, float], threshold: float
) -> dict[str, oneshot.AuditResult]:
    """By shares of coins to be guessed "in" and "out", and by a threshold for `cp_gdp`."""
    scores, included = oneshot.pool(runs)
    counts = tuple(round(share * scores.size) for share in shares)
    found = {}
    for method in METHODS:
        rule = guess.Threshold(threshold) if method == 'cp_gdp' else counts
        options = {'method': method, 'guesses': rule, 'eps_claimed': claim}
        found[method] = oneshot.audit_scores(scores, included, delta=DELTA, **options)
    return found


def unit(rows: int, coordinates: int = 1) -> np.ndarray:
    """As many examples with a gradient of c on the first coordinate."""
    examples = np.zeros((rows, coordinates), np.float32)
    examples[:, 0] = CLIP
    return examples


def rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def optax_drawn(coins: int, seed: int) -> Case:
    """optax given the drawn examples and no more, by Poisson sampling with q = 1/2.

    Its noise is divided by the number of rows, and so is smaller on all coordinates if
    one more example is drawn. Three others may be drawn; how many are is known to the
    adversary of the proof. The noise that is measured tells the rows, and less these the
    canary. A run is eight steps; one in which nobody is drawn is skipped.
    """
    sigma, q, steps, others, coordinates = 10.0, 0.5, 8, 3, 2_000

    @jax.jit
    def private(key: jax.Array, grads: jax.Array) -> jax.Array:
        aggregate = optax.contrib.differentially_private_aggregate(CLIP, sigma, key)
        return aggregate.update(grads, aggregate.init(None))[0]

    def score(seed: int, included: bool) -> float:
        rng, key, more = np.random.default_rng(seed), jax.random.key(seed), 0.0
        for step in range(steps):
            known = int(np.sum(rng.random(others) < q))
            rows = known + int(included and rng.random() < q)
            if rows > 0:
                mean = private(jax.random.fold_in(key, step), unit(rows, 1 + coordinates))
                more += sigma * CLIP / rms(mean[1:]) - known
        return more

    runs = one_coin_runs(score, 'optax, drawn rows', coins, seed)
    ours = accounting.eps_upper_bound(sigma, q, steps, DELTA)
    found = audit_runs(runs, ours, (0.4, 0.0), 0.5)
    reason = (
        'The noise is divided by the number of rows, so that its size tells on every '
        'coordinate how many examples were drawn. optax promises no ε: the claim is that of '
        'the standard accountant, which takes the denominator to be fixed.'
    )
    return Case('optax', 'given the drawn rows only', None, ours, found, reason)


def opacus_epoch(
    examples: np.ndarray, sigma: float, seed: int, batch_size: int, **options: Any
) -> tuple[list[np.ndarray], PrivacyEngine]:
    """One epoch of Opacus on examples that are their gradients: −w after each step."""
    torch.manual_seed(seed)
    module = nn.Linear(examples.shape[1], 1, bias=False)
    nn.init.zeros_(module.weight)
    shuffle = not options.get('poisson_sampling', True)
    dataset, engine = TensorDataset(torch.from_numpy(examples)), PrivacyEngine()
    module, optimizer, loader = engine.make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), 1.0),
        data_loader=DataLoader(dataset, batch_size, shuffle=shuffle),
        noise_multiplier=sigma,
        max_grad_norm=CLIP,
        **options,
    )
    reduce = getattr(torch, options.get('loss_reduction', 'mean'))
    seen = []
    for (batch,) in loader:
        optimizer.zero_grad()
        reduce(module(batch)).backward()
        optimizer.step()
        seen.append(-module._module.weight[0].detach().numpy())
    return seen, engine


def opacus_size(coins: int, seed: int) -> Case:
    """Opacus as it is, with 20 examples or 21, and a batch size of 10.

    It takes q = 1/2 and divides by 10, or q = 1/3 and divides by 7. The noise of the
    first step tells.
    """
    sigma, size, coordinates, engines = 10.0, 10, 400, {}

    def score(seed: int, included: bool) -> float:
        examples = unit(2 * size + included, 1 + coordinates)
        seen, engines[included] = opacus_epoch(examples, sigma, seed, size)
        return rms(seen[0][1:]) / (sigma * CLIP)

    runs = one_coin_runs(score, 'Opacus, 20 or 21 examples', coins, seed)
    claimed = max(engine.get_epsilon(DELTA) for engine in engines.values())
    ours = max(accounting.eps_upper_bound(sigma, 1 / n, n, DELTA) for n in (2, 3))
    found = audit_runs(runs, claimed, (0.4, 0.4), (1 / 10 + 1 / 7) / 2)
    reason = (
        'q and the denominator are computed from the number of examples n: 1/2 and 10 from '
        'n = 20, 1/3 and 7 from n = 21. The claim holds if n is public, and not for adding or '
        'removing one.'
    )
    return Case('Opacus', 'n = 20 or 21, batch_size=10', claimed, ours, found, reason)


def opacus_shuffled(coins: int, seed: int) -> Case:
    """Opacus without Poisson sampling, on a shuffled loader: 40 batches of 2, one epoch.

    All gradients are the same. The last batch has one example less if the canary is out,
    wherever it would have been, and this is seen as if nothing had been sampled.
    """
    batches, size, engines = 40, 2, {}
    sigma = accounting.calibrate_noise(1.0, 1.0 / batches, batches, DELTA)

    def score(seed: int, included: bool) -> float:
        options = {'poisson_sampling': False, 'loss_reduction': 'sum'}
        examples = unit(batches * size - 1 + included)
        seen, engines[included] = opacus_epoch(examples, sigma, seed, size, **options)
        return float(seen[-1][0] - seen[-2][0]) / CLIP

    runs = one_coin_runs(score, 'Opacus, shuffled', 2 * coins, seed)
    claimed = max(engine.get_epsilon(DELTA) for engine in engines.values())
    ours = accounting.eps_upper_bound(sigma, 1.0 / batches, batches, DELTA)
    found = audit_runs(runs, claimed, (0.025, 0.025), size - 0.5)
    reason = (
        'The last batch of an epoch is short by one if any example is missing: shuffling gains '
        'nothing against who knows the others. That this does not fit the accountant is what '
        'the docstring says. If n is public, this case shows nothing; the one in order does.'
    )
    return Case('Opacus', 'poisson_sampling=False, shuffled', claimed, ours, found, reason)


def jax_privacy_cyclic(coins: int, seed: int) -> Case:
    """jax_privacy's cyclic sampling with its default partition: 63 or 64 examples, 32 groups.

    All groups are cut to the size of the smallest: of 63 examples every group has one, of
    64 two. So one example moves all 32 steps of a cycle, where the accountant counts one.
    """
    groups, sigma = 32, accounting.calibrate_noise(1.0, 1.0, 1, DELTA)
    sampler = batch_selection.CyclicPoissonSampling(
        sampling_prob=1.0, iterations=groups, cycle_length=groups
    )
    grad = clipped_grad(jnp.vdot, l2_clip_norm=CLIP, keep_batch_dim=False)

    @jax.jit
    def run(key: jax.Array, batches: jax.Array) -> jax.Array:
        """Σ of the private gradients of all steps."""
        stddev, zero = sigma * grad.sensitivity(), jnp.zeros(1)
        privatizer = noise_addition.gaussian_privatizer(stddev=stddev, prng_key=key)

        def step(carry: PyTree, indices: jax.Array) -> tuple[PyTree, None]:
            total, state = carry
            summed = grad(zero, jnp.asarray(unit(2)), is_padding_example=indices < 0)
            more, state = privatizer.update(summed, state)
            return (total + more, state), None

        return jax.lax.scan(step, (zero, privatizer.init(zero)), batches)[0][0][0]

    def score(seed: int, included: bool) -> float:
        batches = sampler.batch_iterator(2 * groups - 1 + included, seed)
        padded = [batch_selection.pad_to_multiple_of(one, 2) for one in batches]
        return float(run(jax.random.key(seed), np.stack(padded))) / CLIP

    runs = one_coin_runs(score, 'jax_privacy, cyclic', coins, seed)
    claimed = jax_privacy_eps(sigma, 2, 2 * groups, groups, cycle_length=groups)
    ours = accounting.eps_upper_bound(sigma, 1.0, 1, DELTA)
    found = audit_runs(runs, claimed, (0.06, 0.06), 1.5 * groups)
    reason = (
        'The default partition cuts all groups to the size of the smallest, so that one example '
        'more may be one more in every step. Its docstring says that it is for zero-out and '
        'replacement; the accountant says ε for adding or removing one all the same.'
    )
    return Case('jax_privacy', 'cyclic, n = 63 or 64, 32 groups', claimed, ours, found, reason)


def not_finite(peer: str, coins: int, seed: int) -> Case:
    """One step, q = 1/2, three others, and a canary whose gradient is infinite."""
    sigma, others = 10.0, 3
    examples = unit(others + 1)
    examples[-1] = math.inf

    @jax.jit
    def private(key: jax.Array, drawn: jax.Array) -> jax.Array:
        if peer == 'optax':
            aggregate = optax.contrib.differentially_private_aggregate(CLIP, sigma, key)
            rows = jnp.where(drawn[:, None], examples, 0.0)
            return aggregate.update(rows, aggregate.init(None))[0]
        grad = clipped_grad(jnp.vdot, l2_clip_norm=CLIP, keep_batch_dim=False)
        stddev, zero = sigma * grad.sensitivity(), jnp.zeros(1)
        privatizer = noise_addition.gaussian_privatizer(stddev=stddev, prng_key=key)
        summed = grad(zero, jnp.asarray(examples), is_padding_example=~drawn)
        return privatizer.update(summed, privatizer.init(zero))[0]

    def score(seed: int, included: bool) -> float:
        if peer == 'Opacus':
            options = {'batch_size': 2, 'loss_reduction': 'sum'}
            seen = opacus_epoch(examples[: others + included], sigma, seed, **options)[0][0]
        else:
            drawn = np.random.default_rng(seed).random(others + 1) < 0.5
            drawn[-1] &= included
            seen = private(jax.random.key(seed), drawn)
        return float(np.sum(~np.isfinite(seen)))

    runs = one_coin_runs(score, f'{peer}, not finite', coins, seed)
    steps = 2 if peer == 'Opacus' else 1  # of which the first is looked at
    ours = accounting.eps_upper_bound(sigma, 0.5, steps, DELTA)
    claimed = None
    if peer == 'jax_privacy':
        claimed = jax_privacy_eps(sigma, 1, 2, steps)
    elif peer == 'Opacus':
        claimed = opacus_epoch(unit(others), sigma, seed, 2)[1].get_epsilon(DELTA)
    found = audit_runs(runs, ours if claimed is None else claimed, (0.18, 0.0), 0.5)
    reason = 'A gradient of ∞ times a clip factor of 0 is no number, and nor is the sum then.'
    return Case(
        peer,
        'one example not finite',
        claimed,
        ours,
        found,
        reason if found[METHODS[0]].violated else '',
    )
