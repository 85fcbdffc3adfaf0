"""The folder of one run: which config it belongs to, its files, and that there is room in it."""

import contextlib
import json
import os
import pathlib
import shutil
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from oneshot import files
from oneshot.inputs import one_line
from oneshot.json_text import to_json
from oneshot.keep import processes

_RESERVE = '.reserve'
_FILES_OF_A_RUN = (  # what --overwrite deletes
    *('config.json', 'plan.json', 'result.json', 'report.html', 'metrics.jsonl', 'scores*.npz'),
    *('coins.npz', 'plots', 'events', 'checkpoints', _RESERVE, '*.partial'),
)
_ANEW = 'Choose another --workdir, or start anew with --overwrite.'

Config = Mapping[str, Any]


class Workdir:
    """A folder that belongs to one config, and while it is entered to this run alone.

    Of several processes, the first makes and locks it, and all of them have to reach it.

    Args:
        path: it is made if it is not there.
        config: of the run, as JSON has it.
        differences: the keys in which the config of the folder and that of the run differ, in
            words; a folder is taken over where there are none.
        overwrite: deletes what an earlier run left there, when it is entered.

    Raises:
        ValueError: it belongs to another config.
        OSError: it cannot be made or written to.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        config: Config,
        differences: Callable[[Config, Config], list[str]],
        overwrite: bool = False,
    ) -> None:
        self.path, self._overwrite = pathlib.Path(path), overwrite
        self._config, self._differences, self._lock = config, differences, None
        processes.on_first(self._open)

    def _open(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        if not self.path.stat().st_mode & 0o222 or not os.access(self.path, os.W_OK):
            raise PermissionError(f'{self.path} may not be written to.')  # mode stops no root
        if not self._overwrite:
            self._check_config()

    @property
    def finished(self) -> bool:
        """Whether there is a result already."""
        result = self.path / 'result.json'
        return processes.on_first(lambda: not self._overwrite and result.exists())

    def __enter__(self) -> 'Workdir':
        processes.on_first(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        if processes.is_first():
            os.close(self._lock)

    def _enter(self) -> None:
        """Locks the folder for this process, and gives it this config."""
        import fcntl  # not on Windows, where a run without a workdir needs no lock

        with contextlib.ExitStack() as on_error:
            self._lock = os.open(self.path / '.lock', os.O_RDWR | os.O_CREAT, 0o666)
            on_error.callback(os.close, self._lock)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                owner = os.read(self._lock, 20).decode(errors='replace').strip()
                raise ValueError(
                    f'{self.path} is in use by another run, process {owner}; wait for it, or '
                    'choose another --workdir.'
                ) from None
            os.ftruncate(self._lock, 0)
            os.write(self._lock, f'{os.getpid()}\n'.encode())
            if self._overwrite:
                for path in (path for name in _FILES_OF_A_RUN for path in self.path.glob(name)):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
                self._overwrite = False
            else:
                self._check_config()  # again: until now, the folder was not locked
            self._write_text('config.json', to_json(self._config))
            on_error.pop_all()

    def _check_config(self) -> None:
        path = self.path / 'config.json'
        if not path.exists():
            if (self.path / 'result.json').exists() or (self.path / 'checkpoints').exists():
                raise ValueError(
                    f'{self.path} has a run in it without its config.json, so that it cannot be '
                    f'told whose it is. {_ANEW}'
                )
            return
        try:
            config_of_folder = dict(json.loads(path.read_bytes()))
        except (ValueError, TypeError):
            raise ValueError(f'{path} cannot be read as a config. {_ANEW}') from None
        if differ := self._differences(config_of_folder, self._config):
            raise ValueError(
                f'{self.path} belongs to another config, which differs in {", ".join(differ)}. '
                f'{_ANEW}'
            )

    def _write_text(self, name: str, text: str) -> None:
        files.write(self.path / name, f'{text}\n'.encode())

    def write_plan(self, rows: list[dict[str, Any]]) -> None:
        """Writes how guesses will be chosen; raises a ValueError if other rows are there."""
        path = self.path / 'plan.json'
        text = ',\n'.join(to_json(row, indent=None) for row in rows)
        if path.exists() and path.read_text() != f'[\n{text}\n]\n':
            raise ValueError(
                f'{path} has another plan than this code makes of the same config. Go on with the '
                'code that wrote it, or delete the file: a plan depends on the config alone.'
            )
        self._write_text('plan.json', f'[\n{text}\n]')

    def write_coins(self, coins: np.ndarray) -> None:
        """Writes the coins, in a file that only its owner can read."""
        ids = np.arange(coins.size)
        files.write_arrays(self.path / 'coins.npz', mode=0o600, ids=ids, included=coins)

    def check_coins(self, coins: np.ndarray) -> None:
        """Raises a ValueError unless a run that goes on has the coins that were written."""
        path = self.path / 'coins.npz'
        try:
            with path.open('rb') as file, np.load(file) as arrays:
                same = np.array_equal(arrays['included'], coins)
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

    def write_scores(self, name: str, headline: str, scores: dict[str, np.ndarray]) -> None:
        """Writes all scores by name, the headline's also as `scores`, with ids of canaries."""
        ids = np.arange(scores[headline].size)
        files.write_arrays(self.path / name, ids=ids, scores=scores[headline], **scores)

    def write_result(self, record: dict[str, Any]) -> None:
        """Writes the result, which is the last that a run does: with it, it is finished."""
        self._write_text('result.json', to_json(record))

    def reserve(self, checkpoint: int, more: int) -> None:
        """Sets aside the bytes of one checkpoint, so that a run that fills the disk can be saved.

        Raises:
            OSError: there is no room for that, or for the `more` bytes of all the rest.
        """
        free, needed = shutil.disk_usage(self.path).free, checkpoint + more
        if free < needed:
            raise OSError(f'{self.path} has {_mib(free)} left, and the run needs {_mib(needed)}.')
        try:
            with (self.path / _RESERVE).open('wb') as file:
                os.posix_fallocate(file.fileno(), 0, checkpoint)
        except OSError as error:
            self.release()
            room = f'room for a checkpoint of {_mib(checkpoint)}'
            raise OSError(f'{self.path} has no {room}: {error.strerror}.') from error

    def release(self) -> None:
        """Frees what was set aside."""
        if processes.is_first():
            (self.path / _RESERVE).unlink(missing_ok=True)


def _mib(count: int) -> str:
    return f'{count / 2**20:,.1f} MiB'
