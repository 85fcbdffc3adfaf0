"""The configs of CIFAR-10, run small on random images that lie on disk as CIFAR-10 does."""

import io
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import flags

from configs import cifar_bb, cifar_wb
from experiments import cifar_wb_cpu
from oneshot.run import training
from tests import tiny_tfds

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp('tfds')
    tiny_tfds.write(folder, train=600, test=300)
    return str(folder)


def _main(config, *given):
    line = [sys.executable, '-m', 'oneshot.main', f'--config=configs/{config}', *given]
    return subprocess.run(line, capture_output=True, text=True, cwd=ROOT, check=False)


def test_arguments_of_the_white_box_config():
    config = cifar_wb.get_config()
    assert config.dp.sampling_prob * config.data.n == 4096
    assert (config.dp.eps, config.dp.delta, config.audit.m) == (8.0, 1e-5, 5000)
    assert (config.model.name, config.views) == ('wrn', 16)
    assert cifar_wb.get_config('eps=4').dp.eps == 4.0
    small = cifar_wb.get_config('cpu,eps=2')
    assert (small.dp.eps, small.data.n, small.audit.m) == (2.0, 50_000, 5000)
    assert small.dp.sampling_prob == config.dp.sampling_prob
    assert small.model.name == 'cnn'


def test_the_full_size_step_compiles(data_dir):
    """WRN-16-4, batch 4,096, K = 16, n = 50,000: shapes and lowering."""
    config = cifar_wb.get_config()
    config.data_dir, config.data.n, config.dp.noise_multiplier = data_dir, 600, 2.3
    run = training.prepare(config)
    assert run.spec.clipping.strategy == 'ghost'
    population = (
        jax.ShapeDtypeStruct((50_000, 32, 32, 3), jnp.uint8),
        jax.ShapeDtypeStruct((50_000,), jnp.int32),
    )
    given = run.arrays.state, run.arrays.key, population, run.canaries.placed, run.canaries.included
    out, _ = jax.eval_shape(run.program.step, *given)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), out) == jax.tree.map(
        lambda x: (x.shape, x.dtype), run.arrays.state
    )
    lowered = jax.jit(run.program.step).lower(*given).as_text()
    assert 'tensor<50000x32x32x3xui8>' in lowered
    assert f'tensor<{run.spec.clipping.microbatch_size}x16x32x32x3xui8>' in lowered  # K = 16


def test_arguments_of_the_black_box_config():
    config = cifar_bb.get_config('cpu,in_distribution')
    assert config.audit.canaries == 'in_distribution'
    assert (config.data.n, config.audit.m) == (0, 1000)  # m = n: canaries and nobody else
    assert cifar_bb.get_config().audit.canaries == 'mislabeled'


@pytest.mark.parametrize('given', ['cpus', 'eps', 'eps=much', 'cpu;eps=4'])
def test_other_arguments_are_refused(given):
    with pytest.raises(flags.IllegalFlagValueError, match='cpu, smoke, eps=NUMBER, but'):
        cifar_wb.get_config(given)


def test_the_black_box_audit_runs(data_dir):
    config = cifar_bb.get_config('smoke')
    config.data_dir, config.audit.attacks = data_dir, ('black_box', 'white_box')
    run = training.prepare(config)
    assert len(run.dataset.test.labels) == 100
    scores = training.collect_scores(run, training.train(run))
    assert scores['loss'].shape == scores['iterates'].shape == (200,)
    assert scores['iterates_llr'].shape == scores['residual_llr'].shape == (200,)
    assert all(np.isfinite(values).all() for values in scores.values())


def test_likelihood_ratios_know_what_the_run_is(data_dir):
    """After one step they are a function of the other scores, of σ, q, c and B."""
    config = cifar_wb.get_config('smoke')
    config.data_dir, config.steps, config.audit.m = data_dir, 1, 400
    config.dp.noise_multiplier, config.dp.clip_norm, config.dp.sampling_prob = 1.3, 0.7, 0.2
    run = training.prepare(config)
    assert run.spec.selection.names == ('iterates', 'residual', 'iterates_llr', 'residual_llr')
    scores = training.collect_scores(run, training.train(run))
    batch = 0.2 * (500 + 400 / 2)
    for name, unit in (('residual', 1.0), ('iterates', batch / config.learning_rate)):
        exponent = (2 * unit * np.float64(scores[name]) - 0.7**2) / (2 * (1.3 * 0.7) ** 2)
        expected = np.log(0.8 + 0.2 * np.exp(exponent))
        np.testing.assert_allclose(scores[f'{name}_llr'], expected, atol=1e-5)


def test_scores_of_a_config(data_dir):
    config = cifar_wb.get_config('smoke')
    config.data_dir, config.audit.scores = data_dir, ('llr',)
    names = 'iterates', 'residual', 'iterates_llr', 'residual_llr'  # the paper's is among them
    assert training.prepare(config).spec.selection.names == names
    config.audit.scores, config.audit.headline = ('dot',), 'residual'
    assert training.prepare(config).spec.selection.names == names[:2]
    config.audit.scores = ('dot', 'loss')
    message = "config.audit.scores must be one of dot, llr, but 'loss' was given."
    with pytest.raises(ValueError, match=message):
        training.prepare(config)


def test_without_noise_there_is_no_likelihood(data_dir):
    """`dot` takes its place, in the headline as well."""
    config = cifar_wb.get_config('smoke')
    config.data_dir, config.dp.noise_multiplier = data_dir, 0.0
    run = training.prepare(config)
    assert run.spec.selection.names == ('iterates', 'residual')
    assert (config.audit.headline, run.spec.selection.headline) == ('residual_llr', 'residual')
    config.audit.scores, config.dp.noise_multiplier = ('dot',), 1.0
    message = 'config.audit.headline must be one of iterates, residual, best, but'
    with pytest.raises(ValueError, match=message):
        training.prepare(config)


def test_the_white_box_experiment_runs_small(data_dir):
    """The fast cousin of experiments/cifar_wb_cpu.py."""
    rows = [cifar_wb_cpu.measure(8.0, 0, canaries, data_dir, quick=True) for canaries in (1, 0)]
    assert rows[0]['residual'] >= 0.0
    assert np.isnan(rows[1]['residual'])  # nobody was in: there is nothing to bound
    assert [mean['seeds'] for mean in cifar_wb_cpu.summary(rows)] == [1]
    cifar_wb_cpu.plot(rows, io.BytesIO())
    cifar_wb_cpu.show(rows)


@pytest.mark.parametrize(
    ('given', 'message'),
    [
        (['cifar_wb.py:cpus'], 'After the colon of --config may stand'),
        (['cifar_wb.py:cpu', '--config.data.name=cifar11'], "but 'cifar11' was given"),
        (['cifar_wb.py:cpu', '--config.data.name=mnist'], 'mnist is not prepared at'),
        (['cifar_wb.py:cpu', '--config.data.train=valid'], 'must be one of train, test'),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(given, message, data_dir):
    done = _main(*given, f'--config.data_dir={data_dir}')
    assert done.returncode == 2
    assert message in done.stderr
    assert 'Traceback' not in done.stderr
    assert 'step' not in done.stdout


def test_images_that_the_model_cannot_take(tmp_path):
    tiny_tfds.write(tmp_path, 'mnist', '3.0.1', shape=(28, 28, 1), train=600, test=300)
    config = cifar_wb.get_config('smoke')
    config.data_dir, config.data.name = str(tmp_path), 'mnist'
    message = "multiples of 8 for the model 'cnn', but 28×28 was given"
    with pytest.raises(ValueError, match=message):
        training.prepare(config)
