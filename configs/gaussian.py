"""The Gaussian mechanism on 100,000 coins, the paper's idealized setting (figure guesses_eps).

    python -m oneshot.main --config=configs/gaussian.py

Takes a second. Each coin S is released as N(S, 4), which is (4.38, 1e-5)-DP and
no better. The paper's count of 1,439 right guesses out of 1,510 gives 2.676; a run
gives about 2.6, and above 4.38 in at most 5 % of runs.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.seed = 0

    config.mechanism = ml_collections.ConfigDict()
    config.mechanism.name = 'Gaussian'  # a class of oneshot.mechanisms
    config.mechanism.sigma = 2.0
    config.mechanism.sensitivity = 2.0

    config.dp = ml_collections.ConfigDict()
    config.dp.delta = 1e-5

    config.audit = ml_collections.ConfigDict()
    config.audit.m = 100_000
    config.audit.k_plus = 755
    config.audit.k_minus = 755
    config.audit.confidence = 0.95
    config.audit.method = 'one_run'
    return config
