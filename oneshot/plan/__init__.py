"""What an audit will see before it is run.

`score_law` has the distribution of the scores, `expected` the mean of ε_LB, `search` the best
guesses, and `detection` the violations that are noticed.
"""

from oneshot.plan.detection import Violation, detectable
from oneshot.plan.expected import Audit, expected_eps_lb
from oneshot.plan.score_law import Scoring
from oneshot.plan.search import Plan, best, canaries_needed, plan_audit

__all__ = [
    'Audit',
    'Plan',
    'Scoring',
    'Violation',
    'best',
    'canaries_needed',
    'detectable',
    'expected_eps_lb',
    'plan_audit',
]
