"""Sweeps that resume: what a CSV has is not measured again, and the rest is, on all cores."""

import concurrent.futures
import dataclasses
import multiprocessing
import os
import pathlib
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from experiments import csv_files
from experiments.csv_files import Row

CORES = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Settings, and how one of them is measured.

    Attributes:
        settings: in the order of the CSV; each a mapping of the same columns, by whose values
            it is known again.
        measure: gives the rows of a setting, without its columns. With processes, it and its
            results are pickled.
        words, numbers: the columns, those of the settings among them.
        group: settings of one group share compiled programs: a process stays with it.
        processes: 0 for this process, which then has all devices for itself.
        check: called before anything is measured; raises a ValueError if it cannot be.
        also: CSVs beside this one in which a setting may be found as well.
    """

    settings: Sequence[Row]
    measure: Callable[[Row], list[Row]]
    words: Sequence[str]
    numbers: Sequence[str]
    group: Callable[[Row], Hashable] = lambda setting: ()
    processes: int = 0
    check: Callable[[], None] = lambda: None
    also: Sequence[str] = ()

    def missing(self, path: pathlib.Path) -> list[Row]:
        """The settings that are in no CSV."""
        found = self._read(path) | self._elsewhere(path)
        return [setting for setting in self.settings if self._key(setting) not in found]

    def complete(self, path: pathlib.Path) -> list[Row]:
        """All rows, in order; the CSV is written anew after each setting that is measured.

        What else the CSV has is kept.
        """
        missing, found = self.missing(path), self._read(path)
        if elsewhere := {
            key: rows for key, rows in self._elsewhere(path).items() if key not in found
        }:
            found |= elsewhere
            self._write(path, found)
        if missing:
            self.check()
            path.parent.mkdir(parents=True, exist_ok=True)
            # One setting is one program or a quick curve: there is nothing to wait for.
            with _progress(path.stem, disable=len(missing) == 1) as progress:
                task = progress.add_task(path.stem, total=len(missing))
                for setting, rows in self._measured(missing):
                    found[self._key(setting)] = [setting | row for row in rows]
                    self._write(path, found)
                    progress.advance(task)
        return self._ordered(self._read(path))  # as the file has them, to the last digit

    def _elsewhere(self, path: pathlib.Path) -> dict[tuple[Hashable, ...], list[Row]]:
        planned = set(map(self._key, self.settings))
        files = [self._read(path.with_name(f'{stem}.csv')) for stem in self.also]
        return {key: rows for file in files for key, rows in file.items() if key in planned}

    def _write(self, path: pathlib.Path, found: dict[tuple[Hashable, ...], list[Row]]) -> None:
        planned = set(map(self._key, self.settings))
        rest = [row for key, rows in found.items() if key not in planned for row in rows]
        csv_files.write(path, self._ordered(found) + rest, self.words, self.numbers)

    def _key(self, row: Row) -> tuple[Hashable, ...]:
        return tuple(row[name] for name in self.settings[0])

    def _read(self, path: pathlib.Path) -> dict[tuple[Hashable, ...], list[Row]]:
        found: dict[tuple[Hashable, ...], list[Row]] = {}
        for row in csv_files.read(path, self.numbers):
            found.setdefault(self._key(row), []).append(row)
        return found

    def _ordered(self, found: dict[tuple[Hashable, ...], list[Row]]) -> list[Row]:
        return [row for setting in self.settings for row in found.get(self._key(setting), [])]

    def _measured(self, missing: list[Row]) -> Iterator[tuple[Row, list[Row]]]:
        if not self.processes:
            yield from ((setting, self.measure(setting)) for setting in missing)
            return
        # The last group is the largest in all figures: it begins, so that no core is left idle.
        waiting: dict[Hashable, list[Row]] = {}
        for setting in reversed(missing):
            waiting.setdefault(self.group(setting), []).append(setting)
        spawn = multiprocessing.get_context('spawn')  # JAX does not survive a fork
        pools = [
            concurrent.futures.ProcessPoolExecutor(
                1, mp_context=spawn, initializer=_stay_on, initargs=(number, os.getpid())
            )
            for number in range(min(self.processes, len(missing)))
        ]
        at: dict[int, Hashable] = {}  # what group each process is at
        running: dict[concurrent.futures.Future, tuple[int, Row]] = {}

        def start(number: int) -> None:
            groups = [one for one, left in waiting.items() if left]
            if not groups:
                return
            if at.get(number) not in groups:
                new = [one for one in groups if one not in at.values()]
                at[number] = new[0] if new else max(groups, key=lambda one: len(waiting[one]))
            setting = waiting[at[number]].pop()
            running[pools[number].submit(self.measure, setting)] = number, setting

        try:
            for number in range(len(pools)):
                start(number)
            while running:
                done, _ = concurrent.futures.wait(running, return_when='FIRST_COMPLETED')
                for future in done:
                    number, setting = running.pop(future)
                    rows = future.result()
                    start(number)
                    yield setting, rows
        finally:
            for pool in pools:
                pool.shutdown(wait=False, cancel_futures=True)


def _stay_on(number: int, parent: int) -> None:
    """A process for each core, on CPU: faster than one for all, and the same bits everywhere.

    It ends with the process that started it, even if that was killed.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    import jax

    jax.config.update('jax_platforms', 'cpu')
    if hasattr(os, 'sched_setaffinity'):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[number % len(cores)]})


def _progress(name: str, disable: bool) -> Progress:
    columns = TextColumn(name), BarColumn(), MofNCompleteColumn()
    times = TimeElapsedColumn(), TextColumn('time left'), TimeRemainingColumn()
    return Progress(*columns, *times, console=Console(stderr=True), disable=disable)
