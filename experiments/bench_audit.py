"""What the audit adds to a step, and what a run costs.

    python -m experiments.bench_audit             # 40 minutes on two cores, nothing else running
    python -m experiments.bench_audit --quick     # tiny sizes, to see that it runs: 2 minutes

- `dirac`: one step with m Dirac canaries, scored by two signals, to one without (m = 0).
  The batch is fixed. Calls take turns, and the median of the differences in a turn counts.
- `inputs`: the scores of m canaries that are examples, by the fused attack, and by making
  their gradients: with vmap, XLA's convolution and as many at once as fit into 1 GB
  (`vmap_xla`), and with vmap, our convolution and 8 at once in a loop (`vmap_loop`).
- `replay`: what is added to a run with canaries by scoring them while it trains (`fused`),
  and by storing every iterate and scoring afterwards. Counted is what storing and replaying
  take alone, and what scoring adds to steps that do nothing but move the parameters, in the
  loop of a run. `in step` says what scored and stored steps took more than plain
  ones, with canaries that nobody scores, of runs in lockstep; and what a second plain run
  took more, which is how far such differences can be believed: two compiled copies of one
  program differ, too. The batch is small, because what is added does not depend on it.
  `insert` is what the canaries themselves cost, alone, in each of the runs. `replay` writes
  to the page cache; `replay_synced` waits until each iterate is on the disk. (For Dirac
  canaries and the signal `iterates` the sum telescopes, and w_0 and w_ℓ would do; for all
  other canaries it takes every iterate.)
- `cost`: whole runs, in chunks, against n (with q = B / n), m, B, the steps and the
  parameters, one at a time, and the slopes on log-log axes.

The ratios are to m = 0, to the fused attack, to the fused audit and to the first value.
Writes results/bench_audit.csv and results/bench_audit.png; there, the rows of parts that
were not asked for are kept.
"""

import argparse
import functools
import io
import itertools
import os
import pathlib
import tempfile
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.flatten_util import ravel_pytree
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track
from rich.table import Table

from experiments import csv_files
from experiments.csv_files import Row
from oneshot import audit, dpsgd
from oneshot.audit import canaries
from oneshot.data import models
from oneshot.dpsgd import clipping, sampling
from oneshot.dpsgd.gradients import strategy

RESULTS = pathlib.Path(__file__).parent / 'results'
NAMES = ('part', 'model', 'method', 'variable')
NUMBERS = ('value', 'seconds', 'ratio', 'bytes', 'slope')
CLASSES, CLIP_NORM, CHUNK = 10, 1.0, 5
GRADIENTS = 1e9  # bytes that the gradients of `vmap_xla` may take
MICROBATCH = 8  # of `vmap_loop`
SCORED = 5  # steps in a row, where scoring is timed without a step's gradients
KEY = jax.random.key(0)

# What is varied in `cost`, and what is fixed. The batches are so large that what a step
# costs without any example does not count.
MLP_FIXED = {'n': 32_768, 'm': 1_000, 'batch': 2_048, 'steps': 20, 'hidden': 64}
MLP_VARIED = {
    'n': (4_096, 8_192, 16_384, 32_768),
    'm': (100, 800, 6_400, 51_200),
    'batch': (4_096, 8_192, 16_384, 32_768),
    'steps': (5, 10, 20, 40, 80),
    'hidden': (16, 32, 64, 128, 256),
}
CNN_FIXED = {'n': 2_048, 'm': 1_000, 'batch': 64, 'steps': 5, 'hidden': 64}
CNN_VARIED = {'batch': (64, 128, 256, 512, 1_024), 'steps': (5, 10, 20, 40, 80)}
QUICK_FIXED = {'n': 512, 'm': 100, 'batch': 64, 'steps': 5, 'hidden': 8}

# What must hold: which number of which row, and its range.
CLAIMS = [
    ('m = 5,000 adds at most 2 %', 'dirac wrn audited m 5000', 'ratio', 0.0, 1.02),
    ('m = 5,000 adds at most 5 %', 'dirac mlp audited m 5000', 'ratio', 0.0, 1.05),
    ('m = 50,000 is within 10 %', 'dirac wrn audited m 50000', 'ratio', 0.9, 1.1),
    ('fused takes at most half (a goal)', 'inputs mlp vmap_xla m 1000', 'ratio', 2.0, np.inf),
    ('fused takes at most half (a goal)', 'inputs cnn vmap_xla m 1000', 'ratio', 2.0, np.inf),
    ('replay adds 5 times the time', 'replay cnn replay dirac 1000', 'ratio', 5.0, np.inf),
    ('replay takes 50 times the disk', 'replay cnn iterates dirac 1000', 'ratio', 50.0, np.inf),
    ('slope in the batch is 1.0 ± 0.1', 'cost mlp run batch 4096', 'slope', 0.9, 1.1),
    ('slope in the batch is 1.0 ± 0.1', 'cost cnn run batch 64', 'slope', 0.9, 1.1),
    ('slope in steps is 1.0 ± 0.1', 'cost mlp run steps 5', 'slope', 0.9, 1.1),
    ('slope in steps is 1.0 ± 0.1', 'cost cnn run steps 5', 'slope', 0.9, 1.1),
]


class Sizes(NamedTuple):
    """What is measured, and how often."""

    image: tuple[int, ...] = (32, 32, 3)
    repeats: int = 3
    dirac: Sequence[tuple[str, int, int]] = (('mlp', 4096, 51), ('wrn', 64, 25))  # B, repeats
    dirac_m: Sequence[int] = (0, 100, 1_000, 5_000, 50_000)
    inputs_m: Sequence[int] = (100, 1_000, 5_000)
    replay: tuple[str, int, float, int] = ('cnn', 1_000, 0.008, 200)  # n, q, steps
    replay_m: Sequence[tuple[str, int, int]] = (('dirac', 1_000, 4), ('mislabeled', 100, 1))
    cost: Sequence[tuple] = (('mlp', MLP_FIXED, MLP_VARIED), ('cnn', CNN_FIXED, CNN_VARIED))


QUICK = Sizes(
    image=(8, 8, 3),
    dirac=(('mlp', 64, 3),),
    dirac_m=(0, 100),
    inputs_m=(20,),
    replay=('mlp', 100, 0.1, 10),
    replay_m=(('dirac', 100, 2), ('mislabeled', 20, 1)),
    cost=(('mlp', QUICK_FIXED, {'batch': (64, 256), 'steps': (10, 40), 'hidden': (8, 64)}),),
)


class Problem(NamedTuple):
    """A model as a loss, and how the fixed rule clips its gradients."""

    loss_fn: strategy.LossFn
    params: Any
    clipping: clipping.Clipping

    @property
    def size(self) -> int:
        """The number of parameters."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.params))

    def white_box(self, chosen: Any, signals: Sequence[str] = ('iterates',)) -> dpsgd.Attack:
        scores = tuple(audit.SCORES[signal] for signal in signals)
        return audit.white_box(chosen, scores, clipping=self.clipping, loss_fn=self.loss_fn)

    def make_step(self, batch: int, sampling_prob: float, attack: dpsgd.Attack | None):
        """(init, step) of `oneshot.dpsgd`."""
        return dpsgd.make_step(
            self.loss_fn,
            optax.sgd(0.1),
            noise_multiplier=1.0,
            sampling_prob=sampling_prob,
            expected_batch_size=batch,
            attacks={} if attack is None else {'white_box': attack},
            clipping=self.clipping,
        )


def make_problem(name: str, image: tuple, hidden: int = 64, conv: str = 'patches') -> Problem:
    model = models.make(name, image, CLASSES, nnx.Rngs(0), hidden=(hidden,), conv=conv)
    apply, params = models.split(model)
    loss_fn, example = models.cross_entropy(apply), (jnp.zeros(image), jnp.int32(0))
    strategy, size = clipping.choose_strategy(loss_fn, params, example)
    return Problem(loss_fn, params, clipping.Clipping(CLIP_NORM, size, strategy))


@functools.cache  # runs share them
def make_examples(image: tuple, count: int, seed: int = 0) -> tuple[jax.Array, jax.Array]:
    """Random images, with random labels."""
    rng = np.random.default_rng(seed)
    images = rng.random((count, *image), dtype=np.float32)
    return jnp.asarray(images), jnp.asarray(rng.integers(0, CLASSES, count, dtype=np.int32))


def in_turn(calls: dict[Hashable, Callable[[], Any]], repeats: int, description: str) -> dict:
    """The seconds of each call, turn by turn, after a turn to warm up.

    Another one begins each turn, so that none gains from its place.
    """
    names, times = list(calls), {name: [] for name in calls}
    for turn in track(range(repeats + 1), description=description):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            start = time.perf_counter()
            jax.block_until_ready(calls[name]())
            times[name].append(time.perf_counter() - start)
    return {name: np.array(seconds[1:]) for name, seconds in times.items()}


def row(part: str, model: str, method: str, variable: str, value: float, **numbers: float) -> Row:
    names = zip(NAMES, (part, model, method, variable), strict=True)
    return dict(names) | dict.fromkeys(NUMBERS, np.nan) | {'value': value} | numbers


def measure_dirac(sizes: Sizes) -> list[Row]:
    rows = []
    for name, batch, repeats in sizes.dirac:
        problem, population = make_problem(name, sizes.image), make_examples(sizes.image, batch)
        calls = {m: _dirac_step(problem, population, m) for m in sizes.dirac_m}
        times = in_turn(calls, repeats, f'dirac, {name}')
        bare = np.median(times[0])
        for m, seconds in times.items():
            ratio = 1.0 + np.median(seconds - times[0]) / bare
            method = 'audited' if m else 'bare'
            rows.append(row('dirac', name, method, 'm', m, seconds=np.median(seconds), ratio=ratio))
    return rows


def _dirac_step(problem: Problem, population: Any, m: int) -> Callable[[], Any]:
    given, attack = (), None
    if m:
        chosen = canaries.dirac(KEY, m, problem.params)
        given = chosen, canaries.flip_coins(KEY, m)
        attack = problem.white_box(chosen, ('iterates', 'residual'))
    init, step = problem.make_step(len(population[1]), 1.0, attack)  # everyone is drawn
    state, step = init(problem.params), jax.jit(step)
    return lambda: step(state, KEY, population, *given)


def vmap_dots(loss_fn: strategy.LossFn, params: Any, examples: Any, direction: Any) -> jax.Array:
    """⟨direction, ĝ_i⟩, with every gradient made and clipped."""
    grads = jax.vmap(jax.grad(loss_fn), (None, 0))(params, examples)
    scale = jnp.minimum(1.0, CLIP_NORM / jnp.sqrt(strategy.squared_norms(grads)))
    clipped = jax.tree.map(lambda g: g * scale.reshape(-1, *[1] * (g.ndim - 1)), grads)
    return strategy.dot(clipped, direction)


def loop_dots(loss_fn: strategy.LossFn, params: Any, examples: Any, direction: Any) -> jax.Array:
    """The same in microbatches, in a loop on the device."""
    parts = clipping.split_microbatches(examples, MICROBATCH)
    dots = jax.lax.map(lambda part: vmap_dots(loss_fn, params, part, direction), parts)
    return dots.reshape(-1)[: len(examples[1])]


def measure_inputs(sizes: Sizes) -> list[Row]:
    rows = []
    for name, m in itertools.product(('mlp', 'cnn'), sizes.inputs_m):
        calls = _input_scores(name, sizes.image, m)
        if m == sizes.inputs_m[0]:
            fused, *others = (np.asarray(call()) for call in calls.values())
            for other in others:
                np.testing.assert_allclose(fused, other, atol=1e-3 * np.abs(other).max())
        times = in_turn(calls, sizes.repeats, f'inputs, {name}, m = {m:,}')
        medians = {method: np.median(seconds) for method, seconds in times.items()}
        for method, seconds in medians.items():
            ratio = seconds / medians['fused']
            rows.append(row('inputs', name, method, 'm', m, seconds=seconds, ratio=ratio))
    return rows


def _input_scores(name: str, image: tuple, m: int) -> dict[str, Callable[[], jax.Array]]:
    ours, plain = make_problem(name, image), make_problem(name, image, conv='xla')
    params, examples = ours.params, make_examples(image, m, seed=1)
    direction = dpsgd.gaussian_noise(KEY, params, 1.0)
    after = jax.tree.map(jnp.subtract, params, direction)
    seen = dpsgd.Observation(params, after, direction, direction)

    @jax.jit
    def fused(examples: Any, seen: dpsgd.Observation) -> jax.Array:
        attack = ours.white_box(canaries.Inputs(examples))
        return attack.update(attack.init(params), seen).sum()[0]

    # Chunks of one size, so that there is one program and next to no padding.
    pieces = -(-m // int(GRADIENTS / (4 * ours.size)))
    chunks = clipping.split_microbatches(examples, -(-m // pieces))
    chunks = [jax.tree.map(lambda x, i=i: x[i], chunks) for i in range(pieces)]
    dots = jax.jit(functools.partial(vmap_dots, plain.loss_fn))
    loop = jax.jit(functools.partial(loop_dots, ours.loss_fn))
    return {
        'fused': lambda: fused(examples, seen),
        'vmap_xla': lambda: jnp.concatenate([dots(params, part, direction) for part in chunks])[:m],
        'vmap_loop': lambda: loop(params, examples, direction),
    }


def measure_replay(sizes: Sizes) -> list[Row]:
    rows, (name, n, rate, steps) = [], sizes.replay
    problem, population = make_problem(name, sizes.image), make_examples(sizes.image, n)
    for kind, m, repeats in sizes.replay_m:
        if kind == 'dirac':
            chosen = canaries.dirac(KEY, m, problem.params)
        else:
            held_out = make_examples(sizes.image, m, seed=1)
            chosen = canaries.mislabeled(KEY, m, *held_out, CLASSES)
        lockstep = Lockstep(problem, population, chosen, rate, steps)
        measured = [lockstep.run(f'replay, {kind}') for _ in range(repeats)]
        times = np.concatenate([times for times, _, _ in measured], axis=1)
        plain, again, fused, stored, sync = times
        alone = lockstep.alone()
        added = {
            'fused': steps * alone['score'],
            'replay': steps * alone['store'] + np.median([seconds for _, seconds, _ in measured]),
        }
        added['replay_synced'] = added['replay'] + steps * np.median(sync)
        whole = {'plain': np.median(plain), 'insert': alone['insert']}
        for method, other in (('plain', again), ('fused', fused), ('stored', stored)):
            whole[f'{method}, in step'] = np.median(other - plain)
        for method, seconds in whole.items():
            rows.append(row('replay', name, method, kind, m, seconds=steps * seconds))
        for method, seconds in added.items():
            numbers = {'seconds': seconds, 'ratio': seconds / added['fused']}
            rows.append(row('replay', name, method, kind, m, **numbers))
        disk = measured[0][2]
        for method, size in disk.items():
            numbers = {'bytes': size, 'ratio': size / disk['scores']}
            rows.append(row('replay', name, method, kind, m, **numbers))
    return rows


class Lockstep:
    """Two plain, a fused and a stored run of the same steps, one step of each at a time."""

    def __init__(
        self, problem: Problem, population: Any, chosen: Any, rate: float, steps: int
    ) -> None:
        self.problem, self.canaries, self.rate, self.steps = problem, chosen, rate, steps
        self.included = canaries.flip_coins(KEY, len(jax.tree.leaves(chosen)[0]))
        self.attack, batch = problem.white_box(chosen), rate * len(population[1])
        plain, fused = (problem.make_step(batch, rate, attack) for attack in (None, self.attack))
        runs = plain, plain, fused, plain
        self.inits = [init for init, _ in runs]
        self.programs = [jax.jit(step, donate_argnums=0) for _, step in runs]
        self.given = KEY, population, chosen, self.included
        self.flatten = jax.jit(lambda tree: ravel_pytree(tree)[0])

    def run(self, description: str) -> tuple[np.ndarray, float, dict[str, int]]:
        """The seconds of the runs' steps and of syncing, and of the replay; bytes on disk."""
        states = [jax.tree.map(jnp.copy, init(self.problem.params)) for init in self.inits]
        times = np.zeros((5, self.steps))
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            self.store(folder / '0.npy', self.problem.params)
            for step in track(range(self.steps), description=description):
                for i in np.roll(range(4), step):
                    start = time.perf_counter()
                    states[i], _ = self.programs[i](states[i], *self.given)
                    jax.block_until_ready(states[i])
                    if i == 3:
                        self.store(folder / f'{step + 1}.npy', states[i].params)
                    times[i, step] = time.perf_counter() - start
                start = time.perf_counter()
                with (folder / f'{step + 1}.npy').open('rb') as file:
                    os.fsync(file.fileno())
                times[4, step] = time.perf_counter() - start
            disk = {'iterates': sum(file.stat().st_size for file in folder.iterdir())}
            replayed, seconds = self.replay(folder)
            fused = np.asarray(states[2].audits['white_box'].sum()[0])
            np.savez_compressed(folder / 'scores.npz', scores=fused)
            disk['scores'] = (folder / 'scores.npz').stat().st_size
        np.testing.assert_allclose(fused, replayed, atol=1e-2 * np.abs(replayed).max())
        return times[:, 1:], seconds, disk  # without the first step, which compiles

    def store(self, path: pathlib.Path, params: Any) -> None:
        np.save(path, self.flatten(params))

    def replay(self, folder: pathlib.Path) -> tuple[np.ndarray, float]:
        """The scores from the iterates on disk, and the seconds that it takes."""
        _, unravel = ravel_pytree(self.problem.params)

        @jax.jit
        def input_dots(before: jax.Array, after: jax.Array) -> jax.Array:
            given = self.canaries.examples, unravel(before - after)
            return loop_dots(self.problem.loss_fn, unravel(before), *given)

        def dirac_dots(before: np.ndarray, after: np.ndarray) -> np.ndarray:
            return CLIP_NORM * (before[coordinates] - after[coordinates])

        dirac = isinstance(self.canaries, canaries.Dirac)
        coordinates = np.asarray(self.canaries.coordinates) if dirac else None
        dots, before = dirac_dots if dirac else input_dots, np.load(folder / '0.npy')
        total = np.zeros(np.shape(dots(before, before)))  # compiled before the clock starts
        start = time.perf_counter()
        for step in range(1, self.steps + 1):
            after = np.load(folder / f'{step}.npy')
            total += np.asarray(dots(before, after))
            before = after
        return total, time.perf_counter() - start

    def alone(self) -> dict[str, float]:
        """The seconds that scoring, inserting and storing add to a step, each alone."""
        loss_fn, params, options = self.problem
        drawn = sampling.poisson(KEY, self.rate, self.included)

        @functools.partial(jax.jit, static_argnames='scored')
        def moved(state: Any, params: Any, move: Any, scored: bool) -> Any:
            """Steps that do nothing but move the parameters, and score what moved."""

            def one(carry: tuple[Any, Any], _: None) -> tuple[tuple[Any, Any], None]:
                state, before = carry
                after = jax.tree.map(jnp.subtract, before, move)
                if scored:
                    seen = dpsgd.Observation(before, after, move, move)
                    state = self.attack.update(state, seen)
                return (state, after), None

            return jax.lax.scan(one, (state, params), length=SCORED)[0]

        given = self.attack.init(params), params, dpsgd.gaussian_noise(KEY, params, 1e-3)

        @jax.jit
        def insert(params: Any, drawn: jax.Array) -> Any:
            group = self.canaries.as_examples(drawn)
            if group is None:
                return self.canaries.gradient_sum(params, drawn, options.clip_norm)
            return clipping.poisson_clipped_grad_sums(loss_fn, params, [group], options)

        with tempfile.TemporaryDirectory() as folder:
            numbers = itertools.count()  # a new file each time, as in the run
            calls = {
                'scored': lambda: moved(*given, scored=True),
                'moved': lambda: moved(*given, scored=False),
                'insert': lambda: insert(params, drawn),
                'store': lambda: self.store(pathlib.Path(folder, f'{next(numbers)}.npy'), params),
            }
            times = in_turn(calls, 50, 'replay, each alone')
        medians = {name: float(np.median(seconds)) for name, seconds in times.items()}
        return medians | {'score': (medians['scored'] - medians['moved']) / SCORED}


def measure_cost(sizes: Sizes) -> list[Row]:
    rows = []
    for name, fixed, varied in sizes.cost:
        for variable, values in varied.items():
            runs = {
                value: _whole_run(name, sizes.image, **fixed | {variable: value})
                for value in values
            }
            times = in_turn(runs, sizes.repeats, f'cost, {name}, {variable}')
            medians = {value: np.median(seconds) for value, seconds in times.items()}
            if variable == 'hidden':
                counts = [make_problem(name, sizes.image, hidden).size for hidden in values]
                variable, medians = 'parameters', dict(zip(counts, medians.values(), strict=True))
            slope = np.polyfit(*np.log([list(medians), list(medians.values())]), 1)[0]
            first = next(iter(medians.values()))
            for value, seconds in medians.items():
                numbers = {'seconds': seconds, 'ratio': seconds / first, 'slope': slope}
                rows.append(row('cost', name, 'run', variable, value, **numbers))
    return rows


def _whole_run(name: str, image: tuple, steps: int, **given: int) -> Callable[[], dpsgd.State]:
    params, init, chunk, arguments = _program(name, image, **given)

    def run() -> dpsgd.State:
        state = jax.tree.map(jnp.copy, init(params))  # it is donated
        for _ in range(0, steps, CHUNK):
            state, _ = chunk(state, jnp.int32(steps), KEY, *arguments)
        return state

    return run


@functools.cache  # one program for any number of steps
def _program(name: str, image: tuple, *, n: int, m: int, batch: int, hidden: int) -> tuple:
    """Dirac canaries and chunks, as in `oneshot.run`."""
    problem = make_problem(name, image, hidden)
    chosen, included = canaries.dirac(KEY, m, problem.params), canaries.flip_coins(KEY, m)
    init, step = problem.make_step(batch, batch / n, problem.white_box(chosen))
    arguments = make_examples(image, n), chosen, included
    return problem.params, init, dpsgd.make_chunk(step, CHUNK), arguments


PARTS = {
    'dirac': measure_dirac,
    'inputs': measure_inputs,
    'replay': measure_replay,
    'cost': measure_cost,
}


def show(rows: list[Row]) -> None:
    console = Console(width=100)
    formats = {'value': ',.0f', 'seconds': ',.4g', 'ratio': ',.4g', 'bytes': ',.0f', 'slope': '.3f'}
    for part, group in itertools.groupby(rows, lambda row: row['part']):
        table = Table(title=part, title_justify='left')
        for name in (*NAMES[1:], *NUMBERS):
            table.add_column(name, justify='right' if name in NUMBERS else 'left')
        for row in group:
            numbers = (format(row[name], formats[name]).replace('nan', '') for name in NUMBERS)
            table.add_row(*(row[name] for name in NAMES[1:]), *numbers)
        console.print(table)
    table = Table(title='what must hold', title_justify='left')
    for name in ('of', 'claim', 'measured', 'holds'):
        table.add_column(name, justify='right' if name == 'measured' else 'left')
    found = {' '.join([*(row[k] for k in NAMES), f'{row["value"]:.0f}']): row for row in rows}
    for claim, of, column, low, high in CLAIMS:
        if of in found:
            x = found[of][column]
            table.add_row(of, claim, f'{column} {x:,.4g}', 'yes' if low <= x <= high else 'no')
    console.print(table)


def plot(rows: list[Row], file: Any) -> None:
    figure = Figure(figsize=(10, 7), layout='constrained')
    axes = dict(zip(PARTS, figure.subplots(2, 2).flat, strict=True))
    curves: dict[tuple[str, ...], list[list[float]]] = {}
    for row in rows:
        curve = curves.setdefault(tuple(row[name] for name in NAMES), [])
        curve.append([row[name] for name in NUMBERS])
    for (part, model, method, variable), curve in curves.items():
        values, seconds, ratios, _, slopes = np.array(curve).T
        if part == 'dirac' and method == 'audited':
            axes[part].semilogx(values, 100 * (ratios - 1), 'o-', label=model)
        elif part == 'inputs':
            axes[part].loglog(values, seconds, 'o-', label=f'{model}, {method}')
        elif part == 'replay' and method in ('insert', 'fused', 'replay', 'replay_synced'):
            axes[part].semilogx(seconds, [f'{variable}, {method}'], 'o', color='tab:blue')
        elif part == 'cost':
            label = f'{model}, {variable}: {slopes[0]:.2f}'
            axes[part].loglog(values / values[0], ratios, 'o-', label=label)
    axes['replay'].invert_yaxis()
    axes['dirac'].axhline(0.0, color='black', linewidth=1)
    axes['dirac'].set(title='Dirac canaries', xlabel='m', ylabel='% added to a step')
    axes['inputs'].set(title='Input canaries', xlabel='m', ylabel='seconds for all scores')
    axes['replay'].set(title='Fused or replayed', xlabel='seconds of a run')
    axes['cost'].set(title='A run: slopes', xlabel='times the value', ylabel='times the seconds')
    for panel in axes.values():
        panel.spines[['top', 'right']].set_visible(False)
        if panel.get_legend_handles_labels()[0]:
            panel.legend(frameon=False, fontsize=8)
    figure.savefig(file, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--parts', default=','.join(PARTS), help='with commas between them')
    parser.add_argument('--quick', action='store_true', help='tiny sizes; nothing is written')
    args = parser.parse_args()
    parts = args.parts.split(',')
    if not set(parts) <= set(PARTS):
        parser.error(f'--parts must be some of {", ".join(PARTS)}, but {args.parts} was given.')
    path, sizes = RESULTS / 'bench_audit.csv', QUICK if args.quick else Sizes()
    known = [] if args.quick else csv_files.read(path, NUMBERS)
    rows = []
    for part, measure in PARTS.items():
        kept = [row for row in known if row['part'] == part]
        rows += measure(sizes) if part in parts else kept
    show(rows)
    plot(rows, io.BytesIO() if args.quick else path.with_suffix('.png'))
    if not args.quick:
        csv_files.write(path, rows, NAMES, NUMBERS)
        print(f'Written to {RESULTS.name}/bench_audit.csv and bench_audit.png.')


if __name__ == '__main__':
    main()
