"""Speed of a whole private step, side by side with peers and with ordinary training.

    python -m experiments.bench_step          # 40 minutes, nothing else running
    python -m experiments.bench_step --quick  # a smoke test, writes nothing

A step is: clipped sum, noise, SGD, on a fixed batch of 32×32×3 images. All contenders in
JAX share the noise and the update, a program of its own after that of the sum.

- `oneshot ghost`, `oneshot vmap`: ours, by the two strategies of `oneshot.dpsgd.clipping`.
- `oneshot ordinary`: not private, with our convolution.
- `plain vmap`: jax.vmap(jax.grad) with XLA's convolution, of as much of the batch at once
  as has gradients of less than 1 GB.
- `optax`: its `differentially_private_aggregate`, XLA's convolution. It adds noise to
  each of K chunks; it is asked for σ/√K, so that their sum has the noise of one batch.
- `jax_privacy`: its `clipped_grad` with XLA's convolution and with ours; the MLP has none.
- `opacus hooks`, `opacus ghost`: on the same model and, `no WS`, on one without weight
  standardization, which spares Opacus what all others do.
- `torch ordinary`: not private.

`oneshot ghost` has the microbatch size of the fixed rule, `plain vmap` the largest, all
others the best of a few by a first look. XLA's convolution is slow in XLA's loops on CPU,
so that chunks for it are a loop in Python. All are timed in this one process, in turn;
the ratios are what counts. Writes results/bench_step.csv, .png and .json.
"""

import argparse
import csv
import functools
import importlib.metadata
import itertools
import json
import math
import os
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import optax
import torch
from flax import nnx
from jax_privacy.clipping import clipped_grad
from rich.console import Console
from rich.progress import track
from rich.table import Table

from experiments import torch_models
from oneshot import dpsgd
from oneshot.data import models
from oneshot.dpsgd import clipping
from oneshot.dpsgd.gradients.strategy import LossFn

matplotlib.use('Agg')
from matplotlib import pyplot as plt

RESULTS = pathlib.Path(__file__).parent / 'results'
PACKAGES = ('jax', 'flax', 'optax', 'jax-privacy', 'torch', 'opacus')
OURS = 'oneshot ghost'
CLIP, NOISE, RATE = 1.0, 1.0, 1e-3
TURN = 1.0  # seconds that a contender runs before it is another's turn
GRADIENTS_BYTES = 1e9  # for the gradients of a chunk, where all of them exist
# How much faster than these we must be; than ordinary training, 0.9 is the goal.
BOUNDS = {
    'jax_privacy, XLA conv': 3.0,
    'jax_privacy, our conv': 2.0,
    'jax_privacy': 2.0,
    'oneshot ordinary': 0.8,
    'torch ordinary': 0.8,
}

PyTree = Any
Step = Callable[[], None]  # has finished when it returns
Contender = tuple[str, tuple[int, ...], Callable[[int], Step]]  # name, microbatch sizes, maker
GradientSum = Callable[[PyTree, PyTree, jax.Array], PyTree]  # of params, batch, key


class Setting(NamedTuple):
    """A model, and the microbatch sizes to choose from."""

    parameters: int
    batch: int
    quick: int  # the batch of the smoke test
    vmap: tuple[int, ...]
    ordinary: tuple[int, ...]
    loop: tuple[int, ...]  # of jax_privacy's own loop
    chunks: tuple[int, ...]  # of a loop in Python


SETTINGS = {
    'mlp': Setting(
        197_322, 4096, 64, (8, 32), (256, 1024, 4096), (8, 32, 128, 512), (32, 128, 1024, 4096)
    ),
    'cnn': Setting(402_986, 256, 16, (4, 8, 16), (16, 32, 64), (8, 16, 32, 64), (4, 8, 16, 64)),
    'wrn': Setting(2_748_890, 64, 8, (2, 4, 8), (8, 16, 32), (4, 8, 16, 32), (4, 8, 16, 64)),
}


@functools.partial(jax.jit, static_argnames=('examples', 'noise'))
def update(params: PyTree, total: PyTree, key: jax.Array, examples: int, noise: float):
    key, own = jax.random.split(key)
    if noise > 0.0:
        total = jax.tree.map(jnp.add, total, dpsgd.gaussian_noise(own, total, noise * CLIP))
    optimizer = optax.sgd(RATE)
    mean = jax.tree.map(lambda x: x / examples, total)
    return optax.apply_updates(params, optimizer.update(mean, optimizer.init(params))[0]), key


def jax_step(
    gradient_sum: GradientSum, params: PyTree, batch: PyTree, size: int, noise: float = NOISE
) -> Step:
    """Sums over chunks of `size` in a Python loop, then noise and SGD."""
    examples, key = len(batch[1]), jax.random.key(0)
    chunks = [tuple(x[i : i + size] for x in batch) for i in range(0, examples, size)]
    zero = jax.tree.map(jnp.zeros_like, params)

    @jax.jit
    def add(params: PyTree, total: PyTree, key: jax.Array, chunk: PyTree):
        key, own = jax.random.split(key)
        return jax.tree.map(jnp.add, total, gradient_sum(params, chunk, own)), key

    def step() -> None:
        nonlocal params, key
        total = zero
        for chunk in chunks:
            total, key = add(params, total, key, chunk)
        params, key = jax.block_until_ready(update(params, total, key, examples, noise))

    return step


def oneshot_sum(loss_fn: LossFn, strategy: str, size: int) -> GradientSum:
    options = {'clip_norm': CLIP, 'microbatch_size': size, 'strategy': strategy}
    # All count, but as in training, this is not known when the step is compiled.
    return lambda params, batch, key: dpsgd.clipped_grad_sum(
        loss_fn, params, batch, batch[1] >= 0, **options
    )[0]


def ordinary_sum(loss_fn: LossFn, size: int) -> GradientSum:
    grad = jax.grad(lambda params, part: jnp.sum(jax.vmap(loss_fn, (None, 0))(params, part)))

    def gradient_sum(params: PyTree, batch: PyTree, key: jax.Array) -> PyTree:
        parts = clipping.split_microbatches(batch, size)  # sizes divide the batch: no padding

        def add(trip: jax.Array, total: PyTree) -> PyTree:
            part = jax.tree.map(lambda x: x[trip], parts)
            return jax.tree.map(jnp.add, total, grad(params, part))

        return jax.lax.fori_loop(0, len(parts[1]), add, jax.tree.map(jnp.zeros_like, params))

    return gradient_sum


def vmap_sum(loss_fn: LossFn) -> GradientSum:
    def gradient_sum(params: PyTree, batch: PyTree, key: jax.Array) -> PyTree:
        grads = jax.vmap(jax.grad(loss_fn), (None, 0))(params, batch)
        scale = jnp.minimum(1.0, CLIP / jax.vmap(optax.global_norm)(grads))
        return jax.tree.map(lambda g: jnp.tensordot(scale, g, axes=1), grads)

    return gradient_sum


def optax_sum(loss_fn: LossFn, chunks: int) -> GradientSum:
    def gradient_sum(params: PyTree, batch: PyTree, key: jax.Array) -> PyTree:
        grads = jax.vmap(jax.grad(loss_fn), (None, 0))(params, batch)
        aggregate = optax.contrib.differentially_private_aggregate(CLIP, NOISE / chunks**0.5, key)
        mean, _ = aggregate.update(grads, aggregate.init(params))
        return jax.tree.map(lambda x: x * len(batch[1]), mean)

    return gradient_sum


def jax_privacy_sum(loss_fn: LossFn, size: int | None) -> GradientSum:
    grad = clipped_grad(loss_fn, l2_clip_norm=CLIP, keep_batch_dim=False, microbatch_size=size)
    return lambda params, batch, key: grad(params, batch)


def contenders(name: str, examples: int) -> Iterator[Contender]:
    setting, rng = SETTINGS[name], np.random.default_rng(0)
    images = rng.normal(size=(examples, 32, 32, 3)).astype(np.float32)
    labels = rng.integers(10, size=examples)
    batch = jnp.asarray(images), jnp.asarray(labels, jnp.int32)
    losses = []
    for conv in ('patches', 'xla'):
        model = models.make(name, (32, 32, 3), 10, nnx.Rngs(0), hidden=(64,), conv=conv)
        apply, params = models.split(model)
        losses.append(models.cross_entropy(apply))
    ours, xla = losses
    assert sum(x.size for x in jax.tree.leaves(params)) == setting.parameters
    step = functools.partial(jax_step, params=params, batch=batch)
    whole = functools.partial(step, size=examples)
    fit = 2 ** int(math.log2(GRADIENTS_BYTES / (4 * setting.parameters)))
    chunks = tuple(min(n, fit) for n in setting.chunks)
    strategy, chosen = clipping.choose_strategy(ours, params, (batch[0][0], batch[1][0]))
    assert strategy == 'ghost'

    yield OURS, (chosen,), lambda n: whole(oneshot_sum(ours, 'ghost', n))
    yield 'oneshot vmap', setting.vmap, lambda n: whole(oneshot_sum(ours, 'vmap', n))
    yield 'oneshot ordinary', setting.ordinary, lambda n: whole(ordinary_sum(ours, n), noise=0.0)
    yield 'plain vmap', (fit,), lambda n: step(vmap_sum(xla), size=n)
    yield 'optax', chunks, lambda n: step(optax_sum(xla, examples // n), size=n, noise=0.0)
    if name != 'mlp':
        yield 'jax_privacy, XLA conv', chunks, lambda n: step(jax_privacy_sum(xla, None), size=n)
    title = 'jax_privacy' if name == 'mlp' else 'jax_privacy, our conv'
    yield title, setting.loop, lambda n: whole(jax_privacy_sum(ours, n))

    tensors = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(labels)
    for mode, standardized in itertools.product(torch_models.MODES, (True, False)):
        if standardized or (name == 'wrn' and mode != 'ordinary'):
            title = f'{"torch" if mode == "ordinary" else "opacus"} {mode}'
            make = functools.partial(torch_step, name, mode, standardized, tensors)
            yield title + ('' if standardized else ' (no WS)'), setting.chunks, make


def torch_step(name: str, mode: str, standardized: bool, batch: PyTree, size: int) -> Step:
    model = torch_models.make(name, standardized=standardized)
    assert sum(x.numel() for x in model.parameters()) == SETTINGS[name].parameters
    return torch_models.make_step(mode, model, batch, size, RATE, CLIP, NOISE)


def seconds(step: Step) -> float:
    """Of one step: the mean of as many as fill a second."""
    time.sleep(0.05)  # the threads of the contender before may still spin
    start, steps = time.perf_counter(), 0
    while (passed := time.perf_counter() - start) < TURN:
        step()
        steps += 1
    return passed / steps


def measure(name: str, rounds: int, quick: bool) -> list[dict[str, Any]]:
    """Examples per second of all contenders on a model, ours first."""
    batch = SETTINGS[name].quick if quick else SETTINGS[name].batch
    steps, microbatch = {}, {}
    for title, sizes, make in track(list(contenders(name, batch)), f'{name}, first look'):
        best = math.inf
        for size in sorted({min(size, batch) for size in sizes})[: 1 if quick else None]:
            step = make(size)
            step()  # compiles
            took = min(seconds(step), seconds(step))
            if took < best:
                best, microbatch[title], steps[title] = took, size, step
    times = {title: [] for title in steps}
    for _ in track(range(rounds), f'{name}, measuring'):
        for title, step in steps.items():
            times[title].append(seconds(step))
    rows = []
    for title in steps:
        q25, median, q75 = np.quantile(batch / np.array(times[title]), (0.25, 0.5, 0.75))
        row = {'model': name, 'contender': title, 'batch': batch, 'microbatch': microbatch[title]}
        rows.append(row | {'examples_per_second': median, 'q25': q25, 'q75': q75})
        rows[-1]['ratio'] = rows[0]['examples_per_second'] / median
    return rows


def claims(rows: list[dict[str, Any]]) -> Iterator[tuple[str, str, float, float]]:
    """(model, against what, at least, measured) for all that must hold."""
    ratios = {(row['model'], row['contender']): row['ratio'] for row in rows}
    for name in dict.fromkeys(row['model'] for row in rows):
        opacus = min(ratios[name, f'opacus {mode}'] for mode in ('hooks', 'ghost'))
        yield name, 'the best of Opacus, same model', 1.1 if name == 'mlp' else 2.0, opacus
        for title, bound in BOUNDS.items():
            if (name, title) in ratios and (title != 'torch ordinary' or name == 'wrn'):
                yield name, title, bound, ratios[name, title]


def plot(rows: list[dict[str, Any]], path: pathlib.Path) -> None:
    names = list(dict.fromkeys(row['model'] for row in rows))
    figure, axes = plt.subplots(1, len(names), figsize=(5.5 * len(names), 4), squeeze=False)
    for ax, name in zip(axes[0], names, strict=True):
        own = [row for row in rows if row['model'] == name][::-1]  # the first on top
        rates = np.array([row['examples_per_second'] for row in own])
        spread = rates - [row['q25'] for row in own], [row['q75'] for row in own] - rates
        colors = ['tab:orange' if row['contender'] == OURS else 'tab:blue' for row in own]
        ax.barh([row['contender'] for row in own], rates, xerr=spread, color=colors)
        ax.set(title=f'{name}, batch of {own[0]["batch"]:,}', xlabel='examples per second')
        ax.xaxis.set_major_formatter('{x:,.0f}')
        ax.locator_params(axis='x', nbins=5)
        ax.spines[['top', 'right']].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--rounds', type=int, default=7, help='steps of each contender')
    parser.add_argument('--models', default=','.join(SETTINGS), help='which, by commas')
    parser.add_argument('--quick', action='store_true', help='one round on tiny batches')
    args = parser.parse_args()
    torch.set_num_threads(os.cpu_count())
    torch_models.check_standardized()
    rows = []
    for name in args.models.split(','):
        rows += measure(name, 1 if args.quick else args.rounds, args.quick)

    console = Console(width=100)
    title = f'examples per second of whole steps; ratio: {OURS} to it'
    table = Table('model', 'contender', title=title, title_justify='left')
    for column in ('batch', 'microbatch', 'median', 'quartiles', 'ratio'):
        table.add_column(column, justify='right')
    for row in rows:
        table.add_row(
            *(str(row[column]) for column in ('model', 'contender', 'batch', 'microbatch')),
            f'{row["examples_per_second"]:,.1f}',
            f'{row["q25"]:,.1f} to {row["q75"]:,.1f}',
            f'{row["ratio"]:.2f}',
        )
    console.print(table)
    table = Table('model', 'ours to', 'at least', 'measured', 'holds', title='what must hold')
    for name, title, bound, measured in claims(rows):
        holds = 'yes' if measured >= bound else 'no'
        table.add_row(name, title, f'{bound:.1f}', f'{measured:.2f}', holds)
    console.print(table)
    if args.quick:
        return
    with (RESULTS / 'bench_step.csv').open('w', newline='') as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator='\n')
        writer.writeheader()
        for row in rows:
            writer.writerow({k: f'{x:.6g}' if isinstance(x, float) else x for k, x in row.items()})
    cpu = pathlib.Path('/proc/cpuinfo').read_text().split('model name')[1].split('\n')[0]
    about = {'cpu': cpu.strip('\t :'), 'cores': os.cpu_count(), 'rounds': args.rounds}
    about['versions'] = {package: importlib.metadata.version(package) for package in PACKAGES}
    (RESULTS / 'bench_step.json').write_text(json.dumps(about, indent=2) + '\n')
    plot(rows, RESULTS / 'bench_step.png')
    print(f'Written to {RESULTS.name}/bench_step.csv, .png and .json.')


if __name__ == '__main__':
    main()
