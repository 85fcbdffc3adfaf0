"""Runs killed with SIGKILL at random moments, which all have to end as if nothing had happened.

    python -m experiments.crash       # 10 minutes on two cores

Each run is `python -m oneshot.main` in a process of its own, killed one to four times: at a
random moment after it was started, while it trains, or while it writes a checkpoint. The same
command is then given again until the run is finished. Parameters, optimizer, average,
accumulators, scores, coins, metrics and result.json (but for its seconds) are compared with
those of a run that was never stopped, bit for bit. Writes results/crash.csv and
results/crash.png.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

import jax
import matplotlib.pyplot as plt
import numpy as np
import orbax.checkpoint as ocp
from rich.console import Console
from rich.progress import track
from rich.table import Table

from experiments import csv_files

ROOT = pathlib.Path(__file__).parents[1]
RESULTS = ROOT / 'experiments' / 'results'
RUNS, SEED = 66, 0
WORDS = ('config', 'kills', 'differs')
NUMBERS = ('run', 'starting', 'training', 'saving', 'verdict', 'warnings', 'seconds')
PHASES = 'starting', 'training', 'saving', 'verdict'

_SHORT = (
    '--config.data.n=300',
    '--config.dp.noise_multiplier=1.0',
    '--config.steps=2000',
    '--config.chunk=10',
    '--config.checkpoint_every=100',
)
CONFIGS = {  # every kind of state: plain; optimizer, average and views; losses of the first model
    'sgd': ('digits_wb.py', *_SHORT, '--config.checkpoint_keep=1'),
    'adam': (
        'digits_wb.py',
        *_SHORT,
        '--config.optimizer=adam',
        '--config.learning_rate=0.01',
        '--config.ema_decay=0.9',
        '--config.views=2',
        '--config.evaluate_every=300',
        '--config.steps=600',
    ),
    'black_box': ('digits_bb.py', *_SHORT, '--config.audit.m=100', '--config.steps=600'),
}


def command(config: str, folder: pathlib.Path) -> list[str]:
    name, *flags = CONFIGS[config]
    numbers = ['--config.audit.k_plus=20', '--config.audit.k_minus=20']
    line = [sys.executable, '-m', 'oneshot.main', f'--config=configs/{name}', *numbers]
    return [*line, *flags, f'--workdir={folder}']


def start(config: str, folder: pathlib.Path) -> subprocess.Popen:
    with (folder.parent / f'{folder.name}.log').open('ab') as log:
        return subprocess.Popen(command(config, folder), cwd=ROOT, stdout=log, stderr=log)


def whole(config: str, folder: pathlib.Path) -> float:
    """A run that is never stopped; gives its seconds."""
    begin = time.perf_counter()
    status = start(config, folder).wait()
    assert status == 0, f'{folder}.log: exit status {status}'
    return time.perf_counter() - begin


def killed(
    number: int,
    config: str,
    folder: pathlib.Path,
    lasts: float,
    kills: tuple[int, ...],
    moments: tuple[str, ...],
) -> csv_files.Row:
    """A run that is killed, and started again until it is finished."""
    rng, begin = random.Random(f'{SEED} {number}'), time.perf_counter()
    phases: collections.Counter[str] = collections.Counter()
    told, wanted = [], rng.choice(kills)
    while len(told) < wanted:
        process = start(config, folder)
        moment = rng.choice(moments)
        if moment == 'saving':
            while_saving(process, folder, rng)
        elif moment == 'training':
            while_training(process, folder, rng)
        else:
            sleep(process, rng.uniform(0.0, lasts))
        process.send_signal(signal.SIGKILL)
        if process.wait() == 0:  # it was faster, and is finished
            if told:
                break
            shutil.rmtree(folder)
            lasts /= 2
            continue
        phase = look(folder)
        phases[phase] += 1
        told.append(f'{phase} {newest(folder)}')
    status = start(config, folder).wait()
    log = folder.parent / f'{folder.name}.log'
    assert status == 0, f'{log}: exit status {status}'
    return {
        'run': number,
        'config': config,
        'kills': '; '.join(told),
        'warnings': log.read_text().count('warning:'),
        'seconds': time.perf_counter() - begin,
    } | {phase: phases[phase] for phase in PHASES}


def while_saving(process: subprocess.Popen, folder: pathlib.Path, rng: random.Random) -> None:
    """Waits until some checkpoint is under way, and for some of the time that it takes."""
    passed = rng.randrange(4)  # whole saves, before
    seen = False
    while process.poll() is None:
        now = (folder / 'checkpoints' / 'unfinished').exists()
        if now and not seen:
            if passed == 0:
                time.sleep(rng.uniform(0.0, 0.06))
                return
            passed -= 1
        seen = now
        time.sleep(0.0005)


def while_training(process: subprocess.Popen, folder: pathlib.Path, rng: random.Random) -> None:
    """Waits until some chunks are made after the first of this process."""
    metrics, first, more = folder / 'metrics.jsonl', None, rng.randrange(40)
    while process.poll() is None:
        lines = metrics.read_bytes().count(b'\n') if metrics.exists() else 0
        if first is None or lines < first:  # what was not kept is cut off at the start
            first = lines
        if lines > first + more:
            return
        time.sleep(0.0005)


def sleep(process: subprocess.Popen, seconds: float) -> None:
    end = time.perf_counter() + seconds
    while process.poll() is None and time.perf_counter() < end:
        time.sleep(0.001)


def look(folder: pathlib.Path) -> str:
    """What a run was doing when it was killed, by what it left."""
    if (folder / 'checkpoints' / 'unfinished').exists():
        return 'saving'
    metrics = folder / 'metrics.jsonl'
    if not metrics.exists() or not metrics.stat().st_size:
        return 'starting'
    last = json.loads(metrics.read_text().splitlines()[-1])['step']
    steps = json.loads((folder / 'config.json').read_text())['steps']
    return 'verdict' if last == steps else 'training'


def newest(folder: pathlib.Path) -> int:
    """The step of the newest checkpoint, 0 if there is none."""
    names = [path.name for path in (folder / 'checkpoints').glob('*')]
    return max((int(name) for name in names if name.isdecimal()), default=0)


def last_state(folder: pathlib.Path) -> Any:
    """What was kept after the last step, on one device, wherever it was made."""
    steps = json.loads((folder / 'config.json').read_text())['steps']
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as reader:
        path = (folder / f'checkpoints/{steps}/state').absolute()
        return reader.restore(path, args=ocp.args.StandardRestore(fallback_sharding=here))


def differences(one: pathlib.Path, other: pathlib.Path) -> list[str]:
    """What is not the same, bit for bit, in two workdirs."""
    found = []
    leaves = [jax.tree.leaves_with_path(last_state(folder)) for folder in (one, other)]
    if [path for path, _ in leaves[0]] != [path for path, _ in leaves[1]]:
        found.append('the tree of the state')
    for (path, a), (_, b) in zip(*leaves, strict=False):
        if np.asarray(_plain(a)).tobytes() != np.asarray(_plain(b)).tobytes():
            found.append(jax.tree_util.keystr(path))
    for name in ('scores.npz', 'coins.npz'):
        with np.load(one / name) as a, np.load(other / name) as b:
            if a.files != b.files or any(a[key].tobytes() != b[key].tobytes() for key in a.files):
                found.append(name)
    if (one / 'metrics.jsonl').read_bytes() != (other / 'metrics.jsonl').read_bytes():
        found.append('metrics.jsonl')
    records = [json.loads((folder / 'result.json').read_text()) for folder in (one, other)]
    found += [
        f'result.json: {key}'
        for key in records[0].keys() | records[1].keys()
        if key != 'seconds' and records[0].get(key) != records[1].get(key)
    ]
    return found


def _plain(leaf: Any) -> Any:
    typed = isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if typed else leaf


def crash(
    runs: int,
    folder: pathlib.Path,
    configs: tuple[str, ...] = tuple(CONFIGS),
    kills: tuple[int, ...] = (1, 1, 2, 3, 4),
    moments: tuple[str, ...] = ('saving', 'training', 'any'),
) -> list[csv_files.Row]:
    """So many runs, two at a time, each killed as often as one of `kills` says, at `moments`."""
    os.environ.setdefault('JAX_COMPILATION_CACHE_DIR', str(folder / 'programs'))
    os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0')
    rows = []
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        lasts = pool.map(lambda one: whole(one, folder / one), configs)
        cases = list(zip(configs, lasts, strict=True))
        jobs = []
        for number in range(runs):
            config, last = cases[number % len(cases)]
            given = number, config, folder / f'run_{number}', last, kills, moments
            jobs.append(pool.submit(killed, *given))
        for job in track(concurrent.futures.as_completed(jobs), 'killing', total=runs):
            row = job.result()
            other = differences(folder / row['config'], folder / f'run_{row["run"]}')
            rows.append(row | {'differs': '; '.join(other)})
    return sorted(rows, key=lambda row: row['run'])


def show(rows: list[csv_files.Row]) -> None:
    table = Table(title='runs that were killed', title_justify='left')
    for name in ('config', 'runs', 'kills', *PHASES, 'equal'):
        table.add_column(name)
    for config in (*CONFIGS, 'all'):
        of = [row for row in rows if config in (row['config'], 'all')]
        phases = [int(sum(row[phase] for row in of)) for phase in PHASES]
        equal = sum(not row['differs'] for row in of)
        table.add_row(config, *map(str, (len(of), sum(phases), *phases, equal)))
    Console().print(table)


def plot(rows: list[csv_files.Row], target: Any) -> None:
    """For every run, what it was doing when it was killed."""
    figure, axes = plt.subplots(figsize=(7, 3.2), layout='constrained')
    left = np.zeros(len(rows))
    shade = dict(zip(PHASES, ('tab:gray', 'tab:blue', 'tab:orange', 'tab:green'), strict=True))
    for phase in PHASES:
        sizes = np.array([row[phase] for row in rows])
        axes.bar(range(len(rows)), sizes, bottom=left, color=shade[phase], label=phase)
        left += sizes
    axes.set(xlabel='run', ylabel='times killed with SIGKILL')
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.spines[['top', 'right']].set_visible(False)
    equal = sum(not row['differs'] for row in rows)
    axes.set_title(f'{equal} of {len(rows)} runs ended bit for bit equal', loc='left')
    figure.legend(loc='outside right upper', title='killed while', frameon=False)
    figure.savefig(target, dpi=110, format='png')
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--runs', type=int, default=RUNS)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        rows = crash(runs, pathlib.Path(folder))
    csv_files.write(RESULTS / 'crash.csv', rows, WORDS, NUMBERS)
    plot(rows, RESULTS / 'crash.png')
    show(rows)
    different = [row for row in rows if row['differs']]
    assert not different, different


if __name__ == '__main__':
    main()
