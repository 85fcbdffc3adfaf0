import math
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse
import scipy.stats

import oneshot
from experiments.mechanisms import RandomizedResponse
from oneshot import bounds
from oneshot.results import guess
from oneshot.scores import any_algorithm
from tests.chance import plausible


def _tell(included):
    """The worst algorithm: the model is the coins."""
    return included


def _score(model, i):
    return float(model[i])


def _response(mechanism, rng):
    """Randomized response as an algorithm to train."""
    return lambda included: mechanism.scores(rng, np.where(included, 1, -1))


def test_it_trains_once_and_scores_everyone():
    given, scored = [], []

    def train(included):
        given.append(included)
        return 'model'

    def score(model, canary):
        scored.append((model, canary))
        return len(scored)

    canaries = [f'canary {i}' for i in range(50)]
    scores, included = any_algorithm.sample(train, score, canaries, rng=np.random.default_rng(0))
    assert len(given) == 1
    assert (given[0].dtype, given[0].shape) == (bool, (50,))
    np.testing.assert_array_equal(given[0], included)
    assert scored == [('model', canary) for canary in canaries]
    np.testing.assert_array_equal(scores, np.arange(1.0, 51.0))
    assert (scores.dtype, included.dtype) == (float, bool)


def test_what_train_does_with_its_coins_changes_none():
    def tamper(included):
        included[:] = True
        return included

    first = any_algorithm.sample(_tell, _score, range(200), rng=np.random.default_rng(1))
    second = any_algorithm.sample(tamper, _score, range(200), rng=np.random.default_rng(1))
    np.testing.assert_array_equal(first.included, second.included)
    np.testing.assert_array_equal(first.scores, first.included)
    assert second.scores.all()


def test_coins_are_fair_and_independent():
    """Three counts, each out of bounds with probability 1e-9."""
    rng, m = np.random.default_rng(2), 20_000
    first, second = (
        any_algorithm.sample(_tell, lambda model, i: 0.0, range(m), rng=rng).included
        for _ in range(2)
    )
    assert plausible(first.sum(), m, 0.5)
    assert plausible(np.sum(first[1:] ^ first[:-1]), m - 1, 0.5)
    assert plausible(np.sum(first ^ second), m, 0.5)


@pytest.mark.parametrize('guesses', ['preset', (40, 30), guess.Threshold(0.0)])
def test_randomized_response_is_audited_as_its_scores_are(guesses):
    mechanism = RandomizedResponse(400, 2.0)
    options = {'delta': 1e-6, 'confidence': 0.9, 'guesses': guesses, 'eps_claimed': 1.0}
    rng = np.random.default_rng(3)
    result = any_algorithm.audit_algorithm(
        _response(mechanism, rng), _score, range(400), rng=rng, **options
    )
    sample = mechanism.sample(np.random.default_rng(3))
    assert result == oneshot.audit_scores(*sample, **options)
    assert result.eps_lb > 0
    rng = np.random.default_rng(3)
    again = any_algorithm.audit_algorithm(
        _response(mechanism, rng), _score, range(400), rng=rng, **options
    )
    assert again == result


def test_bounds_are_below_the_truth():
    """ε = 1 of randomized response, where the bound is tight.

    More than `limit` of 600 bounds are above with probability below 1e-7.
    """
    mechanism, rng, runs = RandomizedResponse(200, 1.0), np.random.default_rng(4), 600
    train, options = _response(mechanism, rng), {'delta': 0.0, 'guesses': guess.Threshold(0.0)}
    results = [
        any_algorithm.audit_algorithm(train, _score, range(200), rng=rng, **options)
        for _ in range(runs)
    ]
    limit = scipy.stats.binom.isf(1e-7, runs, 0.05)
    assert sum(one.eps_lb > 1.0 for one in results) <= limit
    # The test would notice: a bound at 70 % is above in about 28 % of runs.
    loose = [bounds.eps_lower_bound(200, 200, one.correct, 0.0, 0.7) for one in results]
    assert np.sum(np.array(loose) > 1.0) > limit


def test_an_algorithm_that_tells_everything_is_found_out():
    """Unless fewer than 100 of 400 are in, or out, with probability below 1e-22."""
    options = {'delta': 1e-6, 'guesses': (100, 100), 'eps_claimed': 4.0}
    result = any_algorithm.audit_algorithm(
        _tell, _score, range(400), rng=np.random.default_rng(5), **options
    )
    assert result.correct == result.guesses == 200
    assert result.violated


def test_pairs_of_which_one_is_in():
    """A canary is a pair, and its score says whether the first is in."""
    pairs = [(f'first {i}', f'second {i}') for i in range(400)]

    def train(first_in):
        return {pair[0 if first else 1] for pair, first in zip(pairs, first_in, strict=True)}

    def score(model, pair):
        return (pair[0] in model) - (pair[1] in model)

    options = {'delta': 0.0, 'guesses': (100, 100)}
    rng = np.random.default_rng(6)
    result = any_algorithm.audit_algorithm(
        train, score, pairs, rng=rng, method='replacement', **options
    )
    assert result.eps_lb == bounds.replacement_eps_lower_bound(400, 200, 200, 0.0)


@pytest.mark.parametrize('kind', [list, tuple, np.array, range])
def test_canaries_by_position(kind):
    canaries = range(30) if kind is range else kind(range(30))
    scores, included = any_algorithm.sample(_tell, _score, canaries, rng=np.random.default_rng(7))
    np.testing.assert_array_equal(scores, included)


@pytest.mark.parametrize('kind', [int, bool, np.float32, np.bool_, np.array])
def test_scores_of_many_types(kind):
    options = {'rng': np.random.default_rng(8)}
    scores, included = any_algorithm.sample(_tell, lambda s, i: kind(s[i]), range(30), **options)
    np.testing.assert_array_equal(scores, included)


def test_progress_is_shown_on_stderr(capsys):
    seeds = (np.random.default_rng(9) for _ in range(2))
    shown, silent = (
        any_algorithm.sample(_tell, _score, range(30), rng=rng, progress=progress)
        for rng, progress in zip(seeds, (True, False), strict=True)
    )
    output = capsys.readouterr()
    assert output.out == ''
    assert output.err.count('scoring') == 1
    np.testing.assert_array_equal(shown, silent)


def test_the_import_is_light():
    code = 'import sys, oneshot.scores.any_algorithm; print(*sys.modules)'
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    for heavy in ('jax', 'rich', 'matplotlib', 'scipy.stats'):
        assert heavy not in done.stdout.split()


def _never(included):
    raise AssertionError('It was trained before the input was checked.')


_GOOD = {
    'train': _never,
    'score': _score,
    'canaries': range(10),
    'rng': np.random.default_rng(0),
    'delta': 1e-5,
}


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'train': 'fit'}, "train must be a function, but 'fit' was given"),
        ({'score': None}, 'score must be a function, but None was given'),
        ({'canaries': []}, r'canaries must be a sequence of at least one, but \[\] was given'),
        ({'canaries': np.zeros((0, 3))}, 'canaries must be a sequence of at least one'),
        ({'canaries': 3}, 'canaries must be a sequence of at least one, but 3 was given'),
        ({'canaries': iter('abc')}, 'canaries must be a sequence of at least one'),
        ({'canaries': {1, 2}}, 'canaries must be a sequence of at least one'),
        ({'canaries': {1: 'a'}}, 'canaries must be a sequence of at least one'),
        ({'canaries': scipy.sparse.eye_array(3)}, 'canaries must be a sequence of at least one'),
        ({'rng': 0}, r'rng must be a np\.random\.Generator, but 0 was given'),
        ({'rng': None}, r'rng must be a np\.random\.Generator, but None was given'),
        ({'delta': 2.0}, 'delta must be a number in'),
        ({'confidence': 95}, 'confidence must be a number in'),
        ({'method': 'best'}, 'method must be one of'),
        ({'method': 'fdp_dpsgd'}, "method 'fdp_dpsgd' needs"),
        ({'guesses': 'best'}, 'guesses must be'),
        ({'guesses': (6, 5)}, 'k_minus, .* from 0 to 4, but 5 was given'),
        ({'eps_claimed': -1.0}, 'eps_claimed must be a number in'),
    ],
)
def test_bad_input_is_noticed_before_the_training(change, message):
    with pytest.raises(ValueError, match=message) as error:
        any_algorithm.audit_algorithm(**_GOOD | change)
    assert str(error.value).endswith('.')
    assert '\n' not in str(error.value)


def test_rng_has_no_default():
    with pytest.raises(TypeError, match='rng'):
        any_algorithm.sample(_tell, _score, range(10))


@pytest.mark.parametrize(
    ('value', 'shown'),
    [
        (math.nan, 'nan'),
        (-math.inf, '-inf'),
        (None, 'None'),
        ('1.5', "'1.5'"),
        (1j, '1j'),
        (10**400, r'10+\.\.\.'),
        ([0.5], r'\[0\.5\]'),
        (np.zeros((40, 2)), r'array\(\[\[0\., 0\.\], .*\.\.\.'),
    ],
)
def test_a_score_that_is_no_number_is_named(value, shown):
    def score(model, i):
        return value if i == 3 else 0.5

    message = f'^score must be one finite number .*, but {shown} was given for canary 3\\.$'
    with pytest.raises(ValueError, match=message) as error:
        any_algorithm.sample(_tell, score, range(10), rng=np.random.default_rng(0))
    assert '\n' not in str(error.value)
