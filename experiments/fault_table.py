"""Runs the doctor over the fault zoo, and makes results/faults.csv, faults.png and FAULTS.md.

For `python -m experiments.faults`, which see. Every subject has noise, coins and canaries
of its own at every seed.
"""

import argparse
import concurrent.futures
import multiprocessing
import pathlib
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from rich.console import Console
from rich.progress import Progress

from experiments import csv_files, examined_steps, fault_page, faults
from experiments.fault_page import NUMBERS, WORDS, Found
from oneshot import check
from oneshot.check import step
from oneshot.data import datasets, models

HERE = pathlib.Path(__file__).parent
CSV, PICTURE, PAGE = (
    HERE / name for name in ('results/faults.csv', 'results/faults.png', 'FAULTS.md')
)
SEED = 2_305
SEEDS = {'fault': 20, 'control': 26, 'own': 26, 'library': 20}


class Subject(NamedTuple):
    """What is examined on several seeds."""

    kind: str
    name: str
    model: str = 'mlp'

    @classmethod
    def of(cls, row: csv_files.Row) -> 'Subject':
        return cls(row['kind'], row['name'], row['model'])

    def step(self) -> check.Step:
        if self.kind == 'library':
            return getattr(examined_steps, self.name)
        model = None if self.model == 'mlp' else MODELS[self.model]()
        if self.kind == 'own':
            return step.oneshot_step(self.name, model)
        return (faults.FAULTS | faults.CONTROLS)[self.name].step(model)


def _digits() -> tuple[jax.Array, jax.Array]:
    images, labels = datasets.digits(n=256, seed=0).train
    return jnp.asarray(images), jnp.asarray(labels)


def linear() -> check.Model:
    """Logistic regression: two leaves."""

    def loss_fn(params: Any, example: tuple[jax.Array, jax.Array]) -> jax.Array:
        image, label = example
        return -jax.nn.log_softmax(image.reshape(-1) @ params['weight'] + params['bias'])[label]

    return check.Model(loss_fn, {'weight': jnp.zeros((64, 10)), 'bias': jnp.zeros(10)}, _digits())


def cnn() -> check.Model:
    """Two convolutions and two dense layers of Flax NNX."""
    made = models.make('cnn', (8, 8), 10, nnx.Rngs(0), widths=((8,), (16,)))
    apply, params = models.split(made)
    return check.Model(models.cross_entropy(apply), params, _digits())


MODELS = {'linear': linear, 'cnn': cnn}


def subjects() -> list[Subject]:
    """All of them, in the order of the page."""
    return [
        *(Subject('fault', name) for name in faults.FAULTS),
        *(Subject('control', name) for name in faults.CONTROLS),
        *(Subject('control', 'right', model) for model in MODELS),
        *(Subject('own', name, model) for name in ('vmap', 'ghost') for model in ('mlp', *MODELS)),
        Subject('library', 'optax_dpsgd'),
        Subject('library', 'jax_privacy_step'),
    ]


def examine(subject: Subject, seeds: Sequence[int]) -> list[csv_files.Row]:
    """A row for each seed."""
    step, rows = subject.step(), []
    number = zlib.crc32(' '.join(subject).encode())
    for seed in seeds:
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(SEED), number), seed)
        report = check.examine(step, key)
        chances = [one.p_value for one in report.findings if one.p_value is not None]
        rows.append(
            {
                'kind': subject.kind,
                'name': subject.name,
                'model': subject.model,
                'checks': '; '.join(one.check for one in report.faults),
                'seed': seed,
                'eps_claimed': report.audit.eps_claimed,
                'eps_lb': report.audit.eps_lb,
                'least_p': min(1.0, len(chances) * min(chances)),
            }
        )
    return rows


def examine_all(chosen: Sequence[Subject], seeds: dict[str, int]) -> list[csv_files.Row]:
    """Subject by subject, in two processes, each of which compiles a step once."""
    found: dict[Subject, list[csv_files.Row]] = {}
    context = multiprocessing.get_context('spawn')  # JAX has threads, which a fork would lose
    with (
        concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool,
        Progress(console=Console(stderr=True)) as progress,
    ):
        task = progress.add_task('examining', total=len(chosen))
        futures = {
            pool.submit(examine, subject, range(seeds[subject.kind])): subject for subject in chosen
        }
        for future in concurrent.futures.as_completed(futures):
            subject = futures[future]
            found[subject] = future.result()
            progress.advance(task)
            means = Found.of(found[subject]).means
            progress.console.print(f'{", ".join(subject)}: found by {means}')
    return [row for subject in chosen for row in found[subject]]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog='python -m experiments.faults', description=faults.__doc__.split('\n')[0]
    )
    parser.add_argument('--quick', action='store_true', help='two seeds, writes nothing')
    parser.add_argument('--only', nargs='+', help='examines these anew, and keeps the others')
    parser.add_argument('--report', action='store_true', help='the page from the CSV as it is')
    flags = parser.parse_args()
    rows = csv_files.read(CSV, NUMBERS)
    if not flags.report:
        seeds = dict.fromkeys(SEEDS, 2) if flags.quick else SEEDS
        chosen = [one for one in subjects() if not flags.only or one.name in flags.only]
        found = examine_all(chosen, seeds)
        if flags.quick:
            return
        kept = [row for row in rows if Subject.of(row) not in chosen]
        order = {subject: i for i, subject in enumerate(subjects())}
        rows = sorted(kept + found, key=lambda row: (order[Subject.of(row)], row['seed']))
        csv_files.write(CSV, rows, WORDS, NUMBERS)
    fault_page.plot(rows, PICTURE)
    PAGE.write_text(fault_page.page(rows))
    print(f'Written to {CSV.name}, {PICTURE.name} and {PAGE.name}.')
