"""Several processes in one run, by `jax.distributed`: each has its own devices and data.

All of them run the same program, and meet in every step. What is to be done once (a file, a
line on the screen) the first process does (`on_first`, `is_first`). What one process alone knows
(a signal, an error) becomes known to all before they act on it (`all_max`). If a process is lost,
the others say so and end, because a partial sum of gradients is useless.
"""

import contextlib
import ctypes
import json
import os
import signal
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from oneshot import inputs
from oneshot.keep.stopping import Failed

# A process that is silent for so long counts as lost; one that ends waits so long for the others.
_LOST_AFTER, _SHUTDOWN = 20, 10  # seconds
# What the launchers that JAX knows leave in the environment: how many processes there are, and
# that this is one of them, not the shell that they are started from.
_LAUNCHERS = {
    'SLURM_NTASKS': 'SLURM_STEP_NODELIST',
    'OMPI_COMM_WORLD_SIZE': 'OMPI_MCA_orte_hnp_uri',
}
_HOSTS = 'TPU_WORKER_HOSTNAMES', 'TPU_PROCESS_ADDRESSES'
_LOST = (
    'A process of this run was lost, or cannot be reached any more, and all others end with it. '
    'Start all of them again: with a workdir, the run goes on from the newest checkpoint.'
)
_MIN_ROOM = 12  # a message takes 2 to the power of this bytes or more
_PASSED_ON = {'ValueError': ValueError, 'OSError': OSError}  # as they are, to other processes
# How this process ends if JAX aborts it; without last words as long as it is the only one.
_ending = types.SimpleNamespace(status=1, last_words=None)
RUNTIME_ERRORS = MemoryError, jax.errors.JaxRuntimeError  # of the machine, not of the input


def start(address: str | None, number: int | None, id: int | None) -> None:
    """Joins the other processes, if there are any: before JAX does anything else.

    Args:
        address: HOST:PORT of the first process. Like the rest, by default of the environment.
        number: of processes.
        id: of this process, from 0.

    Raises:
        ValueError: what is given is not enough, or the others were not found.
    """
    env = os.environ
    number = _number('JAX_NUM_PROCESSES') if number is None else number
    id = _number('JAX_PROCESS_ID') if id is None else id
    address = env.get('JAX_COORDINATOR_ADDRESS') if address is None else address
    launched = any(mark in env and (_number(name) or 1) > 1 for name, mark in _LAUNCHERS.items())
    launched |= any(',' in env.get(name, '') for name in _HOSTS)
    if number == 1 or (number is None and address is None and not launched):
        return
    if address is None and not launched:
        raise ValueError(
            f'address must be given, HOST:PORT of the first process, where number is {number}.'
        )
    if not launched and None in (number, id):
        raise ValueError(
            'address, number and id must be given together (or JAX_COORDINATOR_ADDRESS, '
            'JAX_NUM_PROCESSES and JAX_PROCESS_ID in the environment), '
            f'but {address!r}, {number!r} and {id!r} were given.'
        )
    host, _, port = (address or 'host:1').rpartition(':')
    if not host or not port.isdecimal():
        raise ValueError(f'address must be HOST:PORT, but {address!r} was given.')
    if number is not None and id is not None and id >= number:
        raise ValueError(f'id must be below number, but {id} and {number} were given.')
    jax.config.update('jax_enable_preemption_service', False)  # it would take SIGTERM from us
    _ending.last_words = _LOST
    waits = {'heartbeat_timeout_seconds': _LOST_AFTER, 'shutdown_timeout_seconds': _SHUTDOWN}
    try:
        jax.distributed.initialize(address, number, id, **waits)
    except (ValueError, RuntimeError, jax.errors.JaxRuntimeError) as error:
        raise ValueError(
            f'The processes of the run do not find each other: {inputs.one_line(error)}'
        ) from error


def _number(name: str) -> int | None:
    """A number of the environment."""
    text = os.environ.get(name)
    if text is not None and not text.isdecimal():
        raise ValueError(f'{name} of the environment must be a number, but is {text!r}.')
    return None if text is None else int(text)


def is_first() -> bool:
    """Whether this is the process that prints and writes."""
    return jax.process_index() == 0


def on_first(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function in the first process alone; all processes return what it returns.

    All processes have to come here. The result has to be as JSON has it.

    Raises:
        ValueError, OSError: the function raised it, with the same text in every process.
        Failed: in the other processes, if the function raised anything else.
    """
    if jax.process_count() == 1:
        return function(*arguments)
    message, problem = {}, None
    if is_first():
        try:
            message = {'result': function(*arguments)}
        except Exception as error:  # whatever it is: the others wait
            problem, text = error, str(error)
            kind = next((name for name in _PASSED_ON if isinstance(error, _PASSED_ON[name])), None)
            if kind is None:
                text = f'The first process failed: {type(error).__name__}: {error}'
            message = {'kind': kind, 'error': text}
    message = json.loads(all_texts(json.dumps(message))[0])
    if problem is not None:
        raise problem
    if 'error' in message:
        raise _PASSED_ON.get(message['kind'], Failed)(message['error'])
    return message['result']


def all_max(*numbers: int) -> tuple[int, ...]:
    """The largest of each number over all processes."""
    if jax.process_count() == 1:
        return numbers
    of_all = multihost_utils.process_allgather(np.array(numbers, np.int64))
    return tuple(int(number) for number in np.max(of_all, axis=0))


def all_texts(text: str) -> list[str]:
    """The texts of all processes, in their order."""
    if jax.process_count() == 1:
        return [text]
    message = np.frombuffer(text.encode(), np.uint8)
    (size,) = all_max(message.size)
    padded = np.zeros(2 ** max(_MIN_ROOM, (size - 1).bit_length()), np.uint8)  # few programs
    padded[: message.size] = message
    return [bytes(row).rstrip(b'\0').decode() for row in multihost_utils.process_allgather(padded)]


def explain(error: BaseException) -> str:
    """A sentence for a runtime error: of several processes, one has most likely been lost."""
    hint = f' {_LOST}' if jax.distributed.is_initialized() else ''
    return f'The run failed: {inputs.one_line(error)}{hint}'


def exit_with(error: object, status: int) -> int:
    """Says why this process ends. Returns the status, or ends it where there are others."""
    _say(error)
    if not jax.distributed.is_initialized():
        return status
    _ending.status, _ending.last_words = status, ''
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what JAX prints while it shuts down is noise
    with contextlib.suppress(RuntimeError):  # the others may be lost
        jax.distributed.shutdown()
    os._exit(status)


def _say(error: object) -> None:
    os.write(2, f'oneshot: {error}\n'.encode())  # not print, which may be at work already


@contextlib.contextmanager
def last_words_on_abort() -> Iterator[None]:
    """While it is entered, a process that JAX aborts says that another one was lost.

    JAX aborts a process when another one is lost, with a stack trace, in a thread of its own,
    where no handler of Python's `signal` would be called: so it is a handler of C. Where this is
    the only process, an abort is what it always is.
    """
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p

    @ctypes.CFUNCTYPE(None, ctypes.c_int)
    def abort(_: int) -> None:
        if _ending.last_words is None:
            libc.signal(signal.SIGABRT, before)
            os.kill(os.getpid(), signal.SIGABRT)
            return
        if _ending.last_words:
            _say(_ending.last_words)
        os._exit(_ending.status)

    before = libc.signal(signal.SIGABRT, ctypes.cast(abort, ctypes.c_void_p))
    try:
        yield
    finally:
        libc.signal(signal.SIGABRT, before)
