"""oneshot: is my DP training really as private as it claims?

A lower bound on ε from one training run, after Steinke, Nasr and Jagielski,
"Privacy Auditing with One (1) Training Run" (2023).
"""

from oneshot.laws import DPSGD
from oneshot.methods import AuditResult
from oneshot.scores import audit_guesses, audit_scores, pool

__all__ = ['DPSGD', 'AuditResult', 'audit_guesses', 'audit_scores', 'pool']
