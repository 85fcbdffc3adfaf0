"""A run that may be stopped at any moment, and goes on with the same bits."""

import contextlib
import hashlib
import signal
import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from oneshot.dpsgd.step import State
from oneshot.keep import checkpoints, processes
from oneshot.keep.checkpoints import Checkpoint, Checkpoints
from oneshot.keep.stopping import Stopped, StopSignals
from oneshot.run import outcome, settings
from oneshot.run.preparation import Run
from oneshot.run.progress import Log


class ResumableRun(contextlib.ExitStack):
    """Logs a run and saves its state in its workdir; both have to be entered."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run, self._config, self._workdir = run, run.spec.config, run.workdir
        folder = run.workdir.path / 'checkpoints'
        self._checkpoints = Checkpoints(folder, self._config.checkpoint_keep)
        self._signals, self._log = StopSignals(), None
        self._start, self._seconds_before, self._saved_step = time.perf_counter(), 0.0, 0
        self._pending_log_error: tuple[OSError, tuple[Any, ...]] | None = None
        origin = {'config': settings.as_json(self._config), 'data': _digest(run)}
        self._origin = origin | outcome.provenance()

    def __enter__(self) -> 'ResumableRun':
        self.enter_context(self._checkpoints)
        self.enter_context(self._signals)
        return self

    def restore_or_start(self) -> State:
        """The state to begin with: the newest that was saved, or the first of all.

        The coins and the plan are written before the first step.

        Raises:
            ValueError: checkpoints are broken, or of other data, coins or another plan.
            OSError: there is no room for the run.
        """
        checkpoint, position = self._newest(), 0
        if checkpoint is not None:
            self._saved_step, position = checkpoint.step, checkpoint.notes['metrics_position']
            self._seconds_before = checkpoint.notes['seconds']
        processes.on_first(self._prepare_workdir, checkpoint is not None)
        log = Log(self._workdir.path, self._config.steps, self._saved_step, position)
        self._log = self.enter_context(log)
        return self._state_of(checkpoint)

    def _prepare_workdir(self, goes_on: bool) -> None:
        workdir, coins = self._workdir, np.asarray(self._run.canaries.coins)
        step, steps = self._saved_step, self._config.steps
        if goes_on:
            workdir.check_coins(coins)
        workdir.write_plan(self._run.spec.plan_rows)
        if goes_on:
            print(f'Going on after step {step:,} of {steps:,}.', flush=True)
        self._reserve_room()
        workdir.write_coins(coins)

    def newest(self) -> State:
        """The newest state that was saved, or the first of all."""
        self.wait()
        return self._state_of(self._newest())

    def wait(self) -> None:
        """Returns when the checkpoint that is under way is written."""
        self._checkpoints.wait()

    def log(self, *chunk: Any) -> None:
        """Logs a chunk, as `Log.write` does. If that fails, `maybe_save` sees to it."""
        try:
            self._log.write(*chunk)
        except OSError as error:
            self._pending_log_error = error, chunk

    def maybe_save(self, step: int, state: State) -> None:
        """Saves the state if it is time for that, or if the run was told to stop.

        Raises:
            Stopped: it was.
            OSError: something could not be written; it says what is kept.
        """
        every, last = self._config.checkpoint_every, step == self._config.steps
        received = self._all_or_rescue(self._raise_pending, step, state)
        stop = received and not last
        if received or (every and (last or step // every > self._saved_step // every)):
            self._all_or_rescue(lambda: self.save(step, state, wait=stop), step, state)
        if stop:
            folder = self._workdir.path / 'checkpoints'
            raise Stopped(signal.Signals(received), step, self._config.steps, folder)

    def save(self, step: int, state: State, *, wait: bool = False) -> None:
        """Begins to write a checkpoint, or returns when it is written."""
        self._log.sync()
        notes = {'metrics_position': self._log.position, 'seconds': self._seconds()}
        self._checkpoints.save(step, self._to_save(state), notes | self._origin)
        self._saved_step = step
        if wait:
            self._checkpoints.wait()

    def finish(self, state: State) -> float:
        """After the last step: when all is on the disk, the seconds that all steps took."""
        self._all_or_rescue(self._checkpoints.wait, self._config.steps, state)
        self._workdir.release()  # for the results
        return self._seconds()

    def _seconds(self) -> float:
        return self._seconds_before + time.perf_counter() - self._start

    def _raise_pending(self) -> None:
        if self._pending_log_error is not None:
            raise self._pending_log_error[0]
        self._checkpoints.check()

    def _all_or_rescue(self, function: Callable[[], None], step: int, state: State) -> int:
        """Calls it; if it fails in any process, all of them save what they can.

        Returns:
            The number of the signal that this process, or another one, was sent; or 0.
        """
        problem = None
        try:
            function()
        except OSError as error:
            problem = error
        received, failed = processes.all_max(self._signals.received or 0, problem is not None)
        if failed:
            self._save_in_reserve(problem or OSError('another process says why'), step, state)
        return received

    def _save_in_reserve(self, error: OSError, step: int, state: State) -> None:
        """Nothing more can be written: what was set aside is for the state of this step."""
        with contextlib.suppress(OSError):  # of the same cause
            self._checkpoints.wait()
        self._workdir.release()
        try:
            if self._pending_log_error is not None:
                self._log.write(*self._pending_log_error[1])
            self.save(step, state, wait=True)
            kept = step
        except OSError:
            kept = next(iter(self._checkpoints.steps()), None)
        state_kept = 'No state is kept' if kept is None else f'The state of step {kept:,} is kept'
        raise OSError(
            f'{self._workdir.path} cannot be written to after step {step:,}: {error}. '
            f'{state_kept}; make room, and the same command goes on from there.'
        ) from error

    def _to_save(self, state: State) -> tuple[State, jax.Array]:
        """A state as it is saved, whatever the layout: scores are in the order of the canaries."""
        run = self._run
        audits = run.layout.gather_scores(state.audits, run.canaries.rows)
        return state._replace(audits=audits), run.arrays.key

    def _state_of(self, checkpoint: Checkpoint | None) -> State:
        """The state of a checkpoint in the layout of this run, or the first of all."""
        run = self._run
        if checkpoint is None:
            return jax.tree.map(jnp.copy, run.arrays.state)
        state, _ = checkpoint.state
        return state._replace(audits=run.layout.scatter_scores(state.audits, run.canaries.rows))

    def _newest(self) -> Checkpoint | None:
        checkpoint = self._checkpoints.newest(self._to_save(self._run.arrays.state))
        if checkpoint is None:
            return None
        notes, origin = checkpoint.notes, self._origin
        same_key = (checkpoint.state[1] == self._run.arrays.key).all()
        if notes['data'] != origin['data'] or not same_key:
            raise ValueError(
                f'The checkpoints in {self._workdir.path} are of other data or another key than '
                'this run has; --overwrite starts anew.'
            )
        then, now = ({'commit': x['git'], **x['versions']} for x in (notes, origin))
        if other := [f'{name} {then.get(name)}' for name in now if then.get(name) != now[name]]:
            warnings.warn(
                f'The checkpoint of step {checkpoint.step} was made with {", ".join(other)}, which '
                'is not what goes on here: the bits of the result may be others.',
                stacklevel=3,
            )
        return checkpoint

    def _reserve_room(self) -> None:
        """Sets aside what a checkpoint takes, if there is room for all that is to come."""
        config, arrays, selected = self._config, self._run.arrays, self._run.spec.selection
        size = checkpoints.size((arrays.state, arrays.key)) + 2**17  # and the metrics
        more = max(0, config.checkpoint_keep - len(self._checkpoints.steps())) * size
        more += 2**21 + 32 * len(selected.scores) * config.audit.m  # the report, the scores
        more += 1024 * (config.steps // config.chunk)  # the metrics
        self._workdir.reserve(size, more)


def _digest(run: Run) -> str:
    """Of all examples and canaries, however they are split over the processes.

    A sum of digests, one for each example and its number, is the same in any order.
    """
    canaries = hashlib.sha256()
    for leaf in jax.tree.leaves(run.canaries.chosen):
        canaries.update(np.ascontiguousarray(leaf).data)
    total = 0
    rows = run.layout.rows_here(run.spec.n)
    for row, *example in zip(rows.tolist(), *run.dataset.train, strict=True):
        digest = hashlib.sha256(row.to_bytes(8, 'big'))
        for part in example:
            digest.update(np.ascontiguousarray(part).data)
        total += int.from_bytes(digest.digest(), 'big')
    totals = processes.all_texts(f'{total % 2**256:064x}')
    return f'{sum(int(text, 16) for text in totals) % 2**256:064x}{canaries.hexdigest()}'
