"""The folder of one run: whose it is, that there is room in it, and files that are whole."""

import fcntl
import json
import os
import pathlib
import shutil
from typing import Any

from oneshot.files import write
from oneshot.json_text import to_json
from oneshot.keep import processes
from oneshot.run import settings

_OF_A_RUN = (  # what --overwrite deletes
    'config.json',
    'result.json',
    'report.html',
    'metrics.jsonl',
    'scores*.npz',
    'coins.npz',
    'plots',
    'events',
    'checkpoints',
    '.reserve',
    '*.partial',
)
_RESERVE = '.reserve'


class Workdir:
    """A folder that belongs to one config, and while it is entered to this run alone.

    Of several processes, the first makes and locks it, and all of them have to reach it.

    Args:
        path: it is made if it is not there.
        config: of the run.
        overwrite: deletes what an earlier run left there, when it is entered.

    Raises:
        ValueError: it belongs to another config.
        OSError: it cannot be made or written to.
    """

    def __init__(self, path: str | os.PathLike[str], config: Any, overwrite: bool = False) -> None:
        self.path, self._overwrite = pathlib.Path(path), overwrite
        self._config, self._lock = settings.plain(config), None
        processes.lead(self._open)

    def _open(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        if not self.path.stat().st_mode & 0o222 or not os.access(self.path, os.W_OK):
            raise PermissionError(f'{self.path} may not be written to.')  # mode stops no root
        if not self._overwrite:
            self._check_config()

    @property
    def finished(self) -> bool:
        """Whether there is a result already."""
        return processes.lead(lambda: not self._overwrite and (self.path / 'result.json').exists())

    def __enter__(self) -> 'Workdir':
        processes.lead(self._enter)
        return self

    def _enter(self) -> None:
        self._lock = os.open(self.path / '.lock', os.O_RDWR | os.O_CREAT, 0o666)
        try:
            self._take()
        except BaseException:
            os.close(self._lock)
            raise

    def __exit__(self, *_: object) -> None:
        self.release()
        if processes.first():
            os.close(self._lock)

    def _take(self) -> None:
        """Makes the folder that of this process and of this config."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.read(self._lock, 20).decode(errors='replace').strip()
            raise ValueError(
                f'{self.path} is in use by another run, process {owner}; wait for it, or choose '
                'another --workdir.'
            ) from None
        os.ftruncate(self._lock, 0)
        os.write(self._lock, f'{os.getpid()}\n'.encode())
        if self._overwrite:
            for pattern in _OF_A_RUN:
                for path in self.path.glob(pattern):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            self._overwrite = False
        else:
            self._check_config()  # again: until now, it was anybody's
        write(self.path / 'config.json', f'{to_json(self._config)}\n'.encode())

    def _check_config(self) -> None:
        path = self.path / 'config.json'
        if not path.exists():
            if (self.path / 'result.json').exists() or (self.path / 'checkpoints').exists():
                raise ValueError(
                    f'{self.path} has a run in it without its config.json, so that it cannot be '
                    'told whose it is. Choose another --workdir, or start anew with --overwrite.'
                )
            return
        try:
            there = dict(json.loads(path.read_bytes()))
        except (ValueError, TypeError):
            raise ValueError(
                f'{path} cannot be read as a config. Choose another --workdir, or start anew with '
                '--overwrite.'
            ) from None
        if differ := settings.differences(there, self._config):
            raise ValueError(
                f'{self.path} belongs to another config, which differs in {", ".join(differ)}. '
                'Choose another --workdir, or start anew with --overwrite.'
            )

    def reserve(self, checkpoint: int, more: int) -> None:
        """Makes sure that there is room for a run, and sets room for one checkpoint aside.

        `release` frees that: a run that fills the disk can then still be kept.

        Args:
            checkpoint: the bytes of one.
            more: the bytes of everything else that is still to be written.

        Raises:
            OSError: there is not enough room.
        """
        free = shutil.disk_usage(self.path).free
        if free < checkpoint + more:
            raise OSError(
                f'{self.path} has {_size(free)} left, and the run needs {_size(checkpoint + more)}.'
            )
        try:
            file = os.open(self.path / _RESERVE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                os.posix_fallocate(file, 0, checkpoint)
            finally:
                os.close(file)
        except OSError as error:
            self.release()
            raise OSError(
                f'{self.path} has no room for a checkpoint of {_size(checkpoint)}: '
                f'{error.strerror}.'
            ) from error

    def release(self) -> None:
        """Frees what was set aside."""
        if processes.first():
            (self.path / _RESERVE).unlink(missing_ok=True)


def _size(count: int) -> str:
    return f'{count / 2**20:,.1f} MiB'
