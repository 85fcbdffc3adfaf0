"""The default audit: DP-SGD on the embedded digits, Dirac canaries, white-box.

    python -m oneshot.main --config=configs/digits_wb.py --workdir=runs/digits_wb

Trains an MLP on 1,200 handwritten digits with 2,000 canaries. Takes about 20 s on two
cores. To be expected: 95 % test accuracy, ε_UB = 8 and ε_LB = 2.96 in the mean of 40 seeds
(experiments/results/default_audit.csv).
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
    config.optimizer = 'sgd'  # any of optax, by name
    config.learning_rate = 2.0  # a constant
    config.optimizer_options = ml_collections.ConfigDict()  # such as momentum
    config.views = 0  # K flipped and shifted views for each gradient; 0 for the image itself
    config.ema_decay = placeholder(float)  # evaluates a moving average of the parameters
    config.evaluate_every = 0  # steps; at the end always
    config.checkpoint_every = 60  # steps; 0 keeps a state only when the run is told to stop
    config.checkpoint_keep = 3  # the newest so many
    config.data_dir = placeholder(str)  # of TFDS, if not its default

    config.mesh = ml_collections.ConfigDict()  # of devices
    config.mesh.data = placeholder(int)  # the examples are split over it; as many as there are
    config.mesh.model = 1  # the parameters are split over it

    config.processes = ml_collections.ConfigDict()  # or by the environment
    config.processes.address = placeholder(str)  # HOST:PORT of the first
    config.processes.number = placeholder(int)
    config.processes.id = placeholder(int)  # of this one, from 0

    config.data = ml_collections.ConfigDict()
    config.data.name = 'digits'  # or 'cifar10' … of TFDS
    config.data.train = 'train'  # the splits
    config.data.test = 'test'
    config.data.n = 1_200  # training examples that are no canaries; of 1,797 the rest is held out

    config.model = ml_collections.ConfigDict()
    config.model.name = 'mlp'  # or 'cnn', 'wrn' (WRN-16-4)
    config.model.hidden = (128,)  # of the MLP
    config.model.widths = ((32, 32), (64, 64), (128,))  # of the CNN, from pool to pool
    config.model.stride = 1  # of the CNN's first convolution
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
    config.audit.scores = ('dot', 'llr')  # how a signal is weighed
    config.audit.headline = 'residual_llr'  # a signal for dot, 'loss' if black-box, or 'best'
    config.audit.method = 'one_run'
    config.audit.m = 2_000
    config.audit.guesses = 'planned'  # by oneshot.plan; or 'preset', from m; or 'grid'
    config.audit.k_plus = placeholder(int)  # how many to guess "in", instead of that
    config.audit.k_minus = placeholder(int)  # and "out"
    config.audit.confidence = 0.95
    return config
