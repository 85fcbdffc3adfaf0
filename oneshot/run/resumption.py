"""Keeps a run: it may be stopped at any moment, and goes on with the same bits."""

import contextlib
import hashlib
import signal
import time
import warnings
import zipfile
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from oneshot.dpsgd.step import State, Stats
from oneshot.inputs import one_line
from oneshot.keep import checkpoints, processes
from oneshot.keep.checkpoints import Checkpoints
from oneshot.keep.stop_signals import Signals
from oneshot.report import output, provenance
from oneshot.run import settings
from oneshot.run.preparation import Run
from oneshot.run.progress import Log


class Stopped(Exception):
    """The run was told to stop; its state is kept."""

    def __init__(self, received: signal.Signals, step: int, steps: int, where: Any) -> None:
        self.received = received
        super().__init__(
            f'Stopped by {received.name} after step {step:,} of {steps:,}. The state is kept in '
            f'{where}: the same command goes on from there.'
        )


class Diverged(Exception):
    """The loss or a parameter is not finite."""

    def __init__(self, step: int, what: str, config: ml_collections.ConfigDict) -> None:
        self.step = step
        self._said = (
            f'At step {step:,} of {config.steps:,}, {what} is not finite: the run diverged, and '
            'was stopped.'
        )
        self._advice = (
            f'Try a smaller --config.learning_rate than {config.learning_rate:g}; another config '
            'takes another --workdir, or --overwrite.'
        )
        super().__init__(f'{self._said} {self._advice}')

    def with_advice(self, kept: str) -> 'Diverged':
        """The same, and what is kept."""
        self.args = (f'{self._said} {kept} {self._advice}',)
        return self


class Keeper:
    """Logs a run and keeps its state in the workdir, which has to be entered."""

    def __init__(self, prepared: Run) -> None:
        self._run, self._config = prepared, prepared.config
        self._folder = prepared.directory.path
        self._checkpoints = Checkpoints(
            self._folder / 'checkpoints', prepared.config.checkpoint_keep
        )
        self._signals, self._log = Signals(), None
        self._start, self._before = time.perf_counter(), 0.0  # seconds of earlier processes
        self._kept = 0  # the step of the newest checkpoint
        self._trouble: tuple[OSError, tuple[Any, ...]] | None = None
        self._stack = contextlib.ExitStack()
        self._about = {
            'config': settings.plain(prepared.config),
            'data': _digest(prepared),
            **provenance.provenance(),
        }

    def __enter__(self) -> 'Keeper':
        self._stack.enter_context(self._checkpoints)
        self._stack.enter_context(self._signals)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.__exit__(*error)

    def begin(self) -> State:
        """The state to begin with: the newest that was kept, or the first of all.

        Raises:
            ValueError: checkpoints are broken, or of other data.
            OSError: there is no room for the run.
        """
        found, position = self._newest(), 0
        state = jax.tree.map(jnp.copy, self._run.state)
        if found is not None:
            state, notes = self._on_devices(found.state[0]), found.notes
            self._kept, position = found.step, notes['metrics_position']
            self._before = notes['seconds']
            processes.lead(self._check_coins)
            if processes.first():
                print(f'Going on after step {found.step:,} of {self._config.steps:,}.', flush=True)
        processes.lead(self._make_room)
        processes.lead(output.write_coins, self._folder, np.asarray(self._run.coins))
        folder = self._folder if processes.first() else None
        self._log = self._stack.enter_context(
            Log(folder, self._config.steps, self._kept, position, quiet=folder is None)
        )
        return state

    def _on_devices(self, kept: State) -> State:
        """A state as it is kept, in the layout of this run."""
        return kept._replace(audits=self._run.layout.in_rows(kept.audits, self._run.rows))

    def _to_keep(self, state: State) -> tuple[State, jax.Array]:
        """A state as it is kept, whatever the layout: scores are in the order of the canaries."""
        audits = self._run.layout.in_order(state.audits, self._run.rows)
        return state._replace(audits=audits), self._run.key

    def wait(self) -> None:
        """Returns when the checkpoint that is under way is written."""
        self._checkpoints.wait()

    def newest(self) -> State:
        """The newest state that was kept, or the first of all."""
        self.wait()
        found = self._newest()
        if found is None:
            return jax.tree.map(jnp.copy, self._run.state)
        return self._on_devices(found.state[0])

    def log(self, step: int, stats: Stats, accuracy: float | None) -> None:
        """Takes note of a chunk. If that fails, `keep` sees to it."""
        try:
            self._log.write(step, stats, accuracy)
        except OSError as error:
            self._trouble = error, (step, stats, accuracy)

    def keep(self, step: int, state: State) -> None:
        """Keeps the state if it is time for that, or if the run was told to stop.

        Raises:
            Stopped: it was.
            OSError: something could not be written; it says what is kept.
        """
        every, last = self._config.checkpoint_every, step == self._config.steps
        received = self._together(self._look, step, state)
        stop = received and not last

        def save() -> None:
            self.save(step, state)
            if stop:
                self._checkpoints.wait()

        if received or (every and (last or step // every > self._kept // every)):
            self._together(save, step, state)
        if stop:
            where = self._folder / 'checkpoints'
            raise Stopped(signal.Signals(received), step, self._config.steps, where)

    def _look(self) -> None:
        """Raises what went wrong since the last time."""
        if self._trouble is not None:
            raise self._trouble[0]
        self._checkpoints.check()

    def _together(self, function: Callable[[], None], step: int, state: State) -> int:
        """Calls it; if it fails in any process, all of them keep what they can.

        Returns:
            The number of the signal that this process, or another one, was sent; or 0.
        """
        problem = None
        try:
            function()
        except OSError as error:
            problem = error
        received, failed = processes.agree(self._signals.received or 0, problem is not None)
        if failed:
            self._rescue(problem or OSError('another process says why'), step, state)
        return received

    def end(self, state: State) -> float:
        """After the last step: when everything is on the disk, all seconds that it took."""
        self._together(self._checkpoints.wait, self._config.steps, state)
        self._run.directory.release()  # for the results
        return self._before + time.perf_counter() - self._start

    def save(self, step: int, state: State) -> None:
        """Begins to write a checkpoint."""
        self._log.sync()
        notes = {
            'metrics_position': self._log.position,
            'seconds': self._before + time.perf_counter() - self._start,
            **self._about,
        }
        self._checkpoints.save(step, self._to_keep(state), notes)
        self._kept = step

    def _newest(self) -> Any:
        found = self._checkpoints.newest(self._to_keep(self._run.state))
        if found is None:
            return None
        notes, about = found.notes, self._about
        if notes['data'] != about['data'] or not (found.state[1] == self._run.key).all():
            raise ValueError(
                f'The checkpoints in {self._folder} are of other data or another key than this '
                'run has; --overwrite starts anew.'
            )
        made, here = ({'commit': one['git'], **one['versions']} for one in (notes, about))
        if other := [f'{name} {made.get(name)}' for name in here if made.get(name) != here[name]]:
            warnings.warn(
                f'The checkpoint of step {found.step} was made with {", ".join(other)}, which is '
                'not what goes on here: the bits of the result may be others.',
                stacklevel=3,
            )
        return found

    def _check_coins(self) -> None:
        """The coins are flipped again; they have to be those that the state was trained with."""
        path, flipped = self._folder / 'coins.npz', np.asarray(self._run.coins)
        try:
            with path.open('rb') as file, np.load(file) as arrays:
                same = np.array_equal(arrays['included'], flipped)
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(
                f'{path} cannot be read ({one_line(error)}), so that it cannot be told whether the '
                'checkpoints were made with the coins of this run; --overwrite starts anew.'
            ) from error
        if not same:
            raise ValueError(
                f'{path} has other coins than this run flips, so that its checkpoints are of '
                'another game; --overwrite starts anew.'
            )

    def _make_room(self) -> None:
        """Sets aside what a checkpoint takes, if there is room for all that is to come."""
        config = self._config
        size = checkpoints.size((self._run.state, self._run.key)) + 2**17  # and the metrics
        more = max(0, config.checkpoint_keep - len(self._checkpoints.steps())) * size
        more += 2**21 + 32 * len(self._run.scores) * config.audit.m  # the report, the scores
        more += 1024 * (config.steps // config.chunk)  # the metrics
        self._run.directory.reserve(size, more)

    def _rescue(self, error: OSError, step: int, state: State) -> None:
        """Nothing more can be written: what was set aside is for the state of this step."""
        with contextlib.suppress(OSError):  # of the same cause
            self._checkpoints.wait()
        self._run.directory.release()
        try:
            if self._trouble is not None:
                self._log.write(*self._trouble[1])
            self.save(step, state)
            self._checkpoints.wait()
            kept = step
        except OSError:
            kept = next(iter(self._checkpoints.steps()), None)
        where = 'No state is kept' if kept is None else f'The state of step {kept:,} is kept'
        raise OSError(
            f'{self._folder} cannot be written to after step {step:,}: {error}. {where}; '
            'make room, and the same command goes on from there.'
        ) from error


def _digest(prepared: Run) -> str:
    """Of all examples and canaries, however they are split over the processes.

    A sum of digests, one for each example and its number, is the same in any order.
    """
    canaries = hashlib.sha256()
    for leaf in jax.tree.leaves(prepared.chosen):
        canaries.update(np.ascontiguousarray(leaf).data)
    total = 0
    here = prepared.layout.rows_here(prepared.n)
    for row, *example in zip(here.tolist(), *prepared.dataset.train, strict=True):
        digest = hashlib.sha256(row.to_bytes(8, 'big'))
        for part in example:
            digest.update(np.ascontiguousarray(part).data)
        total += int.from_bytes(digest.digest(), 'big')
    parts = processes.gather(f'{total % 2**256:064x}')
    return f'{sum(int(part, 16) for part in parts) % 2**256:064x}{canaries.hexdigest()}'
