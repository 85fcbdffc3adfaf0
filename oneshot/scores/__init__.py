"""The front door for scores from anywhere: to guesses, to a tally, to a result.

`front_door` audits scores and guesses, `any_algorithm` makes scores of any algorithm, and `tables`
reads them from files and joins them by name.
"""

from oneshot.scores.any_algorithm import audit_algorithm
from oneshot.scores.front_door import audit_guesses, audit_scores, pool

__all__ = ['audit_algorithm', 'audit_guesses', 'audit_scores', 'pool']
