"""A score as a signal and a weighing."""

import pytest

import oneshot
from oneshot.audit.score import LOSS, SCORES, SIGNALS, Score, white_box_scores

CLAIM = oneshot.DPSGD(noise_multiplier=1.5, sampling_prob=0.5, steps=6)


def test_every_score_has_a_name_of_its_own():
    names = 'iterates', 'gradient', 'residual'
    assert tuple(SCORES) == (*names, *(f'{name}_llr' for name in names), 'loss')
    for name, score in SCORES.items():
        assert score.name == name
    assert SCORES['residual_llr'] == Score('residual', 'llr')
    assert SCORES['loss'] == LOSS == Score('loss')


def test_every_signal_is_weighed_in_every_way():
    assert white_box_scores(('residual', 'iterates'), ('llr', 'dot')) == (
        Score('residual', 'llr'),
        Score('iterates', 'llr'),
        Score('residual', 'dot'),
        Score('iterates', 'dot'),
    )
    assert white_box_scores(SIGNALS, ()) == ()


@pytest.mark.parametrize(
    ('name', 'scale'),
    [
        ('residual', 0.25),
        ('gradient', 0.25 / 20.0),
        ('iterates', 0.3 * 0.25 / 20.0),
        ('iterates_llr', 1.0),
        ('residual_llr', 1.0),
    ],
)
def test_the_law_of_a_score_has_its_scale(name, scale):
    scoring = SCORES[name].scoring(CLAIM, clip_norm=0.5, batch=20.0, learning_rate=0.3)
    assert (scoring.claim, scoring.weighing) == (CLAIM, SCORES[name].weighing)
    assert scoring.scale == pytest.approx(scale)


def test_the_scale_of_iterates_is_not_known_without_the_learning_rate():
    assert SCORES['iterates'].scoring(CLAIM, clip_norm=0.5, batch=20.0) is None
    assert SCORES['iterates_llr'].scoring(CLAIM, clip_norm=0.5, batch=20.0).scale == 1


def test_bad_input():
    with pytest.raises(ValueError, match=r"signal must be one of iterates, .* 'weights'"):
        white_box_scores(('weights',), ('dot',))
    with pytest.raises(ValueError, match=r"score must be one of dot, llr, but 'loss' was given\."):
        white_box_scores(('iterates',), ('loss',))
