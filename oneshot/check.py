"""A doctor for a DP step, given as a function: python -m oneshot.check --help.

    from oneshot import check

    step = check.Step(gradient, clip_norm=1.0, noise_multiplier=1.1, expected_batch_size=64)
    print(check.examine(step, jax.random.key(0)))

It joins an audit in one run with exact checks of what the scores of canaries cannot see:
what one example can move, the noise in every leaf and its independence, the draws.
"""

import argparse
import dataclasses
import importlib
import importlib.util
import io
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

from oneshot.checks import canaries, draws, noise, own, sensitivity
from oneshot.checks.finding import Finding
from oneshot.checks.step import Example, Model, Step, runner, small_model
from oneshot.methods import to_json

__all__ = ['RATE', 'Example', 'Finding', 'Model', 'Report', 'Step', 'examine', 'small_model']

RATE = 1e-4  # of false alarms of one examination, at most


@dataclasses.dataclass(frozen=True)
class Report:
    """What an examination found.

    Attributes:
        step: the one that was examined.
        findings: of all checks.
        audit: the audit in one run, whose findings are among them.
    """

    step: Step
    findings: list[Finding]
    audit: canaries.Audit

    @property
    def faults(self) -> list[Finding]:
        """The findings that a right step has with a probability of at most `RATE`, in all."""
        level = RATE / sum(finding.p_value is not None for finding in self.findings)
        return [
            finding
            for finding in self.findings
            if finding.wrong or (finding.p_value is not None and finding.p_value < level)
        ]

    @property
    def notes(self) -> list[str]:
        return [finding.note for finding in self.findings if finding.note]

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        faults = self.faults
        return {
            'name': self.step.name,
            'faults': [finding.check for finding in faults],
            'rate': RATE,
            'notes': self.notes,
            'eps_lb': self.audit.eps_lb,
            'eps_claimed': self.audit.eps_claimed,
            'delta': canaries.DELTA,
            'findings': [
                dataclasses.asdict(finding) | {'fault': finding in faults}
                for finding in self.findings
            ],
        }

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=100)
        self.show(console)
        return console.file.getvalue()

    def show(self, console: Console) -> None:
        """A table of all checks, and all that is to be said of each fault."""
        faults = self.faults
        table = Table(title=f'{self.step.name}, examined', title_justify='left')
        for column in ('check', 'seen', 'by chance', ''):
            table.add_column(column)
        for finding in self.findings:
            chance = 'exact' if finding.p_value is None else _number(finding.p_value)
            mark = 'FAULT' if finding in faults else 'ok'
            table.add_row(finding.check, finding.seen, chance, mark)
        console.print(table)
        for finding in faults:
            console.print(f'\nFAULT: {finding.check}', highlight=False)
            lines = Table.grid(padding=(0, 2))
            lines.add_row('  expected', finding.expected)
            lines.add_row('  seen', finding.seen)
            lines.add_row('  sure', _sure(finding))
            lines.add_row('  usually', finding.cause)
            console.print(lines)
        for note in self.notes:
            console.print(f'Note: {note}', highlight=False)
        verdict = f'\n{len(faults)} of {len(self.findings)}' if faults else 'None of the'
        console.print(
            f'{verdict} checks failed. A right step fails any with a probability of at most '
            f'{RATE:g}.',
            highlight=False,
        )


def _number(p_value: float) -> str:
    return f'{p_value:.2g}' if p_value > 1e-300 else '< 1e-300'


def _sure(finding: Finding) -> str:
    if finding.p_value is None:
        return 'certain: the check is exact'
    return f'a right step shows as much with a probability of {_number(finding.p_value)}'


def examine(
    step: Step, key: jax.Array, progress: Callable[[str], Any] = lambda words: None
) -> Report:
    """Examines a DP step.

    Guarantee: a step that is as it is claimed has a fault in the report with a probability
    of at most `RATE`, over the key.

    Args:
        step: the step, and what it claims.
        key: for noise, canaries, coins and draws, used for nothing else.
        progress: is told what is being done.

    Returns:
        A `Report`.
    """
    exact_key, noise_key, audit_key, draw_key = jax.random.split(key, 4)
    progress('compiling, and leaving one example out')
    patient = runner(step)
    findings = sensitivity.examine(patient, exact_key)
    progress('listening to the noise')
    few, many = noise.quiet(patient, noise_key)
    findings += noise.examine(patient, few, many)
    if step.sample is not None:
        progress('drawing batches')
        findings += draws.examine(step, draw_key)
    progress('auditing in one run')
    audit = canaries.examine(patient, audit_key, many)
    return Report(step, findings + audit.findings, audit)


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
    named = own.step('vmap') if flags.step is None else _load(flags.step)
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
