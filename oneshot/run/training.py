"""One audited run: train, score, audit, report."""

import contextlib
import functools
import json
import os
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from oneshot import dpsgd, inputs
from oneshot.audit import canaries
from oneshot.audit.attacks import read_scores
from oneshot.dpsgd import sharding
from oneshot.keep import processes
from oneshot.keep.stopping import Diverged, failing
from oneshot.keep.workdir import Workdir
from oneshot.report import page, words
from oneshot.results.result import AuditResult
from oneshot.run import outcome, settings
from oneshot.run.preparation import Run, prepare
from oneshot.run.progress import Log
from oneshot.run.resumption import ResumableRun

_IMAGES = 500  # evaluated at once
_chunk = functools.lru_cache(maxsize=1)(dpsgd.make_chunk)  # compiled once, also to go on


def run(config: ConfigDict, workdir: Workdir | str | os.PathLike[str] | None = None) -> AuditResult:
    """Prepares a run, trains, audits and reports.

    With a workdir it goes on where an earlier run of the same config was stopped.

    Args:
        config: as in `configs/`.
        workdir: where the results go; they are only printed without it.

    Returns:
        The headline that the config names.

    Raises:
        ValueError: the config is wrong, or the workdir is in use or of another run, or broken.
        OSError: the workdir is full; the error says what is kept.
        Stopped, Diverged, Failed: see `oneshot.keep.stopping`.
    """
    return audit_run(prepare(config, workdir))


def audit_run(prepared: Run) -> AuditResult:
    """`run`, for a run that is prepared."""
    with prepared.workdir or contextlib.nullcontext():
        state, seconds = _train(prepared)
        with failing():
            start = time.perf_counter()
            accuracy, scores = test_accuracy(prepared, state), collect_scores(prepared, state)
            judged = outcome.judge(prepared, scores)
            seconds += time.perf_counter() - start
            record = outcome.record(prepared, judged, accuracy, seconds)
            processes.on_first(_report, prepared, judged, record, scores)
    return judged.headline


def _report(
    prepared: Run, judged: outcome.Outcome, record: dict[str, Any], scores: dict[str, np.ndarray]
) -> None:
    about = words.description(settings.as_json(prepared.spec.config), record)
    words.show(about, judged.score, judged.headline, judged.results)
    workdir = prepared.workdir
    if workdir is None:
        return
    try:
        workdir.write_scores('scores.npz', judged.score, scores)
        page.write_html(workdir.path, about, judged.headline, judged.results, judged.curves)
        workdir.write_result(record)
    except OSError as error:
        raise OSError(
            f'The result cannot be written to {workdir.path} ({error}); make room, and the same '
            'command goes on from the newest checkpoint.'
        ) from error
    print(f'Written to {workdir.path}; open {workdir.path}/report.html.')


def reprint(workdir: Workdir) -> AuditResult:
    """Shows the result of a finished run once more, from its files."""
    files = workdir.path / 'result.json', workdir.path / 'config.json'
    try:
        record, config = (json.loads(path.read_bytes()) for path in files)
        headline, results = outcome.read(record)
        about = words.description(config, record)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f'{files[0]} cannot be read ({inputs.one_line(error)}); --overwrite starts anew.'
        ) from error
    words.show(about, record['score'], headline, results)
    print(f'{workdir.path} has this result already; --overwrite starts anew.')
    return headline


def _train(prepared: Run) -> tuple[dpsgd.State, float]:
    """The state after all steps, and the seconds that they took, however often it was stopped."""
    if prepared.workdir is None:
        start = time.perf_counter()
        with Log(None, prepared.spec.config.steps) as log, failing():
            state = train(prepared, log.write)
        return state, time.perf_counter() - start
    with ResumableRun(prepared) as resumable:
        state = resumable.restore_or_start()
        with failing():
            try:
                state = train(prepared, resumable.log, state=state, keep=resumable.maybe_save)
            except Diverged as error:
                kept = _keep_last_good_state(prepared, resumable, error.step - 1)
                raise Diverged(error.step, error.value, prepared.spec.config, kept) from None
            return state, resumable.finish(state)


def _keep_last_good_state(prepared: Run, resumable: ResumableRun, last: int) -> str:
    """Keeps the state of the last good step and the scores until then; says where, in a sentence.

    They are computed once more from the newest checkpoint, with the same bits.
    """
    if not prepared.spec.config.checkpoint_every:
        return ''  # to compute them might take as long as the whole run
    state = train(prepared, state=resumable.newest(), until=last)
    resumable.save(last, state, wait=True)
    scores, path = collect_scores(prepared, state), prepared.workdir.path
    headline, name = prepared.spec.selection.headline, f'scores_until_{last}.npz'
    headline = headline if headline in scores else next(iter(scores))
    processes.on_first(prepared.workdir.write_scores, name, headline, scores)
    return (
        f'The state of step {last:,} is kept in {path}/checkpoints, the scores until then are in '
        f'{path / name}.'
    )


def train(
    prepared: Run,
    log: Callable[[int, dpsgd.Stats, float | None, float], None] = lambda *_: None,
    *,
    state: dpsgd.State | None = None,
    until: int | None = None,
    keep: Callable[[int, dpsgd.State], None] = lambda *_: None,
) -> dpsgd.State:
    """Runs all steps, a chunk at a time.

    Args:
        prepared: the run.
        log: called after each chunk with its last step, the stats of its steps, the test
            accuracy where it is time for that, and the seconds that it took.
        state: to go on from, instead of the first; its buffers are donated.
        until: the last step, if not that of the config.
        keep: called after `log` with the step and the state.

    Raises:
        Diverged: the loss or a parameter is not finite.
    """
    config, arrays = prepared.spec.config, prepared.arrays
    until = config.steps if until is None else until
    if state is None:
        state = jax.tree.map(jnp.copy, arrays.state)  # it is donated
    compiled = _chunk(prepared.program.step, config.chunk)

    def chunk(state: dpsgd.State, last: int) -> tuple[dpsgd.State, dpsgd.Stats]:
        with sharding.use_mesh(prepared.layout.mesh):
            return compiled(state, np.int32(last), arrays.key, *prepared.step_arguments)

    if int(state.step) < until:
        state, _ = chunk(state, 0)  # compiles, and makes no step
    for first in range(int(state.step), until, config.chunk):
        start = time.perf_counter()
        state, stats = chunk(state, until)
        done, seconds = int(state.step), time.perf_counter() - start
        stats = jax.tree.map(lambda x, size=done - first: np.asarray(x)[:size], stats)
        if value := dpsgd.diverged(state, stats):
            raise Diverged(done, value, config)
        every, accuracy = config.evaluate_every, None
        if every and done // every > first // every:
            accuracy = test_accuracy(prepared, state)
        log(done, stats, accuracy, seconds)
        keep(done, state)
    return state


def test_accuracy(prepared: Run, state: dpsgd.State) -> float:
    """The share of held-out examples that the model, or its average, gets right."""
    number = len(prepared.dataset.test.labels)
    params = state.params if prepared.spec.config.ema_decay is None else state.average
    held_out = prepared.arrays.held_out
    with sharding.use_mesh(prepared.layout.mesh):
        right = _right(prepared.program.apply, params, *held_out, np.int32(number))
    return int(right) / number


@functools.partial(jax.jit, static_argnums=0)
def _right(
    apply: Callable[..., jax.Array], params: Any, images: Any, labels: Any, number: Any
) -> jax.Array:
    """How many of the first `number` images the model gets right, some at a time."""
    is_image = jnp.arange(labels.size) < number  # and no padding

    def local(params: Any, images: Any, labels: Any, is_image: Any) -> jax.Array:
        logits = jax.lax.map(lambda image: apply(params, image), images, batch_size=_IMAGES)
        return jnp.sum(is_image & (jnp.argmax(logits, axis=1) == labels))

    return sharding.sum_over_devices(local, params, images, labels, is_image)


def collect_scores(prepared: Run, state: dpsgd.State) -> dict[str, np.ndarray]:
    """The scores of every attack by name, one for each coin."""
    layout, canary_set = prepared.layout, prepared.canaries

    def read(state: dpsgd.State, placed: Any) -> dict[str, jax.Array]:
        return read_scores(prepared.program.attacks(placed), state.audits, state.params)

    by_row = layout.run(read, state, canary_set.placed)
    in_order = layout.gather_scores(by_row, canary_set.rows)
    scores = {name: np.asarray(in_order[name]) for name in prepared.spec.selection.names}
    if prepared.spec.config.audit.pairs:
        scores = {name: canaries.pair_scores(values) for name, values in scores.items()}
    return scores
