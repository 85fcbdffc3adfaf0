"""20,000 steps of a tiny model: memory, file handles, and scores against float64.

    python -m experiments.long_run       # half a minute

A run as `oneshot.main` makes it, with metrics, events and a checkpoint every 1,000 steps. On
the way, the memory and the open files of the process are noted. At the end all scores are compared
with those of a DP-SGD in NumPy and float64, written from Algorithm dpsgd for a model of one
layer, that is given the same draws and the same noise. Writes results/long_run.csv and
results/long_run.png.
"""

import json
import os
import pathlib
import tempfile
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from rich.console import Console

from configs import digits_wb
from experiments import csv_files
from oneshot import dpsgd
from oneshot.dpsgd import sampling
from oneshot.run import training
from oneshot.run.preparation import Run
from oneshot.run.resumption import ResumableRun

RESULTS = pathlib.Path(__file__).parent / 'results'
NUMBERS = ('step', 'memory_mib', 'open_files')
STEPS, WARM = 20_000, 4_000  # after so many steps nothing may grow


def prepare(folder: pathlib.Path, steps: int = STEPS) -> Run:
    config = digits_wb.get_config()
    config.steps, config.chunk, config.checkpoint_every = steps, 20, 1_000
    config.data.n, config.model.hidden = 100, ()
    config.learning_rate, config.dp.noise_multiplier, config.dp.clip_norm = 0.3, 0.8, 0.7
    config.audit.m = 200
    return training.prepare(config, folder)


def run(prepared: Run) -> tuple[dict[str, np.ndarray], list[csv_files.Row]]:
    """The scores, and what the process held on the way."""
    rows = []

    def log(step: int, *chunk: Any) -> None:
        resumable.log(step, *chunk)
        if step % 500 == 0:
            resident = int(pathlib.Path('/proc/self/statm').read_text().split()[1])
            memory = resident * os.sysconf('SC_PAGE_SIZE') / 2**20
            files = len(os.listdir('/proc/self/fd'))
            rows.append({'step': step, 'memory_mib': memory, 'open_files': files})

    with prepared.workdir, ResumableRun(prepared) as resumable:
        state = resumable.restore_or_start()
        state = training.train(prepared, log, state=state, keep=resumable.maybe_save)
        resumable.finish(state)
    return training.collect_scores(prepared, state), rows


def reference(prepared: Run) -> dict[str, np.ndarray]:
    """Algorithm dpsgd in float64, for a softmax of one layer, with the scores of every canary."""
    config, included = prepared.spec.config, np.asarray(prepared.canaries.included)
    c, q, sigma = config.dp.clip_norm, config.dp.sampling_prob, config.dp.noise_multiplier
    images, labels = prepared.dataset.train
    inputs = np.float64(images.reshape(len(labels), -1))
    batch = q * (len(labels) + included.size / 2)
    bias, kernel = (np.float64(leaf) for leaf in jax.tree.leaves(prepared.arrays.state.params))
    place = np.asarray(prepared.canaries.placed.coordinates)
    scores = {name: np.zeros(included.size) for name in prepared.spec.selection.names}

    def log_ratio(along: np.ndarray) -> np.ndarray:
        exponent = (2.0 * c * along - c * c) / (2.0 * (sigma * c) ** 2)
        return np.log1p(q * np.expm1(exponent))

    for drawn, canaries_drawn, noise in _randomness(prepared, sigma * c):
        x, y = inputs[drawn], labels[drawn]
        logits = x @ kernel + bias
        error = np.exp(logits - logits.max(axis=1, keepdims=True))
        error /= error.sum(axis=1, keepdims=True)
        error[np.arange(y.size), y] -= 1.0  # the gradient of the bias; times x, of the kernel
        norms = np.sqrt(np.sum(error**2, axis=1) * (1.0 + np.sum(x**2, axis=1)))
        error *= np.minimum(1.0, c / np.maximum(norms, 1e-300))[:, None]
        summed = np.concatenate([error.sum(axis=0), (x.T @ error).reshape(-1)])
        residual = np.float64(noise)
        residual[place[canaries_drawn]] += c
        gradient = (summed + residual) / batch
        step = config.learning_rate * gradient
        bias, kernel = bias - step[:10], kernel - step[10:].reshape(kernel.shape)
        scores['iterates'] += c * step[place]
        scores['residual'] += c * residual[place]
        scores['iterates_llr'] += log_ratio(batch * gradient[place])
        scores['residual_llr'] += log_ratio(residual[place])
    return scores


def _randomness(prepared: Run, deviation: float) -> Any:
    """Who is drawn, of the data and of the canaries, and the noise, step by step."""
    q, size = prepared.spec.config.dp.sampling_prob, len(prepared.dataset.train.labels)

    @jax.jit
    @jax.vmap
    def drawn(step: jax.Array) -> tuple[jax.Array, ...]:
        keys = jax.random.split(jax.random.fold_in(prepared.arrays.key, step), 5)
        noise = dpsgd.gaussian_noise(keys[2], prepared.arrays.state.params, deviation)
        return (
            sampling.poisson(keys[0], q, jnp.ones(size, bool)),
            sampling.poisson(keys[1], q, prepared.canaries.included),
            jnp.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(noise)]),
        )

    for first in range(0, prepared.spec.config.steps, 1000):
        steps = jnp.arange(first, min(first + 1000, prepared.spec.config.steps))
        yield from zip(*map(np.asarray, drawn(steps)), strict=True)


def distances(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> dict[str, float]:
    """The largest difference of each score, in units of its largest value."""
    return {
        name: float(np.abs(one[name] - other[name]).max() / np.abs(other[name]).max())
        for name in other
    }


def rise(rows: list[csv_files.Row], name: str) -> float:
    """How far it rises after the warm-up above the least that it was since then."""
    seen = np.array([row[name] for row in rows if row['step'] >= WARM])
    return float(np.max(seen - np.minimum.accumulate(seen)))


def plot(rows: list[csv_files.Row], target: Any) -> None:
    figure, (above, below) = plt.subplots(2, figsize=(7, 4), layout='constrained', sharex=True)
    steps = [row['step'] for row in rows]
    above.plot(steps, [row['memory_mib'] for row in rows], color='tab:blue')
    above.set(ylabel='memory (MiB)', ylim=(0, 1.2 * max(row['memory_mib'] for row in rows)))
    below.plot(steps, [row['open_files'] for row in rows], color='tab:orange')
    below.set(xlabel='step', ylabel='open files')
    below.set_ylim(0, 1.2 * max(row['open_files'] for row in rows))
    for axes in (above, below):
        axes.axvspan(0, WARM, color='0.93')
        axes.spines[['top', 'right']].set_visible(False)
    above.text(WARM / 2, 20, 'warm-up', ha='center', color='0.4')
    figure.savefig(target, dpi=110, format='png')
    plt.close(figure)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare(pathlib.Path(folder))
        scores, rows = run(prepared)
    away = distances(scores, reference(prepared))
    csv_files.write(RESULTS / 'long_run.csv', rows, (), NUMBERS)
    (RESULTS / 'long_run.json').write_text(json.dumps(away, indent=2) + '\n')
    plot(rows, RESULTS / 'long_run.png')
    told = Console()
    for name in ('memory_mib', 'open_files'):
        told.print(f'{name}: rises by {rise(rows, name):.2f} after step {WARM:,}')
    for name, value in away.items():
        told.print(f'{name}: {value:.2g} of the largest score away from float64')


if __name__ == '__main__':
    main()
