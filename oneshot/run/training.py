"""One audited run, from config to report."""

import contextlib
import functools
import json
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from oneshot import dpsgd, inputs
from oneshot.audit import canaries
from oneshot.dpsgd import sharding
from oneshot.keep import processes
from oneshot.keep.workdir import Workdir
from oneshot.report import output, page, table, words
from oneshot.results.result import AuditResult
from oneshot.run import outcome, settings
from oneshot.run.outcome import audit_all, best
from oneshot.run.preparation import Run, prepare
from oneshot.run.progress import Log
from oneshot.run.resumption import Diverged, Keeper

__all__ = [
    'Run',
    'audit_all',
    'best',
    'collect_scores',
    'prepare',
    'run',
    'show_again',
    'test_accuracy',
    'train',
]

_EVALUATED = 500  # images at once
_chunk = functools.lru_cache(maxsize=1)(dpsgd.make_chunk)  # compiled once, also to go on


def run(prepared: Run) -> AuditResult:
    """Trains, audits and reports. Returns the headline that the config names.

    With a workdir it goes on where an earlier run of the same config was stopped.

    Raises:
        Diverged: the loss or a parameter is not finite.
        Stopped: the process was told to stop, and the state is kept.
        OSError: the workdir is full; the error says what is kept.
        ValueError: the workdir is in use, or none of its checkpoints can be read.
    """
    with prepared.directory or contextlib.nullcontext():
        state, seconds = _trained(prepared)
        start = time.perf_counter()
        accuracy = test_accuracy(prepared, state)
        scores = collect_scores(prepared, state)
        results = audit_all(prepared, scores)
        score, headline = best(prepared, results)
        seconds += time.perf_counter() - start

        record = outcome.record(prepared, score, accuracy, seconds, headline, results)
        about = words.about(settings.plain(prepared.config), record)

        def tell() -> None:
            table.show(Console(), about, score, headline, results)
            if prepared.directory is None:
                return
            path, coins = prepared.directory.path, np.asarray(prepared.coins)
            try:
                output.write_scores(path / 'scores.npz', score, scores)
                page.write_html(path, about, headline, results, scores[score], coins)
                output.write_result(path, record)
            except OSError as error:
                raise OSError(
                    f'The result cannot be written to {path} ({error}); make room, and the same '
                    'command goes on from the newest checkpoint.'
                ) from error
            print(f'Written to {path}; open {path}/report.html.')

        processes.lead(tell)
    return headline


def show_again(directory: Workdir) -> AuditResult:
    """Shows the result of a finished run once more, from its files."""
    files = directory.path / 'result.json', directory.path / 'config.json'
    try:
        record, config = (json.loads(path.read_bytes()) for path in files)
        headline, results = outcome.read(record)
        about = words.about(config, record)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f'{files[0]} cannot be read ({inputs.one_line(error)}); --overwrite starts anew.'
        ) from error
    table.show(Console(), about, record['score'], headline, results)
    print(f'{directory.path} has this result already; --overwrite starts anew.')
    return headline


def _trained(prepared: Run) -> tuple[dpsgd.State, float]:
    """The state after all steps, and the seconds that they took, however often it was stopped."""
    if prepared.directory is None:
        start = time.perf_counter()
        with Log(None, prepared.config.steps, quiet=not processes.first()) as log:
            state = train(prepared, log.write)
        return state, time.perf_counter() - start
    with Keeper(prepared) as keeper:
        try:
            state = train(prepared, keeper.log, state=keeper.begin(), keep=keeper.keep)
        except Diverged as error:
            raise _explained(prepared, keeper, error) from None
        return state, keeper.end(state)


def _explained(prepared: Run, keeper: Keeper, error: Diverged) -> Diverged:
    """The error with what is kept: the state before it, and the scores until then.

    They are found once more from the newest checkpoint, with the same bits.
    """
    if not prepared.config.checkpoint_every:
        return error  # to find them might take as long as the whole run
    last = error.step - 1
    state = train(prepared, state=keeper.newest(), until=last)
    keeper.save(last, state)
    path = prepared.directory.path / f'scores_until_{last}.npz'
    scores = collect_scores(prepared, state)
    headline = prepared.headline if prepared.headline in scores else next(iter(scores))
    processes.lead(output.write_scores, path, headline, scores)
    keeper.wait()
    return error.with_advice(
        f'The state of step {last:,} is kept in {prepared.directory.path}/checkpoints, the scores '
        f'until then are in {path}.'
    )


def train(
    prepared: Run,
    log: Callable[[int, dpsgd.Stats, float | None], None] = lambda step, stats, accuracy: None,
    *,
    state: dpsgd.State | None = None,
    until: int | None = None,
    keep: Callable[[int, dpsgd.State], None] = lambda step, state: None,
) -> dpsgd.State:
    """Runs all steps, a chunk at a time.

    Args:
        prepared: the run.
        log: called after each chunk with its stats and, where it is time for that, with the
            test accuracy.
        state: to go on from; its buffers are donated. Without it, from the first.
        until: the last step, if not that of the config.
        keep: called after `log` with the state.

    Raises:
        Diverged: the loss or a parameter is not finite.
    """
    config, until = prepared.config, prepared.config.steps if until is None else until
    if state is None:
        state = jax.tree.map(jnp.copy, prepared.state)  # it is donated
    chunk = _chunk(prepared.step, config.chunk)
    given = prepared.population, prepared.canaries, prepared.included, *prepared.scalars
    for first in range(int(state.step), until, config.chunk):
        with sharding.use(prepared.layout.mesh):
            state, stats = chunk(state, np.int32(until), prepared.key, *given)
        done = int(state.step)
        stats = jax.tree.map(lambda x, made=done - first: np.asarray(x)[:made], stats)
        if what := dpsgd.diverged(state, stats):
            raise Diverged(done, what, config)
        every, accuracy = config.evaluate_every, None
        if every and done // every > first // every:
            accuracy = test_accuracy(prepared, state)
        log(done, stats, accuracy)
        keep(done, state)
    return state


def test_accuracy(prepared: Run, state: dpsgd.State) -> float:
    """The share of held-out examples that the model, or its average, gets right."""
    number = len(prepared.dataset.test.labels)
    params = state.params if prepared.config.ema_decay is None else state.average
    with sharding.use(prepared.layout.mesh):
        right = _right(prepared.apply, params, *prepared.held_out, np.int32(number))
    return int(right) / number


@functools.partial(jax.jit, static_argnums=0)
def _right(
    apply: Callable[..., jax.Array], params: Any, images: Any, labels: Any, number: Any
) -> jax.Array:
    """How many of the first `number` images the model gets right, some at a time."""
    real = jnp.arange(labels.size) < number

    def local(params: Any, images: Any, labels: Any, real: Any) -> jax.Array:
        logits = jax.lax.map(lambda image: apply(params, image), images, batch_size=_EVALUATED)
        return jnp.sum(real & (jnp.argmax(logits, axis=1) == labels))

    return sharding.totals(local, params, images, labels, real)


def collect_scores(prepared: Run, state: dpsgd.State) -> dict[str, np.ndarray]:
    """The scores of every attack by name, one for each coin."""

    def read(state: dpsgd.State, given: Any) -> dict[str, jax.Array]:
        found = {}
        for name, attack in prepared.attacks(given).items():
            found |= attack.scores(state.audits[name], state.params)
        return found

    found = prepared.layout.call(read, state, prepared.canaries)
    found = prepared.layout.in_order(found, prepared.rows)
    scores = {name: np.asarray(found[name]) for name in prepared.scores}
    if prepared.config.audit.pairs:
        scores = {name: canaries.pair_scores(values) for name, values in scores.items()}
    return scores
