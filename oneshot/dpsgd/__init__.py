"""The kernel: Algorithm dpsgd, one jitted step on any devices.

`step` is the algorithm, `sampling` its draws, `clipping` its clipped sum, `gradients` the ways
to have the gradients of single examples, and `sharding` and `layout` the same on many devices.

>>> import jax.numpy as jnp
>>> from oneshot import dpsgd
>>> params, batch = jnp.zeros(2), jnp.array([[2.0, 0.0], [0.0, 0.5]])
>>> loss_fn = jnp.vdot  # of one example, which is its gradient
>>> options = {'clip_norm': 1.0, 'microbatch_size': 2}
>>> total, stats = dpsgd.clipped_grad_sum(loss_fn, params, batch, jnp.ones(2, bool), **options)
>>> print(total, stats.clipped)
[1.  0.5] 1
"""

from oneshot.inputs import require

require('jax', 'jax', 'optax')

from oneshot.dpsgd.clipping import Clipping, Stats, choose_strategy, clipped_grad_sum
from oneshot.dpsgd.gradients.cpu_conv import conv_general_dilated
from oneshot.dpsgd.layout import Layout
from oneshot.dpsgd.sharding import make_mesh
from oneshot.dpsgd.step import (
    Attack,
    Canaries,
    Observation,
    State,
    diverged,
    gaussian_noise,
    make_chunk,
    make_step,
)

__all__ = [
    'Attack',
    'Canaries',
    'Clipping',
    'Layout',
    'Observation',
    'State',
    'Stats',
    'choose_strategy',
    'clipped_grad_sum',
    'conv_general_dilated',
    'diverged',
    'gaussian_noise',
    'make_chunk',
    'make_mesh',
    'make_step',
]
