"""What the README shows is what happens: its Python runs, its commands print that."""

import importlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest

from tests import tiny_tfds

ROOT = pathlib.Path(__file__).parents[2]
README = (ROOT / 'README.md').read_text()
BLOCKS = re.findall(r'```(\w+)\n(.*?)```', README, flags=re.DOTALL)
INDENTED = re.findall(r'(?m)^    (.*)', re.sub(r'(?s)```.*?```', '', README))


def comparable(text, numbers):
    """The output without what differs from run to run; without numbers if not `numbers`.

    Training gives the same numbers only on the same kind of device.
    """
    lines = [line for line in text.splitlines() if 'steps/s' not in line and '│ time ' not in line]
    if not numbers:
        lines = [re.sub(r'\d[\d.,]*', '#', re.sub('[━─┳┴╇┬]+', '', line)) for line in lines]
    return [' '.join(line.split()) for line in lines]


CONSOLE = [text.removeprefix('$ ').split('\n', 1) for kind, text in BLOCKS if kind == 'console']
DEFAULT_AUDIT, *OTHERS = CONSOLE  # the first is run by test_train.py


@pytest.mark.parametrize(('command', 'shown'), OTHERS)
def test_commands_print_what_is_shown(command, shown):
    python, *flags = shlex.split(command)
    assert python == 'python'
    done = subprocess.run(
        [sys.executable, *flags],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {'COLUMNS': '80'},
    )
    assert done.returncode == ('FAULT' in shown), done.stderr
    numbers = 'oneshot.bounds' in flags
    assert comparable(done.stdout, numbers) == comparable(shown, numbers)


def test_the_python_runs(capsys):
    names = {}
    for kind, text in BLOCKS:
        if kind == 'python':
            exec(text, names)
    printed = capsys.readouterr().out.split()
    assert float(printed[0]) == pytest.approx(5.09, abs=5e-3)  # nearest neighbours
    result = names['result']
    assert result.eps_lb == pytest.approx(float(printed[1]))
    # The loops train on whatever device there is, so that their figures are not exact.
    shown = re.search(r'finds ε_LB = (\d+\.\d+) of a claimed ε_UB = (\d+\.\d+)', README)
    audited = names['audit_result']
    assert audited.eps_lb == pytest.approx(float(shown[1]), abs=0.3)
    assert audited.eps_claimed == pytest.approx(float(shown[2]), abs=5e-3)
    assert 0 < names['fused_result'].eps_lb < 10
    assert names['faults'] == ['not finite']
    assert names['bounds'].eps_lower_bound(m=1000, r=100, v=75, delta=1e-4) == pytest.approx(
        0.673, abs=5e-4
    )


def test_no_block_is_left_out():
    """What is fenced is run above or is to be copied, what is indented is run below or by CI."""
    assert {kind for kind, _ in BLOCKS} == {'bibtex', 'console', 'python'}
    assert [line.split()[:3] for line in INDENTED] == [
        ['make', 'audit', '#'],
        ['make', 'test', '#'],
        ['python', '-m', 'oneshot.bounds'],
        ['python', '-m', 'oneshot.main'],
        ['python', '-m', 'oneshot.main'],
    ]
    makefile = (ROOT / 'Makefile').read_text()
    assert '-m oneshot.main --config=configs/digits_wb.py --workdir=runs/digits_wb\n' in makefile
    assert 'make test\n' in (ROOT / '.ci/run').read_text()


@pytest.mark.parametrize('line', [line for line in INDENTED if 'oneshot.main' in line])
def test_runs_on_cifar(line, tmp_path):
    """Ten minutes on the real images: here on random ones, and few steps."""
    tiny_tfds.write(tmp_path / 'tfds', train=600, test=300)
    flags = shlex.split(line.replace(':cpu', ':cpu,smoke').replace('runs/', f'{tmp_path}/'))[1:]
    data = f'--config.data_dir={tmp_path}/tfds'
    done = subprocess.run(
        [sys.executable, *flags, data], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert 'cifar10, n = ' in done.stdout
    folder = tmp_path / flags[-1].split('/')[-1]
    result = json.loads((folder / 'result.json').read_text())
    if folder.name == 'cifar_wb':
        assert (result['m'], result['score'], result['steps']) == (5000, 'residual_llr', 10)
        names = {'iterates', 'residual', 'iterates_llr', 'residual_llr'}
    else:
        assert result['score'] == 'loss'
        names = {'loss'}
    assert {row['score'] for row in result['rows']} == names


def test_scores_from_files(tmp_path):
    (line,) = [line for line in INDENTED if 'oneshot.bounds' in line]
    rng = np.random.default_rng(0)
    included = rng.random(1000) < 0.5
    ids = np.arange(1000)
    np.savez(tmp_path / 'scores.npz', ids=ids, scores=rng.normal(included))
    np.savez(tmp_path / 'coins.npz', ids=ids, included=included)
    flags = shlex.split(line)[1:]
    done = subprocess.run(
        [sys.executable, *flags], check=True, cwd=tmp_path, capture_output=True, text=True
    )
    assert json.loads(done.stdout)['guesses'] == 240


def test_the_audit_of_a_loop_takes_four_lines():
    (loop,) = [text for kind, text in BLOCKS if kind == 'python' and 'audit.insert' in text]
    lines = [line for line in loop.splitlines() if re.search(r'\baudit\.\w', line)]
    assert [re.search(r'# (\d)', line)[1] for line in lines] == ['2', '3', '1', '4']
    _, rest = loop.split('\n\nimages')
    assert len([line for line in rest.splitlines() if line.strip()]) <= 25


@pytest.mark.parametrize('page', ['README.md', 'experiments/README.md', 'experiments/RESULTS.md'])
def test_what_is_named_is_there(page):
    text = (ROOT / page).read_text()
    for path in re.findall(r'`((?:oneshot|configs|experiments|colabs|tests)/[\w/.]*)`', text):
        assert (ROOT / path).exists(), path
    for path in re.findall(r'\]\(([\w/.]+)(?:#[\w-]+)?\)', text):
        assert ((ROOT / page).parent / path).exists(), path
    for module in re.findall(r'python -m ([\w.]+)', text):
        path = ROOT / module.replace('.', '/')
        assert path.with_suffix('.py').exists() or (path / '__main__.py').exists(), module
    for name in re.findall(
        r'`(?:oneshot\.)?((?:audit|canaries|check|dpsgd|generic|guess)\.\w+)', text
    ):
        module, function = name.split('.')
        assert hasattr(importlib.import_module(f'oneshot.{module}'), function), name
    makefile = (ROOT / 'Makefile').read_text()
    for target in re.findall(r'make (\w+)', text):
        assert f'\n{target}:' in makefile or target in ('is', 'and'), target


def test_every_experiment_is_named():
    """What works is named: in the page of the experiments, or in the README itself."""
    pages = README + (ROOT / 'experiments/README.md').read_text()
    for path in (ROOT / 'experiments').glob('*.py'):
        runs = "if __name__ == '__main__':" in path.read_text()
        assert not runs or f'python -m experiments.{path.stem}' in pages, path


def test_every_function_of_bounds_is_named():
    from oneshot import bounds

    families = re.findall(r'`(\w+_)…`', README)
    for name in bounds.__all__:
        assert f'`{name}`' in README or any(name.startswith(one) for one in families), name
