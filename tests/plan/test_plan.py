"""The planner against simulated audits, and its command line.

Predictions are compared with means of simulations: they may be off by 1 %, which is how good
the quadrature is, and by 5.5 standard errors, which chance exceeds with probability 4e-8.
"""

import dataclasses
import json
import math
import subprocess
import sys

import numpy as np
import pytest

from experiments.mechanisms import draw_scores
from oneshot import DPSGD, audit_scores
from oneshot.plan import Scoring, search
from oneshot.plan import __main__ as command
from oneshot.plan.detection import _power
from oneshot.plan.expected import PLANNED_METHODS, AuditSetting, expected_eps_lb, wrong_guesses
from oneshot.plan.search import plan_guesses
from oneshot.results import guess

KNOWN = Scoring(DPSGD(1.5, 0.2, 40))
DELTA = 1e-5


def _simulated(audit, rule, runs, known=None):
    """ε_LB of so many audits of independent scores."""
    rng, bounds = np.random.default_rng(7), []
    options = {'delta': audit.delta, 'confidence': audit.confidence, 'method': audit.method}
    options |= {'guesses': 'preset' if rule is None else rule, 'mechanism': audit.scoring.claim}
    for _ in range(runs):
        included = rng.random(audit.m) < 0.5
        scores = draw_scores(known or audit.scoring, rng, included)
        bounds.append(audit_scores(scores, included, **options).eps_lb)
    return np.array(bounds)


@pytest.mark.parametrize('score', ['dot', 'llr'])
@pytest.mark.parametrize('method', [one for one in PLANNED_METHODS if one != 'fdp_dpsgd'])
def test_predictions_are_what_simulations_give(method, score):
    audit = AuditSetting(dataclasses.replace(KNOWN, weighing=score), 1000, DELTA, method=method)
    planned = plan_guesses(audit)
    runs = 60 if method == 'cp_gdp' else 300
    found = _simulated(audit, planned.rule, runs)
    off = abs(found.mean() - planned.eps_lb)
    assert off <= 0.01 * planned.eps_lb + 5.5 * found.std() / math.sqrt(runs)
    assert planned.eps_lb > 0.2


def test_other_guesses_and_less_noise_are_predicted_too():
    audit = AuditSetting(KNOWN, 1000, DELTA)
    for rule, sigma in (((200, 10), None), ((0, 60), None), ((100, 100), 0.8)):
        known = KNOWN if sigma is None else Scoring(DPSGD(sigma, 0.2, 40))
        found = _simulated(audit, rule, 300, known)
        predicted = expected_eps_lb(audit, rule, sigma)
        assert abs(found.mean() - predicted) <= 0.01 + 5.5 * found.std() / math.sqrt(300)


def test_the_number_of_wrong_guesses():
    law = KNOWN.law()
    for pair in ((100, 50), (500, 500), (1000, 0), (0, 1)):
        chances = wrong_guesses(law, 1000, *pair)
        assert chances.sum() == pytest.approx(1.0, abs=1e-9)
    # All are guessed: the mean is that of the error of the median as a threshold.
    mean = float(np.arange(chances.size) @ chances)
    assert 0 < mean < 1
    rng, wrong = np.random.default_rng(0), []
    for _ in range(400):
        included = rng.random(1000) < 0.5
        guesses = guess.top_k(draw_scores(KNOWN, rng, included), 100, 50)
        wrong.append(np.sum(guesses * np.where(included, 1, -1) < 0))
    chances = wrong_guesses(law, 1000, 100, 50)
    counts = np.arange(chances.size)
    mean = float(counts @ chances)
    deviation = math.sqrt(float(chances @ (counts - mean) ** 2))
    assert abs(np.mean(wrong) - mean) < 5.5 * deviation / 20
    assert np.std(wrong) == pytest.approx(deviation, rel=0.25)


def test_no_neighbour_is_better():
    audit = AuditSetting(KNOWN, 1000, DELTA)
    planned = plan_guesses(audit)
    k_plus, k_minus = planned.rule
    for pair in ((2 * k_plus, k_minus), (k_plus, 2 * k_minus), (k_plus // 2, k_minus // 2)):
        assert expected_eps_lb(audit, pair) <= planned.eps_lb
    assert planned.eps_lb == expected_eps_lb(audit, planned.rule)
    assert planned.eps_lb > expected_eps_lb(audit, guess.preset(1000))
    assert max(planned.grid.values()) <= 1.01 * planned.eps_lb


def test_canaries_llr_and_weights_raise_the_expected_bound_and_interference_lowers_it():
    audit = AuditSetting(Scoring(DPSGD(0.6, 0.02, 500)), 2000, DELTA)
    by_llr = dataclasses.replace(audit, scoring=dataclasses.replace(audit.scoring, weighing='llr'))
    assert plan_guesses(by_llr).eps_lb > 1.5 * plan_guesses(audit).eps_lb
    assert plan_guesses(dataclasses.replace(by_llr, m=8000)).eps_lb > plan_guesses(by_llr).eps_lb
    assert (
        plan_guesses(dataclasses.replace(by_llr, method='weighted')).eps_lb
        > plan_guesses(by_llr).eps_lb
    )
    disturbed = dataclasses.replace(audit.scoring, interference=0.6)
    assert (
        plan_guesses(dataclasses.replace(audit, scoring=disturbed)).eps_lb
        < plan_guesses(audit).eps_lb
    )


def test_canaries_that_are_needed():
    audit = AuditSetting(KNOWN, 1000, DELTA)
    target = plan_guesses(audit).eps_lb
    needed = search.canaries_needed(audit, target)
    assert 900 < needed <= 1000
    more = search.canaries_needed(audit, 1.3 * target)
    assert more > 1000
    assert plan_guesses(dataclasses.replace(audit, m=more)).eps_lb >= 0.995 * 1.3 * target
    assert plan_guesses(dataclasses.replace(audit, m=int(0.9 * more))).eps_lb < 1.3 * target
    assert search.canaries_needed(dataclasses.replace(audit, m=10**6), 20.0) is None


@pytest.mark.parametrize('method', ['one_run', 'weighted', 'fdp', 'cp_gdp'])
def test_violations_that_are_noticed(method):
    """With the noise found, the claim is rejected in about 90 % of runs: 72 to 100 % of 200.

    By chance that fails with probability below 1e-9.
    """
    audit = AuditSetting(KNOWN, 2000, DELTA, method=method)
    eps = 3.0
    found = command.detectable_violation(audit, eps)
    assert 0.1 < found.noise_multiplier < KNOWN.claim.noise_multiplier
    runs = 60 if method == 'cp_gdp' else 200
    less = Scoring(dataclasses.replace(KNOWN.claim, noise_multiplier=found.noise_multiplier))
    rejected = np.mean(_simulated(audit, found.rule, runs, less) > eps)
    assert rejected > (0.6 if runs == 60 else 0.72)
    more = Scoring(dataclasses.replace(KNOWN.claim, noise_multiplier=1.25 * found.noise_multiplier))
    assert np.mean(_simulated(audit, found.rule, runs, more) > eps) < 0.88


def test_a_threshold_for_likelihood_ratios_goes_blind():
    """Of `llr` it is for noise as claimed: far less is not noticed. Of `dot` it is."""
    found = {}
    for score in ('llr', 'dot'):
        known = Scoring(DPSGD(1.286, 0.1, 300), score)
        audit = AuditSetting(known, 2000, DELTA, method='cp_gdp')
        violation = found[score] = command.detectable_violation(audit, 8.0)
        test = _power(audit, violation.rule, 8.0)
        assert test(known.law(violation.noise_multiplier)) >= 0.9
        assert (test(known.law(0.4 * 1.286)) >= 0.9) == (score == 'dot')
    assert 0.6 * 1.286 < found['llr'].blind_below <= found['llr'].noise_multiplier
    assert found['dot'].blind_below == 0.0


def test_too_few_guesses_notice_nothing():
    audit = AuditSetting(KNOWN, 200, DELTA)
    assert command.detectable_violation(audit, 8.0, [(10, 10)]) is None
    with pytest.raises(ValueError, match='An estimate rejects no claim'):
        command.detectable_violation(AuditSetting(KNOWN, 200, DELTA, method='gaussian_pair'), 1.0)


def test_planned_guesses_are_those_of_the_plan():
    rng = np.random.default_rng(0)
    included = rng.random(1000) < 0.5
    scores = draw_scores(KNOWN, rng, included)
    result = audit_scores(scores, included, delta=DELTA, mechanism=KNOWN)
    assert (result.k_plus, result.k_minus) == plan_guesses(AuditSetting(KNOWN, 1000, DELTA)).rule
    assert result.rule == 'planned'
    unknown = audit_scores(scores, included, delta=DELTA)
    assert (unknown.k_plus, unknown.k_minus) == guess.preset(1000)
    assert unknown.rule == 'preset'


@pytest.mark.parametrize('method', PLANNED_METHODS)
def test_delta_0(method):
    """Bounds by the curve of a Gaussian are ∞ there as soon as they show any privacy loss."""
    audit = AuditSetting(KNOWN, 1000, 0.0, method=method)
    planned = plan_guesses(audit)
    infinite = method in ('fdp', 'fdp_dpsgd', 'cp_gdp', 'gaussian_pair')
    assert planned.eps_lb == math.inf if infinite else 0.5 < planned.eps_lb < 10.0
    assert (_simulated(audit, planned.rule, 10) == math.inf).all() == infinite
    if infinite:  # its guesses are those for a small δ
        small = plan_guesses(dataclasses.replace(audit, delta=1e-12))
        assert planned.rule == small.rule


def test_the_mean_of_a_bound_that_may_be_infinite():
    few = AuditSetting(KNOWN, 1000, 0.0, method='fdp')
    assert expected_eps_lb(few, (60, 60)) == math.inf
    assert expected_eps_lb(few, (1, 1)) == 0.0  # two guesses prove nothing
    assert expected_eps_lb(dataclasses.replace(few, method='one_run'), (60, 60)) < 5.0


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'m': 1}, 'm, the number of canaries, must be a whole number from 2'),
        ({'method': 'replacement'}, "method must be one of one_run, .* but 'replacement'"),
        ({'delta': 2.0}, 'delta must be'),
        ({'confidence': 1.0}, 'confidence must be'),
    ],
)
def test_bad_input(change, message):
    with pytest.raises(ValueError, match=message):
        AuditSetting(**{'scoring': KNOWN, 'm': 100, 'delta': DELTA} | change)


def test_plans_for_two_canaries_to_ten_million():
    for m in (2, 3, 5, 17, 10**7):
        planned = plan_guesses(AuditSetting(KNOWN, m, DELTA))
        assert 0 < sum(planned.rule) <= m
        assert planned.eps_lb >= 0


# The command line.

_FLAGS = ('--m=500', '--noise-multiplier=1.5', '--sampling-prob=0.2', '--steps=40', '--delta=1e-5')


def _run(*flags):
    line = [sys.executable, '-m', 'oneshot.plan', *flags]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def test_command_line(tmp_path):
    picture = tmp_path / 'plan.png'
    done = _run(*_FLAGS, '--target-eps-lb=0.5', f'--plot={picture}')
    assert (done.returncode, done.stderr) == (0, '')
    assert 'To expect ε_LB ≥ 0.5 by one_run:' in done.stdout
    assert 'Noticed with 90 % power by one_run and these guesses' in done.stdout
    assert picture.read_bytes().startswith(b'\x89PNG')


def test_json():
    done = _run(*_FLAGS, '--score=dot', '--method=fdp', '--json')
    found = json.loads(done.stdout)
    audit = AuditSetting(dataclasses.replace(KNOWN, weighing='dot'), 500, DELTA, method='fdp')
    assert found['plans']['fdp']['guesses'] == list(plan_guesses(audit).rule)
    assert found['plans']['fdp']['expected_eps_lb'] == plan_guesses(audit).eps_lb
    assert found['mechanism']['noise_multiplier'] == 1.5
    assert found['noticed']['power'] == 0.9


def test_the_command_line_at_delta_0(capsys):
    flags = ['--m=1000', '--sigma=1', '--delta=0']
    assert command.main(flags) == 0
    assert 'ε_UB = ∞ at δ = 0' in capsys.readouterr().out
    assert command.main([*flags, '--json']) == 0
    record = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert record['eps_ub'] == record['plans']['fdp']['expected_eps_lb'] == 'inf'
    assert record['plans']['one_run']['expected_eps_lb'] > 1.0


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        (('--m=1.5',), '--m must be a whole number from 2'),
        (('--delta=2',), 'delta must be a number in'),
        (('--score=loss',), '--score must be one of dot, llr'),
        (('--method=best',), 'method must be one of one_run'),
        (('--steps=0',), '--steps must be a whole number'),
        (('--target-eps-lb=-1',), '--target-eps-lb must be a number in'),
    ],
)
def test_the_command_line_says_what_is_wrong(flags, message, capsys):
    assert command.main([*_FLAGS, *flags]) == 2
    assert message in capsys.readouterr().err
