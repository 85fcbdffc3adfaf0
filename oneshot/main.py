"""Entry point: python -m oneshot.main --config=configs/digits_wb.py [--workdir=DIR].

Kept short on purpose: flags, config, one call. `oneshot run digits_wb` is the same.
"""

import argparse
import signal
import sys
from typing import NoReturn

from oneshot import run  # first, because it says which extra is missing
from oneshot.command import make_parser
from oneshot.keep import processes, stopping
from oneshot.run import command_line, settings

_EXAMPLES = """examples:
  %(prog)s digits_wb --workdir=runs/digits_wb
  %(prog)s configs/cifar_wb.py:cpu --config.seed=1 --config.audit.m=5000

Any value of the config can be set by --config.KEY=VALUE. With a workdir, the same command again
goes on where the run was stopped. The exit status is 0 if there is a result, 2 if the input is
bad, 1 if the run failed, and 128 + n after signal n."""


def main(argv: list[str] | None = None, prog: str | None = None) -> int:
    """Checks, then runs; returns the exit status."""
    with command_line.terminal():
        of_input = 2  # the status for an OSError, until the run begins
        try:
            flags, overrides = _parse(sys.argv[1:] if argv is None else argv, prog)
            config, workdir = command_line.read(flags.config, overrides), None
            if flags.workdir is not None:
                workdir = settings.open_workdir(flags.workdir, config, flags.overwrite)
                if workdir.finished:
                    if processes.is_first():
                        run.reprint(workdir)
                    return 0
            prepared, of_input = run.prepare(config, workdir), 1
            run.audit_run(prepared)
        except ValueError as error:
            return processes.exit_with(error, 2)
        except OSError as error:
            return processes.exit_with(error, of_input)
        except (stopping.Stopped, stopping.Diverged, stopping.Failed) as error:
            return processes.exit_with(error, error.status)
        except processes.RUNTIME_ERRORS as error:
            return processes.exit_with(processes.explain(error), 1)
        except KeyboardInterrupt:
            message = 'Stopped at once. What was kept before is kept.'
            return processes.exit_with(message, 128 + signal.SIGINT)
    return 0


def _parse(argv: list[str], prog: str | None) -> tuple[argparse.Namespace, dict[str, list[str]]]:
    """The flags, and the overrides of the config."""
    others, overrides = command_line.split(argv)
    usage = 'CONFIG [--workdir DIR] [--overwrite] [--config.KEY=VALUE ...]'
    description = 'Trains with canaries, audits in this one run, and reports ε_LB beside ε_UB.'
    parser = make_parser(prog or 'python -m oneshot.main', usage, description, _EXAMPLES)
    parser.error = _refuse
    parser.add_argument('names', nargs='*', help=argparse.SUPPRESS)
    parser.add_argument('--config', help='the run, a file of configs/ or its name; or as CONFIG')
    parser.add_argument('--workdir', help='where the results go; only printed without it')
    help_text = 'deletes what an earlier run left there'
    parser.add_argument('--overwrite', action='store_true', help=help_text)
    flags = parser.parse_args(others)
    if flags.config is not None:
        flags.names.insert(0, flags.config)
    if not flags.names:
        raise ValueError('A config must be given, such as digits_wb.')
    flags.config, *more = flags.names
    if more:
        raise ValueError(f'No arguments are taken beside the flags, but {more} were given.')
    return flags, overrides


def _refuse(message: str) -> NoReturn:
    raise ValueError(f'{message}.')


if __name__ == '__main__':
    sys.exit(main())
