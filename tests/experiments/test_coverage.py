"""The fast cousin of experiments/coverage.py.

If a bound is valid, more than `limit` of its runs are above the true ε with
probability below 1e-8; with fewer than 100 settings, a false alarm of the whole
file has probability below 1e-6. The seeds are fixed and were not chosen. Of the
settings for several m, those with the fewest canaries are run here.
"""

import csv

import numpy as np
import pytest
import scipy.stats

from experiments import coverage
from experiments.mechanisms import RandomizedResponse
from oneshot import bounds

RUNS = 600
SETTINGS = list(enumerate(coverage.settings()))


def _limit(runs):
    return scipy.stats.binom.isf(1e-8, runs, 0.05)


def _is_fast(setting):
    return setting.valid and (setting.audit is None or setting.mechanism.m == 200)


@pytest.mark.parametrize('index', [i for i, setting in SETTINGS if _is_fast(setting)])
def test_bounds_are_below_the_truth(index):
    row = coverage.simulate(index, RUNS)
    assert row.above <= _limit(RUNS), row


def test_the_test_would_notice():
    """A 70 % bound taken for a 95 % one is above ε = 1 in about 28 % of runs."""
    mechanism = RandomizedResponse(1000, 1.0)
    rng = np.random.default_rng(0)
    above = 0
    for _ in range(RUNS):
        scores, included = mechanism.sample(rng)
        right = int(np.sum((scores > 0) == included))
        above += bounds.eps_lower_bound(1000, 1000, right, 0.0, 0.7) > 1.0
    assert above > _limit(RUNS)


def test_randomized_response_is_tight():
    """Mean of ε_LB within 0.2 of ε = 2 at m = 10,000; its deviation over 100 runs is 0.003."""
    index = next(i for i, one in SETTINGS if one.mechanism.m == 10_000)
    assert SETTINGS[index][1].mechanism.eps(0.0) == 2.0
    assert coverage.simulate(index, 100).mean_eps_lb > 1.8


def test_the_committed_results_are_those_of_the_settings():
    with (coverage.RESULTS / 'coverage.csv').open() as file:
        rows = list(csv.DictReader(file))
    assert [row['bound'] for row in rows] == [setting.name for _, setting in SETTINGS]
    for row, (_, setting) in zip(rows, SETTINGS, strict=True):
        assert int(row['runs']) == setting.runs >= 2_000
        if setting.valid:  # at most 5 %, by an exact test
            assert float(row['p_value']) > 1e-4
            assert float(row['share']) <= 0.05 or setting.runs < 10_000
    # The experiment can tell, and the difference is that which it is about.
    for name in ('δ forgotten', 'best_of_all'):
        assert max(float(row['share']) for row in rows if row['bound'] == name) > 0.07
