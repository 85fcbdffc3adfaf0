"""What an audit will see before it is run.

`score_law` has the distribution of the scores, `expected` the mean of ε_LB, `search` the best
guesses, and `detection` the violations that are noticed.

>>> import oneshot
>>> from oneshot.plan import AuditSetting, Scoring, detectable_violation, plan_guesses
>>> scoring = Scoring(oneshot.DPSGD(noise_multiplier=1.0))
>>> audit = AuditSetting(scoring, m=1000, delta=1e-5, method='fdp')
>>> plan = plan_guesses(audit)
>>> plan.rule, round(plan.eps_lb, 2)
((58, 58), 2.55)
>>> violation = detectable_violation(audit, eps=4.38)
>>> round(violation.noise_multiplier, 2)
0.56
"""

from oneshot.plan.detection import Violation, detectable_violation
from oneshot.plan.expected import AuditSetting, expected_eps_lb
from oneshot.plan.score_law import Scoring
from oneshot.plan.search import Plan, canaries_needed, plan_audit, plan_guesses

__all__ = [
    'AuditSetting',
    'Plan',
    'Scoring',
    'Violation',
    'canaries_needed',
    'detectable_violation',
    'expected_eps_lb',
    'plan_audit',
    'plan_guesses',
]
