"""The notebooks run from top to bottom, each in a kernel of its own, and show what they give."""

import pathlib
import re
import sys
import warnings

import ml_collections
import nbformat
import pytest
from nbclient import NotebookClient

from configs import digits_wb

COLABS = pathlib.Path(__file__).parents[2] / 'colabs'
PICTURES = {'audit': 4, 'bounds': 4, 'your_loop': 1}  # at least

_PLACES = str(COLABS.parent), str(pathlib.Path.home()), sys.prefix
_HERE = [re.escape(place) for place in _PLACES if len(place) > 1]
_FOLDERS = r'(?<![\w.~/-])/(?:home|root|Users|tmp|var|usr|opt|mnt|work|content)\b|\b[A-Z]:\\'
MACHINE = re.compile('|'.join((*_HERE, _FOLDERS)))

every_notebook = pytest.mark.parametrize('name', sorted(PICTURES))


def _read(name):
    return nbformat.read(COLABS / f'{name}.ipynb', as_version=4)


def _code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == 'code']


def _shown(cell):
    """What kinds of output a cell has: its streams, and the types of what it displays."""
    return {out.get('name') or tuple(sorted(out.get('data', ()))) for out in cell.outputs}


def test_names():
    assert {path.stem for path in COLABS.glob('*.ipynb')} == set(PICTURES)


@every_notebook
def test_notebook(name):
    committed, notebook = _read(name), _read(name)
    for cell in _code(notebook):
        cell.outputs = []
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # of the Jupyter libraries
        NotebookClient(notebook, timeout=120, resources={'metadata': {'path': COLABS}}).execute()
    for cell, run in zip(_code(committed), _code(notebook), strict=True):
        assert _shown(cell) == _shown(run), f'commit the outputs of {cell.id}'


@every_notebook
def test_outputs_are_committed(name):
    outputs = [out for cell in _code(_read(name)) for out in cell.outputs]
    assert sum('image/png' in out.get('data', ()) for out in outputs) >= PICTURES[name]
    assert not [out for out in outputs if out.output_type == 'error' or out.get('name') == 'stderr']
    assert all(cell.execution_count for cell in _code(_read(name)))
    assert (COLABS / f'{name}.ipynb').stat().st_size < 600_000


@every_notebook
def test_no_machine_is_named(name):
    notebook = _read(name)
    texts = [cell.source for cell in notebook.cells]
    for out in (out for cell in _code(notebook) for out in cell.outputs):
        data = out.get('data', {})
        texts += [out.get('text', ''), *(str(data[kind]) for kind in data if kind != 'image/png')]
    assert not [found for text in texts for found in MACHINE.findall(text)]
    assert notebook.metadata.kernelspec == {
        'display_name': 'Python 3',
        'language': 'python',
        'name': 'python3',
    }


@every_notebook
def test_the_first_cell_installs(name):
    notebook = _read(name)
    first, *others = _code(notebook)
    assert first.source == _code(_read('bounds'))[0].source
    assert "if importlib.util.find_spec('oneshot') is None:\n    %pip install" in first.source
    assert not first.outputs
    assert not [cell for cell in others if 'pip install' in cell.source]
    assert [cell.cell_type for cell in notebook.cells[:2]] == ['markdown', 'code']


def test_the_config_of_the_audit_is_the_default_one():
    cell = next(cell for cell in _code(_read('audit')) if cell.id == 'config-run')
    names = {'ml_collections': ml_collections}
    exec(cell.source, names)
    assert names['config'].to_dict() == digits_wb.get_config().to_dict()
