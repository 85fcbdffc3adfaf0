"""The doctor from the command line: python -m oneshot.check --help."""

import argparse
import importlib
import importlib.util
import pathlib
import sys
from typing import Any

import jax
from rich.console import Console

from oneshot.check import step
from oneshot.check.doctor import examine
from oneshot.check.step import Step
from oneshot.json_text import to_json

_EXAMPLES = """examples:
  python -m oneshot.check
  python -m oneshot.check my_step.py:gradient --noise-multiplier=1.1 --expected-batch-size=64
  python -m oneshot.check my_package.private:step --json

What is named is a check.Step, or a function gradient(loss_fn, params, batch, mask, key) whose
claim the flags give; see oneshot.check.Step. Without a name, oneshot's own step is examined. The
exit status is 0 if no fault is found, 1 if one is, and 2 on bad input."""


def main(argv: list[str] | None = None) -> int:
    """Examines what is named on the command line; returns the exit status."""
    parser = _parser()
    flags = parser.parse_args(argv)
    console = Console(stderr=True)
    try:
        step = _step(flags)
        with console.status('starting') as status:
            report = examine(step, jax.random.key(flags.seed), status.update)
    except (ValueError, OSError, ImportError) as error:
        print(f'{parser.prog}: {error}', file=sys.stderr)
        return 2
    if flags.json:
        print(to_json(report.as_dict()))
    else:
        report.show(Console())
    return 1 if report.faults else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog='python -m oneshot.check',
        description='A doctor for a DP step: an audit in one run, and exact checks.',
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('step', nargs='?', help='FILE.py:NAME or MODULE:NAME')
    claim = parser.add_argument_group('the claim of a function')
    claim.add_argument('--noise-multiplier', '--sigma', type=float, help='σ')
    claim.add_argument('--clip-norm', type=float, help='c; default 1')
    claim.add_argument('--expected-batch-size', type=float, help='what the sum is divided by')
    claim.add_argument('--sampling-prob', '--q', type=float, help='q; default 0.25')
    parser.add_argument('--seed', type=int, default=0, help='of the examination; default 0')
    parser.add_argument('--json', action='store_true', help='print JSON')
    return parser


_CLAIM = ('noise_multiplier', 'clip_norm', 'expected_batch_size', 'sampling_prob')


def _step(flags: argparse.Namespace) -> Step:
    named = step.oneshot_step('vmap') if flags.step is None else _load(flags.step)
    given = {name: getattr(flags, name) for name in _CLAIM if getattr(flags, name) is not None}
    if isinstance(named, Step):
        if given:
            raise ValueError(
                f'{named.name} is a Step with a claim of its own: give no flags for it.'
            )
        return named
    if not callable(named):
        raise ValueError(
            f'{flags.step} must be a check.Step or a function, but it is {type(named).__name__}.'
        )
    for name in ('noise_multiplier', 'expected_batch_size'):
        if name not in given:
            raise ValueError(f'--{name.replace("_", "-")} must be given for a function.')
    return Step(named, **{'clip_norm': 1.0} | given, name=flags.step)


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
    found = module
    for part in attribute.split('.'):
        if not hasattr(found, part):
            raise ValueError(f'{place} has no {attribute}.')
        found = getattr(found, part)
    return found


if __name__ == '__main__':
    sys.exit(main())
