"""The audit in any training loop: canaries, coins, and the attacks that watch.

>>> import jax, oneshot
>>> from oneshot import audit
>>> claim = oneshot.DPSGD(noise_multiplier=1.0, sampling_prob=0.5, steps=4)
>>> params, sizes = jax.numpy.zeros(99), {'clip_norm': 1.0, 'expected_batch_size': 8.0}
>>> audited = audit.flip(jax.random.key(0), 50, params, claim, **sizes)
>>> @jax.jit
... def step(params, audited, key):
...     canary_key, noise_key = jax.random.split(key)
...     summed = jax.numpy.zeros(99)  # the clipped gradients of a batch
...     summed, audited = audit.insert(audited, summed, canary_key)  # before the noise
...     gradient = (summed + jax.random.normal(noise_key, 99)) / 8.0
...     new_params = params - 0.1 * gradient
...     return new_params, audit.update(audited, params, new_params, gradient)
>>> for key in jax.random.split(jax.random.key(1), claim.steps):
...     params, audited = step(params, audited, key)
>>> result = audit.result(audited, params, delta=1e-5)
>>> result.eps_lb < result.eps_claimed
True
"""

from oneshot.inputs import require

require('jax', 'jax', 'optax')

from oneshot.audit import canaries
from oneshot.audit.attacks import black_box, white_box
from oneshot.audit.loop import flip, insert, start, update
from oneshot.audit.readout import result, scores
from oneshot.audit.score import SCORES, Score
from oneshot.audit.state import Audited

__all__ = [
    'SCORES',
    'Audited',
    'Score',
    'black_box',
    'canaries',
    'flip',
    'insert',
    'result',
    'scores',
    'start',
    'update',
    'white_box',
]
