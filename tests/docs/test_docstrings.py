"""The examples in the docstrings of the package give what they say."""

import doctest
import importlib
import pathlib

import pytest

import oneshot

ROOT = pathlib.Path(oneshot.__file__).parent
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def _modules():
    """The modules with examples, by their source: what has none is not imported."""
    for path in sorted(ROOT.rglob('*.py')):
        if '>>> ' in path.read_text():
            parts = path.relative_to(ROOT.parent).with_suffix('').parts
            yield '.'.join(part for part in parts if part != '__init__')


@pytest.mark.parametrize('name', list(_modules()))
def test_examples(name):
    module, said = importlib.import_module(name), []
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    for test in doctest.DocTestFinder().find(module):
        runner.run(test, out=said.append)
    assert runner.tries
    assert not runner.failures, ''.join(said)
