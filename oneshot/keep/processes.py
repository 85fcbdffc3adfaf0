"""Several processes in one run, by `jax.distributed`: each has its own devices and data.

All of them run the same program, and meet in every step. What is to be done once (a file, a
line on the screen) the first does (`lead`, `first`); what one alone knows (a signal, an error)
becomes known to all before they act on it (`agree`). A process that is lost takes the others
with it: they say so and end, because a sum that lacks a part is none.
"""

import contextlib
import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from oneshot import inputs

# Who is silent for so long is lost, and who ends waits so long for the others to end.
_LOST_AFTER, _SHUTDOWN = 20, 10  # seconds
# What the launchers that JAX knows leave in the environment: how many processes there are, and
# that this is one of them, not the shell that they are started from.
_LAUNCHERS = {
    'SLURM_NTASKS': 'SLURM_STEP_NODELIST',
    'OMPI_COMM_WORLD_SIZE': 'OMPI_MCA_orte_hnp_uri',
}
_HOSTS = 'TPU_WORKER_HOSTNAMES', 'TPU_PROCESS_ADDRESSES'

_LEAST = 12  # 2 to the power of this are the bytes of the shortest message


def start(address: str | None, number: int | None, index: int | None) -> None:
    """Joins the other processes, if there are any: before JAX does anything else.

    Args:
        address: HOST:PORT of the first process; of the environment by default.
        number: of processes; of the environment by default.
        index: of this one; of the environment by default.

    Raises:
        ValueError: what is given is not enough, or the others were not found.
    """
    env = os.environ
    number = _number('JAX_NUM_PROCESSES') if number is None else number
    index = _number('JAX_PROCESS_ID') if index is None else index
    address = env.get('JAX_COORDINATOR_ADDRESS') if address is None else address
    launched = any(mark in env and (_number(name) or 1) > 1 for name, mark in _LAUNCHERS.items())
    launched |= any(',' in env.get(name, '') for name in _HOSTS)
    if address is None and not launched:
        if number not in (None, 1):
            raise ValueError(
                f'config.processes.number is {number}, and then config.processes.address must be '
                'given, HOST:PORT of the first process.'
            )
        return
    if number == 1:
        return
    if address is not None and not launched and None in (number, index):
        raise ValueError(
            'config.processes.address, number and id must be given together (or '
            'JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID in the environment), '
            f'but {address!r}, {number!r} and {index!r} were given.'
        )
    host, _, port = (address or 'host:1').rpartition(':')
    if not host or not port.isdecimal():
        raise ValueError(f'config.processes.address must be HOST:PORT, but {address!r} was given.')
    if number is not None and index is not None and index >= number:
        raise ValueError(
            f'config.processes.id must be below config.processes.number, but {index} and {number} '
            'were given.'
        )
    jax.config.update('jax_enable_preemption_service', False)  # it would take SIGTERM from us
    _take_aborts()
    try:
        jax.distributed.initialize(
            address,
            number,
            index,
            heartbeat_timeout_seconds=_LOST_AFTER,
            shutdown_timeout_seconds=_SHUTDOWN,
        )
    except (ValueError, RuntimeError, jax.errors.JaxRuntimeError) as error:
        raise ValueError(
            f'The processes of the run do not find each other: {inputs.one_line(error)}'
        ) from error


def _number(name: str) -> int | None:
    """A number of the environment."""
    given = os.environ.get(name)
    if given is not None and not given.isdecimal():
        raise ValueError(f'{name} of the environment must be a number, but is {given!r}.')
    return None if given is None else int(given)


def several() -> bool:
    """Whether this is one of several processes."""
    return jax.process_count() > 1


def first() -> bool:
    """Whether this is the process that prints and writes."""
    return jax.process_index() == 0


def lead(function: Callable[..., Any], *given: Any) -> Any:
    """What the first process gets from the function, which is called there alone.

    All processes have to come here. They get the result, which has to be as JSON has it, or
    raise the error: a ValueError or an OSError.
    """
    if not several():
        return function(*given)
    said: dict[str, Any] = {}
    if first():
        try:
            said = {'result': function(*given)}
        except ValueError as error:
            said = {'value_error': str(error)}
        except OSError as error:
            said = {'os_error': str(error)}
    said = json.loads(_broadcast(json.dumps(said).encode()))
    if 'value_error' in said:
        raise ValueError(said['value_error'])
    if 'os_error' in said:
        raise OSError(said['os_error'])
    return said['result']


def _broadcast(message: bytes) -> bytes:
    """What the first process gives."""
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(message))))
    room = 2 ** max(_LEAST, (size - 1).bit_length())  # a program for each power of two
    given = np.zeros(room, np.uint8)
    if first():
        given[:size] = np.frombuffer(message, np.uint8)
    return multihost_utils.broadcast_one_to_all(given)[:size].tobytes()


def agree(*numbers: int) -> tuple[int, ...]:
    """The largest of each number that any process has."""
    if not several():
        return numbers
    found = multihost_utils.process_allgather(np.array(numbers, np.int64))
    return tuple(int(one) for one in np.max(found, axis=0))


def gather(text: str) -> list[str]:
    """The texts of all processes, which are of one length."""
    if not several():
        return [text]
    found = multihost_utils.process_allgather(np.frombuffer(text.encode(), np.uint8))
    return [bytes(one).decode() for one in found]


def end(error: object, status: int) -> None:
    """Says why this process ends, and ends it, with the others or without them."""
    _say(error)
    if not jax.distributed.is_initialized():
        sys.exit(status)
    _Ending.status, _Ending.said = status, None
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # of what JAX says to it, no word
    with contextlib.suppress(RuntimeError):  # the others may be lost
        jax.distributed.shutdown()
    os._exit(status)


_LOST = (
    'A process of this run was lost, or cannot be reached any more, and all others end with it. '
    'Start all of them again: with a workdir, the run goes on from the newest checkpoint.'
)


def advice() -> str:
    """What to add to an error of JAX: with several processes, one has most likely been lost."""
    return f' {_LOST}' if jax.distributed.is_initialized() else ''


class _Ending:
    """How this process ends if JAX ends it."""

    status = 1
    said: str | None = _LOST


def _say(error: object) -> None:
    os.write(2, f'oneshot: {error}\n'.encode())  # not print, which may be at work already


def _abort(_: int) -> None:
    if _Ending.said is not None:
        _say(_Ending.said)
    os._exit(_Ending.status)


_ABORT = ctypes.CFUNCTYPE(None, ctypes.c_int)(_abort)


def _take_aborts() -> None:
    """JAX aborts a process when another one is lost, with a stack trace: ours is the last word.

    It happens in a thread of JAX, where no handler of Python's `signal` would be heard.
    """
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    libc.signal(signal.SIGABRT, ctypes.cast(_ABORT, ctypes.c_void_p))
