"""The public names of the package: few, documented, each with an example that runs."""

import doctest
import inspect
import subprocess
import sys

import pytest

import oneshot


def test_names_are_few_and_sorted():
    assert len(oneshot.__all__) <= 15
    assert sorted(oneshot.__all__) == oneshot.__all__
    assert set(oneshot.__all__) <= set(dir(oneshot))


def test_an_unknown_name():
    with pytest.raises(AttributeError, match=r"no attribute 'mesh'"):
        _ = oneshot.mesh


def test_import_loads_no_room():
    code = 'import sys, oneshot; print(*sys.modules)'
    line = [sys.executable, '-c', code]
    loaded = subprocess.run(line, capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in loaded if name.startswith('oneshot')] == ['oneshot']
    assert not {'numpy', 'scipy', 'jax', 'rich'} & set(loaded)


@pytest.mark.parametrize('name', oneshot.__all__)
def test_every_name_has_an_example_that_runs(name):
    value = getattr(oneshot, name)
    text = inspect.getdoc(value)
    examples = doctest.DocTestParser().get_doctest(text, {}, name, None, 0)
    assert len(text.splitlines()[0]) > 20
    assert examples.examples, f'{name} has no example'
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    said = []
    runner.run(examples, out=said.append)
    assert not runner.failures, ''.join(said)
