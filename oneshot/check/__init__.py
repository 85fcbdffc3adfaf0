"""A doctor for a DP step, given as a function: python -m oneshot.check --help.

    from oneshot import check

    step = check.Step(gradient, clip_norm=1.0, noise_multiplier=1.1, expected_batch_size=64)
    print(check.examine(step, jax.random.key(0)))

It joins an audit in one run with exact checks of what the scores of canaries cannot see:
what one example can move, the noise in every leaf and its independence, the draws.
"""

from oneshot.inputs import require

require('jax', 'jax', 'optax')

from oneshot.check.doctor import RATE, Report, examine
from oneshot.check.finding import Finding
from oneshot.check.step import Example, Model, Step, small_model

__all__ = ['RATE', 'Example', 'Finding', 'Model', 'Report', 'Step', 'examine', 'small_model']
