"""From scores to the headline and every other result."""

import json
import math

import numpy as np
import pytest

from configs import digits_bb
from oneshot import bounds
from oneshot.results.methods import METHODS
from oneshot.run import training
from tests import small


@pytest.mark.parametrize('kind', ['dirac', 'in_distribution'])
def test_of_a_pair_one_canary_is_in(kind, tmp_path, capsys):
    """Appendix A: one of two canaries is in, and the bound is for addition and removal."""
    attacks = ('white_box',) if kind == 'dirac' else ('black_box', 'white_box')
    changes = {'pairs': True, 'method': 'replacement', 'canaries': kind, 'attacks': attacks}
    config = small.config(**{f'audit__{key}': value for key, value in changes.items()})
    run = training.prepare(config, tmp_path)
    assert int(np.sum(run.canaries.included)) == config.audit.m == run.canaries.coins.size
    result = training.audit_run(run)
    assert result.method == 'replacement'
    assert result.m == config.audit.m
    assert 'pairs, one of each in by a fair coin' in ' '.join(capsys.readouterr().out.split())
    page = (tmp_path / 'report.html').read_text()
    assert f'{result.eps_lb:.3g}' in page


def test_without_noise_nothing_is_proven_and_all_guesses_are_right(tmp_path, capsys):
    config = small.config(dp__noise_multiplier=0.0, dp__sampling_prob=0.6)
    result = training.run(config, tmp_path)
    assert math.isinf(result.eps_claimed)
    assert '∞ at δ = 1e-05: nothing is proven' in capsys.readouterr().out
    assert json.loads((tmp_path / 'result.json').read_text())['eps_ub'] == 'inf'
    # The residual of a canary that was in is above 0, unless it was never drawn, with
    # probability 0.4^25 each; of one that was out it is 0.
    assert result.correct == result.guesses == 40
    assert result.eps_lb > 2


@pytest.mark.parametrize('method', ['weighted', 'cp_gdp', 'gaussian_pair', 'fdp_dpsgd'])
def test_the_headline_may_be_any_method(method, tmp_path, capsys):
    changes = {'audit__method': method, 'audit__k_plus': None, 'audit__k_minus': None}
    config = small.config(**changes, dp__noise_multiplier=1.0)
    result = training.run(config, tmp_path)
    record = json.loads((tmp_path / 'result.json').read_text())
    assert (record['method'], record['eps_lb'], record['kind']) == (
        method,
        result.eps_lb,
        METHODS[method].kind,
    )
    told = ' '.join(capsys.readouterr().out.replace('│', ' ').split())
    words = 'an estimate, not a bound' if method == 'gaussian_pair' else 'with 95 % confidence'
    assert words in told
    assert f'{METHODS[method].condition.split(" ")[0]} ' in told


def test_a_tiny_audit_has_a_report_too(tmp_path):
    config = small.config(audit__m=2, audit__k_plus=1, audit__k_minus=1)
    training.run(config, tmp_path)
    assert (tmp_path / 'report.html').exists()


def test_the_best_of_several_attacks_shares_the_confidence(tmp_path, capsys):
    """Three scores at 1 − 0.05/3 each; the best holds with 95 %, and its p-value is for all."""
    changes = {
        'audit__headline': 'best',
        'audit__scores': ('dot',),
        'audit__confidence': 0.95,
        'dp__noise_multiplier': 0.5,
    }
    run = training.prepare(small.config(digits_bb, **changes), tmp_path)
    assert run.spec.selection.names == ('loss', 'iterates', 'residual')
    result = training.audit_run(run)
    record = json.loads((tmp_path / 'result.json').read_text())
    rows = [row for row in record['rows'] if row['method'] == 'one_run']
    assert [row['confidence'] for row in rows] == pytest.approx([1 - 0.05 / 3] * 3, rel=1e-12)
    best = max(rows, key=lambda row: row['eps_lb'])
    assert record['score'] == best['score']
    assert result.eps_lb == record['eps_lb'] == best['eps_lb']
    assert result.confidence == 0.95
    assert result.p_value == min(1.0, 3 * best['p_value'])
    for row in rows:
        given = 200, row['guesses'], row['correct'], 1e-5, 1 - 0.05 / 3
        assert row['eps_lb'] == bounds.eps_lower_bound(*given)
    told = ' '.join(capsys.readouterr().out.replace('│', ' ').split())
    assert 'the best of loss, iterates, residual, which share the confidence' in told
