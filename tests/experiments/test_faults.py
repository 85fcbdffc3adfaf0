"""The catalogue of faults, and what its committed results must hold."""

import pathlib

import pytest

from experiments import csv_files, fault_page, fault_table, faults
from experiments.fault_page import Found
from oneshot import check

ROWS = csv_files.read(fault_table.CSV, fault_page.NUMBERS)
GROUPS = fault_page._groups(ROWS)


@pytest.mark.parametrize('name', faults.FAULTS)
def test_every_fault_is_found(name):
    found = Found.of(GROUPS['fault', name, 'mlp'])
    assert found.seeds == 20
    assert found.alarms == 20  # by the doctor as a whole
    assert found.by_audit or found.by_exact


def test_twelve_are_found_by_the_audit_alone():
    found = [Found.of(GROUPS['fault', name, 'mlp']) for name in faults.FAULTS]
    assert sum(one.above >= 18 for one in found) >= 12


def test_there_is_no_false_alarm():
    runs = [row for row in ROWS if row['kind'] in ('control', 'own')]
    assert len(runs) >= 400
    assert {row['name'] for row in runs} == set(faults.CONTROLS) | {'vmap', 'ghost'}
    assert {row['model'] for row in runs} == {'mlp', 'linear', 'cnn'}
    assert not [row for row in runs if row['checks']]
    assert check.FALSE_ALARM_RATE <= 1e-3


def test_the_libraries_are_examined():
    assert Found.of(GROUPS['library', 'optax_dpsgd', 'mlp']).exact == {'not finite': 20}
    assert Found.of(GROUPS['library', 'jax_privacy_step', 'mlp']).alarms == 0


def test_every_fault_says_where_it_happened():
    for name, fault in faults.FAULTS.items():
        assert fault.url.startswith('https://'), name
        assert 10 < len(fault.where) <= 90, name
        assert fault.eps > 0
    assert len({fault.title for fault in faults.FAULTS.values()}) == len(faults.FAULTS)


def test_the_page_is_that_of_the_results():
    assert fault_table.PAGE.read_text() == fault_page.page(ROWS)


def test_a_fault_by_its_name():
    assert faults.noise_missing.name == 'noise missing'
    with pytest.raises(AttributeError):
        faults.no_such_fault  # noqa: B018


def test_the_picture_is_drawn(tmp_path):
    fault_page.plot(ROWS, tmp_path / 'faults.png')
    assert (tmp_path / 'faults.png').stat().st_size > 10_000
    assert pathlib.Path(fault_table.PICTURE).exists()
