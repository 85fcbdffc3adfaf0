"""The default audit from end to end, as a user runs it and from Python."""

import json
import logging
import math
import os
import pathlib
import pty
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from configs import digits_bb, digits_wb
from oneshot import bounds
from oneshot.report import words
from oneshot.results.methods import METHODS, audit_tally
from oneshot.results.tally import Tally
from oneshot.run import training
from oneshot.scores import __main__ as bounds_command
from tests import small
from tests.docs.pages import DEFAULT_AUDIT, comparable

ROOT = pathlib.Path(__file__).parents[2]


def _main(config, *flags):
    line = [sys.executable, '-m', 'oneshot.main', f'--config=configs/{config}.py', *flags]
    narrow = os.environ | {'COLUMNS': '80'}
    return subprocess.run(line, capture_output=True, text=True, cwd=ROOT, check=False, env=narrow)


def test_the_default_audit(tmp_path, capsys):
    """Seed 0. Over 40 seeds ε_LB is between 2.4 and 3.9 (experiments/default_audit.py)."""
    command, shown = DEFAULT_AUDIT  # as the README has it, and prints it
    assert command == 'python -m oneshot.main --config=configs/digits_wb.py'
    done = _main('digits_wb', f'--workdir={tmp_path}')
    assert done.returncode == 0, done.stderr
    *printed, written = done.stdout.splitlines()
    assert written.startswith('Written to ')
    assert comparable('\n'.join(printed), False) == comparable(shown, False)
    result = json.loads((tmp_path / 'result.json').read_text())
    assert 'steps/s' in done.stdout
    assert f'{result["eps_lb"]:.4g} with 95 % confidence' in done.stdout
    assert 'consistent with the claim' in done.stdout
    assert 0 < result['eps_lb'] < result['eps_ub'] <= 8.0
    assert result['test_accuracy'] > 0.85
    names = 'eps_lb eps_ub delta confidence method assumptions m k_plus k_minus guesses correct'
    more = 'test_accuracy steps seconds devices processes seed git versions rows'
    for key in (*names.split(), *more.split()):
        assert key in result, key
    rows = {(row['score'], row['method']): row for row in result['rows']}
    assert rows['residual_llr', 'one_run']['eps_lb'] == result['eps_lb']
    assert result['rule'] == 'planned'
    assert ('iterates', 'one_run') in rows
    assert {(row['method'], row['kind']) for row in rows.values()} == {
        (name, method.kind) for name, method in METHODS.items() if name != 'replacement'
    }
    assert {key for key in rows if key[1] == 'cp_gdp'} == {
        ('residual', 'cp_gdp'),
        ('residual_llr', 'cp_gdp'),
    }
    assert json.loads((tmp_path / 'config.json').read_text())['audit']['m'] == 2000
    lines = [json.loads(line) for line in (tmp_path / 'metrics.jsonl').read_text().splitlines()]
    assert [line['step'] for line in lines] == list(range(30, 301, 30))
    assert lines[-1]['loss'] < lines[0]['loss']
    assert all(line['nonfinite'] == 0 for line in lines)
    assert list((tmp_path / 'events').glob('events.out.tfevents.*'))
    assert {path.name for path in (tmp_path / 'plots').iterdir()} == {
        'scores.png',
        'ranking.png',
        'guesses.png',
    }
    page = (tmp_path / 'report.html').read_text()
    assert page.count('data:image/png;base64,') == 3
    assert 'consistent with the claim' in page
    assert not re.search(r'(src|href)="(?!data:)', page)  # self-contained
    # Its files give the same number again through the other door.
    files = [f'--scores={tmp_path}/scores.npz', f'--coins={tmp_path}/coins.npz']
    numbers = [f'--k-plus={result["k_plus"]}', f'--k-minus={result["k_minus"]}']
    guesses = [*numbers, '--delta=1e-5', '--json']
    assert bounds_command.main([*files, *guesses]) == 0
    assert json.loads(capsys.readouterr().out)['eps_lb'] == result['eps_lb']


def test_a_terminal_gets_a_progress_bar():
    """The same command on a pseudo-terminal."""
    ours, theirs = pty.openpty()
    flags = ['--config.steps=60', '--config.dp.noise_multiplier=1.0', '--config.data.n=300']
    process = subprocess.Popen(
        [sys.executable, '-m', 'oneshot.main', '--config=configs/digits_wb.py', *flags],
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        env=os.environ | {'TERM': 'xterm', 'COLUMNS': '100'},
    )
    os.close(theirs)
    shown = b''
    try:
        while data := os.read(ours, 4096):
            shown += data
    except OSError:  # how Linux says that the other side is closed
        os.close(ours)
    assert process.wait() == 0
    text = shown.decode()
    assert 'steps/s, time left' in text
    assert '60/60' in text
    assert 'verdict' in text


@pytest.mark.parametrize('config', [digits_wb, digits_bb])
def test_the_same_seed_gives_the_same_bits(config, tmp_path):
    outcomes = []
    for name, seed in (('a', 5), ('b', 5), ('c', 6)):
        run = training.prepare(small.config(config, seed=seed), tmp_path / name)
        state = training.train(run)
        outcomes.append((run, state, training.collect_scores(run, state)))
    (one, state, scores), (two, same, again), (three, other, others) = outcomes
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(same), strict=True):
        np.testing.assert_array_equal(a, b)
    for name in scores:
        np.testing.assert_array_equal(scores[name], again[name])
        assert (scores[name] != others[name]).any()
    assert (np.asarray(one.canaries.coins) == np.asarray(two.canaries.coins)).all()
    assert (np.asarray(one.canaries.coins) != np.asarray(three.canaries.coins)).any()
    assert any(
        (np.asarray(a) != np.asarray(b)).any()
        for a, b in zip(jax.tree.leaves(state.params), jax.tree.leaves(other.params), strict=True)
    )


def test_the_same_seed_gives_the_same_result(tmp_path, capsys):
    records = []
    for name in 'ab':
        training.run(small.config(), tmp_path / name)
        record = json.loads((tmp_path / name / 'result.json').read_text())
        records.append({key: value for key, value in record.items() if key != 'seconds'})
    assert records[0] == records[1]
    assert 'written' in capsys.readouterr().out.lower()


def test_the_whole_run_compiles_once(caplog):
    """25 steps in chunks of 10: three dispatches, the last one short, one program."""
    run = training.prepare(small.config())
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        state = training.train(run)
    compiled = [r.message for r in caplog.records if r.message.startswith('Compiling jit(chunk)')]
    assert len(compiled) == 1
    assert int(state.step) == 25


def test_chunks_do_not_change_the_run():
    states = [training.train(training.prepare(small.config(chunk=n))) for n in (4, 25)]
    for a, b in zip(*map(jax.tree.leaves, states), strict=True):
        np.testing.assert_array_equal(a, b)


def test_residual_scores_follow_the_law_of_independent_scores():
    """The fast cousin of experiments/default_audit.py: three checks of 1e-9.

    With c = 1 the score of a canary is Binomial(ℓ, q) if it was in, plus N(0, σ²ℓ).
    """
    config = small.config(audit__m=1000, dp__noise_multiplier=1.5, seed=3)
    run = training.prepare(config)
    scores = training.collect_scores(run, training.train(run))['residual']
    inside = np.asarray(run.canaries.coins)
    steps, q = config.steps, config.dp.sampling_prob
    deviation = 1.5 * math.sqrt(steps)
    assert scipy.stats.kstest(scores[~inside] / deviation, 'norm').pvalue > 1e-9
    square = float(np.sum((scores[~inside] / deviation) ** 2))
    tails = scipy.stats.chi2(int(np.sum(~inside)))
    assert min(tails.cdf(square), tails.sf(square)) > 5e-10
    drawn = np.arange(steps + 1)

    def law(x):
        weights = scipy.stats.binom.pmf(drawn, steps, q)
        return scipy.stats.norm.cdf((np.asarray(x)[:, None] - drawn) / deviation) @ weights

    assert scipy.stats.kstest(scores[inside], law).pvalue > 1e-9


@pytest.mark.parametrize('kind', ['dirac', 'in_distribution'])
def test_pairs(kind, tmp_path, capsys):
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


def test_held_out_canaries_do_not_count_in_the_accuracy():
    run = training.prepare(small.config(digits_bb))
    images = np.asarray(run.canaries.placed.examples[0])
    assert len(run.dataset.test.labels) == 1797 - 300 - 200
    for image in images[:20]:
        assert not (run.dataset.test.images == image).all(axis=(1, 2)).any()


def test_without_noise_nothing_is_proven_and_much_is_found(tmp_path, capsys):
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


def test_the_verdict_names_an_assumption():
    counts = Tally.of_counts(1000, 100, 99)
    verdicts = [
        words.verdict(audit_tally(counts, delta=1e-5, method=method, eps_claimed=claimed))
        for method, claimed in (('one_run', 1.0), ('fdp', 1.0), ('fdp', 9.0))
    ]
    assert verdicts == [
        'the claim is violated: its proof or its code is wrong',
        'the claim is violated, unless the assumption does not hold',
        'consistent with the claim',
    ]


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


def test_evaluation_while_it_trains(tmp_path, capsys):
    changes = {'evaluate_every': 10, 'ema_decay': 0.9, 'views': 2}
    training.run(small.config(**changes), tmp_path)
    lines = [json.loads(line) for line in (tmp_path / 'metrics.jsonl').read_text().splitlines()]
    assert ['test_accuracy' in line for line in lines] == [True, True, False]
    assert all(0.0 <= line.get('test_accuracy', 0.0) <= 1.0 for line in lines)
    assert 'test accuracy' in capsys.readouterr().out


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


def test_runs_of_one_shape_share_what_is_compiled():
    """Seed, steps, σ and learning rate are arguments of a shared step; a model is not."""
    programs = {}
    for changes in (
        {},
        {'seed': 1, 'steps': 15, 'dp__noise_multiplier': 2.0, 'learning_rate': 0.5},
        {'optimizer': 'adam', 'learning_rate': 0.01},
    ):
        config = small.config(**changes)
        scores = []
        for given in (programs, None):
            run = training.prepare(config, programs=given)
            scores.append(training.collect_scores(run, training.train(run)))
        for name, shared in scores[0].items():
            np.testing.assert_allclose(shared, scores[1][name], rtol=1e-4, atol=1e-4)
    first, other = programs.values()
    assert first.step is training.prepare(small.config(seed=7), programs=programs).program.step
    assert other.step is not first.step
    chunk = training._chunk(first.step, config.chunk)
    for changes in ({'seed': 2}, {'dp__noise_multiplier': 3.0}):
        run = training.prepare(small.config(**changes), programs=programs)
        chunk(
            jax.tree.map(jnp.copy, run.arrays.state),
            np.int32(10),
            run.arrays.key,
            run.arrays.population,
            run.canaries.placed,
            run.canaries.included,
            *run.program.scalars,
        )
    assert chunk._cache_size() == 1
    without = small.config(dp__noise_multiplier=0.0)
    assert (
        training.prepare(without, programs=programs).program.scalars == ()
    )  # a program of its own


@pytest.fixture(scope='module')
def plain_residual():
    plain = training.prepare(small.config(steps=5, learning_rate=0.0))
    return training.collect_scores(plain, training.train(plain))['residual']


@pytest.mark.parametrize(
    ('name', 'options'),
    [
        ('sgd', {'momentum': 0.9, 'nesterov': True}),
        ('adafactor', {}),
        ('adam', {'b1': 0.5}),
        ('lamb', {'weight_decay': 0.1}),
        ('lion', {}),
    ],
)
def test_optimizers_are_scored_by_the_privatized_gradient(name, options, plain_residual):
    """Of Dirac canaries, Σ_t of g̃_t/B on a coordinate, whatever the optimizer makes of it."""
    changes = {'optimizer': name, 'optimizer_options': options, 'learning_rate': 0.01, 'steps': 5}
    run = training.prepare(small.config(**changes))
    assert run.spec.selection.names == ('gradient', 'residual', 'gradient_llr', 'residual_llr')
    state = training.train(run)
    scores = training.collect_scores(run, state)
    # The residual has no other data in it, and is the same for every optimizer.
    np.testing.assert_allclose(scores['residual'], plain_residual, atol=1e-5)
    assert any(
        (a != b).any()
        for a, b in zip(*map(jax.tree.leaves, (state.params, run.arrays.state.params)), strict=True)
    )
    assert int(state.step) == 5


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'audit__k_plus': 201}, 'config.audit.k_plus must be a whole number from 0 to 200'),
        ({'audit__k_minus': 181}, 'config.audit.k_minus must be a whole number from 0 to 180'),
        ({'audit__m': 1211}, 'm, the number of Dirac canaries, must be .* from 1 to 1210'),
        ({'audit__k_plus': 0, 'audit__k_minus': 0}, 'config.audit.k_minus must be .* from 1'),
        ({'dp__clip_norm': math.inf, 'dp__noise_multiplier': 0.0}, 'config.dp.clip_norm must be'),
        ({'learning_rate': math.nan}, 'config.learning_rate must be a number'),
        ({'model__hidden': (0,)}, 'an entry of config.model.hidden must be'),
        ({'seed': 2**32}, 'config.seed must be a whole number from 0 to 4294967295'),
        ({'audit__canaries': 'mice'}, 'config.audit.canaries must be one of dirac'),
        ({'audit__method': 'best'}, 'config.audit.method must be one of one_run'),
        ({'audit__k_plus': None}, 'k_plus and config.audit.k_minus must be given together'),
        ({'audit__guesses': 'best_of_all'}, 'config.audit.guesses must be one of planned, preset'),
        (
            {'audit__method': 'cp_gdp', 'audit__headline': 'iterates'},
            "config.audit.method must be one of one_run, .* but 'cp_gdp'",
        ),
        ({'audit__headline': 'loss'}, 'config.audit.headline must be one of iterates'),
        ({'audit__attacks': ('black_box',)}, 'canaries must be examples'),
        ({'audit__attacks': ('grey_box',)}, 'config.audit.attacks must be one of'),
        ({'audit__signals': ('weights',)}, 'config.audit.signals must be one of iterates'),
        ({'audit__confidence': 1.0}, 'confidence must be a number in'),
        ({'dp__sampling_prob': 1.5}, r'config.dp.sampling_prob must be a number in \(0, 1\]'),
        ({'dp__delta': 1.0}, r'config.dp.delta must be a number in \[0, 1\)'),
        ({'dp__noise_multiplier': -1.0}, 'config.dp.noise_multiplier must be'),
        ({'dp__clip_norm': 0.0}, 'config.dp.clip_norm must be'),
        ({'microbatch_size': 0}, 'config.microbatch_size must be a whole number'),
        ({'steps': 0}, 'config.steps must be a whole number'),
        ({'data__n': 5000}, 'n, the number of training examples, must be'),
        ({'data__train': 'valid'}, 'config.data.train, a split of digits, must be one of train'),
        ({'views': -1}, 'config.views must be a whole number'),
        ({'ema_decay': 1.0}, r'ema_decay must be a number in \[0, 1\)'),
        ({'optimizer': 'adamax_or_so'}, "config.optimizer .* 'adamax_or_so'"),
        ({'optimizer': 'constant_schedule'}, "config.optimizer .* 'constant_schedule'"),
        ({'optimizer_options': {'momentun': 0.9}}, 'config.optimizer_options must be'),
        ({'optimizer': 'polyak_sgd'}, "must make do with gradients.* 'polyak_sgd'"),
        ({'optimizer': 'lbfgs'}, "must make do with gradients.* 'lbfgs'"),
        ({'model__widths': ((8, 0),)}, 'entry of config.model.widths must be'),
        ({'model__stride': 0}, 'config.model.stride must be a whole number'),
        ({'model__name': 'cnn', 'model__stride': 3}, "multiples of 24 for the model 'cnn'"),
        ({'model__name': 'wrn', 'data__name': 'digits_or_so'}, "but 'digits_or_so' was given"),
    ],
)
def test_bad_configs_are_refused_in_one_sentence(change, message):
    with pytest.raises(ValueError, match=message) as error:
        training.prepare(small.config(**change))
    assert str(error.value).endswith('.')


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        (['--config.dp.sampling_prob=1.5'], 'oneshot: config.dp.sampling_prob must be a number'),
        (['--workdir=README.md', '--config.dp.noise_multiplier=1.0'], 'File exists'),
        (['extra'], 'No arguments are taken beside the flags'),
    ],
)
def test_the_command_says_it_without_a_traceback(flags, message):
    done = _main('digits_wb', *flags)
    assert done.returncode == 2
    assert message in done.stderr
    assert 'Traceback' not in done.stderr
