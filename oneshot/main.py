"""Entry point: python -m oneshot.main --config=configs/digits_wb.py [--workdir=DIR].

Kept short on purpose: flags, config, one call. Any value of the config can be
set from the command line: --config.seed=1 --config.audit.m=5000. With a workdir, the
same command again goes on where the run was stopped. The exit status is 0 if there is a
result, 2 if the input is bad, 1 if the run failed, and 128 + n after signal n.
"""

import signal
import warnings

import jax
from absl import app, flags, logging

from oneshot import inputs
from oneshot.keep import processes
from oneshot.keep.workdir import Workdir
from oneshot.run import command_line, training
from oneshot.run.resumption import Diverged, Stopped

_CONFIG = flags.DEFINE_string('config', None, 'The run, a file of configs/.')
_WORKDIR = flags.DEFINE_string('workdir', None, 'Where the results go; only printed without it.')
_OVERWRITE = flags.DEFINE_bool('overwrite', False, 'Deletes what an earlier run left there.')
flags.mark_flag_as_required('config')


def main(overrides: dict[str, list[str]]) -> None:
    """Checks, then runs."""
    logging.set_verbosity(logging.WARNING)  # JAX tells of every backend that is not there
    warnings.formatwarning = lambda message, *_: f'oneshot: warning: {message}\n'
    failed = 2  # the status for an OSError, until the run begins
    try:
        config, directory = command_line.read(_CONFIG.value, overrides), None
        if _WORKDIR.value is not None:
            directory = Workdir(_WORKDIR.value, config, _OVERWRITE.value)
            if directory.finished:
                if processes.first():
                    training.show_again(directory)
                return
        prepared, failed = training.prepare(config, directory), 1
        training.run(prepared)
    except ValueError as error:
        processes.end(error, 2)
    except OSError as error:
        processes.end(error, failed)
    except Diverged as error:
        processes.end(error, 1)
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        processes.end(f'The run failed: {inputs.one_line(error)}{processes.advice()}', 1)
    except Stopped as error:
        processes.end(error, 128 + error.received)


def _parse(arguments: list[str]) -> dict[str, list[str]]:
    """The overrides of the config; all other flags are set."""
    rest, overrides = command_line.split(arguments)
    try:
        _, *more = flags.FLAGS(rest)
    except flags.Error as error:
        processes.end(error, 2)
    if more:
        processes.end(f'No arguments are taken beside the flags, but {more} were given.', 2)
    return overrides


if __name__ == '__main__':
    try:
        app.run(main, flags_parser=_parse)
    except KeyboardInterrupt:
        processes.end('Stopped at once. What was kept before is kept.', 128 + signal.SIGINT)
