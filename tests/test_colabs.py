"""The notebooks run from top to bottom, in a kernel of their own."""

import pathlib
import warnings

import nbformat
import pytest
from nbclient import NotebookClient

COLABS = pathlib.Path(__file__).parents[1] / 'colabs'


@pytest.mark.parametrize('path', sorted(COLABS.glob('*.ipynb')), ids=lambda path: path.stem)
def test_notebook(path):
    notebook = nbformat.read(path, as_version=4)
    assert any(cell.get('outputs') for cell in notebook.cells), 'commit notebooks with outputs'
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # of the Jupyter libraries
        NotebookClient(notebook, timeout=120, resources={'metadata': {'path': COLABS}}).execute()
