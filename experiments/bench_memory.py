"""Memory of the audited step: it grows with neither the steps nor the batch.

    python -m experiments.bench_memory        # 2 minutes on two cores

- `temporary`: what XLA's compiled program of a chunk needs beside its arguments, as the
  program itself says, for several sampling probabilities (so, batches) and chunks.
- `growth`: by how much the resident set of a process that makes the run, at its peak, is
  above that after the first chunk, as Linux says. Each case has a process of its own.

Writes results/bench_memory.csv.
"""

import argparse
import csv
import json
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.progress import track
from rich.table import Table

from configs import digits_wb
from oneshot import dpsgd
from oneshot.run import training

RESULTS = pathlib.Path(__file__).parent / 'results'

# (steps, sampling probability)
CASES = [(100, 0.1), (1_000, 0.1), (10_000, 0.1), (1_000, 0.01), (1_000, 1.0)]


def measure(steps: int, sampling_prob: float) -> dict[str, float]:
    """Makes one run in this process."""
    config = digits_wb.get_config()
    config.steps, config.dp.sampling_prob = steps, sampling_prob
    config.dp.noise_multiplier = 1.0
    run = training.prepare(config)
    chunk = dpsgd.make_chunk(run.program.step, config.chunk)
    given = jnp.int32(steps), run.arrays.key, *run.step_arguments
    compiled = chunk.lower(run.arrays.state, *given).compile()
    state, _ = jax.block_until_ready(compiled(run.arrays.state, *given))
    pathlib.Path('/proc/self/clear_refs').write_text('5')  # forget the peak so far
    before = _status('VmRSS')
    for _ in range(config.chunk, steps, config.chunk):
        state, _ = jax.block_until_ready(compiled(state, *given))
    return {
        'steps': steps,
        'batch': sampling_prob * (config.data.n + config.audit.m / 2),
        'temporary_bytes': compiled.memory_analysis().temp_size_in_bytes,
        'growth_bytes': _status('VmHWM') - before,
    }


def _status(name: str) -> int:
    """A size from /proc/self/status, in bytes."""
    lines = pathlib.Path('/proc/self/status').read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(name)).split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--case', type=int, help='one case, as JSON')
    case = parser.parse_args().case
    if case is not None:
        print(json.dumps(measure(*CASES[case])))
        return
    rows = []
    for index in track(range(len(CASES)), description='measuring'):
        line = [sys.executable, '-m', 'experiments.bench_memory', f'--case={index}']
        done = subprocess.run(line, capture_output=True, text=True, check=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
    table = Table(title='memory of one audited run', title_justify='left')
    for name in ('steps', 'expected batch', 'temporary, MB', 'growth, MB'):
        table.add_column(name, justify='right')
    for row in rows:
        megabytes = (f'{row[name] / 1e6:.2f}' for name in ('temporary_bytes', 'growth_bytes'))
        table.add_row(f'{row["steps"]:,}', f'{row["batch"]:,.0f}', *megabytes)
    Console(width=90).print(table)
    with (RESULTS / 'bench_memory.csv').open('w', newline='') as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator='\n')
        writer.writeheader()
        writer.writerows(rows)
    print(f'Written to {RESULTS.name}/bench_memory.csv.')


if __name__ == '__main__':
    main()
