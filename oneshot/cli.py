"""The one command of an installed oneshot: oneshot run | bound | plan | check."""

import difflib
import importlib
import sys

import oneshot

# Each command is the `main(argv, prog)` of a module, which is imported when it is asked for.
_COMMANDS = {
    'run': 'oneshot.main',
    'bound': 'oneshot.scores.__main__',
    'plan': 'oneshot.plan.__main__',
    'check': 'oneshot.check.__main__',
}

_HELP = """usage: oneshot COMMAND ...

Is my DP training really as private as it claims? An audit with one training run.

commands:
  run     train with canaries, and report ε_LB beside ε_UB
  bound   a lower bound on ε, from counts of right guesses or from files of scores
  plan    what an audit will see, before it is run
  check   examine a DP step, given as a function

examples:
  oneshot run digits_wb --workdir=runs/digits_wb
  oneshot bound --m=1000 --r=100 --v=75 --delta=1e-4

`oneshot COMMAND --help` says more. `python -m oneshot.main`, `oneshot.bounds`, `oneshot.plan` and
`oneshot.check` are the same four."""


def main(argv: list[str] | None = None) -> int:
    """Runs one of the commands; returns the exit status."""
    name, *arguments = (sys.argv[1:] if argv is None else argv) or ['--help']
    if name in ('-h', '--help'):
        print(_HELP)
        return 0
    if name == '--version':
        print(f'oneshot {oneshot.__version__}')
        return 0
    if name not in _COMMANDS:
        near = difflib.get_close_matches(name, _COMMANDS, 1)
        hint = f'; did you mean {near[0]}?' if near else '.'
        message = f'the command must be one of {", ".join(_COMMANDS)}, but {name!r} was given{hint}'
        print(f'oneshot: {message}', file=sys.stderr)
        return 2
    try:
        command = importlib.import_module(_COMMANDS[name])
    except ImportError as error:  # an extra is not installed
        print(f'oneshot: {error}', file=sys.stderr)
        return 2
    return command.main(arguments, prog=f'oneshot {name}')
