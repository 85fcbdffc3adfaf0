"""What README and documentation show is what happens: Python runs, commands print that."""

import ast
import configparser
import itertools
import json
import os
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest

from oneshot import cli
from oneshot.run import settings
from tests import tiny_tfds
from tests.docs.pages import BLOCKS, CONSOLE, DEFAULT_AUDIT, PROSE, ROOT, WHOLE, comparable

PYTHON = [block for block in BLOCKS if block.kind == 'python' and block.source is None]
_ELSEWHERE = {block.text for block in PYTHON if block.page != 'README.md'}
RUN = [block for block in PYTHON if block.page != 'README.md' or block.text not in _ELSEWHERE]
PASSAGES = [block for block in BLOCKS if block.source]


def _printed(text: str) -> list[str]:
    """What each `print` of a block shows, from the comments behind them."""
    calls = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == 'print'
    ]
    lines = text.splitlines()
    return [lines[call.end_lineno - 1].split('  # ')[1] for call in calls]


def _agree(shown: str, seen: str) -> None:
    """Numbers to the digits that are shown, loosely where the page says `about`."""
    if shown.startswith('about '):  # it trains, on whatever device there is
        assert float(seen) == pytest.approx(float(shown.removeprefix('about ')), abs=0.3)
    elif re.fullmatch(r'-?[\d.]+(e-?\d+)?', shown):
        digits = len(re.sub(r'e.*|\D', '', shown).lstrip('0')) or 1
        assert float(f'{float(seen):.{digits}g}') == float(shown), seen
    else:
        assert seen == shown


@pytest.mark.parametrize('page', sorted({block.page for block in RUN}))
def test_the_python_of_a_page_runs_and_prints_what_is_shown(page, capsys):
    names = {}
    for block in RUN:
        if block.page == page:
            exec(compile(block.text, page, 'exec'), names)
            seen = capsys.readouterr().out.splitlines()
            if expected := _printed(block.text):
                for shown, line in zip(expected, seen, strict=True):
                    _agree(shown, line)


@pytest.mark.parametrize('block', PASSAGES, ids=lambda block: block.source)
def test_a_passage_stands_in_its_file(block):
    """The file has tests of its own."""
    lines = (ROOT / block.source).read_text().splitlines()
    lines, passage = (
        [line.strip() for line in text if line.strip()] for text in (lines, block.text.splitlines())
    )
    assert any(lines[start : start + len(passage)] == passage for start in range(len(lines))), (
        block.text
    )


def test_every_loop_has_a_passage():
    loops = {str(path.relative_to(ROOT)) for path in (ROOT / 'experiments/loops').glob('*.py')}
    hidden = {f'experiments/loops/{name}.py' for name in ('__init__', 'problem', 'sgd')}
    assert {block.source for block in PASSAGES} == loops - hidden
    assert all(f'`{name}`' in PROSE['docs/guide/your_loop.md'] for name in loops - hidden)


@pytest.mark.parametrize('command', [command for command in WHOLE if command != DEFAULT_AUDIT[0]])
def test_commands_print_what_is_shown(command):
    """The default audit is run by tests/run/test_training.py."""
    python, *flags = shlex.split(command)
    assert python == 'python'
    done = subprocess.run(
        [sys.executable, *flags],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {'COLUMNS': '80'},
        check=False,
    )
    assert done.returncode == ('FAULT' in WHOLE[command]), done.stderr
    numbers = 'oneshot.bounds' in flags
    assert comparable(done.stdout, numbers) == comparable(WHOLE[command], numbers)


@pytest.mark.parametrize(('page', 'command', 'shown'), CONSOLE)
def test_all_pages_show_the_same_output(page, command, shown):
    """Where lines are left out, what is left stands in the whole, in this order."""
    lines = iter(WHOLE[command].splitlines())
    for left_out, part in itertools.groupby(shown.splitlines(), lambda line: line == '...'):
        if not left_out:
            first, *others = part
            assert first in lines, (page, first)
            assert [next(lines) for _ in others] == others


def test_no_block_is_left_out():
    """What is fenced is run above, looked up below, or is to be copied."""
    kinds = {block.kind for block in BLOCKS}
    assert kinds == {'bibtex', 'console', 'python', 'sh'}
    makefile = (ROOT / 'Makefile').read_text()
    assert '-m oneshot.main --config=configs/digits_wb.py --workdir=runs/digits_wb\n' in makefile
    assert 'make test\n' in (ROOT / '.ci/run').read_text()


def _to_copy() -> list[tuple[str, list[str]]]:
    """The commands of `sh` blocks, and those that are indented."""
    lines = [
        (block.page, line)
        for block in BLOCKS
        if block.kind == 'sh'
        for line in block.text.splitlines()
    ]
    for page, prose in PROSE.items():
        lines += [
            (page, line)
            for line in re.findall(r'(?m)^    ((?:\w+=\S+ )*(?:make|oneshot|pip|python) .*)', prose)
        ]
    words = [(page, shlex.split(line, comments=True)) for page, line in lines]
    return [
        (page, list(itertools.dropwhile(lambda word: re.match(r'[A-Z_]+=', word), line)))
        for page, line in words
    ]


def _module_exists(name: str) -> bool:
    path = ROOT / name.replace('.', '/')
    return path.with_suffix('.py').exists() or (path / '__main__.py').exists()


@pytest.mark.parametrize(('page', 'words'), _to_copy())
def test_what_is_to_be_copied_exists(page, words, capsys):
    """Extras, targets, modules, commands, flags, configs and keys of configs."""
    program, *arguments = words
    if program == 'pip':
        setup = configparser.ConfigParser(interpolation=None)
        setup.read(ROOT / 'setup.cfg')
        (extra,) = re.findall(r'^\.(?:\[(\w+)\])?$', arguments[1])
        assert not extra or extra in setup['options.extras_require']
    elif program == 'make':
        assert f'\n{arguments[0]}:' in (ROOT / 'Makefile').read_text()
    elif program.endswith('python'):
        assert arguments[0] == '-m'
        assert arguments[1] == 'pytest' or _module_exists(arguments[1])
        assert all((ROOT / word).exists() for word in arguments if word.startswith('tests'))
    elif program == 'oneshot':
        _check_oneshot(*arguments, capsys=capsys)
    else:
        assert program == 'export'


def _check_oneshot(name: str, *arguments: str, capsys) -> None:
    try:
        cli.main([name, '--help'])
    except SystemExit as ended:
        assert not ended.code
    shown = capsys.readouterr().out
    for word in arguments:
        flag = word.strip('[]').split('=')[0]
        if flag.startswith('--config.') and flag != '--config.KEY':
            assert flag.removeprefix('--config.') in settings.KEYS, flag
        elif flag.startswith('--') and flag != '--config.KEY':
            assert re.search(rf'{flag}\b', shown), flag
        elif name == 'run' and word.islower() and '/' not in word:
            assert (ROOT / f'oneshot/configs/{word.split(":")[0]}.py').exists()


_AUDITS_OF_CIFAR = [
    words[1:]
    for page, words in _to_copy()
    if page == 'docs/guide/configs.md' and 'cifar' in words[2]
]


def test_the_commands_for_cifar_are_there():
    assert [words[1] for words in _AUDITS_OF_CIFAR] == ['cifar_wb:cpu', 'cifar_bb:cpu']


@pytest.mark.parametrize('words', _AUDITS_OF_CIFAR, ids=lambda words: words[1])
def test_runs_on_cifar(words, tmp_path):
    """Ten minutes on the real images: here on random ones, and few steps, from another folder."""
    tiny_tfds.write(tmp_path / 'tfds', train=600, test=300)
    flags = [word.replace(':cpu', ':cpu,smoke') for word in words]
    data = f'--config.data_dir={tmp_path}/tfds'
    line = [sys.executable, '-m', 'oneshot', *flags, data]
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert 'cifar10, n = ' in done.stdout
    folder = tmp_path / flags[-1].removeprefix('--workdir=')
    result = json.loads((folder / 'result.json').read_text())
    if folder.name == 'cifar_wb':
        assert (result['m'], result['score'], result['steps']) == (5000, 'residual_llr', 10)
        names = {'iterates', 'residual', 'iterates_llr', 'residual_llr'}
    else:
        assert result['score'] == 'loss'
        names = {'loss'}
    assert {row['score'] for row in result['rows']} == names
    files = PROSE['docs/reference/files.md']
    assert all(f'`{key}`' in files for key in result)
    written = {path.name for path in folder.iterdir() if not path.name.startswith('.')}
    assert all(f'`{name}' in files for name in written), written


def test_scores_from_files(tmp_path):
    (words,) = [words for _, words in _to_copy() if words[1:2] == ['bound']]
    rng = np.random.default_rng(0)
    included = rng.random(1000) < 0.5
    ids = np.arange(1000)
    np.savez(tmp_path / 'scores.npz', ids=ids, scores=rng.normal(included))
    np.savez(tmp_path / 'coins.npz', ids=ids, included=included)
    line = [sys.executable, '-m', *words]
    done = subprocess.run(line, check=True, cwd=tmp_path, capture_output=True, text=True)
    assert json.loads(done.stdout)['guesses'] == 240


def test_the_audit_of_a_loop_takes_four_lines():
    (loop,) = [
        block.text for block in PYTHON if block.page == 'README.md' and 'audit.insert' in block.text
    ]
    lines = [line for line in loop.splitlines() if re.search(r'\baudit\.\w', line)]
    assert [re.search(r'# (\d)', line)[1] for line in lines] == ['2', '3', '1', '4']
    _, after_the_imports = loop.split('\n\nimages')
    code = [line for line in after_the_imports.splitlines() if line.strip()]
    assert len([line for line in code if not line.startswith('print')]) <= 25
