"""Where the canaries of the doctor's audit are placed."""

import numpy as np

from oneshot.check import canary_audit
from oneshot.check.runner import Runner
from oneshot.check.step import oneshot_step


def test_canaries_stand_on_coordinates_of_their_own():
    step = oneshot_step('vmap')
    runner = Runner(step)
    placed = canary_audit.lay_out(runner, np.random.default_rng(0))
    taken = placed.places[placed.places >= 0]
    assert np.unique(taken).size == taken.size
    beside = placed.partners[placed.partners >= 0]
    assert not np.isin(beside, taken).any()
    assert np.sum(placed.widths > 1) == 440
    assert placed.widths.max() == 19
    leaves = np.searchsorted([leaf.first for leaf in runner.leaves], taken, side='right') - 1
    assert np.unique(leaves).size == len(runner.leaves)  # Dirac on every leaf
    first = np.array([leaf.first for leaf in runner.leaves])
    both = (placed.places >= 0) & (placed.partners >= 0)
    offsets = [x[both] - first[np.searchsorted(first, x[both], side='right') - 1] for x in placed]
    assert np.array_equal(*offsets)  # the same place in another leaf
    assert both.sum() > 5_000
