"""The audit in any training loop: canaries, coins, and the attacks that watch.

audited = audit.flip(key, m, params, claim, clip_norm=c, expected_batch_size=B)
...
summed, audited = audit.insert(audited, summed, key)  # before the noise
audited = audit.update(audited, params, new_params, gradient)  # after the step
...
result = audit.result(audited, params, delta=1e-5)
"""

from oneshot.inputs import require

require('jax', 'jax', 'optax')

from oneshot.audit import canaries
from oneshot.audit.attacks import black_box, score_names, white_box
from oneshot.audit.loop import flip, insert, result, scores, start, update
from oneshot.audit.state import Audited

__all__ = [
    'Audited',
    'black_box',
    'canaries',
    'flip',
    'insert',
    'result',
    'score_names',
    'scores',
    'start',
    'update',
    'white_box',
]
