"""How a run ends before its last step: by a signal, by divergence, or by an error."""

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

    def __init__(self, received: signal.Signals, step: int, steps: int, where: Any) -> None:
        self.received = received
        super().__init__(
            f'Stopped by {received.name} after step {step:,} of {steps:,}. The state is kept in '
            f'{where}: the same command goes on from there.'
        )


class Diverged(Exception):
    """The loss or a parameter is not finite.

    Args:
        step: the step at which it was seen.
        steps: of the whole run.
        what: the value that is not finite.
        learning_rate: of the run.
        kept: a sentence about what is kept.
    """

    def __init__(
        self, step: int, steps: int, what: str, learning_rate: float, kept: str | None = None
    ) -> None:
        self._details = step, steps, what, learning_rate
        self.step = step
        sentences = (
            f'At step {step:,} of {steps:,}, {what} is not finite: the run diverged, and was '
            'stopped.',
            kept,
            f'Try a smaller --config.learning_rate than {learning_rate:g}; another config takes '
            'another --workdir, or --overwrite.',
        )
        super().__init__(' '.join(sentence for sentence in sentences if sentence))

    def with_kept(self, kept: str) -> 'Diverged':
        """The same error, with a sentence about what is kept."""
        return Diverged(*self._details, kept)


class Failed(RuntimeError):
    """The run failed after it had begun, by an error that is not about its input."""


@contextlib.contextmanager
def failing() -> Iterator[None]:
    """While it is entered, a ValueError is not about the input: it is raised as `Failed`."""
    try:
        yield
    except ValueError as error:
        raise Failed(f'The run failed: {one_line(error)}') from error


class StopSignals:
    """Graceful stop, while it is entered.

    The first SIGTERM or SIGINT is noted in `received`, so that the run can finish its chunk and
    save its state. The second one acts at once, as if this were not entered.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._handlers_before = {}

    def __enter__(self) -> 'StopSignals':
        if threading.current_thread() is threading.main_thread():  # the only one that may
            self._handlers_before = {
                number: signal.signal(number, self._receive) for number in _STOP_SIGNALS
            }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers_before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: object) -> None:
        self.received = signal.Signals(number)
        self.__exit__()
        # Not print, which may be at work already.
        line = (
            f'\noneshot: {self.received.name}: stops after this chunk, or now if it comes again\n'
        )
        os.write(2, line.encode())
