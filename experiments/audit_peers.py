"""DP-SGD that others wrote, audited in one run each: optax, jax_privacy and Opacus.

    python -m experiments.audit_peers          # 3 minutes on two cores
    python -m experiments.audit_peers --quick  # other and fewer coins, writes nothing

Canaries are examples here, so that all that a peer does is audited: its sampler, its
gradients, its clipping, its noise, its division. A canary's gradient is 100·c on a
coordinate of its own, and the peer has to clip it to c. These coordinates are one more
leaf of the model, which no other example touches. This is a fair audit of the claim:
DP-SGD is claimed to be private for any model and any examples, and so for this model and
these. What is gained is that no other data disturbs the scores: along its coordinate a
canary is seen as `oneshot.plan.score_law` has it, and scores are independent if the code is right.

In the same way a loader of Opacus is audited that goes through the data in order. After
that come the minimal cases of `experiments.peer_cases`.

Scores, guesses and thresholds are fixed before any coin is flipped; those of a run are
planned for the claim. Of the runs that are timed, with the audit and without, the first is
the one that is audited. Writes results/audit_peers.csv and .png.
"""

import argparse
import functools
import importlib.metadata
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy
import torch
from flax import nnx
from jax_privacy import batch_selection, clipped_grad, noise_addition
from opacus import PrivacyEngine
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import oneshot
from experiments import csv_files, peer_cases
from experiments.peer_cases import CLIP, DELTA, METHODS, Case
from oneshot import audit
from oneshot.audit import canaries
from oneshot.claims import accounting
from oneshot.data import datasets, models
from oneshot.dpsgd.gradients.strategy import LossFn

RESULTS = pathlib.Path(__file__).parent / 'results'
PACKAGES = {'optax': 'optax', 'jax_privacy': 'jax-privacy', 'Opacus': 'opacus'}
N, M, Q, STEPS, EPS = 1_200, 2_000, 0.1, 300, 8.0
ORDERED_EPS = 2.0  # for batches in order: 2,000 canaries show no ε of 8 by one_run
SIZE = 100.0 * CLIP  # of a canary's gradient, before the peer clips it
RATE = 2.0 / (Q * N)  # the learning rate, for a sum of gradients
# Rows of a padded batch, with canaries and without: seven deviations above the mean.
ROWS = {True: 336, False: 192}
COINS = 1_000  # of a minimal case
SEED = 2_305
WORDS = ('peer', 'version', 'use', 'method', 'assumes', 'verdict', 'reason')  # of the CSV
REPEATS = 3  # of runs with and without the audit, to compare their seconds; odd

PyTree = Any


# One run each: JAX.


class Peer(NamedTuple):
    """A peer's DP-SGD: its private gradient, and its batches of indices into n examples."""

    init: Callable[[PyTree], PyTree]
    gradient: Callable[..., tuple[PyTree, PyTree]]  # of params, batch, real, state
    batches: Callable[[int, np.random.Generator], Iterator[np.ndarray]]
    denominator: float


def optax_peer(loss: LossFn, sigma: float, key: jax.Array, audited: bool) -> Peer:
    """Its aggregate divides by the rows that it is given, so that rows must be public.

    It has no sampler: batches are drawn here, and padded with gradients of 0.
    """
    rows = ROWS[audited]
    aggregate = optax.contrib.differentially_private_aggregate(CLIP, sigma, key)

    def gradient(params: PyTree, batch: PyTree, real: jax.Array, state: PyTree):
        grads = jax.vmap(jax.grad(loss), (None, 0))(params, batch)
        grads = jax.tree.map(lambda g: jax.vmap(jnp.multiply)(g, real.astype(g.dtype)), grads)
        return aggregate.update(grads, state)

    def batches(n: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
        for _ in range(STEPS):
            drawn = np.flatnonzero(rng.random(n) < Q)
            yield np.pad(drawn, (0, rows - drawn.size), constant_values=-1)

    return Peer(aggregate.init, gradient, batches, rows)


def jax_privacy_peer(loss: LossFn, sigma: float, key: jax.Array, audited: bool) -> Peer:
    """All parts are its own: sampler, padding, clipping, division, sensitivity and noise."""
    size = Q * (N + M / 2 if audited else N)
    grad = clipped_grad(loss, l2_clip_norm=CLIP, normalize_by=size, keep_batch_dim=False)
    privatizer = noise_addition.gaussian_privatizer(stddev=sigma * grad.sensitivity(), prng_key=key)
    sampler = batch_selection.CyclicPoissonSampling(sampling_prob=Q, iterations=STEPS)

    def gradient(params: PyTree, batch: PyTree, real: jax.Array, state: PyTree):
        return privatizer.update(grad(params, batch, is_padding_example=~real), state)

    def batches(n: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
        for drawn in sampler.batch_iterator(n, rng):
            yield batch_selection.pad_to_multiple_of(drawn, ROWS[audited])

    return Peer(privatizer.init, gradient, batches, size)


PEERS = {'optax': optax_peer, 'jax_privacy': jax_privacy_peer}


class Trained(NamedTuple):
    """The end of a run."""

    params: PyTree
    audited: audit.Audited | None
    seconds: float  # of all steps, without compilation
    accuracy: float


def train_jax(name: str, sigma: float, seed: int, audited: bool) -> Trained:
    """The digits by DP-SGD of a peer, with the audit or without any trace of it."""
    digits = datasets.digits(N, 0)
    coin_key, noise_key = jax.random.split(jax.random.key(seed))
    model = models.make('mlp', (8, 8), 10, nnx.Rngs(0), hidden=(32,))
    apply, params = models.split(model)
    loss = models.cross_entropy(apply)
    examples: PyTree = jax.tree.map(jnp.asarray, tuple(digits.train))
    if audited:
        # Leaves are in the order of their names: the first M coordinates are the canaries'.
        params = {'canaries': jnp.zeros(M), 'model': params}
        chosen = canaries.Dirac(jnp.arange(M))
        coins = canaries.flip_coins(coin_key, M)
        inner = loss
        loss = canaries.with_dirac(lambda params, one: inner(params['model'], one), SIZE)
        examples = chosen.join(examples, coins)
    peer = PEERS[name](loss, sigma, noise_key, audited)
    optimizer = optax.sgd(RATE * peer.denominator)
    watched = None
    if audited:
        watched = audit.start(
            chosen,
            coins,
            params,
            oneshot.DPSGD(sigma, Q, STEPS),
            clip_norm=CLIP,
            expected_batch_size=peer.denominator,
            in_data=True,
            signals=('gradient',),
            scores=('llr',),
        )

    @jax.jit
    def step(carry: PyTree, indices: jax.Array) -> PyTree:
        params, state, opt_state, watched = carry
        batch = jax.tree.map(lambda x: x[indices], examples)
        gradient, state = peer.gradient(params, batch, indices >= 0, state)
        updates, opt_state = optimizer.update(gradient, opt_state)
        new_params = optax.apply_updates(params, updates)
        if audited:
            watched = audit.update(watched, params, new_params, gradient)
        return new_params, state, opt_state, watched

    carry = params, peer.init(params), optimizer.init(params), watched
    n = len(jax.tree.leaves(examples)[0])
    jax.block_until_ready(step(carry, jnp.full(ROWS[audited], -1)))  # compiles
    start = time.perf_counter()
    for indices in peer.batches(n, np.random.default_rng(seed)):
        carry = step(carry, indices)
    params, _, _, watched = jax.block_until_ready(carry)
    seconds = time.perf_counter() - start
    trained = params['model'] if audited else params
    logits = jax.vmap(apply, (None, 0))(trained, jnp.asarray(digits.test.images))
    accuracy = float(np.mean(np.argmax(logits, 1) == digits.test.labels))
    return Trained(params, watched, seconds, accuracy)


def compare(run: Callable[[int, bool], Any], seed: int) -> tuple[Any, tuple[float, float]]:
    """The first audited run, and the median seconds of a few with and without the audit."""
    pairs = [(run(seed + i, True), run(seed + i, False)) for i in range(REPEATS)]
    seconds = np.median([[one.seconds for one in pair] for pair in pairs], axis=0)
    return pairs[0][0], tuple(seconds.tolist())


def audit_jax(name: str, sigma: float, seed: int) -> Case:
    run, seconds = compare(functools.partial(train_jax, name, sigma), seed)
    claimed = None
    if name == 'jax_privacy':
        claimed = peer_cases.jax_privacy_eps(sigma, round(Q * N), N, STEPS)
    ours = accounting.eps_upper_bound(sigma, Q, STEPS, DELTA)
    found = {
        method: audit.result(
            run.audited,
            run.params,
            delta=DELTA,
            score='gradient_llr',
            eps_claimed=ours if claimed is None else claimed,
            method=method,
        )
        for method in METHODS
    }
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(run.audited)) / 1e3
    use = {'optax': 'rows padded to a fixed number', 'jax_privacy': 'its Poisson sampler'}[name]
    return Case(name, use, claimed, ours, found, '', seconds, size, run.accuracy)


# One run each: PyTorch.


class Watched(nn.Module):
    """An MLP, and beside it a leaf with a coordinate for each canary."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
        self.canaries = nn.Embedding(M, 1)
        nn.init.zeros_(self.canaries.weight)

    def forward(self, images: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Logits, and after them what stands at the canary's coordinate."""
        return torch.cat([self.model(images), self.canaries(places.clamp(min=0))], 1)


class Opacus(NamedTuple):
    """The end of a run of Opacus: x_t of every canary at every step, if it is audited."""

    seen: np.ndarray | None
    included: np.ndarray
    claimed: float
    seconds: float
    accuracy: float


def train_opacus(sigma: float, poisson: bool, seed: int, audited: bool) -> Opacus:
    """As `train_jax`, by Opacus, with Poisson sampling or with batches in order."""
    digits, rng = datasets.digits(N, 0), np.random.default_rng(seed)
    included = rng.random(M) < 0.5
    torch.manual_seed(seed)
    images = torch.from_numpy(digits.train.images.reshape(N, 64))
    labels = torch.from_numpy(digits.train.labels.astype(np.int64))
    joining = np.flatnonzero(included) if audited else np.zeros(0, int)
    places = torch.from_numpy(np.concatenate([np.full(N, -1), joining]))
    filled = torch.cat([torch.arange(N), torch.zeros(joining.size, dtype=torch.int64)])
    dataset = TensorDataset(images[filled], labels[filled], places)
    module = Watched() if audited else Watched().model
    optimizer = torch.optim.SGD(module.parameters(), 1.0)
    loader = DataLoader(dataset, _batch_size(audited))
    engine = PrivacyEngine()
    module, optimizer, loader = engine.make_private(
        module=module,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=sigma,
        max_grad_norm=CLIP,
        poisson_sampling=poisson,
    )
    if len(loader) != round(1 / Q):
        raise ValueError(f'Opacus must sample with q = {Q}, but has {len(loader)} batches.')
    optimizer.param_groups[0]['lr'] = rate = RATE * optimizer.expected_batch_size
    unit = optimizer.expected_batch_size / (rate * CLIP)
    seen = []
    start = time.perf_counter()
    for _ in range(round(STEPS * Q)):
        for images, labels, places in loader:
            optimizer.zero_grad()
            if audited:
                weight = module._module.canaries.weight
                before = weight.detach().clone()
                logits, at = module(images, places).split([10, 1], 1)
                natural = nn.functional.cross_entropy(logits, labels, reduction='none')
                losses = torch.where(places < 0, natural, SIZE * at[:, 0])
            else:
                losses = nn.functional.cross_entropy(module(images), labels, reduction='none')
            losses.mean().backward()
            optimizer.step()
            if audited:
                seen.append(unit * (before - weight.detach())[:, 0])
    seconds = time.perf_counter() - start
    trained = module._module.model if audited else module
    with torch.no_grad():
        guessed = trained(torch.from_numpy(digits.test.images.reshape(-1, 64))).argmax(1)
    accuracy = float(np.mean(guessed.numpy() == digits.test.labels))
    seen = torch.stack(seen).numpy() if audited else None
    return Opacus(seen, included, engine.get_epsilon(DELTA), seconds, accuracy)


def _batch_size(audited: bool) -> int:
    """With it, Opacus comes to q = 1/10, whatever number of canaries the coins include."""
    return round(Q * (N + M / 2) * 1.045) if audited else round(Q * N)


def poisson_scores(seen: np.ndarray, sigma: float) -> np.ndarray:
    """The log-likelihood ratio, as `oneshot.audit.attacks` adds it up, for a user of PyTorch."""
    seen = torch.from_numpy(seen).double()
    drawn = math.log(Q) + (2.0 * seen - 1.0) / (2.0 * sigma**2)
    return torch.logaddexp(torch.tensor(math.log1p(-Q)), drawn).sum(0).numpy()


def ordered_scores(seen: np.ndarray, sigma: float) -> np.ndarray:
    """The log-likelihood ratio if a canary is in the same batch of every epoch.

    Which one it is depends on how many of the canaries before it are in: a binomial.
    """
    batches, size = round(1 / Q), _batch_size(True)
    epochs = seen.astype(np.float64).reshape(-1, batches, M)
    edges = np.arange(batches + 1)[:, None] * size - N - 1
    with np.errstate(divide='ignore'):
        prior = np.log(np.diff(scipy.stats.binom.cdf(edges, np.arange(M), 0.5), axis=0))
    return scipy.special.logsumexp(prior + np.sum(2.0 * epochs - 1.0, 0) / (2.0 * sigma**2), 0)


def audit_opacus(sigma: float, poisson: bool, seed: int) -> Case:
    """Scores and coins go to the command line as files, as those of any framework may."""
    run, seconds = compare(functools.partial(train_opacus, sigma, poisson), seed)
    scores = (poisson_scores if poisson else ordered_scores)(run.seen, sigma)
    with tempfile.TemporaryDirectory() as folder:
        files = [pathlib.Path(folder) / f'{name}.npz' for name in ('scores', 'coins')]
        np.savez(files[0], ids=np.arange(M), scores=scores)
        np.savez(files[1], ids=np.arange(M), included=run.included)
        known = f'--noise-multiplier={sigma} --sampling-prob={Q} --steps={STEPS} --score=llr'
        claim = f'--delta={DELTA} --eps={run.claimed} --json'
        found = {}
        for method in METHODS:
            command = [sys.executable, '-m', 'oneshot.bounds', f'--method={method}']
            command += [f'--scores={files[0]}', f'--coins={files[1]}']
            command += [*known.split(), *claim.split()]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found[method] = oneshot.AuditResult(**json.loads(done.stdout))
        size = sum(path.stat().st_size for path in files) / 1e3
    ours = accounting.eps_upper_bound(sigma, Q, STEPS, DELTA)
    use = 'its Poisson loader' if poisson else 'poisson_sampling=False, in order'
    reason = (
        'A canary is in the same batch of every epoch: 30 times for certain, with nothing gained '
        'by sampling. The accountant does not ask how batches are made.'
    )
    cost = seconds, size, run.accuracy
    return Case('Opacus', use, run.claimed, ours, found, '' if poisson else reason, *cost)


# The report.


def verdict(result: oneshot.AuditResult) -> str:
    return 'violated' if result.violated else 'consistent'


def rows(cases: Sequence[Case]) -> list[csv_files.Row]:
    """One for each case and method."""
    found = []
    for case in cases:
        for method, result in case.results.items():
            row = {
                'peer': case.peer,
                'version': importlib.metadata.version(PACKAGES[case.peer]),
                'use': case.use,
                'method': method,
                'assumes': result.assumptions,
                'verdict': verdict(result),
                'reason': case.reason,
                'eps_claimed': math.nan if case.claimed is None else case.claimed,
                'eps_ub': case.ours,
                'seconds': case.seconds[0],
                'seconds_without': case.seconds[1],
            }
            same = 'eps_lb', 'm', 'guesses', 'correct', 'p_value', 'delta', 'confidence'
            own = {name: getattr(case, name) for name in ('kilobytes', 'test_accuracy')}
            found.append(row | own | {name: getattr(result, name) for name in same})
    return found


def print_table(console: Console, cases: Sequence[Case]) -> None:
    title = f'peers by {METHODS[0]}, δ = {DELTA:g}, 95 % confidence'
    table = Table('peer', 'used', title=title, title_justify='left')
    for name in ('claimed', 'ours', 'ε_LB', *METHODS[1:], 'right', 'p-value', 'seconds'):
        table.add_column(name, justify='right', no_wrap=True)
    table.add_column('verdict')
    for case in cases:
        result = case.results[METHODS[0]]
        seconds = '' if math.isnan(case.seconds[0]) else '{:.1f} / {:.1f}'.format(*case.seconds)
        table.add_row(
            f'{case.peer} {importlib.metadata.version(PACKAGES[case.peer])}',
            case.use,
            '' if case.claimed is None else f'{case.claimed:.2f}',
            f'{case.ours:.2f}',
            *(f'{case.results[method].eps_lb:.2f}' for method in METHODS),
            f'{result.correct:g} of {result.guesses}',
            f'{result.p_value:.2g}',
            seconds,
            verdict(result),
        )
    console.print(table)
    for case in cases:
        if case.reason:
            console.print(f'{case.peer}, {case.use}: {case.reason}')


def plot(cases: Sequence[Case], path: pathlib.Path) -> None:
    """ε claimed and ε_LB by method, case by case."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 0.45 * len(cases) + 1.4), layout='constrained')
    axes = figure.subplots()
    heights = np.arange(len(cases))[::-1]
    colors = dict(zip(METHODS, ('tab:orange', 'tab:blue', 'tab:green'), strict=True))
    shifts = dict(zip(METHODS, (0.2, 0.0, -0.2), strict=True))
    claims = [case.claim for case in cases]
    axes.vlines(claims, heights - 0.38, heights + 0.38, color='black', linewidth=2)
    axes.plot([], [], color='black', linewidth=2, label='claimed ε')
    for method in METHODS:
        values = np.array([case.results[method].eps_lb for case in cases])
        places = heights + shifts[method]
        axes.hlines(places, 0.0, values, color=colors[method], linewidth=1)
        over = np.array([case.results[method].violated for case in cases])
        axes.plot(values, places, 'o', color=colors[method], markersize=5, label=f'ε_LB, {method}')
        axes.plot(values[over], places[over], 'o', color='none', markeredgecolor='tab:red', ms=9)
    axes.plot([], [], 'o', color='none', markeredgecolor='tab:red', ms=9, label='above the claim')
    axes.set_yticks(heights, [f'{case.peer}: {case.use}' for case in cases])
    axes.set_xscale('function', functions=(np.sqrt, np.square))  # from 0.2 to 40
    axes.set_xlim(left=0.0)
    axes.set_xticks([0, 1, 2, 4, 8, 16, 32])
    axes.set_ylim(-0.6, len(cases) - 0.4)
    axes.set_xlabel(f'ε at δ = {DELTA:g}')
    axes.grid(axis='x', alpha=0.3)
    axes.spines[['top', 'right']].set_visible(False)
    figure.legend(frameon=False, ncols=5, loc='outside upper center', fontsize=9)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--quick', action='store_true', help='writes nothing')
    quick = parser.parse_args().quick
    coins, seed = (100, 0) if quick else (COINS, SEED)
    torch.set_num_threads(1)  # tensors are small: threads would wait for each other
    sigma = accounting.calibrate_noise(EPS, Q, STEPS, DELTA)
    less = accounting.calibrate_noise(ORDERED_EPS, Q, STEPS, DELTA)
    small = peer_cases.opacus_shuffled, peer_cases.opacus_size, peer_cases.optax_drawn
    makers: list[Callable[[], Case]] = [
        functools.partial(audit_jax, 'optax', sigma, seed + 100),
        functools.partial(audit_jax, 'jax_privacy', sigma, seed + 200),
        functools.partial(audit_opacus, sigma, True, seed + 300),
        functools.partial(audit_opacus, less, False, seed + 400),
        *(functools.partial(one, coins, seed) for one in (*small, peer_cases.jax_privacy_cyclic)),
        *(functools.partial(peer_cases.not_finite, peer, coins, seed) for peer in PACKAGES),
    ]
    console, cases = Console(width=140), []
    for make in makers:
        start = time.perf_counter()
        cases.append(case := make())
        result = case.results[METHODS[0]]
        console.print(
            f'{case.peer}, {case.use}: ε_LB = {result.eps_lb:.2f}, claimed {case.claim:.2f}, '
            f'{time.perf_counter() - start:.0f} s in all'
        )
    print_table(console, cases)
    if quick:
        return
    found = rows(cases)
    numbers = [name for name in found[0] if name not in WORDS]
    csv_files.write(RESULTS / 'audit_peers.csv', found, WORDS, numbers)
    plot(cases, RESULTS / 'audit_peers.png')
    print(f'Written to {RESULTS.name}/audit_peers.csv and audit_peers.png.')


if __name__ == '__main__':
    main()
