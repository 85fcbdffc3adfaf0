"""Names, links, tables and pictures of the pages are those of the code."""

import importlib
import importlib.util
import re

import pytest

from configs import digits_wb
from oneshot import bounds
from oneshot.results.guess import NAMED_RULES
from oneshot.results.methods import METHODS
from oneshot.run import settings
from tests.docs.pages import DOCS, PAGES, PROSE, ROOT
from tests.docs.test_colabs import MACHINE

OTHERS = [
    ROOT / name
    for name in (
        'CHANGELOG.md',
        'CONTRIBUTING.md',
        'experiments/README.md',
        'experiments/RESULTS.md',
        'experiments/FAULTS.md',
    )
]


def _text(page):
    return re.sub(r'(?s)```.*?```', '', page.read_text())


every_page = pytest.mark.parametrize('page', [*PAGES, *OTHERS], ids=lambda page: page.name)


def _anchors(page):
    """The anchors of a page, as GitHub makes them of its headings."""
    titles = re.findall(r'(?m)^#+ (.*)', _text(page))
    titles = [re.sub(r'\[(.*?)\]\(.*?\)', r'\1', title) for title in titles]
    return {re.sub(r'[^\w\- ]', '', title).lower().replace(' ', '-') for title in titles}


@every_page
def test_relative_links_lead_somewhere(page):
    for path, anchor in re.findall(r'\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]*))?\)', _text(page)):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), path
        assert not anchor or anchor in _anchors(target), f'{path}#{anchor}'


@every_page
def test_what_is_named_is_there(page):
    text = _text(page)
    for path in re.findall(r'`((?:oneshot|configs|experiments|colabs|docs|tests)/[\w/.]*)`', text):
        assert (ROOT / path).exists(), path
    for module in re.findall(r'python -m ([a-z][\w.]+\w)', text):
        path = ROOT / module.replace('.', '/')
        is_there = path.with_suffix('.py').exists() or (path / '__main__.py').exists()
        assert is_there or module == 'pytest', module
    makefile = (ROOT / 'Makefile').read_text()
    for target in re.findall(r'`make (\w+)`', text):
        assert f'\n{target}:' in makefile, target
    for key in re.findall(r'--config\.([a-z][\w.]+\w)=', text):
        assert key in settings.KEYS, key


@every_page
def test_no_machine_is_named(page):
    assert not MACHINE.findall(page.read_text())


ROOMS = 'audit', 'bounds', 'check', 'claims', 'data', 'dpsgd', 'plan', 'results', 'run', 'scores'


@pytest.mark.parametrize('page', PROSE)
def test_names_of_the_code_exist(page):
    spans = re.findall(r'`([^`]*)`', PROSE[page])
    short = rf'(?:{"|".join(ROOMS)}|guess|canaries)'
    for span in spans:
        if match := re.match(rf'(oneshot(?:\.\w+)+|{short}(?:\.\w+)+)(?:\(|$)', span):
            name = match[1]
            if name.endswith(('.py', '.json', '.npz')) or name in settings.KEYS:
                continue
            home = 'audit.' if name.startswith('canaries.') else ''
            _resolve(f'oneshot.{home}{name.removeprefix("oneshot.")}')


def _resolve(name):
    """What a dotted name names: a module, or an attribute of one."""
    found = importlib.import_module('oneshot')
    for place, part in enumerate(name.split('.')[1:], 2):
        if not hasattr(found, part):
            importlib.import_module('.'.join(name.split('.')[:place]))
        found = getattr(found, part)


def test_the_front_page_is_of_one_sitting():
    readme = (ROOT / 'README.md').read_text()
    assert len(readme.splitlines()) <= 180
    assert re.findall(r'pip install (\S+)', readme)[0] == "'.[run]'"


def test_every_page_is_in_the_navigation():
    nav = (ROOT / 'mkdocs.yml').read_text().split('\nnav:\n')[1]
    named = re.findall(r'(?m)- ([\w/]+\.md)$', nav)
    pages = {str(page.relative_to(ROOT / 'docs')) for page in DOCS}
    beside = {'contributing.md', 'changelog.md'}
    beside |= {f'measured/{name}.md' for name in ('measurements', 'RESULTS', 'FAULTS')}
    assert sorted(named) == sorted(pages | beside)


def test_nothing_of_the_site_comes_from_the_network():
    settings_of_site = (ROOT / 'mkdocs.yml').read_text()
    assert 'font: false' in settings_of_site
    assert 'http' not in settings_of_site


def test_every_function_of_bounds_has_its_place_in_the_theory():
    theory = ' '.join(text for page, text in PROSE.items() if page.startswith('docs/theory/'))
    for name in bounds.__all__:
        assert f'`{name}`' in theory, name


def test_every_file_of_bounds_has_its_place_in_the_theory():
    theory = ' '.join(text for page, text in PROSE.items() if page.startswith('docs/theory/'))
    for path in (ROOT / 'oneshot/bounds').rglob('*.py'):
        if not path.name.startswith('_') and path.name != 'binomial.py':
            assert f'`{path.relative_to(ROOT)}`' in theory, path


def test_every_method_and_every_rule_is_explained():
    for name in METHODS:
        assert f'`{name}`' in PROSE['docs/guide/choose_a_bound.md'], name
    for name in NAMED_RULES:
        assert f"`'{name}'`" in PROSE['docs/guide/scores.md'], name


def test_every_experiment_is_named():
    pages = PROSE['docs/paper.md']
    for path in (ROOT / 'experiments').glob('*.py'):
        runs = "if __name__ == '__main__':" in path.read_text()
        assert not runs or f'`python -m experiments.{path.stem}`' in pages, path
    figures = (ROOT / 'experiments/RESULTS.md').read_text()
    of_the_paper = re.findall(r'(?m)^## (\w+): ', figures)[:12]
    assert all(f'[{name}](' in pages for name in of_the_paper)


def test_every_config_is_named():
    for path in (ROOT / 'oneshot/configs').glob('*_*.py'):
        if 'def get_config' in path.read_text():
            assert f'`configs/{path.name}`' in PROSE['docs/guide/configs.md'], path


def test_the_keys_of_a_config_and_their_defaults():
    rows = re.findall(r'(?m)^\| `([\w.]+)` \| `(.*?)` \|', PROSE['docs/reference/config_keys.md'])
    flat = settings.flatten(digits_wb.get_config())
    assert {key: default.replace('{}', '') for key, default in rows} == {
        key: '' if key == 'optimizer_options' else repr(value) for key, value in flat.items()
    }
    assert dict(rows).keys() == settings.KEYS.keys()


@pytest.mark.parametrize('name', ['house', 'choose_a_bound'])
def test_pictures_are_up_to_date(name):
    path = ROOT / f'docs/pictures/{name}.py'
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert path.with_suffix('.svg').read_text() == module.svg(), f'run python {path}'
