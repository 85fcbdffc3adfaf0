"""The whole state of a run on disk, written by Orbax while the run goes on.

A checkpoint is a folder named after its step. It gets that name when everything in it is
written and its digests are taken, so that a run that is killed at any moment leaves whole
checkpoints, and at most one that is under way, in `unfinished`. What is not whole any more
when it is read (cut, emptied, changed) does not have the digests that it had.

Of several processes, each writes and reads what lies on its devices, and the first does the
rest. A checkpoint does not know on how many devices it was made.
"""

import contextlib
import errno
import gc
import hashlib
import itertools
import json
import logging
import os
import pathlib
import shutil
import sys
import warnings
from collections.abc import Iterator
from concurrent import futures
from typing import Any, NamedTuple

import jax
import orbax.checkpoint as ocp

from oneshot.files import rename, write
from oneshot.inputs import one_line
from oneshot.json_text import to_json
from oneshot.keep import processes

PyTree = Any

_STATE, _MANIFEST, _UNFINISHED = 'state', 'checkpoint.json', 'unfinished'


class Checkpoint(NamedTuple):
    """A state that was read, and what was noted beside it."""

    step: int
    state: PyTree
    notes: dict[str, Any]


class Checkpoints(contextlib.ExitStack):
    """The newest `keep` checkpoints of a run, which has to be entered.

    What is saved is copied at once, and written in the background. Errors of that are
    raised by the next call as an OSError.
    """

    def __init__(self, folder: pathlib.Path, keep: int) -> None:
        super().__init__()
        self._folder, self._keep = folder.absolute(), keep
        self._writer, self._has_failed = _writer(), False
        self._background = futures.ThreadPoolExecutor(1)
        self._under_way: tuple[int, futures.Future[None]] | None = None

    def __enter__(self) -> 'Checkpoints':
        self.enter_context(_quiet_orbax())
        self.callback(self._close)
        return self

    def _close(self) -> None:
        self._background.shutdown()
        self._writer.close()
        if self._has_failed:
            gc.collect()  # Python complains about writes that failed now, and not later

    def steps(self) -> list[int]:
        """The steps of all checkpoints, the newest first. One may be broken."""
        names = (path.name for path in self._folder.glob('[0-9]*') if path.is_dir())
        return sorted((int(name) for name in names if name.isdecimal()), reverse=True)

    def save(self, step: int, state: PyTree, notes: dict[str, Any]) -> None:
        """Begins to write a checkpoint, unless there is one of this step.

        The arrays of the state may be donated as soon as this returns. Notes are as JSON has them.
        """
        self.wait()
        manifest = {'step': step, 'notes': notes, 'shapes': _shapes(state)}
        try:
            if not processes.on_first(self._begin, step, size(state)):
                return
            place = self._folder / _UNFINISHED / _STATE
            self._writer.save(place, args=ocp.args.StandardSave(state))
        except Exception as error:
            raise self._failed(step, error) from error
        self._under_way = step, self._background.submit(self._finish, manifest)

    def _begin(self, step: int, needed: int) -> bool:
        """Makes the folder for a checkpoint, unless there is one of this step."""
        place = self._folder / _UNFINISHED
        if (self._folder / str(step)).exists():
            return False
        shutil.rmtree(place, ignore_errors=True)  # of a save that was killed or failed
        place.mkdir(parents=True)
        if shutil.disk_usage(place).free < needed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return True

    def _finish(self, manifest: dict[str, Any]) -> None:
        """In the background, when Orbax is done: digests, then the name, then old ones go."""
        self._writer.wait_until_finished()
        if not processes.is_first():
            return
        place = self._folder / _UNFINISHED
        paths = (path for path in sorted(place.rglob('*')) if path.is_file())
        files = {str(path.relative_to(place)): _digest(path) for path in paths}
        _write_manifest(place / _MANIFEST, manifest | {'files': files})
        rename(place, self._folder / str(manifest['step']))
        for step in self.steps()[self._keep :]:
            rename(self._folder / str(step), place)  # what is half deleted has no name
            shutil.rmtree(place)

    def wait(self) -> None:
        """Returns when nothing is under way."""
        if self._under_way is None:
            return
        (step, finished), self._under_way = self._under_way, None
        try:
            finished.result()
        except Exception as error:
            raise self._failed(step, error) from error

    def check(self) -> None:
        """Raises what went wrong in the background, without waiting."""
        if self._under_way is not None and self._under_way[1].done():
            self.wait()

    def _failed(self, step: int, error: Exception) -> OSError:
        """Whatever Orbax makes of a full disk, it is an OSError here."""
        self._writer, self._has_failed = _writer(), True  # the old one may have more errors
        return OSError(f'the checkpoint of step {step} could not be written ({one_line(error)})')

    def newest(self, like: PyTree) -> Checkpoint | None:
        """The newest whole checkpoint of a state like this; None if none was ever made.

        A broken one is passed over with a warning, and put aside where a whole one is found
        before it. Nothing is deleted.

        Raises:
            ValueError: there are checkpoints, but all of them are broken.
        """
        broken: dict[int, str] = {}
        for step in processes.on_first(self.steps):
            reason = checkpoint = None
            try:
                checkpoint = self._read(step, like)
            except Exception as error:  # whatever a broken file makes Orbax raise
                reason = one_line(error)
            (failed,) = processes.all_max(reason is not None)
            if failed:
                broken[step] = reason or 'another process cannot read it'
                continue
            for other, reason in broken.items():
                aside = processes.on_first(self._put_aside, other)
                warnings.warn(
                    f'The checkpoint of step {other} is broken ({reason}) and was put aside as '
                    f'{aside}; the one of step {step} takes its place.',
                    stacklevel=2,
                )
            return checkpoint
        if broken:
            reasons = '; '.join(f'that of step {step}: {reason}' for step, reason in broken.items())
            raise ValueError(
                f'No checkpoint in {self._folder} is whole: {reasons}. Nothing was deleted; '
                '--overwrite starts the run anew.'
            )
        return None

    def _read(self, step: int, like: PyTree) -> Checkpoint:
        notes = processes.on_first(self._check, step, like)
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        place = self._folder / str(step) / _STATE
        state = self._writer.restore(place, args=ocp.args.StandardRestore(abstract))
        return Checkpoint(step, state, notes)

    def _check(self, step: int, like: PyTree) -> dict[str, Any]:
        """The notes of a checkpoint that is whole, and of a state like this."""
        folder = self._folder / str(step)
        manifest = _read_manifest(folder / _MANIFEST)
        if manifest['step'] != step:
            raise ValueError(f'it is of step {manifest["step"]}')
        for name, digest in manifest['files'].items():
            if not (folder / name).is_file():
                raise ValueError(f'{name} is missing')
            if _digest(folder / name) != digest:
                raise ValueError(f'{name} is not as it was written')
        if manifest['shapes'] != _shapes(like):
            raise ValueError('its shapes are not those of this run')
        return manifest['notes']

    def _put_aside(self, step: int) -> str:
        places = (self._folder / f'{step}.broken{i if i > 1 else ""}' for i in itertools.count(1))
        aside = next(place for place in places if not place.exists())
        os.rename(self._folder / str(step), aside)
        return str(aside)


def size(state: PyTree) -> int:
    """The bytes that a checkpoint takes, or a little more."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(state)) + 2**17


def _writer() -> ocp.AsyncCheckpointer:
    return ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler())


def _digest(path: pathlib.Path) -> str:
    with path.open('rb') as file:
        return hashlib.file_digest(file, 'sha256').hexdigest()


def _shapes(tree: PyTree) -> list[str]:
    """Every array of a tree by its place, shape and type."""
    leaves, _ = jax.tree.flatten_with_path(tree)
    return [f'{jax.tree_util.keystr(path)}: {leaf.dtype}{leaf.shape}' for path, leaf in leaves]


def _write_manifest(path: pathlib.Path, manifest: dict[str, Any]) -> None:
    """The manifest has a digest of its own."""
    body = to_json(manifest)
    write(path, f'{hashlib.sha256(body.encode()).hexdigest()}\n{body}\n'.encode())


def _read_manifest(path: pathlib.Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f'{path.name} is missing')
    digest, _, body = path.read_bytes().partition(b'\n')
    if hashlib.sha256(body.removesuffix(b'\n')).hexdigest().encode() != digest:
        raise ValueError(f'{path.name} is not as it was written')
    return json.loads(body)


@contextlib.contextmanager
def _quiet_orbax() -> Iterator[None]:
    """While it is entered, Orbax prints no tracebacks: its errors are raised by `Checkpoints`.

    That is what it logs, and what Python says of its writes that are still under way in other
    threads when one has failed.
    """
    unraisable, loggers = sys.unraisablehook, [logging.getLogger(n) for n in ('absl', 'asyncio')]

    def not_of_orbax(record: logging.LogRecord) -> bool:
        return 'orbax' not in f'{record.pathname} {record.getMessage()}'

    def hook(problem: Any) -> None:
        if 'Event loop is closed' not in str(problem.exc_value):
            unraisable(problem)

    sys.unraisablehook = hook
    for logger in loggers:
        logger.addFilter(not_of_orbax)
    try:
        yield
    finally:
        sys.unraisablehook = unraisable
        for logger in loggers:
            logger.removeFilter(not_of_orbax)
