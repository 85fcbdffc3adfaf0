"""All checks together, on right and wrong steps."""

import functools

import jax

from experiments import fault_steps as steps
from experiments import fault_table
from oneshot import check
from oneshot.check.runner import Finding
from oneshot.check.step import oneshot_step
from tests.check.cases import CLAIM, small, suspicious


def test_a_right_step_has_no_fault():
    step = small(sample=functools.partial(steps.poisson, CLAIM))
    for seed in range(2):
        report = check.examine(step, jax.random.key(seed))
        assert not suspicious(report.findings)
        assert not report.notes
        assert report.audit.eps_lb < 2.0 * report.audit.eps_claimed


def test_our_own_step_has_no_fault():
    report = check.examine(oneshot_step('ghost', fault_table.linear()), jax.random.key(0))
    assert not suspicious(report.findings)
    names = {finding.check for finding in report.findings}
    assert {'sensitivity', 'not finite', 'noise', 'steps', 'leaves', 'batch sizes'} <= names


def test_missing_noise_is_found_by_the_key_the_noise_and_the_audit():
    report = check.examine(small(steps.noise_missing), jax.random.key(1))
    assert {'key', 'noise'} <= {one.check for one in report.faults}
    assert report.audit.eps_lb > report.audit.eps_claimed


def test_the_rate_is_shared_by_the_checks():
    level = check.FALSE_ALARM_RATE / 2
    findings = [
        Finding('exact', '', ''),
        Finding('wrong', '', '', wrong=True),
        Finding('rare', '', '', p_value=0.9 * level),
        Finding('not so rare', '', '', p_value=1.1 * level),
    ]
    report = check.Report(small(), findings, None)
    assert [finding.check for finding in report.faults] == ['wrong', 'rare']
