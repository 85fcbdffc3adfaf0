"""The one command, and what an installation without extras can do."""

import subprocess
import sys

import numpy as np
import pytest

import oneshot
from oneshot import cli

HEAVY = 'jax', 'jaxlib', 'flax', 'optax', 'orbax', 'matplotlib', 'tensorflow_datasets'


_HIDE = """
import sys
from importlib.machinery import PathFinder

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, *where):
        return None if name.partition('.')[0] in {modules!r} else super().find_spec(name, *where)

sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
"""


def _without(modules, code, *arguments):
    """Code in a process of its own, in which some libraries are not installed."""
    line = [sys.executable, '-c', _HIDE.format(modules=modules) + code, *arguments]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def _command(modules, *arguments):
    code = 'from oneshot import cli; sys.exit(cli.main(sys.argv[1:]))'
    return _without(modules, code, *arguments)


def test_help_names_every_command(capsys):
    for arguments in ([], ['--help'], ['-h']):
        assert cli.main(arguments) == 0
        shown = capsys.readouterr().out
        assert all(f'\n  {name} ' in shown for name in ('run', 'bound', 'plan', 'check'))
        assert len(shown.splitlines()) <= 24


def test_version(capsys):
    assert cli.main(['--version']) == 0
    assert capsys.readouterr().out == f'oneshot {oneshot.__version__}\n'


def test_an_unknown_command(capsys):
    assert cli.main(['bonud', '--m=3']) == 2
    said = capsys.readouterr()
    assert said.out == ''
    assert said.err == (
        'oneshot: the command must be one of run, bound, plan, check, but '
        "'bonud' was given; did you mean bound?\n"
    )


@pytest.mark.parametrize('name', ['run', 'bound', 'plan', 'check'])
def test_help_of_each_fits_one_screen_and_has_two_examples(name, capsys):
    try:
        status = cli.main([name, '--help'])
    except SystemExit as ended:  # argparse leaves
        status = ended.code
    lines = capsys.readouterr().out.splitlines()
    assert not status
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
    examples = [line for line in lines if line.startswith(f'  oneshot {name}')]
    assert len(examples) == 2


def test_a_bound_from_counts(capsys):
    assert cli.main(['bound', '--m=1000', '--r=100', '--v=75', '--delta=1e-4']) == 0
    assert '0.672985' in capsys.readouterr().out


def test_without_extras_there_are_bounds_plans_and_scores(tmp_path):
    done = _command(HEAVY, 'bound', '--m=1000', '--r=100', '--v=75', '--delta=1e-4')
    assert (done.returncode, done.stderr) == (0, '')
    done = _command(HEAVY, 'plan', '--m=200', '--sigma=1', '--delta=1e-5')
    assert (done.returncode, done.stderr) == (0, '')
    included = np.random.default_rng(0).random(300) < 0.5
    np.savez(tmp_path / 'scores.npz', scores=included + np.linspace(0, 1, 300), included=included)
    done = _command(HEAVY, 'bound', f'--scores={tmp_path}/scores.npz', '--delta=1e-5')
    assert (done.returncode, done.stderr) == (0, '')


@pytest.mark.parametrize(
    ('missing', 'arguments', 'extra'),
    [
        (HEAVY, ('run', 'digits_wb'), 'run'),
        (('orbax',), ('run', 'digits_wb'), 'run'),
        (HEAVY, ('check',), 'jax'),
        (('optax',), ('check',), 'jax'),
        (('matplotlib',), ('plan', '--m=200', '--sigma=1', '--delta=1e-5', '--plot=x.png'), 'run'),
    ],
)
def test_a_missing_extra_is_named(missing, arguments, extra):
    done = _command(missing, *arguments)
    assert done.returncode == 2
    assert done.stderr.endswith(f"for this: pip install 'oneshot[{extra}]'.\n")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize('room', ['dpsgd', 'audit', 'check', 'run', 'data.models'])
def test_a_room_names_its_extra(room):
    extra = 'run' if room in ('run', 'data.models') else 'jax'
    done = _without(HEAVY, f'import oneshot.{room}')
    assert done.stderr.splitlines()[-1].endswith(f"for this: pip install 'oneshot[{extra}]'.")
