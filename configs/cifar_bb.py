"""Black-box on CIFAR-10: canaries are images, scored by the loss (Figure bb_diff_m).

    python -m oneshot.main --config=configs/cifar_bb.py:cpu --workdir=runs/cifar_bb
    python -m oneshot.main --config=configs/cifar_bb.py:cpu,in_distribution

m = n, as in the paper's figure: nothing but canaries is trained on, half of them at a time.
They are images of the test set with a wrong label, or, with `:in_distribution`, the right
one. `:eps=4` sets ε_UB (8 if it is not given), `:smoke` runs in seconds. CIFAR-10 comes
from TFDS, see --config.data_dir and docs/guide/configs.md.

`:cpu` has an MLP, and takes a quarter of a minute on two cores. To be expected, in the mean of
twelve seeds (experiments/results/figures/bb_diff_m.csv): ε_LB = 1.03 for mislabeled and 0.79 for
in-distribution canaries. A model that learns wrong labels has no test accuracy. The full
size is a WRN-16-4, for an accelerator, and has not been run.
"""

import ml_collections

from oneshot.configs import arguments, digits_wb


def get_config(argument: str | None = None) -> ml_collections.ConfigDict:
    given = arguments.parse(argument, ('cpu', 'smoke', 'in_distribution'), ('eps',))

    config = digits_wb.get_config()
    config.data.name = 'cifar10'
    config.data.n = 0
    config.model.name = 'wrn'
    config.steps = 100
    config.chunk = 10
    config.learning_rate = 2.0
    config.evaluate_every = 50
    config.dp.eps = 8.0 if given['eps'] is None else given['eps']
    config.dp.sampling_prob = 0.5
    config.audit.canaries = 'in_distribution' if given['in_distribution'] else 'mislabeled'
    config.audit.attacks = ('black_box',)
    config.audit.headline = 'loss'
    config.audit.m = 1_000
    if given['cpu'] or given['smoke']:
        config.model.name, config.model.hidden = 'mlp', (256,)
    if given['smoke']:
        config.model.hidden = (16,)
        config.steps = config.evaluate_every = 10
        config.dp.noise_multiplier = 1.0
        config.audit.m = 200
        config.audit.k_plus = config.audit.k_minus = 20
    return config
