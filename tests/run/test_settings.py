"""Everything that is wrong with a config is said before anything runs, and all of it at once."""

import math
import re

import pytest

from configs import digits_bb
from oneshot.run import settings
from oneshot.run.validation import check
from tests import small


def _said(**changes):
    with pytest.raises(ValueError, match='config') as error:
        check(small.config(**changes))
    return str(error.value)


def test_every_key_is_known_and_every_known_key_is_there():
    assert settings.flatten(small.config()).keys() == settings.KEYS.keys()
    check(small.config())


@pytest.mark.parametrize(
    ('key', 'nearest'),
    [
        ('stepz', 'steps'),
        ('learning_rat', 'learning_rate'),
        ('audit__kplus', 'audit.k_plus'),
        ('dp__sigma_multiplier', 'dp.noise_multiplier'),
        ('clip_norm', 'dp.clip_norm'),
    ],
)
def test_an_unknown_key_names_the_nearest(key, nearest):
    name = key.replace('__', '.')
    assert (
        _said(**{key: 1})
        == f'config.{name} is not a key of a config; did you mean config.{nearest}?'
    )


def test_a_key_like_none_has_no_nearest():
    assert _said(zzzz=1) == 'config.zzzz is not a key of a config.'


def test_a_missing_key():
    config = small.config()
    with config.unlocked():
        del config.dp.delta
    with pytest.raises(ValueError, match=r'^config.dp.delta is missing\.$'):
        check(config)


@pytest.mark.parametrize('part', ['data', 'model', 'dp', 'audit'])
@pytest.mark.parametrize('value', [None, 3])
def test_a_part_that_is_missing_or_is_no_part(part, value):
    config = small.config()
    with config.unlocked(), config.ignore_type():
        del config[part]
        if value is not None:
            config[part] = value
    keys = [key for key in settings.KEYS if key.startswith(f'{part}.')]
    with pytest.raises(ValueError, match='things are wrong with the config') as error:
        check(config)
    assert all(f'config.{key} is missing.' in str(error.value) for key in keys)


@pytest.mark.parametrize(
    ('key', 'value'),
    [
        ('dp__sampling_prob', 0.0),
        ('dp__sampling_prob', 1.0000001),
        ('dp__sampling_prob', -0.1),
        ('dp__noise_multiplier', -1e-9),
        ('dp__noise_multiplier', math.inf),
        ('dp__delta', 1.0),
        ('dp__delta', -1e-9),
        ('dp__eps', 0.0),
        ('dp__clip_norm', math.nan),
        ('dp__clip_norm', math.inf),
        ('microbatch_size', 0),
        ('audit__m', 0),
        ('audit__m', 1211),  # parameters: 1,210
        ('audit__k_plus', 181),  # k_minus is 20, m is 200
        ('audit__confidence', 1.0),
        ('checkpoint_every', -1),
        ('checkpoint_keep', 0),
        ('steps', 2.5),
        ('steps', 3.0),
        ('steps', '300'),
        ('steps', None),
        ('steps', True),
        ('learning_rate', '2'),
        ('audit__pairs', 1),
        ('audit__attacks', 'white_box'),
        ('audit__attacks', ()),
        ('model__hidden', 128),
        ('model__widths', ((),)),
        ('data__name', 7),
        ('data__n', 1797),
        ('optimizer', 'sdg'),
        ('optimizer', '__name__'),
        ('optimizer_options', {'momentum': 'much'}),
        ('optimizer_options', 3),
    ],
)
def test_wrong_types_and_impossible_values(key, value):
    said = _said(**{key: value})
    assert '\n' not in said
    assert said.endswith('.')


def test_all_problems_are_listed_at_once():
    said = _said(
        stepz=1,
        steps=0,
        dp__sampling_prob=2.0,
        dp__noise_multiplier=-1.0,
        dp__delta=1.5,
        audit__m=5000,
        audit__k_minus=6000,
        audit__headline='loss',
        model__hidden='wide',
        microbatch_size=0,
        optimizer='adamm',
        learning_rate=math.nan,
    )
    first, *lines = said.splitlines()
    keys = {re.search(r'config\.[\w.]*\w', line)[0].removeprefix('config.') for line in lines}
    assert keys == {
        'stepz',
        'steps',
        'dp.sampling_prob',
        'dp.noise_multiplier',
        'dp.delta',
        'audit.k_minus',
        'model.hidden',
        'microbatch_size',
        'learning_rate',
    }
    assert first == f'{len(lines)} things are wrong with the config:'
    # Whether there is room for canaries is known as soon as the model is, …
    said = _said(audit__m=5000, dp__delta=1.5, audit__headline='loss', optimizer='adamm')
    assert 'number of Dirac canaries, must be a whole number from 1 to 1210' in said
    # … and so is what does not depend on what is wrong.
    assert 'config.audit.headline must be one of' in said
    assert "'adamm'" in said
    assert said.startswith('4 things')


def test_canaries_that_are_examples_are_held_out():
    config = small.config(digits_bb, audit__m=1497, audit__k_plus=None, audit__k_minus=None)
    with pytest.raises(
        ValueError, match=r'held-out examples used as canaries, must be .* 1 to 1496'
    ):
        check(config)


def test_a_run_may_go_on_with_other_devices_and_processes():
    keys = {key for key in settings.KEYS if key.startswith(('mesh.', 'processes.'))}
    assert keys < set(settings.RESUMABLE_KEYS)
