"""The default audit as a user runs it."""

import json
import pathlib
import subprocess
import sys

import pytest

from oneshot.bounds import __main__ as bounds_command
from oneshot.scores import METHODS

ROOT = pathlib.Path(__file__).parents[1]


def _main(*flags):
    line = [sys.executable, '-m', 'oneshot.main', '--config=configs/gaussian.py', *flags]
    return subprocess.run(line, capture_output=True, text=True, cwd=ROOT, check=False)


def test_the_default_audit(tmp_path, capsys):
    done = _main(f'--workdir={tmp_path}')
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / 'result.json').read_text())
    assert f'{result["eps_lb"]:.4g} with 95 % confidence' in done.stdout
    assert '4.377 at δ = 1e-05' in done.stdout
    assert 'consistent with the claim' in done.stdout
    # The paper's best is 2.676. Right guesses are binomial with deviation 8.3, so that a
    # bound below 2.2 (50 fewer) or above the truth has probability below 1e-6.
    assert 2.2 < result['eps_lb'] < result['eps_ub']
    assert [row['method'] for row in result['rows']] == list(METHODS)
    for key in ('delta', 'confidence', 'method', 'assumptions', 'm', 'k_plus', 'k_minus'):
        assert result['rows'][0][key] == result[key]
    for key in ('guesses', 'correct', 'seconds', 'seed', 'git', 'versions'):
        assert key in result
    assert json.loads((tmp_path / 'config.json').read_text())['audit']['m'] == 100_000
    # Its files give the same number again through the other door.
    files = [f'--scores={tmp_path}/scores.npz', f'--coins={tmp_path}/coins.npz']
    assert (
        bounds_command.main([*files, '--k-plus=755', '--k-minus=755', '--delta=1e-5', '--json'])
        == 0
    )
    assert json.loads(capsys.readouterr().out)['eps_lb'] == result['eps_lb']


def test_the_same_seed_gives_the_same_result(tmp_path):
    results = []
    for name, seed in (('a', 5), ('b', 5), ('c', 6)):
        flags = ['--config.audit.m=2000', '--config.audit.k_plus=50', '--config.audit.k_minus=50']
        assert (
            _main(*flags, f'--config.seed={seed}', f'--workdir={tmp_path / name}').returncode == 0
        )
        result = json.loads((tmp_path / name / 'result.json').read_text())
        results.append({key: value for key, value in result.items() if key != 'seconds'})
    assert results[0] == results[1]
    assert (
        results[0]['correct'] != results[2]['correct'] or results[0]['seed'] != results[2]['seed']
    )
    scores = [(tmp_path / name / 'scores.npz').read_bytes() for name in 'abc']
    assert scores[0] == scores[1] != scores[2]


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        (
            ['--config.audit.k_plus=100001'],
            'config.audit.k_plus must be a whole number from 0 to 100000',
        ),
        (['--config.mechanism.name=Gauss'], 'config.mechanism.name must be one of'),
        (['--config.mechanism.name=Laplace'], 'must be made of scale, sensitivity for Laplace'),
        (['--config.mechanism.sigma=0.0'], 'sigma must be a number in (0, inf)'),
        (['--config.dp.delta=1.5'], 'delta must be a number in [0, 1]'),
        (['--config.audit.method=best'], 'method must be one of one_run'),
        (['extra'], 'No arguments are taken beside the flags'),
    ],
)
def test_bad_input(flags, message):
    done = _main(*flags)
    assert done.returncode != 0
    assert message in done.stderr + done.stdout
    assert 'Traceback' not in done.stderr
