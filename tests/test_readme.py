"""What the README shows is what happens: its Python runs, its commands print that."""

import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / 'README.md').read_text()
BLOCKS = re.findall(r'```(\w+)\n(.*?)```', README, flags=re.DOTALL)


def _comparable(text, numbers):
    """The output without what differs from run to run; without numbers if not `numbers`.

    Training gives the same numbers only on the same kind of device.
    """
    lines = [line for line in text.splitlines() if 'steps/s' not in line and '│ time ' not in line]
    if not numbers:
        lines = [re.sub(r'\d[\d.,]*', '#', re.sub('[━─┳┴╇┬]+', '', line)) for line in lines]
    return [' '.join(line.split()) for line in lines]


@pytest.mark.parametrize('block', [text for kind, text in BLOCKS if kind == 'console'])
def test_commands_print_what_is_shown(block):
    command, shown = block.removeprefix('$ ').split('\n', 1)
    python, *flags = shlex.split(command)
    assert python == 'python'
    done = subprocess.run(
        [sys.executable, *flags],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env=os.environ | {'COLUMNS': '80'},
    )
    numbers = 'oneshot.bounds' in flags
    assert _comparable(done.stdout, numbers) == _comparable(shown, numbers)


def test_the_python_runs(capsys):
    names = {}
    for kind, text in BLOCKS:
        if kind == 'python':
            exec(text, names)
    result = names['result']
    assert result.eps_lb == pytest.approx(float(capsys.readouterr().out.split()[0]))
    assert 0 < names['audited'].eps_lb < 10
    assert names['bounds'].eps_lower_bound(m=1000, r=100, v=75, delta=1e-4) == pytest.approx(
        0.673, abs=5e-4
    )


def test_what_is_named_is_there():
    for path in re.findall(r'`((?:oneshot|configs|experiments|colabs|tests)/[\w/.]*)`', README):
        assert (ROOT / path).exists(), path
    for path in re.findall(r'\]\(([\w/.]+)\)', README):
        assert (ROOT / path).exists(), path
    makefile = (ROOT / 'Makefile').read_text()
    for target in re.findall(r'make (\w+)', README):
        assert f'\n{target}:' in makefile or target in ('is', 'and'), target


def test_every_function_of_bounds_is_named():
    from oneshot import bounds

    families = re.findall(r'`(\w+_)…`', README)
    for name in bounds.__all__:
        assert f'`{name}`' in README or any(name.startswith(one) for one in families), name
