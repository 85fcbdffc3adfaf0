"""The doctor from the command line: python -m oneshot.check --help."""

import argparse
import importlib
import importlib.util
import pathlib
import sys
from typing import Any

import jax
from rich.console import Console

from oneshot import command
from oneshot.check.doctor import Report, examine
from oneshot.check.step import Step, oneshot_step

_USAGE = '[FILE.py:NAME | MODULE:NAME] [option ...]'
_DESCRIPTION = 'A doctor for a DP step: an audit in one run, and exact checks.'
_EPILOG = """examples:
  %(prog)s my_step.py:gradient --noise-multiplier=1.1 --expected-batch-size=64
  %(prog)s my_package.private:step --json

NAME is a check.Step, or a function gradient(loss_fn, params, batch, mask, key) whose claim the
flags give; see oneshot.check.Step. Without it, oneshot's own step is examined. The exit status is
0 if no fault is found, 1 if one is, and 2 on bad input."""


def main(argv: list[str] | None = None, prog: str | None = None) -> int:
    """Examines what is named on the command line; returns the exit status."""
    return command.run(
        _parser(prog or 'python -m oneshot.check'),
        argv,
        _examine,
        Report.as_dict,
        lambda report: report.show(Console()),
        lambda report: 1 if report.faults else 0,
    )


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = command.make_parser(prog, _USAGE, _DESCRIPTION, _EPILOG)
    parser.add_argument('step', nargs='?', metavar='NAME', help='the step or function')
    claim = parser.add_argument_group('the claim of a function')
    claim.add_argument('--noise-multiplier', '--sigma', type=float, metavar='σ', help='σ')
    claim.add_argument('--clip-norm', type=float, metavar='c', help='c; default 1')
    claim.add_argument('--expected-batch-size', type=float, metavar='B', help='divides the sum')
    claim.add_argument('--sampling-prob', '--q', type=float, metavar='q', help='q; default 0.25')
    parser.add_argument('--seed', type=int, default=0, help='of the examination; default 0')
    return parser


def _examine(flags: argparse.Namespace) -> Report:
    step = _step(flags)
    with Console(stderr=True).status('starting') as status:
        return examine(step, jax.random.key(flags.seed), status.update)


def _step(flags: argparse.Namespace) -> Step:
    named = oneshot_step('vmap') if flags.step is None else _load(flags.step)
    names = 'noise_multiplier', 'clip_norm', 'expected_batch_size', 'sampling_prob'
    claim = {name: getattr(flags, name) for name in names if getattr(flags, name) is not None}
    if isinstance(named, Step):
        if claim:
            raise ValueError(
                f'{named.name} is a Step with a claim of its own: give no flags for it.'
            )
        return named
    if not callable(named):
        raise ValueError(
            f'{flags.step} must be a check.Step or a function, but it is {type(named).__name__}.'
        )
    for name in ('noise_multiplier', 'expected_batch_size'):
        if name not in claim:
            raise ValueError(f'--{name.replace("_", "-")} must be given for a function.')
    return Step(named, **{'clip_norm': 1.0} | claim, name=flags.step)


def _load(name: str) -> Any:
    """What FILE.py:NAME or MODULE:NAME names."""
    place, colon, attribute = name.rpartition(':')
    if not colon or not attribute:
        raise ValueError(f'The step must be FILE.py:NAME or MODULE:NAME, but {name!r} was given.')
    if place.endswith('.py'):
        path = pathlib.Path(place)
        if not path.is_file():
            raise ValueError(f'There is no file {place}.')
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        sys.path.insert(0, str(path.parent.resolve()))
        spec.loader.exec_module(module)
    else:
        sys.path.insert(0, '')
        module = importlib.import_module(place)
    value = module
    for part in attribute.split('.'):
        if not hasattr(value, part):
            raise ValueError(f'{place} has no {attribute}.')
        value = getattr(value, part)
    return value


if __name__ == '__main__':
    sys.exit(main())
