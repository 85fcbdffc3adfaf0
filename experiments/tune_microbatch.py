"""The fastest strategy and microbatch size on this machine, beside those of the fixed rule.

    python -m experiments.tune_microbatch                 # the MLP, 1 minute on two cores
    python -m experiments.tune_microbatch --model=all     # 30 minutes, most of it XLA's compiler

Measures the examples per second of the jitted clipped sum for both strategies and for
microbatches of 1 to 1,024. The sizes of a strategy end where two in a row were clearly
slower than its best, or where a program would take too much memory. Those that are left
take turns, and the medians count.

It changes nothing by itself: the rule (`oneshot.dpsgd.choose_strategy`) knows no stopwatch, so
that the same run has the same bits. With --write, it writes results/tune_microbatch.csv.
"""

import argparse
import csv
import functools
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from rich.console import Console
from rich.progress import track
from rich.table import Table

from oneshot import dpsgd
from oneshot.data import models
from oneshot.dpsgd import clipping
from oneshot.dpsgd.gradients.strategy import LossFn

RESULTS = pathlib.Path(__file__).parent / 'results'
SIZES = [2**power for power in range(11)]
REPEATS = 7
SLOWER = 1.2  # times the seconds: clearly slower, even on a busy machine
GRADIENTS, TEMPORARY = 1e9, 4e9  # bytes: of vmap's gradients, and of all that a program needs

# At least so many examples, so that a call takes long enough to be timed.
EXAMPLES = {'mlp': 4096, 'cnn': 256, 'wrn': 32}

Call = Callable[[], float]  # gives the seconds for one example


def compile_sum(loss_fn: LossFn, params: Any, batch: Any, strategy: str, size: int) -> Call | None:
    """The clipped sum of the batch, or None if it takes too much memory."""
    if strategy == 'vmap' and size * sum(x.nbytes for x in jax.tree.leaves(params)) > GRADIENTS:
        return None
    options = {'clip_norm': 1.0, 'microbatch_size': size, 'strategy': strategy}
    clipped_sum = jax.jit(functools.partial(dpsgd.clipped_grad_sum, loss_fn, **options))
    batch = jax.tree.map(jnp.asarray, batch)
    count = len(batch[1])
    given = params, batch, jnp.ones(count, bool)
    compiled = clipped_sum.lower(*given).compile()
    if compiled.memory_analysis().temp_size_in_bytes > TEMPORARY:
        return None

    def call() -> float:
        start = time.perf_counter()
        jax.block_until_ready(compiled(*given))
        return (time.perf_counter() - start) / count

    call()
    return call


def tune(name: str, image: Sequence[int], classes: int, hidden: Sequence[int]) -> list[dict]:
    """A row for each strategy and size that is worth a look, and for the rule's in any case."""
    apply, params = models.split(models.make(name, image, classes, nnx.Rngs(0), hidden=hidden))
    loss_fn, rng = models.cross_entropy(apply), np.random.default_rng(0)
    most = max(EXAMPLES[name], 2 * SIZES[-1])
    images = rng.random((most, *image), dtype=np.float32)
    labels = rng.integers(0, classes, most, dtype=np.int32)
    rule = clipping.choose_strategy(loss_fn, params, (images[0], labels[0]))

    calls: dict[tuple[str, int], Call] = {}
    for strategy in clipping.STRATEGIES:
        best, slower = np.inf, 0
        for size in track(SIZES, description=f'{name}, {strategy}', transient=True):
            if slower == 2 and (strategy, size) != rule:
                continue
            count = max(EXAMPLES[name], 2 * size)  # a loop of one trip would be none
            batch = images[:count], labels[:count]
            call = compile_sum(loss_fn, params, batch, strategy, size)
            if call is None:
                break
            seconds = min(call() for _ in range(3))
            if slower < 2:
                slower = slower + 1 if seconds > SLOWER * best else 0
            best, calls[strategy, size] = min(best, seconds), call
    times = {candidate: [] for candidate in calls}
    for _ in track(range(REPEATS), description=f'{name}, in turn', transient=True):
        for candidate, call in calls.items():
            times[candidate].append(call())
    rates = {candidate: 1.0 / float(np.median(times[candidate])) for candidate in calls}
    best = max(rates, key=rates.get)
    return [
        {
            'model': name,
            'strategy': candidate[0],
            'microbatch_size': candidate[1],
            'examples_per_second': rate,
            'to_the_rule': rate / rates[rule],
            'rule': candidate == rule,
            'best': candidate == best,
        }
        for candidate, rate in rates.items()
    ]


def show(console: Console, rows: list[dict]) -> None:
    table = Table(title=f'the clipped sum of {rows[0]["model"]}', title_justify='left')
    for name in ('strategy', 'microbatch size', 'examples / s', 'to the rule', ''):
        table.add_column(name, justify='left' if name in ('strategy', '') else 'right')
    for row in rows:
        marks = ', '.join(mark for mark in ('rule', 'best') if row[mark])
        numbers = f'{row["examples_per_second"]:,.0f}', f'{row["to_the_rule"]:.2f}'
        table.add_row(row['strategy'], f'{row["microbatch_size"]:,}', *numbers, marks)
    console.print(table)
    best = next(row for row in rows if row['best'])
    flags = '--config.strategy={strategy} --config.microbatch_size={microbatch_size}'
    gain = f'gains {best["to_the_rule"] - 1:.0%} over the rule'
    gain = "is the rule's choice, and the fastest" if best['rule'] else gain
    console.print(flags.format(**best), f'{gain}. Nothing was changed.\n', highlight=False)


def main() -> None:
    def integers(text: str) -> tuple[int, ...]:
        return tuple(int(number) for number in text.split(','))

    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--model', choices=[*models.MODELS, 'all'], default='mlp')
    parser.add_argument('--image', type=integers, default=(32, 32, 3), help='its shape')
    parser.add_argument('--classes', type=int, default=10)
    parser.add_argument('--hidden', type=integers, default=(64,), help='sizes, for the MLP')
    parser.add_argument('--write', action='store_true', help='results/tune_microbatch.csv')
    args = parser.parse_args()
    console, rows = Console(width=110), []
    for name in models.MODELS if args.model == 'all' else [args.model]:
        measured = tune(name, args.image, args.classes, args.hidden)
        show(console, measured)
        rows += measured
    if args.write:
        with (RESULTS / 'tune_microbatch.csv').open('w', newline='') as file:
            writer = csv.DictWriter(file, rows[0].keys(), lineterminator='\n')
            writer.writeheader()
            for row in rows:
                numbers = {k: f'{x:.6g}' for k, x in row.items() if isinstance(x, float)}
                writer.writerow(row | numbers)
        print(f'Written to {RESULTS.name}/tune_microbatch.csv.')


if __name__ == '__main__':
    main()
