"""The words of a report."""

import warnings

import numpy as np
import pytest

from oneshot.claims import DPSGD
from oneshot.report import words
from oneshot.results import guess
from oneshot.results.guess import RULES
from oneshot.results.methods import Tally, audit_tally
from oneshot.scores.front_door import audit_scores


def test_the_verdict_names_an_assumption():
    counts = Tally(1000, 100, 99)
    verdicts = [
        words.verdict(audit_tally(counts, delta=1e-5, method=method, eps_claimed=claimed))
        for method, claimed in (('one_run', 1.0), ('fdp', 1.0), ('fdp', 9.0))
    ]
    assert verdicts == [
        'the claim is violated: its proof or its code is wrong',
        'the claim is violated, unless the assumption does not hold',
        'consistent with the claim',
    ]


@pytest.mark.parametrize('name', RULES)
def test_every_rule_of_guesses_has_rows(name):
    """As audit_scores gives them, with or without a claim."""
    rng = np.random.default_rng(0)
    included = rng.random(60) < 0.5
    scores = rng.normal(3.0 * included)
    guesses = {
        'fixed': (9, 8),
        'planned': 'planned',
        'threshold': guess.Threshold(1.5),
        'beyond': guess.Beyond(0.5, 2.5),
        'ranked': guess.Ranked(tuple(np.linspace(-1, 1, 60))),
    }
    options = {'method': 'adaptive', 'delta': 1e-5, 'mechanism': DPSGD(1.0)}
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', 'The best of all numbers of guesses')
        rule = guesses.get(name, name)
        result, unclaimed = (
            audit_scores(scores, included, guesses=rule, eps_claimed=eps, **options)
            for eps in (4.0, None)
        )
    assert result.rule == name
    rows = dict(words.headline_rows({'seed': '0'}, result))
    assert rows['seed'] == '0'
    assert rows['guesses'].endswith(f', {RULES[name].words}')
    assert rows['guesses'].startswith(f'{result.guesses} (k+ = {result.k_plus} "in", ')
    assert rows['ε_UB'] == '4 at δ = 1e-05'
    rows = dict(words.headline_rows({}, unclaimed))
    assert rows['ε_UB'] == 'none is claimed'
    assert 'verdict' not in rows
    assert rows['ε_LB'].endswith('with 95 % confidence') or name == 'best_of_all'
