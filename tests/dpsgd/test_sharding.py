"""Eight devices in a process of their own, for the tests of `tests/dpsgd/devices`."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from jax.sharding import PartitionSpec

from oneshot.dpsgd import sharding
from oneshot.dpsgd.layout import Layout

ROOT = pathlib.Path(__file__).parents[2]
FILES = sorted(path.name for path in (ROOT / 'tests' / 'dpsgd' / 'devices').glob('test_*.py'))


@pytest.mark.parametrize('name', FILES)
def test_on_eight_devices(name):
    line = [sys.executable, '-m', 'pytest', f'tests/dpsgd/devices/{name}', '-p', 'no:xdist']
    env = os.environ | {'JAX_NUM_CPU_DEVICES': '8'}
    env.pop('PYTEST_XDIST_WORKER', None)
    done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT, check=False, env=env)
    assert done.returncode == 0, done.stdout[-5000:]
    assert ' passed in ' in done.stdout
    assert 'skipped' not in done.stdout


def test_an_array_is_split_along_its_longest_axis_that_comes_out_even():
    assert sharding.spec((3, 3, 16, 64), 4) == PartitionSpec(None, None, None, sharding.MODEL_AXIS)
    assert sharding.spec((64, 10), 4) == PartitionSpec(sharding.MODEL_AXIS)
    assert sharding.spec((10, 64), 1) == PartitionSpec()
    assert sharding.spec((7, 3), 2) == PartitionSpec()
    assert sharding.spec((), 2) == PartitionSpec()
    assert sharding.spec((0,), 2) == PartitionSpec()


def test_without_a_mesh_nothing_is_changed():
    layout = Layout(sharding.make_mesh(1, 1))
    assert sharding.current() is None
    rows = np.arange(12.0).reshape(4, 3)
    np.testing.assert_array_equal(layout.place_rows(rows, 4), rows)
    assert layout.rows_here(5).tolist() == [0, 1, 2, 3, 4]
    assert layout.shape == {'data': 1, 'model': 1}
    assert layout.gather_scores(rows, np.arange(3)) is rows
