"""A doctor for a DP step, given as a function: python -m oneshot.check --help.

It joins an audit in one run with exact checks of what the scores of canaries cannot see:
what one example can move, the noise in every leaf and its independence, the draws.

>>> import jax
>>> from oneshot import check
>>> def gradient(loss_fn, params, batch, mask, key):  # which forgets to clip
...     grads = jax.vmap(jax.grad(loss_fn), (None, 0))(params, batch)
...     return mask @ grads + 2.0 * jax.random.normal(key, params.shape)
>>> model = check.Model(jax.numpy.vdot, jax.numpy.zeros(400), jax.numpy.eye(400))
>>> step = check.Step(gradient, clip_norm=1.0, noise_multiplier=2.0, expected_batch_size=1.0,
...                   model=model, rows=64)
>>> report = check.examine(step, jax.random.key(0))
>>> 'sensitivity' in [fault.check for fault in report.faults]
True
"""

from oneshot.inputs import require

require('jax', 'jax', 'optax')

from oneshot.check.doctor import FALSE_ALARM_RATE, Report, examine
from oneshot.check.runner import Finding
from oneshot.check.step import Model, Step

__all__ = ['FALSE_ALARM_RATE', 'Finding', 'Model', 'Report', 'Step', 'examine']
