"""What is wrong with a config gets one sentence."""

import math

import pytest

from oneshot.run import training
from tests import small


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'audit__k_plus': 201}, 'config.audit.k_plus must be a whole number from 0 to 200'),
        ({'audit__k_minus': 181}, 'config.audit.k_minus must be a whole number from 0 to 180'),
        ({'audit__m': 1211}, 'm, the number of Dirac canaries, must be .* from 1 to 1210'),
        ({'audit__k_plus': 0, 'audit__k_minus': 0}, 'config.audit.k_minus must be .* from 1'),
        ({'dp__clip_norm': math.inf, 'dp__noise_multiplier': 0.0}, 'config.dp.clip_norm must be'),
        ({'learning_rate': math.nan}, 'config.learning_rate must be a number'),
        ({'model__hidden': (0,)}, 'an entry of config.model.hidden must be'),
        ({'seed': 2**32}, 'config.seed must be a whole number from 0 to 4294967295'),
        ({'audit__canaries': 'mice'}, 'config.audit.canaries must be one of dirac'),
        ({'audit__method': 'best'}, 'config.audit.method must be one of one_run'),
        ({'audit__k_plus': None}, 'k_plus and config.audit.k_minus must be given together'),
        ({'audit__guesses': 'best_of_all'}, 'config.audit.guesses must be one of planned, preset'),
        (
            {'audit__method': 'cp_gdp', 'audit__headline': 'iterates'},
            "config.audit.method must be one of one_run, .* but 'cp_gdp'",
        ),
        ({'audit__headline': 'loss'}, 'config.audit.headline must be one of iterates'),
        ({'audit__attacks': ('black_box',)}, 'canaries must be examples'),
        ({'audit__attacks': ('grey_box',)}, 'config.audit.attacks must be one of'),
        ({'audit__signals': ('weights',)}, 'config.audit.signals must be one of iterates'),
        ({'audit__confidence': 1.0}, 'confidence must be a number in'),
        ({'dp__sampling_prob': 1.5}, r'config.dp.sampling_prob must be a number in \(0, 1\]'),
        ({'dp__delta': 1.0}, r'config.dp.delta must be a number in \[0, 1\)'),
        ({'dp__noise_multiplier': -1.0}, 'config.dp.noise_multiplier must be'),
        ({'dp__clip_norm': 0.0}, 'config.dp.clip_norm must be'),
        ({'microbatch_size': 0}, 'config.microbatch_size must be a whole number'),
        ({'steps': 0}, 'config.steps must be a whole number'),
        ({'data__n': 5000}, 'n, the number of training examples, must be'),
        ({'data__train': 'valid'}, 'config.data.train, a split of digits, must be one of train'),
        ({'views': -1}, 'config.views must be a whole number'),
        ({'ema_decay': 1.0}, r'ema_decay must be a number in \[0, 1\)'),
        ({'optimizer': 'adamax_or_so'}, "config.optimizer .* 'adamax_or_so'"),
        ({'optimizer': 'constant_schedule'}, "config.optimizer .* 'constant_schedule'"),
        ({'optimizer_options': {'momentun': 0.9}}, 'config.optimizer_options must be'),
        ({'optimizer': 'polyak_sgd'}, "must make do with gradients.* 'polyak_sgd'"),
        ({'optimizer': 'lbfgs'}, "must make do with gradients.* 'lbfgs'"),
        ({'model__widths': ((8, 0),)}, 'entry of config.model.widths must be'),
        ({'model__stride': 0}, 'config.model.stride must be a whole number'),
        ({'model__name': 'cnn', 'model__stride': 3}, "multiples of 24 for the model 'cnn'"),
        ({'model__name': 'wrn', 'data__name': 'digits_or_so'}, "but 'digits_or_so' was given"),
    ],
)
def test_bad_configs_are_refused_in_one_sentence(change, message):
    with pytest.raises(ValueError, match=message) as error:
        training.prepare(small.config(**change))
    assert str(error.value).endswith('.')
