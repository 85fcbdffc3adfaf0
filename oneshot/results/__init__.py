"""What a result is, and every method: from a tally of guesses to an `AuditResult`.

`guess` has the rules by which guesses are chosen, `methods` what they came to and what each
method makes of that, and `result` the result.
"""

from oneshot.results import guess
from oneshot.results.methods import METHODS, Method, Tally, audit_tally
from oneshot.results.result import ASSUMPTIONS, AuditResult

__all__ = ['ASSUMPTIONS', 'METHODS', 'AuditResult', 'Method', 'Tally', 'audit_tally', 'guess']
