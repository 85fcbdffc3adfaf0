"""One audited run, from config to result.

>>> import oneshot
>>> from oneshot.configs import digits_wb
>>> config = digits_wb.get_config()
>>> config.steps, config.dp.noise_multiplier, config.audit.m = 20, 1.0, 200
>>> result = oneshot.run.run(config)  # with a workdir, it writes a report and checkpoints
step 20 of 20: loss ..., 0 s left
...verdict...
>>> result.method, result.rule, result.violated
('one_run', 'planned', False)

`run` does it all. Its parts are `prepare`, `train`, `collect_scores`, `audit_all`, `headline` and
`test_accuracy`; `audit_run` is `run` for what `prepare` gives.
"""

from oneshot.inputs import require

require('run', 'jax', 'optax', 'flax', 'orbax', 'absl', 'ml_collections', 'matplotlib')
require('run', 'tensorboardX', 'tensorflow_datasets')

from oneshot.run.outcome import audit_all, headline
from oneshot.run.preparation import Run, prepare
from oneshot.run.training import audit_run, collect_scores, reprint, run, test_accuracy, train

__all__ = [
    'Run',
    'audit_all',
    'audit_run',
    'collect_scores',
    'headline',
    'prepare',
    'reprint',
    'run',
    'test_accuracy',
    'train',
]
