"""What a result is, and every method: from a tally of guesses to an `AuditResult`.

`guess` has the rules by which guesses are chosen, `tally` what they came to, `methods` what
each method makes of that, and `result` the result.
"""

from oneshot.results import guess
from oneshot.results.methods import METHODS, Method, audit_tally
from oneshot.results.result import ASSUMPTIONS, AuditResult
from oneshot.results.tally import Tally

__all__ = ['ASSUMPTIONS', 'METHODS', 'AuditResult', 'Method', 'Tally', 'audit_tally', 'guess']
