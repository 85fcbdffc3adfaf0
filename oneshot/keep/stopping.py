"""How a run ends before its last step, and with which exit status."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

from oneshot.inputs import one_line

_STOP_SIGNALS = signal.SIGTERM, signal.SIGINT


class Stopped(Exception):
    """The run was told to stop; its state is kept."""

    def __init__(self, received: signal.Signals, step: int, steps: int, folder: Any) -> None:
        self.received, self.status = received, 128 + received
        super().__init__(
            f'Stopped by {received.name} after step {step:,} of {steps:,}. The state is kept in '
            f'{folder}: the same command goes on from there.'
        )


class Diverged(Exception):
    """The loss or a parameter is not finite, as seen at `step`; perhaps with what is kept."""

    status = 1

    def __init__(self, step: int, value: str, config: Any, kept: str = '') -> None:
        self.step, self.value = step, value
        super().__init__(
            f'At step {step:,} of {config.steps:,}, {value} is not finite: the run diverged, and '
            f'was stopped. {kept}{" " if kept else ""}Try a smaller --config.learning_rate than '
            f'{config.learning_rate:g}; another config takes another --workdir, or --overwrite.'
        )


class Failed(RuntimeError):
    """The run failed after it had begun, by an error that is not about its input."""

    status = 1


@contextlib.contextmanager
def failing() -> Iterator[None]:
    """While it is entered, a ValueError is not about the input: it is raised as `Failed`."""
    try:
        yield
    except ValueError as error:
        raise Failed(f'The run failed: {one_line(error)}') from error


class StopSignals(contextlib.ExitStack):
    """Graceful stop, while it is entered.

    The first SIGTERM or SIGINT is noted in `received`, so that the run can finish its chunk and
    save its state. The second one acts at once, as if this were not entered.
    """

    def __init__(self) -> None:
        super().__init__()
        self.received: signal.Signals | None = None

    def __enter__(self) -> 'StopSignals':
        if threading.current_thread() is threading.main_thread():  # the only one that may
            for number in _STOP_SIGNALS:
                self.callback(signal.signal, number, signal.signal(number, self._receive))
        return self

    def _receive(self, number: int, frame: object) -> None:
        self.received = signal.Signals(number)
        self.close()
        advice = 'stops after this chunk, or now if it comes again'
        os.write(2, f'\noneshot: {self.received.name}: {advice}\n'.encode())  # print may be at work
