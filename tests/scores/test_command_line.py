import csv
import json
import pickle
import subprocess
import sys
import zipfile

import numpy as np
import pytest

import oneshot
from oneshot.bounds import eps_lower_bound, p_value
from oneshot.plan import Scoring
from oneshot.results import guess
from oneshot.scores import __main__ as command

COUNTS = ['--m=1000', '--r=100', '--v=75', '--delta=1e-4']


def _json(capsys, *flags):
    assert command.main([*flags, '--json']) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def sample(tmp_path):
    """Scores and coins apart, in different orders, and together."""
    rng = np.random.default_rng(0)
    included = rng.random(500) < 0.5
    scores = rng.standard_normal(500) + 2 * included
    order = rng.permutation(500)
    np.savez(tmp_path / 'scores.npz', ids=np.arange(500), scores=scores)
    np.savez(tmp_path / 'coins.npz', ids=order, included=included[order])
    np.savez(tmp_path / 'both.npz', scores=scores, included=included)
    with (tmp_path / 'both.csv').open('w', newline='') as file:
        writer = csv.writer(file)
        writer.writerow(['id', 'score', 'included'])
        writer.writerows(zip(range(500), scores.tolist(), included.astype(int), strict=True))
    with (tmp_path / 'coins.csv').open('w', newline='') as file:
        writer = csv.writer(file)
        writer.writerow(['id', 'coin'])
        writer.writerows(zip(order, np.where(included[order], 1, -1), strict=True))
    expected = oneshot.audit_scores(scores, included, delta=1e-5, guesses=(40, 40), eps_claimed=1)
    return tmp_path, expected


def test_the_readmes_example_as_a_process():
    """A real process, with what a user types."""
    line = [sys.executable, '-m', 'oneshot.bounds', *COUNTS, '--eps=0.5']
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert 'eps_lb   0.672985 with 95 % confidence' in done.stdout
    assert (
        f'{p_value(1000, 100, 75, 0.5, 1e-4):.4g} of the claim eps = 0.5: rejected' in done.stdout
    )
    assert 'nothing beyond (ε, δ)-DP' in done.stdout
    assert done.stderr == ''


def test_json(capsys):
    result = _json(capsys, *COUNTS, '--eps=0.5')
    assert result['eps_lb'] == eps_lower_bound(1000, 100, 75, 1e-4)
    assert result['p_value'] == p_value(1000, 100, 75, 0.5, 1e-4)
    assert result['assumptions'] == 'none'
    assert result['k_plus'] is None


def test_an_infinite_claim_is_still_json(capsys):
    assert _json(capsys, *COUNTS, '--eps=inf')['eps_claimed'] == 'inf'


def test_infinities_are_shown_as_such(capsys):
    assert command.main([*COUNTS[:3], '--delta=0', '--method=fdp', '--eps=inf']) == 0
    shown = capsys.readouterr().out
    assert 'eps_lb   ∞ with 95 % confidence' in shown
    assert 'of the claim eps = ∞: not rejected' in shown


@pytest.mark.parametrize(
    'method', ['one_run', 'adaptive', 'weighted', 'hoeffding', 'fdp', 'replacement']
)
def test_many_canaries_need_no_memory(capsys, method):
    counts = ['--m=1e12', '--r=100', '--v=95', '--delta=0', f'--method={method}']
    assert float(_json(capsys, *counts)['eps_lb']) > 0.5  # ∞ by f-DP at δ = 0


def test_a_csv_with_a_byte_order_mark(capsys, tmp_path):
    path = tmp_path / 'excel.csv'
    path.write_text('score,included\n1.0,1\n0.5,0\n', encoding='utf-8-sig')
    assert _json(capsys, f'--scores={path}', '--delta=0')['m'] == 2


def test_status_is_0_whatever_the_verdict(capsys):
    for eps in ('0.1', '5'):
        assert command.main([*COUNTS, f'--eps={eps}']) == 0
    printed = capsys.readouterr().out
    assert 'rejected' in printed
    assert 'not rejected' in printed


@pytest.mark.parametrize('method', ['one_run', 'adaptive', 'weighted', 'hoeffding', 'fdp'])
def test_methods(capsys, method):
    result = _json(capsys, *COUNTS, f'--method={method}', '--confidence=0.9')
    assert result['method'] == method
    assert result['eps_lb'] > 0


@pytest.mark.parametrize(
    'files',
    [
        ['--scores=both.npz'],
        ['--scores=both.csv'],
        ['--scores=scores.npz', '--coins=coins.npz'],
        ['--scores=scores.npz', '--coins=coins.csv'],
        ['--scores=both.csv', '--coins=coins.npz'],
    ],
)
def test_files(capsys, monkeypatch, sample, files):
    folder, expected = sample
    monkeypatch.chdir(folder)
    flags = ['--k-plus=40', '--k-minus=40', '--delta=1e-5', '--eps=1']
    assert _json(capsys, *files, *flags) == expected.as_dict()


def test_preset_guesses(capsys, monkeypatch, sample):
    monkeypatch.chdir(sample[0])
    result = _json(capsys, '--scores=both.npz', '--delta=1e-5')
    assert (result['k_plus'], result['k_minus']) == oneshot.results.guess.preset(500)


class _Trap:
    """Unpickling it would write a file."""

    def __reduce__(self):
        return (open, ('trap', 'w'))


def _bad_files(folder):
    np.savez(folder / 'objects.npz', scores=np.array([_Trap()], dtype=object), included=[1])
    (folder / 'pickle.npz').write_bytes(pickle.dumps({'scores': [1.0], 'trap': _Trap()}))
    (folder / 'empty.npz').write_bytes(b'')
    (folder / 'cut.npz').write_bytes((folder / 'both.npz').read_bytes()[:200])
    np.save(folder / 'array.npy', np.zeros(3))
    np.savez(folder / 'other.npz', values=[1.0], included=[1])
    np.savez(folder / 'nan.npz', scores=[1.0, np.nan], included=[1, 0])
    np.savez(folder / 'none.npz', scores=[], included=[])
    np.savez(folder / 'short.npz', scores=[1.0, 2.0], included=[1])
    (folder / 'words.csv').write_text('score,included\n1.0,1\nhigh,0\n')
    (folder / 'ragged.csv').write_text('score,included\n1.0\n')
    (folder / 'empty.csv').write_text('')
    (folder / 'binary.csv').write_bytes(bytes(range(128, 256)))
    (folder / 'huge.csv').write_text('score,included\n' + '1' * 200_000 + ',1\n')
    np.savez(folder / 'complex.npz', scores=[1j, 2.0], included=[1, 0])
    with zipfile.ZipFile(folder / 'text.npz', 'w') as file:
        file.writestr('scores', 'no array')
        file.writestr('included', 'no array')


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        (['--m=10', '--r=11', '--v=5'], 'r, the number of guesses, must be a whole number'),
        (['--m=10', '--r=5', '--v=6'], 'v, the number of right guesses, must be'),
        (['--m=10', '--r=5', '--v=2.5'], 'v, the number of right guesses, must be'),
        (['--m=-10', '--r=5', '--v=2'], 'm, the number of canaries, must be'),
        (['--m=nan', '--r=5', '--v=2'], 'm, the number of canaries, must be'),
        (['--m=10', '--r=5'], 'Either --m, --r and --v must be given, or --scores'),
        ([], 'Either --m, --r and --v must be given, or --scores'),
        (['--m=10', '--r=5', '--v=2', '--delta=2'], 'delta must be a number in [0, 1]'),
        (['--m=10', '--r=5', '--v=2', '--confidence=1'], 'confidence must be a number in (0, 1)'),
        (['--m=10', '--r=5', '--v=2', '--eps=-1'], 'eps_claimed must be a number in'),
        (['--m=10', '--r=5', '--v=2', '--method=best'], 'method must be one of one_run'),
        (['--m=10', '--scores=both.npz'], '--scores takes no counts, but --m was given'),
        (['--scores=both.npz', '--k-plus=3'], '--k-plus and --k-minus must be given together'),
        (['--scores=both.npz', '--k-plus=300', '--k-minus=300'], 'k_minus, the number'),
        (['--scores=scores.npz'], 'must have a column included or coins or coin'),
        (['--scores=both.npz', '--coins=coins.npz'], 'must have a column ids or id'),
        (['--scores=missing.npz'], 'No such file'),
        (['--scores=.'], 'Is a directory'),
        (['--scores=objects.npz'], 'pickled files are not read'),
        (['--scores=pickle.npz'], 'pickled files are not read'),
        (['--scores=empty.npz'], 'must be an .npz of plain arrays or a .csv'),
        (['--scores=cut.npz'], 'must be an .npz of plain arrays or a .csv'),
        (['--scores=array.npy'], 'must be an .npz of plain arrays or a .csv'),
        (['--scores=other.npz'], 'must have a column scores or score, but has values, included'),
        (['--m=10', '--r=5', '--v=2', '--k-plus=3'], 'or --scores with what belongs to it'),
        (['--scores=huge.csv'], 'must be a CSV with a header'),
        (['--scores=complex.npz'], 'must have numbers only in its column scores'),
        (['--scores=text.npz'], 'must have numbers only in its column scores'),
        (['--scores=nan.npz'], 'scores must not contain NaN'),
        (['--scores=none.npz'], 'scores must be a vector of at least one real number'),
        (['--scores=short.npz'], 'scores and included must be of equal length'),
        (['--scores=words.csv'], 'must have numbers only in its column score'),
        (['--scores=ragged.csv'], 'must be a CSV with a header and rows of equal length'),
        (['--scores=empty.csv'], 'must be a CSV with a header and rows of equal length'),
        (['--scores=binary.csv'], 'must have a column scores or score'),
    ],
)
def test_bad_input_is_status_2_and_one_sentence(capsys, monkeypatch, sample, flags, message):
    folder, _ = sample
    monkeypatch.chdir(folder)
    _bad_files(folder)
    flags = flags if any('delta' in flag for flag in flags) else [*flags, '--delta=1e-5']
    assert command.main(flags) == 2
    captured = capsys.readouterr()
    assert captured.out == ''
    assert message in captured.err
    assert captured.err.count('\n') == 1
    assert not (folder / 'trap').exists()


def test_ids_that_do_not_match_are_named(capsys, monkeypatch, sample):
    folder, _ = sample
    monkeypatch.chdir(folder)
    np.savez('coins.npz', ids=np.arange(1, 501), included=np.arange(500) % 2)
    assert command.main(['--scores=scores.npz', '--coins=coins.npz', '--delta=0']) == 2
    assert 'ids 0 have no coin and ids 500 have no score' in capsys.readouterr().err


def test_unknown_flags_are_status_2(capsys):
    with pytest.raises(SystemExit) as stop:
        command.main([*COUNTS, '--detla=1'])
    assert stop.value.code == 2
    assert 'detla' in capsys.readouterr().err


def test_ways_to_choose_guesses(sample, capsys):
    folder, _ = sample
    both, known = f'--scores={folder}/both.npz', ('--noise-multiplier=0.5', '--score=dot')
    arrays = np.load(folder / 'both.npz')
    scores, included = arrays['scores'], arrays['included']
    mechanism = Scoring(oneshot.DPSGD(0.5), scale=2.0)
    planned = _json(capsys, both, *known, '--scale=2', '--delta=1e-5')
    expected = oneshot.audit_scores(scores, included, delta=1e-5, mechanism=mechanism)
    assert planned == expected.as_dict()
    assert planned['rule'] == 'planned'
    cut = _json(capsys, both, '--threshold=1', '--method=cp_gdp', '--delta=1e-5')
    rule = guess.Threshold(1.0)
    same = oneshot.audit_scores(scores, included, delta=1e-5, method='cp_gdp', guesses=rule)
    assert cut == same.as_dict()
    split = _json(capsys, both, '--guesses=split', '--method=adaptive', '--delta=1e-5')
    assert (split['rule'], split['m']) == ('split', 350)
    with pytest.warns(UserWarning, match='no guarantee'):
        assert command.main([both, '--guesses=best_of_all', '--delta=1e-5']) == 0
    assert 'without any guarantee' in capsys.readouterr().out
    assert command.main([both, '--method=gaussian_pair', '--delta=1e-5']) == 0
    assert 'an estimate, not a bound' in capsys.readouterr().out


def test_several_files_are_several_runs(sample, capsys):
    folder, _ = sample
    rng = np.random.default_rng(1)
    included = rng.random(500) < 0.5
    np.savez(folder / 'more.npz', scores=rng.standard_normal(500) + 2 * included, included=included)
    pooled = _json(capsys, '--scores', f'{folder}/both.npz', f'{folder}/more.npz', '--delta=1e-5')
    assert pooled['m'] == 1000
    one = _json(capsys, f'--scores={folder}/both.npz', '--delta=1e-5')
    assert pooled['eps_lb'] > one['eps_lb']
    twice = ['--scores', f'{folder}/both.npz', f'{folder}/both.npz', '--delta=1e-5']
    assert command.main(twice) == 2
    assert 'Every run must have fresh coins' in capsys.readouterr().err


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        (('--k-plus=5', '--k-minus=5', '--guesses=grid'), 'in one way, but --k-plus and --guesses'),
        (('--coins', 'a.npz', 'b.npz'), '--coins must be as many files as --scores, but 2 and 1'),
        (('--guesses=all',), 'guesses must be (k_plus, k_minus), one of planned, preset'),
        (('--noise-multiplier=1', '--steps=1.5'), '--steps must be a whole number'),
    ],
)
def test_guesses_and_files_that_do_not_fit(sample, capsys, flags, message):
    folder, _ = sample
    assert command.main([f'--scores={folder}/both.npz', *flags, '--delta=1e-5']) == 2
    assert message in capsys.readouterr().err
