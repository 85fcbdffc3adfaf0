"""What is shown of a run while it goes on: progress, metrics, TensorBoard events."""

import contextlib
import os
import pathlib
import sys
import time
from typing import Any

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from tensorboardX import summary
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto import event_pb2

from oneshot.dpsgd.step import Stats
from oneshot.json_text import to_json
from oneshot.keep import processes


class Log(contextlib.ExitStack):
    """Progress while a run goes on: a bar on a terminal, plain lines on a pipe.

    With a directory, also `metrics.jsonl` and TensorBoard events. Whatever stands after
    `position`, the bytes of metrics that belong to the first `first` steps, is of a run that
    was stopped, and is written anew. Of several processes, the first alone shows and writes.
    """

    def __init__(
        self, directory: pathlib.Path | None, steps: int, first: int = 0, position: int = 0
    ) -> None:
        super().__init__()
        is_first = processes.is_first()
        self._steps, self._shown, self._written = steps, first, first
        self._accuracy, self._is_live = None, is_first and sys.stdout.isatty()
        self._prints_lines = is_first and not self._is_live
        speed = '{task.fields[speed]} steps/s, time left'
        columns = 'training', BarColumn(), MofNCompleteColumn(), speed, TimeRemainingColumn()
        self._bar = Progress(*columns, disable=not self._is_live)
        self._task = self._bar.add_task('training', total=steps, completed=first, speed='...')
        self._file = self._events = None
        self.position = 0
        if directory is not None and is_first:
            self._file = os.open(directory / 'metrics.jsonl', os.O_RDWR | os.O_CREAT, 0o666)
            self.position = min(position, os.fstat(self._file).st_size)
            os.ftruncate(self._file, self.position)
            self._events = _Events(directory / 'events', first)
            self.callback(self._events.close)
            self.callback(os.close, self._file)

    def __enter__(self) -> 'Log':
        self.enter_context(self._bar)
        return self

    def write(self, step: int, stats: Stats, accuracy: float | None, seconds: float) -> None:
        """Logs a chunk of `train`; after an OSError it may be called again with the same."""
        examples = max(1, int(np.sum(stats.examples)))
        metrics = {
            'loss': float(np.sum(stats.loss)) / examples,
            'batch_size': float(np.mean(stats.examples)),
            'clipped': float(np.sum(stats.clipped)) / examples,
            'nonfinite': int(np.sum(stats.nonfinite)),
        }
        if accuracy is not None:
            metrics['test_accuracy'] = self._accuracy = accuracy
        if self._file is not None and step > self._written:
            line = (to_json({'step': step} | metrics, indent=None) + '\n').encode()
            written = os.pwrite(self._file, line, self.position)
            if written < len(line):  # there was room for a part of it
                os.pwrite(self._file, line[written:], self.position + written)
            self._events.write_scalars(step, metrics)
            self.position += len(line)
        self._written = step
        self._show(step, metrics['loss'], len(stats.examples) / seconds)

    def sync(self) -> None:
        """Returns when the metrics are on the disk."""
        if self._file is not None:
            os.fsync(self._file)

    def _show(self, step: int, loss: float, speed: float) -> None:
        self._bar.update(self._task, completed=step, speed=f'{speed:.0f}')
        due = step >= self._shown + self._steps / 5 or step == self._steps
        if self._prints_lines and due:
            self._shown = step
            accuracy = '' if self._accuracy is None else f', test accuracy {self._accuracy:.1%}'
            speeds = f'{speed:.0f} steps/s, {(self._steps - step) / speed:.0f} s left'
            print(
                f'step {step:,} of {self._steps:,}: loss {loss:.3f}{accuracy}, {speeds}', flush=True
            )


class _Events(EventsWriter):
    """Scalars for TensorBoard, written in this thread, so that an error is seen here."""

    def __init__(self, folder: pathlib.Path, first: int) -> None:
        folder.mkdir(exist_ok=True)
        # A file of its own for every process, which voids what others wrote of later steps.
        super().__init__(str(folder / 'events'), f'.{os.getpid()}')
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._add(first + 1, session_log=start)

    def _add(self, step: int, **content: Any) -> None:
        self.write_event(event_pb2.Event(wall_time=time.time(), step=step, **content))

    def write_scalars(self, step: int, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            self._add(step, summary=summary.scalar(f'train/{name}', value))
        self.flush()
