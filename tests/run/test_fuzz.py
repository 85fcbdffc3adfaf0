"""Bad input by the thousands: exit status 2 and a sentence, never a traceback, never a result.

What is bad is said by the tables here, not by the code that is tested. Configs and score files
go through the functions that the commands call; some of each also through the commands.
"""

import contextlib
import io
import json
import pathlib
import random
import subprocess
import sys
import warnings

import numpy as np
import pytest

from configs import digits_wb
from oneshot.run import command_line, settings
from oneshot.scores import __main__ as bounds_command

ROOT = pathlib.Path(__file__).parents[2]
CONFIGS, FILES, BATCHES = 3_000, 3_000, 6  # batches, so that both cores have some

_NO_COUNT = ['-1', '1.5', 'abc', '', 'nan', 'inf', '1e3', '0x1g', '[1]', 'True', '1,000', '²', '--']
_NO_NUMBER = ['abc', '', 'nan', '-1', '-inf', '1,5', '(1.0,)', 'None1', '--1', '1e', '٣x']
_NO_TUPLE = ['{}', '(', '(1', '(0,)', '(-3,)', "('a',)", '(1.5,)', '(None,)', '(((1,),),)', '1e3']
_NO_NAME = ['', 'mice', ' dirac', 'DIRAC', '7', '\x00', 'a' * 3000, '☃']
BAD = {
    'seed': [*_NO_COUNT, '4294967296'],
    'steps': [*_NO_COUNT, '0', '99999999999999999999'],
    'chunk': [*_NO_COUNT, '0'],
    'views': _NO_COUNT,
    'evaluate_every': _NO_COUNT,
    'checkpoint_every': _NO_COUNT,
    'checkpoint_keep': [*_NO_COUNT, '0'],
    'microbatch_size': [*_NO_COUNT, '0'],
    'data.n': [*_NO_COUNT, '1797', '100000'],
    'audit.m': [*_NO_COUNT, '0', '9611'],  # the model has 9,610 parameters
    'audit.k_plus': [*_NO_COUNT, '5'],  # without k_minus
    'audit.k_minus': [*_NO_COUNT, '5'],
    'model.stride': [*_NO_COUNT, '0'],
    'learning_rate': [*_NO_NUMBER, 'inf'],
    'ema_decay': [*_NO_NUMBER, '1.0', '2'],
    'dp.eps': [*_NO_NUMBER, '0', 'inf', '51'],
    'dp.delta': [*_NO_NUMBER, '1', '1.5', 'inf', '0'],  # σ is calibrated at this δ
    'dp.noise_multiplier': [*_NO_NUMBER, 'inf'],
    'dp.clip_norm': [*_NO_NUMBER, '0', 'inf'],
    'dp.sampling_prob': [*_NO_NUMBER, '0', '1.0000001', 'inf'],
    'audit.confidence': [*_NO_NUMBER, '0', '1', 'inf'],
    'model.hidden': _NO_TUPLE,
    'model.widths': [*_NO_TUPLE, '()', '((),)', '((8, 0),)'],
    'audit.attacks': [*_NO_TUPLE, '()', "('grey_box',)", "('black_box',)"],
    'audit.signals': [*_NO_TUPLE, "('weights',)"],
    'audit.scores': [*_NO_TUPLE, "('loss',)"],
    'audit.pairs': ['maybe', '', '2', 'None', '[]'],
    'audit.canaries': _NO_NAME,
    'audit.method': [*_NO_NAME, 'best', 'replacement'],  # the last is for pairs
    'audit.guesses': [*_NO_NAME, 'best_of_all'],
    'audit.headline': [*_NO_NAME, 'loss'],
    'strategy': _NO_NAME,
    'optimizer': [
        *_NO_NAME,
        'constant_schedule',
        'lbfgs',
        '__doc__',
        'os',
        'GradientTransformation',
    ],
    'optimizer_options': ['3', '{', "{'momentun': 0.9}", "{'momentum': 'x'}", '[]', "'a'", ''],
    'model.name': [*_NO_NAME, 'resnet'],
    'model.conv': _NO_NAME,
    'model.dtype': [*_NO_NAME, 'float16'],
    'data.name': _NO_NAME,
    'data.train': [*_NO_NAME, 'test'],
    'data.test': [*_NO_NAME, 'train'],
}
GOOD = {
    'seed': ['0', '77'],
    'steps': ['10', '500'],
    'learning_rate': ['0.5', '3'],
    'dp.eps': ['2', '8.5'],
    'dp.sampling_prob': ['0.1', '1'],
    'audit.m': ['100', '2000'],
    'ema_decay': ['0.9', 'None'],
    'optimizer': ['adam', 'sgd'],
    'model.hidden': ['(128, 16)', '(128,)'],
}
# What is found only where all that it depends on is right.
DEPENDS = {
    'data.n': ['1797', '100000'],
    'data.name': BAD['data.name'],
    'data.train': BAD['data.train'],
    'data.test': BAD['data.test'],
    'audit.m': ['9611'],
    'audit.k_plus': ['5'],
    'audit.k_minus': ['5'],
    'audit.headline': BAD['audit.headline'],
    'audit.method': ['replacement'],
    'audit.attacks': ["('black_box',)"],
    'dp.delta': ['0'],
    'dp.clip_norm': ['inf'],
    'optimizer': BAD['optimizer'],
    'optimizer_options': BAD['optimizer_options'],
}
KEYS = list(settings.flatten(digits_wb.get_config()))


def _overrides(rng):
    """Some overrides, one or more of them bad, and the keys of the bad ones, as far as they
    do not depend on each other."""
    given, bad = {}, []
    for key in rng.sample(sorted(GOOD), rng.randrange(3)):
        given[key] = rng.choice(GOOD[key])
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if rng.random() < 0.25:
            key = _misspelt(rng)
            given[key] = rng.choice(('1', '', 'x', '(1,)', '{}', 'None'))
        else:
            key = rng.choice(sorted(BAD))
            given[key] = rng.choice(BAD[key])
        bad.append(key)
    if {'audit.k_plus', 'audit.k_minus'} <= given.keys():  # together they would be right
        given['audit.k_plus'] = '-1'
    if len(set(bad)) > 1:
        bad = [key for key in bad if given[key] not in DEPENDS.get(key, ())]
    form = rng.choice(('--config.{}={}', '-config.{}={}'))
    return [form.format(key, value) for key, value in given.items()], bad


def _misspelt(rng):
    while True:
        key = list(rng.choice(KEYS))
        for _ in range(rng.randrange(1, 4)):
            place = rng.randrange(len(key))
            change = rng.randrange(3)
            if change == 0 and len(key) > 1:
                del key[place]
            elif change == 1:
                key.insert(place, rng.choice('abcdefghijklmnopqrstuvwxyz_.0é '))
            else:
                key[place] = rng.choice('abcdefghijklmnopqrstuvwxyz_.0é ')
        name = ''.join(key)
        if name not in KEYS and not any(known.startswith(f'{name}.') for known in KEYS):
            return name


@pytest.mark.parametrize('batch', range(BATCHES))
def test_configs(batch):
    rng = random.Random(f'configs {batch}')
    for number in range(CONFIGS // BATCHES):
        arguments, bad = _overrides(rng)
        rest, overrides = command_line.split(['', *arguments])
        assert rest == [''], arguments
        with pytest.raises(ValueError, match='config') as error:
            command_line.read('configs/digits_wb.py', overrides)
        said = str(error.value)
        assert said.rstrip().endswith(('.', '?')), said
        named = [key for key in bad if f'config.{key}' in said]
        assert named == bad, (number, arguments, said)


def _file(rng, folder):
    """A pair of files of scores and coins, with something wrong, and flags that want them right."""
    m = 60
    made = np.random.default_rng(rng.randrange(2**32))
    included = made.random(m) < 0.5
    ids = np.arange(m)
    scores = {'ids': ids, 'scores': made.normal(2.0 * included)}
    coins = {'ids': ids.copy(), 'included': included.astype(int)}
    wrong = rng.choice(_WRONG_ARRAYS + _WRONG_BYTES * 3)
    suffix = rng.choice(('.npz', '.csv'))
    if wrong in _WRONG_ARRAYS:
        wrong(rng, scores, coins)
    paths = folder / f'scores{suffix}', folder / f'coins{suffix}'
    for path, arrays in zip(paths, (scores, coins), strict=True):
        _write(path, arrays, rng)
    harmless = None
    if wrong in _WRONG_BYTES:
        harmless = _audit(paths)[1]
        path = rng.choice(paths)
        path.write_bytes(wrong(rng, path.read_bytes()))
    if suffix == '.csv' and harmless is not None:
        harmless = ''  # a digit that is another one cannot be told
    return paths, harmless, wrong.__name__


def _write(path, arrays, rng):
    if path.suffix == '.npz':
        save = rng.choice((np.savez, np.savez_compressed))
        save(path, **arrays)
        return
    names = {'scores': 'score', 'ids': 'id'}
    header = ','.join(names.get(name, name) for name in arrays)
    size = max((np.size(one) for one in arrays.values()), default=0)
    columns = [[str(x) for x in np.ravel(one)] for one in arrays.values()]
    rows = [','.join(one[i] for one in columns if i < len(one)) for i in range(size)]
    path.write_text('\n'.join([header, *rows]) + '\n')


def _nan(rng, scores, coins):
    scores['scores'][rng.randrange(60)] = np.nan


def _missing(rng, scores, coins):
    of = rng.choice((scores, coins))
    del of[rng.choice(sorted(of))]


def _words(rng, scores, coins):
    scores['scores'] = np.array(['high'] * 60)


def _objects(rng, scores, coins):
    scores['scores'] = np.array([print] * 60, dtype=object)


def _twice(rng, scores, coins):
    of = rng.choice((scores, coins))
    of['ids'][0] = of['ids'][1]


def _strangers(rng, scores, coins):
    coins['ids'] = coins['ids'] + rng.randrange(1, 100)


def _half_coins(rng, scores, coins):
    coins['included'] = coins['included'] * rng.choice((2, 0.5, -3, np.nan, 7))


def _mixed_coins(rng, scores, coins):
    coins['included'][:3] = (-1, 0, 1)


def _short(rng, scores, coins):
    of, name = rng.choice(((scores, 'scores'), (coins, 'included'), (scores, 'ids')))
    of[name] = of[name][: rng.randrange(60)]


def _none(rng, scores, coins):
    for of in (scores, coins):
        for name in of:
            of[name] = of[name][:0]


_WRONG_ARRAYS = [
    *(_nan, _missing, _words, _objects, _twice),
    *(_strangers, _half_coins, _mixed_coins, _short, _none),
]


def _cut(rng, content):
    return content[: rng.randrange(len(content))]


def _flipped(rng, content):
    content = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return bytes(content)


def _noise(rng, content):
    return rng.randbytes(rng.choice((0, 1, 30, 1000)))


def _spliced(rng, content):
    place = rng.randrange(len(content))
    return content[:place] + rng.randbytes(rng.randrange(1, 40)) + content[place:]


_WRONG_BYTES = [_cut, _flipped, _noise, _spliced]


def _audit(paths):
    """The exit status, what is printed, and what is said on standard error."""
    scores, coins = paths
    flags = [f'--scores={scores}', f'--coins={coins}', '--delta=1e-5', '--k-plus=10', '--k-minus=9']
    out, err = io.StringIO(), io.StringIO()
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        warnings.simplefilter('ignore')
        status = bounds_command.main([*flags, '--json'])
    return status, out.getvalue(), err.getvalue()


@pytest.mark.parametrize('batch', range(BATCHES))
def test_score_files(batch, tmp_path):
    rng = random.Random(f'files {batch}')
    refused = 0
    for number in range(FILES // BATCHES):
        paths, harmless, wrong = _file(rng, tmp_path)
        status, printed, said = _audit(paths)
        if status == 0 and harmless is not None:
            found = json.loads(printed)
            assert harmless == '' or found == json.loads(harmless), (number, wrong)  # a date, say
            continue
        assert (status, printed) == (2, ''), (number, wrong, printed)
        assert said.startswith('python -m oneshot.bounds: '), said
        assert said.count('\n') == 1, said
        assert 'Traceback' not in said
        refused += 1
    assert refused > 0.8 * FILES / BATCHES


def _main(*flags, module='oneshot.main'):
    return subprocess.run(
        [sys.executable, '-m', module, *flags], capture_output=True, text=True, cwd=ROOT
    )


@pytest.mark.parametrize(
    'flags',
    [
        ['--config=configs/digits_wb.py', '--config.stepz=1', '--config.dp.delta=2'],
        ['--config=configs/digits_wb.py:mice'],
        ['--confg=configs/digits_wb.py'],
    ],
)
def test_the_command(flags):
    done = _main(*flags)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ''
    assert done.stderr.startswith('oneshot: ')
    assert 'Traceback' not in done.stderr


def test_the_command_for_scores(tmp_path):
    rng = random.Random('command')
    for wrong in (_objects, _nan):
        scores = {'ids': np.arange(60), 'scores': np.zeros(60)}
        coins = {'ids': np.arange(60), 'included': np.arange(60) % 2}
        wrong(rng, scores, coins)
        np.savez(tmp_path / 'scores.npz', **scores)
        np.savez(tmp_path / 'coins.npz', **coins)
        flags = [f'--scores={tmp_path}/scores.npz', f'--coins={tmp_path}/coins.npz']
        done = _main(*flags, '--delta=1e-5', module='oneshot.bounds')
        assert (done.returncode, done.stdout) == (2, '')
        assert 'Traceback' not in done.stderr
