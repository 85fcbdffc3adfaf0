"""What checkpoints cost: a CNN's run with one every 50 steps, beside one without.

    python -m experiments.bench_checkpoints       # 6 minutes on two cores

The CNN of 402,986 parameters on images of CIFAR-10's size, batches of 256, 5,000 canaries: by
`oneshot.run`, as `oneshot.main` runs it, with metrics and events. Blocks of 50 steps with and
without a checkpoint at their beginning take turns in one process. A block lasts until its
checkpoint is written, so that what is done in the background counts. Beside them, the time
that a checkpoint takes alone: what it costs if nothing of it is in the background. Writes
results/bench_checkpoints.csv.
"""

import argparse
import pathlib
import statistics
import tempfile
import time

import jax
from rich.console import Console
from rich.progress import track

from configs import cifar_wb
from experiments import csv_files
from oneshot.run import training
from oneshot.run.preparation import Run
from oneshot.run.resumption import ResumableRun
from tests import tiny_tfds

RESULTS = pathlib.Path(__file__).parent / 'results'
NUMBERS = ('block', 'without_seconds', 'with_seconds', 'ratio', 'alone_seconds', 'mib')
BLOCK, PAIRS = 50, 12


def prepare(folder: pathlib.Path, quick: bool) -> Run:
    """Random images will do: what they show changes no time."""
    tiny_tfds.write(folder / 'tfds', train=1000, test=100)
    config = cifar_wb.get_config('cpu')
    config.data_dir, config.data.n = str(folder / 'tfds'), 1_000
    config.model.widths, config.model.stride = ((32, 32), (64, 64), (128,)), 1
    config.dp.noise_multiplier, config.dp.sampling_prob = 1.0, 256 / 1_000
    config.chunk, config.evaluate_every, config.checkpoint_every = 10, 0, BLOCK
    config.learning_rate = 0.1
    if quick:
        config.model.widths, config.audit.m = ((4,), (4,), (4,)), 100
    return training.prepare(config, folder / 'run')


def measure(prepared: Run, pairs: int) -> list[csv_files.Row]:
    """Seconds of a block with a checkpoint at its start, and of one without, in turns."""
    rows, seconds = [], {}
    with prepared.workdir, ResumableRun(prepared) as resumable:
        state = resumable.restore_or_start()
        state = training.train(prepared, resumable.log, state=state, until=BLOCK)  # compiles
        for pair in track(range(pairs), 'measuring'):
            for saves in (False, True) if pair % 2 else (True, False):
                first = int(state.step)
                start = time.perf_counter()
                if saves:
                    resumable.save(first, state)
                state = training.train(prepared, resumable.log, state=state, until=first + BLOCK)
                jax.block_until_ready(state)
                if saves:
                    resumable.wait()
                seconds[saves] = time.perf_counter() - start
            start = time.perf_counter()
            resumable.save(int(state.step) + 1, state)  # under another name, or it would be there
            resumable.wait()
            alone = time.perf_counter() - start
            folder = prepared.workdir.path / 'checkpoints'
            newest = max(folder.glob('[0-9]*'), key=lambda path: int(path.name))
            size = sum(path.stat().st_size for path in newest.rglob('*') if path.is_file())
            ratio = seconds[True] / seconds[False]
            row = {'block': pair, 'without_seconds': seconds[False], 'with_seconds': seconds[True]}
            rows.append(row | {'ratio': ratio, 'alone_seconds': alone, 'mib': size / 2**20})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--pairs', type=int, default=PAIRS)
    pairs = parser.parse_args().pairs
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(prepare(pathlib.Path(folder), quick=False), pairs)
    csv_files.write(RESULTS / 'bench_checkpoints.csv', rows, (), NUMBERS)
    ratios = [row['ratio'] for row in rows]
    low, *_, high = statistics.quantiles(ratios, n=4)
    without = statistics.median(row['without_seconds'] for row in rows)
    alone = statistics.median(row['alone_seconds'] for row in rows)
    Console().print(
        f'A checkpoint of {rows[0]["mib"]:.1f} MiB every {BLOCK} steps: {BLOCK} steps take '
        f'{statistics.median(ratios):.4f} times as long, quartiles {low:.4f} and {high:.4f}, '
        f'{without:.1f} s without. Alone it takes {alone:.3f} s, {alone / without:.2%} of that.'
    )


if __name__ == '__main__':
    main()
