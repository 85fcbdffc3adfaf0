"""Examines a DP step by all checks, and reports what they found."""

import dataclasses
import io
from collections.abc import Callable
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

from oneshot.check import canary_audit, noise, sampler, sensitivity
from oneshot.check.runner import Finding, runner
from oneshot.check.step import Step

FALSE_ALARM_RATE = 1e-4  # of false alarms of one examination, at most


@dataclasses.dataclass(frozen=True)
class Report:
    """What an examination found."""

    step: Step
    findings: list[Finding]  # of all checks
    audit: canary_audit.Audit  # in one run, whose findings are among them

    @property
    def faults(self) -> list[Finding]:
        """The findings that are unlikely of a right step, by `FALSE_ALARM_RATE` in all."""
        level = FALSE_ALARM_RATE / sum(finding.p_value is not None for finding in self.findings)
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
            'rate': FALSE_ALARM_RATE,
            'notes': self.notes,
            'eps_lb': self.audit.eps_lb,
            'eps_claimed': self.audit.eps_claimed,
            'delta': canary_audit.DELTA,
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
        columns = 'check', 'seen', 'by chance', ''
        table = Table(*columns, title=f'{self.step.name}, examined', title_justify='left')
        for finding in self.findings:
            mark = 'FAULT' if finding in faults else 'ok'
            table.add_row(finding.check, finding.seen, _chance(finding), mark)
        console.print(table)
        for finding in faults:
            console.print(f'\nFAULT: {finding.check}', highlight=False)
            certainty = 'certain: the check is exact'
            if finding.p_value is not None:
                certainty = f'a right step shows as much with a probability of {_chance(finding)}'
            lines = Table.grid(padding=(0, 2))
            lines.add_row('  expected', finding.expected)
            lines.add_row('  seen', finding.seen)
            lines.add_row('  sure', certainty)
            lines.add_row('  usually', finding.cause)
            console.print(lines)
        for note in self.notes:
            console.print(f'Note: {note}', highlight=False)
        verdict = f'\n{len(faults)} of {len(self.findings)}' if faults else 'None of the'
        console.print(
            f'{verdict} checks failed. A right step fails any with a probability of at most '
            f'{FALSE_ALARM_RATE:g}.',
            highlight=False,
        )


def _chance(finding: Finding) -> str:
    if finding.p_value is None:
        return 'exact'
    return f'{finding.p_value:.2g}' if finding.p_value > 1e-300 else '< 1e-300'


def examine(
    step: Step, key: jax.Array, progress: Callable[[str], Any] = lambda words: None
) -> Report:
    """Examines a DP step.

    Guarantee: a step that is as it is claimed has a fault in the report with a probability
    of at most `FALSE_ALARM_RATE`, over the key.

    Args:
        step: the step, and what it claims.
        key: for noise, canaries, coins and draws, used for nothing else.
        progress: is told what is being done.
    """
    exact_key, noise_key, audit_key, draw_key = jax.random.split(key, 4)
    progress('compiling, and leaving one example out')
    patient = runner(step)
    findings = sensitivity.examine(patient, exact_key)
    progress('listening to the noise')
    few, many = noise.noise_only_gradients(patient, noise_key)
    findings += noise.examine(patient, few, many)
    if step.sample is not None:
        progress('drawing batches')
        findings += sampler.examine(step, draw_key)
    progress('auditing in one run')
    audit = canary_audit.examine(patient, audit_key, many)
    return Report(step, findings + audit.findings, audit)
