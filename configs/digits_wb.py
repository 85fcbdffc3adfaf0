"""The default audit: DP-SGD on the embedded digits, Dirac canaries, white-box.

    python -m oneshot.main --config=configs/digits_wb.py --workdir=runs/digits_wb

Trains an MLP on 1,200 handwritten digits with 2,000 canaries. Takes about 20 s on two
cores, 7 of them for the calibration of σ. To be expected: 95 % test accuracy, ε_UB = 8
and ε_LB = 2.57 in the mean of 40 seeds (experiments/results/default_audit.csv).
"""

import ml_collections
from ml_collections.config_dict import placeholder


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.seed = 0
    config.steps = 300
    config.chunk = 30  # steps in one dispatch; progress and metrics are by chunk
    config.strategy = 'auto'  # how gradients are clipped: 'ghost', 'vmap', or by the rule
    config.microbatch_size = placeholder(int)  # examples differentiated at once; by the rule
    config.learning_rate = 2.0  # of plain SGD

    config.data = ml_collections.ConfigDict()
    config.data.n = 1_200  # training examples; the rest of the 1,797 is held out

    config.model = ml_collections.ConfigDict()
    config.model.name = 'mlp'  # or 'cnn', 'wrn' (WRN-16-4)
    config.model.hidden = (128,)  # of the MLP
    config.model.conv = 'auto'  # 'patches' on CPU, 'xla' on GPU and TPU
    config.model.dtype = 'float32'  # or 'bfloat16', for accelerators: products only

    config.dp = ml_collections.ConfigDict()
    config.dp.eps = 8.0  # σ is calibrated to it, unless noise_multiplier is set
    config.dp.delta = 1e-5
    config.dp.noise_multiplier = placeholder(float)
    config.dp.clip_norm = 1.0
    config.dp.sampling_prob = 0.1

    config.audit = ml_collections.ConfigDict()
    config.audit.canaries = 'dirac'  # or 'mislabeled', 'in_distribution'
    config.audit.pairs = False  # one of two canaries is always in (Appendix A)
    config.audit.attacks = ('white_box',)  # and 'black_box', for canaries that are examples
    config.audit.signals = ('iterates', 'residual')  # of the white-box attack
    config.audit.headline = 'residual'  # a signal, or 'loss' for the black-box attack
    config.audit.method = 'one_run'
    config.audit.m = 2_000
    config.audit.k_plus = 100
    config.audit.k_minus = 100
    config.audit.confidence = 0.95
    return config
