"""From a config to a run that can start."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import digits_bb
from oneshot.plan.expected import AuditSetting
from oneshot.plan.search import plan_guesses
from oneshot.results import guess
from oneshot.run import outcome, preparation, training
from oneshot.scores import front_door
from tests import small


def test_held_out_canaries_do_not_count_in_the_accuracy():
    run = training.prepare(small.config(digits_bb))
    images = np.asarray(run.canaries.placed.examples[0])
    assert len(run.dataset.test.labels) == 1797 - 300 - 200
    for image in images[:20]:
        assert not (run.dataset.test.images == image).all(axis=(1, 2)).any()


@pytest.mark.parametrize(
    'name',
    [
        'adabelief',
        'adadelta',
        'adagrad',
        'adamax',
        'adamaxw',
        'adamw',
        'adan',
        'amsgrad',
        'fromage',
        'lars',
        'nadam',
        'nadamw',
        'novograd',
        'optimistic_gradient_descent',
        'radam',
        'rmsprop',
        'rprop',
        'sign_sgd',
        'sm3',
        'yogi',
    ],
)
def test_every_optimizer_fits_into_the_step(name):
    run = training.prepare(small.config(optimizer=name, learning_rate=0.01))
    assert run.spec.selection.names == ('gradient', 'residual', 'gradient_llr', 'residual_llr')
    given = run.arrays.state, run.arrays.key, *run.step_arguments
    state, _ = jax.eval_shape(run.program.step, *given)
    assert jax.tree.map(jnp.shape, state) == jax.tree.map(jnp.shape, run.arrays.state)


def test_a_large_delta_gets_a_warning():
    with pytest.warns(
        UserWarning, match=r'config.dp.delta = 0.01 is larger than 1/n = 0.0025'
    ) as told:
        preparation.prepare(small.config(dp__delta=0.01))  # 300 examples, 100 canaries in the mean
    assert [warning.filename for warning in told] == [__file__]
    preparation.prepare(small.config(dp__delta=0.0024))


def test_guesses_are_planned_for_every_score_by_every_method():
    spec = preparation.prepare(small.config(audit__k_plus=None, audit__k_minus=None)).spec
    assert spec.plan.keys() == {
        (score, method) for score, names in spec.selection.methods.items() for method in names
    }
    for (score, method), (rule, guesses) in spec.plan.items():
        setting = AuditSetting(spec.mechanisms[score], 200, 1e-5, spec.confidence, method)
        if method == 'gaussian_pair':  # it makes no guesses
            assert (rule, guesses) == ('fixed', (0, 0))
        else:
            assert rule == 'planned'
            planned = plan_guesses(setting).rule
            values = [getattr(x, 'value', x) for x in (guesses, planned)]
            assert (
                values[0] == pytest.approx(values[1]) if isinstance(values[1], float) else planned
            )
    fixed = preparation.prepare(small.config()).spec.plan
    assert fixed['residual', 'one_run'] == ('fixed', (20, 20))
    assert fixed['residual', 'cp_gdp'][0] == fixed['residual', 'weighted'][0] == 'planned'
    grid = small.config(audit__guesses='grid', audit__k_plus=None, audit__k_minus=None)
    assert preparation.prepare(grid).spec.plan['residual', 'fdp'] == (
        'grid',
        guess.Grid.preset(200),
    )


def test_scoring_plans_nothing(monkeypatch):
    run = preparation.prepare(small.config(audit__k_plus=None, audit__k_minus=None))
    scores = training.collect_scores(run, training.train(run))
    monkeypatch.setattr(front_door, 'plan_guesses', None)
    for (score, method), result in outcome.audit_all(run, scores).items():
        assert (result.rule == 'planned') == (method != 'gaussian_pair'), score


def test_a_run_is_a_few_small_values():
    for kind in (preparation.Run, preparation.Spec, preparation.Program, preparation.Arrays):
        assert len(kind._fields) <= 10
