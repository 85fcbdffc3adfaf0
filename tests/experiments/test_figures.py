"""The figures: their committed results, the claims in them, and how they are made."""

import dataclasses
import importlib
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest

from experiments import csv_files, figures
from experiments.figures import figure, page, style, training
from experiments.figures.sweep import Sweep
from experiments.figures.training import Change
from oneshot.run import training as run_training
from oneshot.run.validation import check
from tests import tiny_tfds

NAMES = (*figures.PAPERS, *figures.BEYOND)
FIGURES = {name: figure.load(name) for name in NAMES}
ROOT = pathlib.Path(__file__).parents[2]
TRAINED = figures.PAPERS[3:9]


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp('tfds')
    tiny_tfds.write(folder, train=600, test=300)
    return str(folder)


@pytest.fixture(params=NAMES)
def drawn(request):
    """A figure, and its rows; nothing is missing."""
    one = FIGURES[request.param]
    assert not one.sweep(False, None).missing(one.path('csv'))
    return one, one.rows()


def test_every_figure_of_the_paper_is_there():
    paper = 'v_p v_eps eps_eps wb_diff_m wb_diff_nm wb_diff_iterations wb_dpsgd_cifar'
    more = 'bb_diff_m bb_diff_nm guesses_eps_pure guesses_eps delta_eps'
    assert tuple(f'{paper} {more}'.split()) == figures.PAPERS
    assert {name: one.name for name, one in FIGURES.items()} == {name: name for name in NAMES}


def test_claims_hold(drawn):
    one, rows = drawn
    claims = one.claims(rows)
    assert claims
    for claim in claims:
        assert claim.holds, claim


def test_results_are_those_of_the_settings(drawn):
    """Every point is of a setting that is in the code, and every setting has several seeds."""
    one, rows = drawn
    plan = one.sweep(False, None)
    keys = {tuple(setting.values()) for setting in plan.settings}
    names = list(plan.settings[0])
    written = csv_files.read(one.path('csv'), plan.numbers)
    if one.name != 'fault_zoo':  # whose file has other subjects, too
        assert {tuple(row[name] for name in names) for row in written} == keys
    assert one.path('png').stat().st_size > 10_000
    if one.name in TRAINED:
        assert len({row['seed'] for row in rows}) >= 3
        assert {row['rule'] for row in rows} >= {'best_of_all'}
        bounds = [row for row in rows if row['kind'] == 'bound']
        assert all(row['rule'] in ('planned', 'preset') for row in bounds)


def test_pictures_can_be_read(drawn, tmp_path):
    """Axes have names, the legend is off the data and in the picture, and letters are large."""
    one, rows = drawn
    picture = one.draw(rows)
    style.save(picture, tmp_path / 'picture.png', one.legend)
    (legend,) = picture.legends
    frame, whole = legend.get_window_extent(), picture.bbox
    assert whole.x0 <= frame.x0 < frame.x1 <= whole.x1
    assert whole.y0 <= frame.y0 < frame.y1 <= whole.y1
    for axes in picture.axes:
        assert axes.get_xlabel()
        assert axes.get_ylabel() or one.name == 'fault_zoo'  # whose lines have names
        assert axes.get_legend() is None
        assert not frame.overlaps(axes.get_window_extent())
        assert axes.xaxis.label.get_size() >= 12


@pytest.mark.parametrize('name', ['v_p', 'v_eps', 'eps_eps', 'guesses_eps_pure', 'delta_eps'])
def test_curves_are_computed_anew(name):
    one = FIGURES[name]
    plan = one.sweep(False, None)
    setting = plan.settings[0]
    found = [setting | row for row in plan.measure(setting)]
    there = one.rows()[: len(found)]
    for first, second in zip(found, there, strict=True):
        for column in plan.numbers:
            np.testing.assert_allclose(first[column], second[column], rtol=1e-8, atol=1e-8)


def test_the_figure_of_guesses_is_computed_anew():
    """Its line by the paper's formula, and one audit of scores that are drawn."""
    one = FIGURES['guesses_eps']
    rows, measure = one.rows(), one.sweep(False, None).measure
    for curve, seed in (('one_run', 0), ('audit', 3)):
        there = [row for row in rows if (row['curve'], row['seed']) == (curve, seed)]
        for first, second in zip(measure({'curve': curve, 'seed': seed}), there, strict=True):
            assert (first['r'], first['v']) == (second['r'], second['v'])
            assert first['eps_lb'] == pytest.approx(second['eps_lb'], rel=1e-8, abs=1e-8)


def test_shares_of_bounds_above_the_truth_are_counted_right(monkeypatch):
    """By comparing each ε_LB with ε, in the place of a p-value with 5 %."""
    module = importlib.import_module('experiments.figures.valid_or_best')
    monkeypatch.setattr(module, 'RUNS', module.SHOWN)
    shares = {row['rule']: row['above'] for row in module.shares(1.0)}
    audits = module.audits(1.0)
    for rule, above in shares.items():
        assert above == sum(row['eps_lb'] > 1.0 for row in audits if row['rule'] == rule)


def test_the_page_is_made_of_the_results():
    rows = [(one, one.rows()) for one in FIGURES.values()]
    assert page.PAGE.read_text() == page.text(rows)
    for name in NAMES:
        assert f'results/figures/{name}.png' in page.PAGE.read_text()


# ── training ────────────────────────────────────────────────────────────────────────────────


def _setting(**changed):
    values = 'dirac', 'mlp-64', 200, 60, 4, 0.1, 8.0, 0
    return dict(zip(training.SETTING, values, strict=True)) | changed


def test_a_setting_is_trained_and_audited(data_dir, monkeypatch):
    """The fast cousin of the training figures; a step is compiled once for all of a shape."""
    monkeypatch.setattr(training, '_PROGRAMS', {})
    audits = training.WHITE_BOX
    options = {'audits': audits, 'full': False, 'data_dir': data_dir}
    first, other, again = (training.measure(_setting(seed=s), **options) for s in (0, 1, 0))
    for rows in (first, other):
        assert [(row['score'], row['method'], row['rule']) for row in rows] == list(audits)
        assert all(row['eps_ub'] == pytest.approx(8.0, 1e-3) for row in rows)
        kinds = {row['rule']: row['kind'] for row in rows}
        assert kinds == {'planned': 'bound', 'best_of_all': 'no guarantee'}
        assert all(np.isfinite(row['predicted']) == (row['rule'] == 'planned') for row in rows)
    (program,) = training._PROGRAMS.values()
    assert run_training._chunk(program.step, 50)._cache_size() == 1
    for one, two in zip(first, again, strict=True):
        np.testing.assert_equal(one | {'seconds': 0}, two | {'seconds': 0})


def test_black_box_settings(data_dir, monkeypatch):
    """Both kinds of canaries share what is compiled."""
    monkeypatch.setattr(training, '_PROGRAMS', {})
    for kind in ('mislabeled', 'in_distribution'):
        setting = _setting(canaries=kind, model='mlp-256', others=0, q=0.5)
        rows = training.measure(setting, audits=training.BLACK_BOX, full=False, data_dir=data_dir)
        assert [row['rule'] for row in rows] == ['preset', 'best_of_all']
        config = training.config(setting, False, data_dir)
        assert (config.audit.canaries, config.data.n) == (kind, 0)
    assert len(training._PROGRAMS) == 1


@pytest.mark.parametrize('name', TRAINED)
@pytest.mark.parametrize('full', [False, True])
def test_settings_are_configs(name, full, data_dir):
    """Of both sizes; with few examples, which is all that there are here."""
    settings = FIGURES[name].sweep(full, data_dir).settings
    assert len({tuple(one.values()) for one in settings}) == len(settings)
    for setting in (settings[0], settings[-1]):
        few = {'others': min(setting['others'], 600), 'm': min(setting['m'], 200)}
        config = training.config(setting | few, full, data_dir)
        assert config.model.name == ('wrn' if full else config.model.name)
        check(config)


def test_runs_of_the_papers_size_are_kept(data_dir, tmp_path, monkeypatch):
    """They go on from checkpoints, and what was trained is not trained again."""
    monkeypatch.setattr(training, 'RUNS', tmp_path)
    options = {'audits': training.WHITE_BOX[2:3], 'full': True, 'data_dir': data_dir}
    first = training.measure(_setting(), **options)
    (folder,) = tmp_path.iterdir()
    assert (folder / 'checkpoints').exists()
    monkeypatch.setattr(run_training, 'audit_run', None)
    second = training.measure(_setting(), **options)
    assert [row['eps_lb'] for row in first] == [row['eps_lb'] for row in second]


def test_without_the_data_set_a_sentence_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(figure, 'RESULTS', tmp_path)
    assert figure.main('bb_diff_nm', [f'--data_dir={tmp_path}/nowhere']) == 2
    assert 'bb_diff_nm: cifar10 is not prepared at' in capsys.readouterr().err


def test_a_change_is_seen_where_there_is_one():
    """p-values of equal means are uniform: of 2,000, 20 below 1 %, in one of 10⁶ cases over 48."""
    rng = np.random.default_rng(0)
    groups = rng.normal(3.0, 0.3, (2_000, 5, 8))
    p_values = [Change.of(one).p_value for one in groups]
    assert sum(p < 0.01 for p in p_values) <= 48
    assert abs(np.mean(p_values) - 0.5) < 5 / np.sqrt(12 * 2_000)
    one = groups[0]
    noticed = Change.of(one).noticed
    moved = [*one[:-1], one[-1] - np.mean(one[-1]) + np.mean(one[0]) + 1.001 * noticed]
    assert Change.of(moved).seen
    assert not Change.of([*one[:-1], moved[-1] - 0.002 * noticed]).seen


# ── sweeps ──────────────────────────────────────────────────────────────────────────────────


def _measure(setting):
    if setting['x'] == 4 and setting['name'] == 'stop':
        raise KeyboardInterrupt
    return [{'y': setting['x'] ** 2 + i, 'name': setting['name']} for i in range(2)]


def _sweep(name, numbers, processes=0, measured=None):
    def measure(setting):
        measured.append(setting['x'])
        return _measure(setting)

    settings = [{'name': name, 'x': x} for x in numbers]
    chosen = _measure if measured is None else measure
    return Sweep(settings, chosen, ('name',), ('x', 'y'), lambda one: one['x'] % 2, processes)


def test_a_sweep_goes_on_where_it_stopped(tmp_path):
    path, measured = tmp_path / 'folder/sweep.csv', []
    with pytest.raises(KeyboardInterrupt):
        _sweep('stop', range(8), measured=measured).complete(path)
    assert measured == [0, 1, 2, 3, 4]
    assert len(csv_files.read(path, ('x', 'y'))) == 8
    assert not list(tmp_path.glob('**/*.new'))
    csv_files.write(path, [{'name': 'go', 'x': 1, 'y': 7}], ('name',), ('x', 'y'))
    rows = _sweep('go', range(5), measured=(new := [])).complete(path)
    assert new == [0, 2, 3, 4]
    assert [row['y'] for row in rows] == [0, 1, 7, 4, 5, 9, 10, 16, 17]
    assert _sweep('go', range(3), measured=(new := [])).complete(path) == rows[:5]
    assert new == []  # and what is beyond the settings is kept
    assert len(csv_files.read(path, ('x', 'y'))) == 9


def test_a_setting_is_not_measured_in_two_sweeps(tmp_path):
    _sweep('a', range(3)).complete(tmp_path / 'one.csv')
    other = dataclasses.replace(_sweep('a', range(1, 5), measured=(new := [])), also=('one',))
    assert [one['x'] for one in other.missing(tmp_path / 'two.csv')] == [3, 4]
    rows = other.complete(tmp_path / 'two.csv')
    assert new == [3, 4]
    assert [row['y'] for row in rows] == [1, 2, 4, 5, 9, 10, 16, 17]
    assert len(csv_files.read(tmp_path / 'two.csv', ('x', 'y'))) == 8


def test_processes_give_what_one_gives(tmp_path):
    alone = _sweep('a', range(7)).complete(tmp_path / 'alone.csv')
    assert _sweep('a', range(7), processes=2).complete(tmp_path / 'both.csv') == alone
    assert (tmp_path / 'both.csv').read_bytes() == (tmp_path / 'alone.csv').read_bytes()


def test_processes_end_with_the_one_that_started_them(tmp_path):
    """Even if that is killed: `_wait` says who waits, and would wait for a minute."""
    code = f'from {__name__} import _sweep_that_waits; _sweep_that_waits({str(tmp_path)!r})'
    parent = subprocess.Popen([sys.executable, '-c', code], cwd=ROOT)
    deadline = time.monotonic() + 60.0
    while len(children := list(tmp_path.glob('*.pid'))) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    parent.kill()
    parent.wait()
    assert len(children) == 2
    while any(_lives(int(child.stem)) for child in children) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(_lives(int(child.stem)) for child in children)


def _lives(process):
    try:
        os.kill(process, 0)
        state = pathlib.Path(f'/proc/{process}/stat')
        return not state.exists() or state.read_text().rpartition(')')[2].split()[0] != 'Z'
    except (ProcessLookupError, FileNotFoundError):
        return False


def _wait(setting):
    pathlib.Path(setting['folder'], f'{os.getpid()}.pid').touch()
    time.sleep(60.0)
    return []


def _sweep_that_waits(folder):
    settings = [{'folder': folder, 'x': x} for x in range(2)]
    Sweep(settings, _wait, ('folder',), ('x',), lambda one: one['x'], 2).complete(
        pathlib.Path(folder, 'sweep.csv')
    )


def test_a_figure_says_what_it_compares_with(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(figure, 'RESULTS', tmp_path)
    assert figure.main('v_p', []) == 0
    said = capsys.readouterr().out
    assert '0.553 for 75 right guesses' in said
    assert 'p = 0.5535 at v = 75' in said
    assert {path.name for path in tmp_path.iterdir()} == {'v_p.csv', 'v_p.png'}
