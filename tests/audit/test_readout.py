"""The scores and the result of an audit."""

import jax
import pytest

import oneshot
from oneshot import audit
from oneshot.plan import Scoring
from tests.audit.small_loop import CLAIM, CLIP, SIGMA, STEPS, M, Q, run_loop


def test_the_result_is_that_of_the_scores():
    params, audited = run_loop()
    result = audit.result(audited, params, delta=1e-5)
    scores = audit.scores(audited, params)['residual_llr']
    mechanism = Scoring(CLAIM, 'llr')
    known = {'delta': 1e-5, 'mechanism': mechanism, 'eps_claimed': result.eps_claimed}
    assert result == oneshot.audit_scores(scores, audited.included, **known)
    assert result.rule == 'planned'
    assert result.eps_claimed == oneshot.claims.accounting.eps_upper_bound(SIGMA, Q, STEPS, 1e-5)
    one = audit.result(audited, params, delta=1e-5, method='cp_gdp')  # of the residual
    scores = audit.scores(audited, params)['residual']
    mechanism = Scoring(CLAIM, 'dot', scale=CLIP**2)
    known |= {'mechanism': mechanism, 'method': 'cp_gdp'}
    assert one == oneshot.audit_scores(scores, audited.included, **known)
    assert audit.result(audited, params, delta=0.0).eps_claimed is None
    paper = audit.result(audited, params, delta=1e-5, score='iterates')
    assert paper.rule == 'planned'  # of a number of guesses, in whatever unit
    with pytest.raises(ValueError, match="'cp_gdp' needs every canary guessed by a threshold"):
        audit.result(audited, params, delta=1e-5, score='iterates', method='cp_gdp')


def test_fewer_steps_than_claimed():
    params, audited = run_loop(steps=4)
    assert audit.scores(audited, params)['residual'].shape == (M,)
    with pytest.raises(ValueError, match='claim is of 6 steps, but the audit has seen 4'):
        audit.result(audited, params, delta=1e-5)


def test_read_inside_of_jit():
    params, audited = run_loop()
    with pytest.raises(ValueError, match='read outside of jit'):
        jax.jit(audit.scores)(audited, params)
