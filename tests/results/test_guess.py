import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oneshot
from oneshot.report import words as report_words
from oneshot.results import guess


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=40), st.data())
def test_top_k_maximizes_the_sum_of_guessed_scores(scores, data):
    """T maximizes Σ T_i·Y_i given k_plus and k_minus (Algorithm generic-audit)."""
    k_plus = data.draw(st.integers(0, len(scores)))
    k_minus = data.draw(st.integers(0, len(scores) - k_plus))
    guesses = guess.top_k(scores, k_plus, k_minus)
    assert np.sum(guesses == 1) == k_plus
    assert np.sum(guesses == -1) == k_minus
    ordered = np.sort(scores)
    best = ordered[len(scores) - k_plus :].sum() - ordered[:k_minus].sum()
    assert guesses @ np.array(scores) == pytest.approx(best)


def test_ties_do_not_follow_the_order_of_the_file():
    """Equal scores, included canaries first: no more right than by chance.

    1,000 of 2,000 positions are taken; the number of them in the first half is
    hypergeometric with deviation 11.2, and the permutation is fixed, so this
    cannot flicker.
    """
    guesses = guess.top_k(np.zeros(2000), 1000, 0)
    assert abs(int(np.sum(guesses[:1000])) - 500) < 60


def test_infinite_scores_have_their_place():
    assert guess.top_k([0.0, np.inf, -np.inf, 1.0], 1, 1).tolist() == [0, 1, -1, 0]


@given(st.integers(1, 10**6))
def test_preset_fits(m):
    k_plus, k_minus = guess.preset(m)
    assert 0 < k_plus + k_minus <= m


def test_bad_input():
    for scores, k_plus, k_minus in [
        ([], 0, 0),
        ([1.0, np.nan], 1, 0),
        ([1.0, 2.0], 2, 1),
        ([1.0, 2.0], -1, 1),
        ([1.0, 2.0], 0.5, 1),
        ([[1.0, 2.0]], 1, 1),
    ]:
        with pytest.raises(ValueError, match=r'must .* given\.|must .* NaN'):
            guess.top_k(scores, k_plus, k_minus)


# Every way in which guesses may be chosen, by the rule that a result names it with.
WAYS = {
    'fixed': {'guesses': (20, 20)},
    'planned': {'mechanism': oneshot.DPSGD(1.0)},
    'preset': {'guesses': 'preset'},
    'split': {'guesses': 'split', 'method': 'adaptive'},
    'grid': {'guesses': 'grid'},
    'best_of_all': {'guesses': 'best_of_all'},
    'threshold': {'guesses': guess.Threshold(0.5)},
    'beyond': {'guesses': guess.Beyond(0.0, 1.0), 'method': 'adaptive'},
    'ranked': {'guesses': guess.Ranked((-1.0,) * 100 + (0.5,) * 100), 'method': 'weighted'},
}


@pytest.mark.parametrize('rule', guess.RULES)
@pytest.mark.filterwarnings('ignore:The best of all')
def test_every_rule_of_a_result_has_words(rule):
    included = np.arange(200) % 2 == 0
    scores = included + np.linspace(0.0, 1.0, 200)
    result = oneshot.audit_scores(scores, included, delta=1e-5, eps_claimed=1.0, **WAYS[rule])
    assert result.rule == rule
    words = guess.RULES[rule].words
    assert words
    assert words in dict(report_words.headline_rows({}, result))['guesses']


def test_rules_by_name_and_their_classes_are_listed():
    classes = guess.Threshold, guess.Beyond, guess.Ranked, guess.Split, guess.Grid
    named = {rule for rule in guess.RULES if rule not in ('fixed', *guess.NAMED_RULES)}
    assert named | {'split', 'grid'} == {one.__name__.lower() for one in classes}
    with pytest.raises(ValueError, match=', '.join(guess.NAMED_RULES)):
        oneshot.audit_scores([0.0, 1.0], [0, 1], delta=0.0, guesses='threshold')
