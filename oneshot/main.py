"""Entry point: python -m oneshot.main --config=configs/digits_wb.py [--workdir=DIR].

Kept short on purpose: flags, config, one call. Any value of the config can be
set from the command line: --config.seed=1 --config.audit.m=5000. With a workdir, the
same command again goes on where the run was stopped. The exit status is 0 if there is a
result, 2 if the input is bad, 1 if the run failed, and 128 + n after signal n.
"""

import signal
import sys
import warnings

import jax
from absl import app, flags, logging

from oneshot import command, train
from oneshot.bounds import _check
from oneshot.keeper import Diverged, Stopped
from oneshot.workdir import Workdir

_CONFIG = flags.DEFINE_string('config', None, 'The run, a file of configs/.')
_WORKDIR = flags.DEFINE_string('workdir', None, 'Where the results go; only printed without it.')
_OVERWRITE = flags.DEFINE_bool('overwrite', False, 'Deletes what an earlier run left there.')
flags.mark_flag_as_required('config')


def main(overrides: dict[str, list[str]]) -> None:
    """Checks, then runs."""
    logging.set_verbosity(logging.WARNING)  # JAX tells of every backend that is not there
    warnings.formatwarning = lambda message, *_: f'oneshot: warning: {message}\n'
    try:
        config, directory = command.read(_CONFIG.value, overrides), None
        if _WORKDIR.value is not None:
            directory = Workdir(_WORKDIR.value, config, _OVERWRITE.value)
            if directory.finished:
                train.show_again(directory)
                return
        prepared = train.prepare(config, directory)
    except (ValueError, OSError) as error:
        _fail(error, 2)
    try:
        train.run(prepared)
    except ValueError as error:  # of what is in the workdir
        _fail(error, 2)
    except (Diverged, OSError) as error:
        _fail(error, 1)
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        _fail(f'The run failed: {_check.one_line(error)}', 1)
    except Stopped as error:
        _fail(error, 128 + error.received)


def _parse(arguments: list[str]) -> dict[str, list[str]]:
    """The overrides of the config; all other flags are set."""
    rest, overrides = command.split(arguments)
    try:
        _, *more = flags.FLAGS(rest)
    except flags.Error as error:
        _fail(error, 2)
    if more:
        _fail(f'No arguments are taken beside the flags, but {more} were given.', 2)
    return overrides


def _fail(error: object, status: int) -> None:
    print(f'oneshot: {error}', file=sys.stderr)
    sys.exit(status)


if __name__ == '__main__':
    try:
        app.run(main, flags_parser=_parse)
    except KeyboardInterrupt:
        _fail('Stopped at once. What was kept before is kept.', 128 + signal.SIGINT)
