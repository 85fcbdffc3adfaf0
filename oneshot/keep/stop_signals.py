"""SIGTERM and SIGINT as a wish: the run stops where nothing is lost."""

import os
import signal
import threading

_HEARD = signal.SIGTERM, signal.SIGINT


class Signals:
    """While it is entered, the first signal is noted in `received`, and a second one acts."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before = {}

    def __enter__(self) -> 'Signals':
        if threading.current_thread() is threading.main_thread():  # the only one that may
            self._before = {number: signal.signal(number, self._receive) for number in _HEARD}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: object) -> None:
        self.received = signal.Signals(number)
        self.__exit__()
        # Not print, which may be at work already.
        line = (
            f'\noneshot: {self.received.name}: stops after this chunk, or now if it comes again\n'
        )
        os.write(2, line.encode())
