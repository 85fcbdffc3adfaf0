"""Black-box: mislabeled digits as canaries, scored by the loss of the last model.

    python -m oneshot.main --config=configs/digits_bb.py --workdir=runs/digits_bb

Takes about 20 s on two cores. Half of the 300 canaries are trained on, each sampled at a
tenth of the steps. The weakest attack of the paper: at ε_UB = 8 it finds little or
nothing (0 for seed 0), with 95 % test accuracy. The white-box attack on the same
canaries stands beside it.
"""

import ml_collections

from oneshot.configs import digits_wb


def get_config() -> ml_collections.ConfigDict:
    config = digits_wb.get_config()
    config.audit.canaries = 'mislabeled'
    config.audit.attacks = ('black_box', 'white_box')
    config.audit.headline = 'loss'
    config.audit.m = 300
    config.audit.k_plus = 50
    config.audit.k_minus = 50
    return config
