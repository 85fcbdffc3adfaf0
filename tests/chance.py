"""Exact two-sided checks of counts, for statistical tests that state their false alarms."""

import scipy.stats


def plausible(successes, trials, chance, alarm=1e-9):
    """False with probability at most `alarm` if each trial succeeds with `chance`."""
    below = scipy.stats.binom.cdf(successes, trials, chance)
    above = scipy.stats.binom.sf(successes - 1, trials, chance)
    return min(below, above) > alarm / 2
