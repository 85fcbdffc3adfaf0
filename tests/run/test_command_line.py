import pathlib
import warnings

import pytest
import setuptools

from configs import digits_wb
from oneshot.run import command_line, settings

ROOT = pathlib.Path(__file__).parents[2]
WB = 'configs/digits_wb.py'


def test_overrides_in_every_form_that_flags_have():
    arguments = [
        'prog',
        '--config=configs/digits_wb.py',
        '--config.seed=5',
        '--config.steps',
        '70',
        '-config.chunk=7',
        '--config.audit.pairs',
        '--workdir=here',
        '--config.model.hidden=(8, 8)',
        '--config.data.n=None',
        '--config.dp.eps=2',
        '--config.optimizer_options={"momentum": 0.9}',
    ]
    rest, overrides = command_line.split(arguments)
    assert rest == ['prog', '--config=configs/digits_wb.py', '--workdir=here']
    config = digits_wb.get_config().lock()
    problems = settings.Problems()
    command_line.override(config, overrides, problems)
    assert problems.sentences == []
    assert (config.seed, config.steps, config.chunk, config.audit.pairs) == (5, 70, 7, True)
    assert (config.model.hidden, config.data.n, config.dp.eps) == ((8, 8), None, 2.0)
    assert dict(config.optimizer_options) == {'momentum': 0.9}


def test_what_is_wrong_with_overrides_and_with_values_is_listed_together():
    overrides = [
        '--config.stepz=3',
        '--config.steps=abc',
        '--config.steps.more=1',
        '--config.audit=3',
        '--config.dp.delta=7',
        '--config.optimizer_options.momentum=0.9',
        '--config.audit.pairs=maybe',
        '--config.seed=',
    ]
    with pytest.raises(ValueError, match='8 things are wrong') as error:
        command_line.read(WB, command_line.split(overrides)[1])
    for said in (
        'config.stepz is not a key of a config; did you mean config.steps?',
        "config.steps must be an int, but 'abc' was given.",
        'config.steps.more is not a key',
        'config.audit is not a key',
        'config.dp.delta must be a number in [0, 1), but 7.0 was given.',
        'config.optimizer_options is set as a whole, as in',
        "config.audit.pairs must be True or False, but 'maybe' was given.",
        "config.seed must be an int, but '' was given.",
    ):
        assert said in str(error.value)


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('', 'AttributeError: .*get_config'),
        ('def get_config(): return 3', 'must give a ConfigDict, but gives 3'),
        ('def get_config(): return 1 / 0', 'ZeroDivisionError: division by zero'),
        ('def get_config(:', 'SyntaxError'),
        ('import no_such_module', 'ModuleNotFoundError'),
    ],
)
def test_a_file_without_a_config(tmp_path, text, message):
    path = tmp_path / 'mine.py'
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        command_line.load(str(path))
    assert '\n' not in str(error.value)


@pytest.mark.parametrize('given', ['', 'none.py', 'configs', 'README.md', f'{WB}:cpu'])
def test_no_file_at_all(given):
    with pytest.raises(ValueError, match=r'--config must be a file of Python|gives no config'):
        command_line.load(given)


@pytest.mark.parametrize('name', ['digits_wb', 'digits_bb', 'cifar_wb:smoke', 'cifar_bb:cpu,eps=4'])
def test_a_config_is_found_by_its_name_from_any_folder(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    by_name = command_line.load(name)
    file, _, argument = name.partition(':')
    path = f'{ROOT}/configs/{file}.py'
    assert by_name == command_line.load(f'{path}:{argument}' if argument else path)


def test_configs_are_in_the_wheel():
    found = setuptools.find_packages(str(ROOT), include=['oneshot', 'oneshot.*'])
    assert 'oneshot.configs' in found
    assert (ROOT / 'oneshot' / 'configs').samefile(ROOT / 'configs')


def test_what_a_command_installs_is_undone():
    with command_line.terminal():
        assert warnings.formatwarning('too late', UserWarning, 'x.py', 1) == (
            'oneshot: warning: too late\n'
        )
        before = warnings.filters[:]
        warnings.simplefilter('ignore')
    assert 'oneshot' not in warnings.formatwarning('too late', UserWarning, 'x.py', 1)
    assert warnings.filters == before
