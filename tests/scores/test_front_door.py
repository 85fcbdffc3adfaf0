import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oneshot
from oneshot import bounds
from oneshot.results import guess
from oneshot.results.methods import METHODS


def _audit(m=400, seed=0, shift=2.0):
    rng = np.random.default_rng(seed)
    included = rng.random(m) < 0.5
    return rng.standard_normal(m) + shift * included, included


def test_it_counts_the_right_guesses():
    scores, included = _audit()
    result = oneshot.audit_scores(
        scores, included, delta=1e-5, guesses=(30, 20), eps_claimed=math.log(3)
    )
    order = np.argsort(scores)
    correct = int(np.sum(included[order[-30:]]) + np.sum(~included[order[:20]]))
    assert (result.m, result.guesses, result.k_plus, result.k_minus) == (400, 50, 30, 20)
    assert result.correct == correct
    assert result.eps_lb == bounds.eps_lower_bound(400, 50, correct, 1e-5)
    assert result.p_value == bounds.p_value(400, 50, correct, math.log(3), 1e-5)
    assert result.assumptions == 'none'
    assert result.violated == (result.eps_lb > math.log(3))
    json.dumps(result.as_dict())
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.eps_lb = 0.0


@pytest.mark.parametrize('coin', [bool, int, float, lambda x: np.where(x, 1, -1)])
def test_coins_may_be_written_in_several_ways(coin):
    scores, included = _audit()
    expected = oneshot.audit_scores(scores, included, delta=0.0)
    ways = coin(included) if coin not in (bool, int, float) else included.astype(coin)
    assert oneshot.audit_scores(scores, ways, delta=0.0) == expected
    assert oneshot.audit_scores(scores.tolist(), ways.tolist(), delta=0.0) == expected


def test_ids_join_scores_and_coins():
    scores, included = _audit()
    rng = np.random.default_rng(1)
    ids = np.array([f'canary-{i:03}' for i in range(400)])
    expected = oneshot.audit_scores(scores, included, delta=1e-5)
    order, coin_order = rng.permutation(400), rng.permutation(400)
    joined = oneshot.audit_scores(
        scores[order],
        included[coin_order],
        delta=1e-5,
        ids=ids[order],
        included_ids=ids[coin_order],
    )
    assert joined == expected
    assert oneshot.audit_scores(scores[order], included, delta=1e-5).eps_lb < expected.eps_lb


@pytest.mark.parametrize(
    ('ids', 'included_ids', 'message'),
    [
        ([1, 2, 3], [1, 2, 4], 'ids 3 have no coin and ids 4 have no score'),
        ([1, 2, 2], [1, 2, 3], 'ids must be unique, but ids 2 repeat'),
        ([1, 2, 3], [1, 1, 3], 'included_ids must be unique, but ids 1 repeat'),
        ([1, 2, 3], None, 'included_ids is missing'),
        (None, [1, 2, 3], 'but ids is missing'),
        ([1, 2], [1, 2, 3], 'ids must name each of 3 entries'),
    ],
)
def test_ids_that_do_not_match_are_named(ids, included_ids, message):
    with pytest.raises(ValueError, match=message):
        oneshot.audit_scores(
            [1.0, 2.0, 3.0], [0, 1, 1], delta=0.0, ids=ids, included_ids=included_ids
        )


def test_ids_of_different_types_are_never_mixed_up():
    scores, included = _audit()
    ids = 2**60 + np.arange(400)
    expected = oneshot.audit_scores(scores, included, delta=0.0)
    order = np.random.default_rng(2).permutation(400)
    same = oneshot.audit_scores(
        scores, included[order], delta=0.0, ids=ids, included_ids=ids[order].astype(np.uint64)
    )
    assert same == expected
    with pytest.raises(ValueError, match='have no coin and ids 1152921504606846976'):
        oneshot.audit_scores(scores, included, delta=0.0, ids=ids.astype(str), included_ids=ids)
    with pytest.raises(ValueError, match='included must be a vector'):
        oneshot.audit_scores([1.0, 2.0], [[0, 1]], delta=0.0, ids=[1, 2], included_ids=[1, 2])
    mixed = [1, 'a', None]
    assert (
        oneshot.audit_scores([1.0, 2.0, 3.0], [0, 1, 1], delta=0.0, ids=mixed, included_ids=mixed).m
        == 3
    )


def test_a_method_without_what_it_needs():
    scores, included = _audit()
    for rule in ('preset', 'best_of_all', 'grid'):
        with pytest.raises(ValueError, match="'fdp_dpsgd' needs q and the steps of the DP-SGD"):
            oneshot.audit_scores(scores, included, delta=1e-5, method='fdp_dpsgd', guesses=rule)


def test_many_ids_are_not_all_named():
    with pytest.raises(ValueError, match='ids 0, 1, 2, 3, 4 and 95 more have no coin'):
        oneshot.audit_scores(
            np.zeros(100),
            np.arange(100) % 2,
            delta=0.0,
            ids=np.arange(100),
            included_ids=np.arange(100) + 100,
        )


def test_methods_agree_where_they_should():
    scores, included = _audit(m=2000)
    known = oneshot.DPSGD(0.5)  # two deviations, as the scores have them
    by_threshold = 'clopper_pearson', 'cp_gdp'
    results = {
        name: oneshot.audit_scores(
            scores,
            included,
            delta=1e-6,
            method=name,
            guesses=guess.Threshold(1.0) if name in by_threshold else 'preset',
            mechanism=known,
            eps_claimed=1.0,
        )
        for name in METHODS
    }
    one_run, known_eps = results['one_run'].eps_lb, bounds.gaussian_eps(1e-6, 0.5)
    assert results['weighted'].eps_lb == pytest.approx(one_run, abs=1e-9)
    assert 0 < results['adaptive'].eps_lb < one_run
    assert 0 < results['hoeffding'].eps_lb < one_run
    for name, result in results.items():
        assert result.kind == ('estimate' if name == 'gaussian_pair' else 'bound')
        assert 0 < result.eps_lb < known_eps
        if name != 'fdp_dpsgd':  # of which the claim is the mechanism
            assert (result.p_value <= 0.05) == (result.eps_lb >= 1.0)


def test_weighted_guesses():
    rng = np.random.default_rng(0)
    included = rng.random(1000) < 0.5
    guesses = np.clip(0.4 * np.where(included, 1, -1) + 0.3 * rng.standard_normal(1000), -1, 1)
    correct = np.sum(np.maximum(0, guesses * np.where(included, 1, -1)))
    weighted = oneshot.audit_guesses(guesses, included, delta=1e-6, method='weighted')
    assert weighted.correct == pytest.approx(correct)
    assert weighted.eps_lb == bounds.weighted_eps_lower_bound(guesses, correct, 1e-6)
    assert oneshot.audit_guesses(guesses, included, delta=1e-6, method='adaptive').eps_lb > 0
    with pytest.raises(ValueError, match="-1, 0 or \\+1 for method 'one_run'"):
        oneshot.audit_guesses(guesses, included, delta=1e-6)


def test_a_threshold_fixed_beforehand():
    scores, included = _audit(m=2000)
    result = oneshot.audit_scores(
        scores, included, delta=1e-5, method='cp_gdp', guesses=guess.Threshold(1.0)
    )
    above = scores > 1.0
    cells = included.sum(), (included & above).sum(), (~included).sum(), (~included & above).sum()
    assert result.eps_lb == bounds.cp_gdp_eps_lower_bound(*cells, 1e-5)
    assert (result.guesses, result.k_plus, result.rule) == (2000, above.sum(), 'threshold')
    guesses = np.where(above, 1, -1)
    same = oneshot.audit_guesses(guesses, included, delta=1e-5, method='cp_gdp')
    assert same.eps_lb == result.eps_lb
    with pytest.raises(ValueError, match='needs every canary guessed by a threshold'):
        oneshot.audit_scores(scores, included, delta=1e-5, method='cp_gdp', guesses=(1000, 1000))


def test_weights_by_rank():
    scores, included = _audit(m=1000)
    weights = np.linspace(-1.0, 1.0, 1000)
    rule = guess.Ranked(tuple(weights.tolist()))
    result = oneshot.audit_scores(scores, included, delta=1e-6, method='weighted', guesses=rule)
    guesses = np.empty(1000)
    guesses[np.argsort(scores)] = weights
    assert result.eps_lb == bounds.weighted_eps_lower_bound(
        guesses, np.sum(np.maximum(0.0, guesses * np.where(included, 1, -1))), 1e-6
    )
    with pytest.raises(ValueError, match="-1, 0 or \\+1 for method 'one_run'"):
        oneshot.audit_scores(scores, included, delta=1e-6, guesses=rule)


def test_a_grid_pays_for_what_it_looks_at():
    scores, included = _audit(m=2000)
    pairs = (10, 10), (50, 50), (200, 200)
    options = {'delta': 1e-6, 'eps_claimed': 3.0}
    result = oneshot.audit_scores(scores, included, guesses=guess.Grid(pairs), **options)
    each = [
        oneshot.audit_scores(scores, included, guesses=pair, confidence=1 - 0.05 / 3, **options)
        for pair in pairs
    ]
    assert result.eps_lb == max(one.eps_lb for one in each)
    assert result.p_value == min(1.0, 3 * min(one.p_value for one in each))
    assert (result.confidence, result.rule) == (0.95, 'grid')
    assert oneshot.audit_scores(scores, included, guesses='grid', **options).eps_lb > 0
    with pytest.raises(ValueError, match='A grid needs one'):
        guess.Grid(())


def test_a_split_never_audits_the_coins_that_it_looked_at():
    scores, included = _audit(m=2000)
    options = {'delta': 1e-6, 'method': 'adaptive', 'guesses': guess.Split(0.25)}
    result = oneshot.audit_scores(scores, included, **options)
    assert (result.m, result.rule) == (1500, 'split')
    assert result.eps_lb > 0
    first, rest = guess.Split(0.25).parts(2000)
    assert sorted([*first, *rest]) == list(range(2000))
    # What is right in the first part makes no difference but for the thresholds.
    other = included.copy()
    other[rest] = ~other[rest]
    turned = oneshot.audit_scores(scores, other, **options)
    assert (turned.guesses, turned.k_plus) == (result.guesses, result.k_plus)
    assert turned.correct == result.guesses - result.correct
    for share in (0.0, 1.0):
        with pytest.raises(ValueError, match='share must be'):
            guess.Split(share)


@pytest.mark.parametrize('method', [name for name, method in METHODS.items() if not method.pairs])
def test_a_known_mechanism_at_delta_0(method):
    """Guesses are planned; bounds by the curve of a Gaussian are ∞ as soon as μ = 0 is rejected."""
    scores, included = _audit(1000, shift=1.0)
    options = {'delta': 0, 'method': method, 'mechanism': oneshot.DPSGD(1.0)}
    result = oneshot.audit_scores(scores, included, **options)
    infinite = method in ('fdp', 'fdp_dpsgd', 'cp_gdp', 'gaussian_pair')
    assert result.eps_lb == math.inf if infinite else 0.5 < result.eps_lb < 10.0
    assert result.rule == ('fixed' if method == 'gaussian_pair' else 'planned')
    blind = oneshot.audit_scores(np.zeros(1000), included, **options)
    assert blind.eps_lb == 0.0


def test_the_best_of_all_has_no_guarantee():
    scores, included = _audit(m=1000, shift=0.0)
    with pytest.warns(UserWarning, match='has no guarantee'):
        result = oneshot.audit_scores(scores, included, delta=1e-6, guesses='best_of_all')
    assert result.kind == 'no guarantee'
    for k in (1, 10, 100, 500):
        one = oneshot.audit_scores(scores, included, delta=1e-6, guesses=(k, k))
        assert one.eps_lb <= result.eps_lb
        assert one.kind == 'bound'


def test_several_runs_are_one_audit():
    runs = [_audit(m=500, seed=seed) for seed in range(4)]
    scores, included = oneshot.pool(runs)
    assert scores.size == included.size == 2000
    pooled = oneshot.audit_scores(scores, included, delta=1e-6, guesses=(100, 100))
    assert pooled.m == 2000
    single = [oneshot.audit_scores(*run, delta=1e-6, guesses=(25, 25)).eps_lb for run in runs]
    assert pooled.eps_lb > max(single)
    with pytest.raises(ValueError, match='fresh coins, but runs 0 and 2 have the same'):
        oneshot.pool([runs[0], runs[1], (runs[2][0], runs[0][1])])
    with pytest.raises(ValueError, match='one run or more'):
        oneshot.pool([])


def test_scores_that_say_nothing_give_zero():
    included = np.arange(1000) < 500
    assert oneshot.audit_scores(np.zeros(1000), included, delta=0.0).eps_lb == 0.0


def test_coins_that_are_not_fair_are_noticed():
    with pytest.warns(UserWarning, match='900 of 1000 canaries are included'):
        oneshot.audit_scores(np.zeros(1000), np.arange(1000) < 900, delta=0.0)


_GOOD = {'scores': [0.5, 1.0, 2.0], 'included': [0, 1, 1], 'delta': 1e-5}


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'scores': []}, 'scores must be a vector of at least one real number'),
        ({'included': [0, 1]}, 'scores and included must be of equal length, but 3 and 2'),
        ({'scores': [0.5, math.nan, 1.0]}, 'scores must not contain NaN, but 1 of 3'),
        ({'included': [0, 1, math.nan]}, 'included must not contain NaN'),
        ({'included': [0, 1, 2]}, r'included must be bools, .* but 2\.0 was given'),
        ({'included': [0, 1, -1]}, 'a mix of -1, 0 and'),
        ({'included': ['in', 'out', 'in']}, 'included must be a vector of at least one real'),
        ({'scores': [[1.0, 2.0, 3.0]]}, r'scores must be a vector .* shape \(1, 3\)'),
        ({'delta': 1.5}, r'delta must be a number in \[0, 1\], but 1\.5 was given'),
        ({'confidence': 1.0}, r'confidence must be a number in \(0, 1\)'),
        ({'method': 'best'}, "method must be one of one_run, weighted, .* but 'best' was given"),
        ({'guesses': (2, 2)}, 'k_minus, .* from 0 to 1, but 2 was given'),
        ({'guesses': (1.5, 1)}, 'k_plus, .* whole number'),
        (
            {'guesses': 'best'},
            r"guesses must be \(k_plus, k_minus\), one of planned, .* but 'best'",
        ),
        ({'guesses': (1, 1, 1)}, r'guesses must be .* a rule of oneshot.guess, but \(1, 1, 1\)'),
        ({'guesses': 'split'}, r"Split makes a random number .* 'adaptive' takes, but 'one_run'"),
        ({'guesses': guess.Beyond(0.0, 1.0)}, 'Beyond makes a random number of guesses'),
        ({'guesses': guess.Ranked((1.0, 1.0))}, 'weights must be one for each of 3 ranks, but 2'),
        ({'method': 'cp_gdp'}, r"method 'cp_gdp' needs every canary guessed by a threshold"),
        ({'method': 'fdp_dpsgd'}, r"method 'fdp_dpsgd' needs q and the steps of the DP-SGD"),
        ({'method': 'cp_gdp', 'guesses': 'best_of_all'}, 'no numbers of guesses to choose from'),
        ({'eps_claimed': -1.0}, 'eps_claimed must be a number in'),
    ],
)
def test_bad_input(change, message):
    with pytest.raises(ValueError, match=message):
        oneshot.audit_scores(**_GOOD | change)


def test_guesses_outside_the_unit_interval():
    with pytest.raises(ValueError, match=r'guesses must lie in \[-1, \+1\], but one of -3\.0'):
        oneshot.audit_guesses([1.0, -3.0], [0, 1], delta=0.0)


@given(
    st.lists(st.one_of(st.floats(), st.none(), st.text()), max_size=6),
    st.lists(st.one_of(st.integers(-2, 3), st.booleans(), st.none(), st.floats()), max_size=6),
    st.one_of(st.floats(), st.just(1e-5), st.none()),
)
def test_fuzz(scores, included, delta):
    """A result or a ValueError of one sentence, whatever is given."""
    try:
        result = oneshot.audit_scores(scores, included, delta=delta)
    except ValueError as error:
        assert str(error).endswith('.')
        assert '\n' not in str(error)
    else:
        assert result.eps_lb >= 0
