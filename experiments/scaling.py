"""One step on 1 to 8 devices and on 2 processes, what it moves between them, and a prediction.

    python -m experiments.scaling         # 8 minutes on two cores

- measured: the seconds of a step of a CNN on the embedded digits, by `oneshot.run`, each
  layout in processes of its own. All devices share two cores, so this shows what splitting
  costs, not what it gains. Strong: 260 examples a step on however many devices; weak: 65 a
  device. Each is beside one device with the same batch, measured before and after it.
- counted: the bytes that a device sends in one step, read off the compiled program
  (`experiments.traffic`), for the same CNN, for WRN-16-4 and for a model of a billion
  parameters, compiled for 8 devices and not run.
- predicted: from these bytes, the time of a step on 8, 64 and 512 devices with real links.
  Every assumption is in `MACHINES`, `MODELS` and `predict`.

Writes results/scaling.csv, results/scaling_predicted.csv and results/scaling.png.
"""

import argparse
import json
import math
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx
from rich.console import Console
from rich.progress import track
from rich.table import Table

from configs import digits_wb
from experiments import csv_files
from experiments.traffic import collectives
from oneshot import dpsgd
from oneshot.audit import attacks, canaries, sharded_canaries
from oneshot.audit.score import white_box_scores
from oneshot.data import models
from oneshot.dpsgd import sharding
from oneshot.dpsgd.layout import Layout
from oneshot.run import command_line, settings, training
from oneshot.run.preparation import Run

RESULTS = pathlib.Path(__file__).parent / 'results'
ROOT = RESULTS.parents[1]
STATISTICS = 4  # numbers that travel with the gradient
STRONG, WEAK = 260, 65  # examples a step; examples a step and device
CHUNK, CHUNKS = 4, 5
WORDS = ('kind', 'layout')
NUMBERS = ('processes', 'devices', 'batch', 'seconds', 'ratio', 'sent_mb', 'state_mb')

# (processes, devices of each, data, model)
LAYOUTS = [(1, 2, 2, 1), (1, 4, 4, 1), (2, 2, 4, 1), (1, 8, 8, 1), (1, 8, 4, 2), (1, 8, 1, 8)]


class Machine(NamedTuple):
    """What is assumed of devices and their links; bandwidths are of one device, one way."""

    name: str
    node: int  # devices with fast links between them
    fast: float  # bytes a second inside of a node
    slow: float  # bytes a second between nodes
    latency: float  # seconds of one hop
    flops: float  # a second and device, sustained: 30 % of the peak in bfloat16


MACHINES = [
    Machine('A100, NVLink and 200 Gb/s InfiniBand', 8, 300e9, 25e9, 10e-6, 0.3 * 312e12),
    Machine('TPU v4, one axis of its torus', 4096, 100e9, 100e9, 2e-6, 0.3 * 275e12),
]


class Model(NamedTuple):
    """A model at the size of an accelerator."""

    name: str
    inputs: float  # what is differentiated for one example: views, or tokens
    data: int | None  # of the mesh; as many as there are devices
    model: int


BATCH, CANARIES = 4_096, 100_000
MODELS = [
    Model('WRN-16-4, 16 views', 16, None, 1),
    Model('10⁹ parameters, 1,024 tokens', 1_024, None, 8),
]
SIZES = (8, 64, 512)
PREDICTED_WORDS = ('model', 'machine', 'layout')
PREDICTED = (
    'devices',
    'parameters',
    'sent_mb',
    'compute_ms',
    'exchange_ms',
    'efficiency',
    'state_mb',
    'working_mb',
)


def sent(parameters: float, data: int, model: int) -> float:
    """The bytes that a device sends in a step with Dirac canaries, where all leaves are split.

    Parameters are gathered over `model`, their gradient is reduced and scattered over it, and
    each part is reduced over `data`; by rings, which send the least. `main` and the tests
    compare it with what is counted in compiled programs.
    """
    size, devices = 4 * parameters, data * model
    along_model, along_data = (model - 1) / model, (data - 1) / data
    statistics = 2 * (devices - 1) / devices * 4 * STATISTICS
    return 2 * along_model * size + 2 * along_data * size / model + statistics


def config(batch: float, data: int, model: int) -> Any:
    made = digits_wb.get_config()
    made.model.name, made.model.widths = 'cnn', ((32, 32), (64, 64))
    made.learning_rate, made.dp.noise_multiplier = 0.1, 1.0
    made.data.n, made.audit.m, made.chunk = 1_200, 2_000, CHUNK
    made.steps = CHUNK * (CHUNKS + 1)
    made.dp.sampling_prob = batch / made.data.n  # and Dirac canaries, which cost no gradient
    made.mesh.data, made.mesh.model = data, model
    return made


def case(batch: float, data: int, model: int) -> None:
    """Makes one run, and prints what was measured. One of several processes, perhaps."""
    problems = settings.Problems()
    command_line.join(config(batch, data, model), problems)
    problems.raise_all()
    prepared = training.prepare(config(batch, data, model))
    ends: list[float] = []
    training.train(prepared, lambda *_: ends.append(time.perf_counter()))
    seconds = statistics.median(np.diff(ends)) / CHUNK  # the first chunk compiles
    if jax.process_index() == 0:
        found = {'seconds': seconds, 'state_mb': held(prepared.arrays.state) / 1e6}
        print(json.dumps(found | {'sent_mb': sum(one.sent for one in exchanges(prepared)) / 1e6}))
    else:
        exchanges(prepared)  # compiled by all


def exchanges(prepared: Run) -> list[Any]:
    given = prepared.arrays.state, prepared.arrays.key, *prepared.step_arguments
    with sharding.use_mesh(prepared.layout.mesh):
        return collectives(jax.jit(prepared.program.step).lower(*given).compile())


def held(tree: Any) -> int:
    """The bytes of a tree on the first device of this process."""
    shards = [leaf.addressable_shards[0] for leaf in jax.tree.leaves(tree)]
    return sum(shard.data.nbytes for shard in shards)


def run(processes: int, devices: int, batch: float, data: int, model: int) -> csv_files.Row:
    """`case` in processes of its own."""
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        address = f'127.0.0.1:{free.getsockname()[1]}'
    numbers = [str(number) for number in (batch, data, model)]
    line = [sys.executable, '-m', 'experiments.scaling', '--case', *numbers]
    started = []
    for index in range(processes):
        env = os.environ | {'JAX_NUM_CPU_DEVICES': str(devices)}
        if processes > 1:
            env |= {'JAX_COORDINATOR_ADDRESS': address, 'JAX_NUM_PROCESSES': str(processes)}
            env['JAX_PROCESS_ID'] = str(index)
        started.append(subprocess.Popen(line, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True))
    printed = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise RuntimeError(f'{line} failed.')
    return json.loads(printed[0].splitlines()[-1])


def measure(layouts: list[tuple[int, int, int, int]]) -> list[csv_files.Row]:
    """Every layout beside one device with the same batch, before and after it."""
    rows, cases = [], [(kind, layout) for kind in ('strong', 'weak') for layout in layouts]
    after, measured = {'seconds': math.nan}, None  # on one device, with which batch
    for kind, (processes, devices, data, model) in track(cases, 'measuring'):
        batch = STRONG if kind == 'strong' else WEAK * data * model
        before = after if measured == batch else run(1, 1, batch, 1, 1)
        found = run(processes, devices, batch, data, model)
        after, measured = run(1, 1, batch, 1, 1), batch
        alone = (before['seconds'] + after['seconds']) / 2
        layout = f'{data}×{model}' + (f', {processes} processes' if processes > 1 else '')
        sizes = {'processes': processes, 'devices': data * model, 'batch': batch}
        rows.append({'kind': kind, 'layout': layout, **sizes, **found})
        rows[-1]['ratio'] = found['seconds'] / alone
    return rows


def compiled(which: Model, data: int, model: int) -> tuple[Any, int, int]:
    """The step of a large model for 8 devices, its parameters, and the state on a device."""
    layout = Layout(sharding.make_mesh(data, model))
    image, classes = (32, 32, 3), 10

    def build() -> nnx.Module:
        if which.inputs == 16:
            return models.make('wrn', image, classes, nnx.Rngs(0))
        # What is sent depends on the shapes of parameters alone: dense layers will do.
        return models.make('mlp', image, classes, nnx.Rngs(0), hidden=(9_472,) * 12)

    network, shapes = models.split(nnx.eval_shape(build))
    with jax.default_device(jax.devices('cpu')[0]):
        chosen = canaries.dirac(jax.random.key(0), CANARIES, shapes)
        placed, _ = sharded_canaries.shard(chosen, layout, shapes)
    claim = {'noise_multiplier': 1.0, 'sampling_prob': BATCH / 50_000}
    clipping = dpsgd.Clipping(1.0, 8, 'ghost')
    known = {'expected_batch_size': float(BATCH), 'clipping': clipping, **claim}

    def watching(given: Any) -> dict[str, dpsgd.Attack]:
        scores = white_box_scores(('iterates', 'residual'), ('dot', 'llr'))
        return {'white_box': attacks.white_box(given, scores, **known)}

    init, step = dpsgd.make_step(
        models.cross_entropy(network), optax.sgd(1.0, 0.9), attacks=watching, n=50_000, **known
    )
    with sharding.use_mesh(layout.mesh):
        params = jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
            shapes,
            layout.like_params(shapes),
        )
        state = jax.jit(init).lower(params, placed).compile()
        state = jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
            jax.eval_shape(init, params, placed),
            state.output_shardings,
        )
        rows = layout.sharding(sharding.ROWS)
        population = (
            jax.ShapeDtypeStruct((50_000, *image), jnp.float32, sharding=rows),
            jax.ShapeDtypeStruct((50_000,), jnp.int32, sharding=rows),
        )
        included = jax.ShapeDtypeStruct((CANARIES,), bool, sharding=layout.sharding())
        key = layout.place(jax.random.key(0))
        program = jax.jit(step).lower(state, key, population, placed, included).compile()
    on_device = sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(state)
    )
    return program, sum(leaf.size for leaf in jax.tree.leaves(params)), on_device


def forward_flops(which: Model, parameters: int) -> float:
    """Of one view or token: as XLA counts them, or two for each parameter."""
    if which.inputs != 16:
        return 2.0 * parameters
    network, shapes = models.split(
        nnx.eval_shape(lambda: models.make('wrn', (32, 32, 3), 10, nnx.Rngs(0), conv='xla'))
    )
    image = jax.ShapeDtypeStruct((32, 32, 3), jnp.float32)
    return jax.jit(network).lower(shapes, image).cost_analysis()['flops']


def exchange_seconds(machine: Machine, size: float, devices: int, times: int) -> float:
    """Of `size` bytes among so many devices; an all-reduce passes through `times` = 2 times.

    Inside of a node by its fast links, then between nodes, where each device sends its share
    of the node's result: what hierarchical rings do. Trees of log2(devices) hops.
    """
    inside = min(devices, machine.node)
    nodes = devices // inside
    seconds = times * (inside - 1) / inside * size / machine.fast
    seconds += times * (nodes - 1) / nodes * (size / inside) / machine.slow
    return seconds + times * math.ceil(math.log2(max(devices, 1))) * machine.latency


def predict(
    which: Model, machine: Machine, devices: int, parameters: int, flops: float, working: float
) -> csv_files.Row:
    """The time of a step, none of whose exchanges is hidden behind its computation.

    Assumed: a step computes four times what the forward pass of its examples does (one
    forward, two backward, one for norms and weighted sums); all devices draw equally many
    examples; noise, optimizer and scores take no time beside that. Split parameters are
    gathered and scattered inside of a node, and reduced between groups of them. `working` is
    what XLA for CPU needs beside the state, at microbatches of 8: it holds the parameters and
    their gradient in one piece, and does not depend on the number of devices.
    """
    model = which.model
    data = devices // model
    size = 4.0 * parameters
    compute = 4 * flops * which.inputs * BATCH / devices / machine.flops
    exchange = 0.0
    if model > 1:
        exchange += 2 * exchange_seconds(machine, size, model, 1)
    rest = machine._replace(node=max(1, machine.node // model))
    if data > 1:
        exchange += exchange_seconds(rest, size / model, data, 2)
    scores = 4 * 2 * 4 * CANARIES  # four, each a sum and what rounding took from it
    state = 2 * size / model + scores / devices  # parameters and momentum
    return {
        'model': which.name,
        'machine': machine.name,
        'layout': f'{data}×{model}',
        'devices': devices,
        'parameters': parameters,
        'sent_mb': sent(parameters, data, model) / 1e6,
        'compute_ms': 1e3 * compute,
        'exchange_ms': 1e3 * exchange,
        'efficiency': compute / (compute + exchange),
        'state_mb': state / 1e6,
        'working_mb': working / 1e6,
    }


def predictions(console: Console) -> list[csv_files.Row]:
    """For all models and machines, after a look at whether the formula is what is compiled."""
    rows = []
    for which in MODELS:
        for data, model in ((4, 2), (8 // which.model, which.model)):
            program, parameters, on_device = compiled(which, data, model)
            counted = sum(one.sent for one in collectives(program))
            formula = sent(parameters, data, model)
            memory = program.memory_analysis()
            console.print(
                f'{which.name}, {parameters:,} parameters on {data}×{model}: sends '
                f'{counted / 1e6:,.2f} MB a step and device (formula {formula / 1e6:,.2f}); state '
                f'{on_device / 1e6:,.1f} MB a device, temporary '
                f'{memory.temp_size_in_bytes / 1e6:,.1f} MB.'
            )
            if not math.isclose(counted, formula, rel_tol=1e-2):
                raise AssertionError('What is counted is not what the formula says.')
        flops = forward_flops(which, parameters)
        working = memory.temp_size_in_bytes
        rows += [
            predict(which, machine, devices, parameters, flops, working)
            for machine in MACHINES
            for devices in SIZES
        ]
    return rows


def show(console: Console, title: str, rows: list[csv_files.Row], columns: tuple[str, ...]) -> None:
    table = Table(title=title, title_justify='left')
    for name in columns:
        table.add_column(name)
    for row in rows:
        table.add_row(*(x if isinstance(x := row[name], str) else f'{x:,.4g}' for name in columns))
    console.print(table)


def plot(rows: list[csv_files.Row], predicted: list[csv_files.Row], target: Any) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), layout='constrained')
    names = [row['layout'] for row in rows if row['kind'] == 'strong']
    for number, kind in enumerate(('strong', 'weak')):
        of_kind = [row['ratio'] for row in rows if row['kind'] == kind]
        words = {'strong': f'strong: {STRONG} examples', 'weak': f'weak: {WEAK} examples a device'}
        left.bar(np.arange(len(names)) + 0.38 * number - 0.19, of_kind, 0.36, label=words[kind])
    left.axhline(1.0, color='black', linewidth=0.8)
    left.set_xticks(range(len(names)), [name.replace(', ', ',\n') for name in names])
    left.set_xlabel('devices, data × model, on the same two cores')
    left.set_ylabel('seconds of a step / seconds on one device')
    left.set_title('measured: what splitting costs')
    left.set_ylim(0, 1.25 * max(row['ratio'] for row in rows))
    left.legend(loc='upper left')
    for model, style in zip(dict.fromkeys(row['model'] for row in predicted), '-:', strict=True):
        for machine, color in zip(MACHINES, ('tab:blue', 'tab:orange'), strict=True):
            points = [
                row for row in predicted if (row['model'], row['machine']) == (model, machine.name)
            ]
            name = f'{model}; {machine.name.split(",")[0]}'
            shares = [100 * (1 - row['efficiency']) for row in points]
            right.plot(SIZES, shares, f'o{style}', color=color, label=name)
    right.set_xscale('log', base=2)
    right.set_xticks(SIZES, SIZES)
    right.set_yscale('log')
    right.set_ylim(0.02, 100)
    right.set_yticks([0.1, 1, 10, 100], ['0.1', '1', '10', '100'])
    right.grid(alpha=0.3)
    right.set_xlabel('devices')
    right.set_ylabel('exchange between devices, % of a step')
    right.set_title(f'predicted: batch {BATCH:,}, m = {CANARIES:,}')
    right.legend(loc='upper left', fontsize='small')
    figure.savefig(target, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--case', nargs=3, help='one run in this process: batch, data, model')
    given = parser.parse_args()
    if given.case:
        case(float(given.case[0]), *map(int, given.case[1:]))
        return
    console = Console(width=140)
    jax.config.update('jax_num_cpu_devices', 8)  # to compile for
    predicted = predictions(console)
    csv_files.write(RESULTS / 'scaling_predicted.csv', predicted, PREDICTED_WORDS, PREDICTED)
    show(console, 'predicted', predicted, (*PREDICTED_WORDS, *PREDICTED))
    rows = measure(LAYOUTS)
    csv_files.write(RESULTS / 'scaling.csv', rows, WORDS, NUMBERS)
    show(console, 'measured, on two cores', rows, (*WORDS, *NUMBERS))
    plot(rows, predicted, RESULTS / 'scaling.png')


if __name__ == '__main__':
    main()
