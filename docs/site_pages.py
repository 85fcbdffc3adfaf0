"""A hook of MkDocs: what lies beside docs/ and belongs to the site, experiments/ as measured/.

On GitHub the links of the documentation lead to the files themselves, as ../experiments/README.md.
"""

import pathlib
import re

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).parents[1]
FOLDERS = {'experiments': 'measured', 'colabs': 'colabs'}
README, PAGE = 'README.md', 'measurements.md'  # in the site, it is not the index of a section
PAGES = {'CHANGELOG.md': 'changelog.md', 'CONTRIBUTING.md': 'contributing.md'}


def on_files(files, config):
    """Adds the files that do not lie in docs/."""
    places = dict(PAGES)
    for folder, place in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob('*')):
            if path.suffix in ('.md', '.png', '.csv', '.ipynb'):
                inside = path.relative_to(ROOT / folder)
                places[f'{folder}/{inside}'] = f'{place}/{inside}'.replace(README, PAGE)
    for path, place in places.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown, page, **_):
    """Turns links to the files into links to their pages."""
    if page.file.src_uri in PAGES.values():  # from the top of the repository
        return re.sub(r'\]\(docs/', '](', markdown)
    if page.file.src_uri.startswith('measured/'):
        return markdown.replace('](../docs/', '](../').replace(f']({README}', f']({PAGE}')
    for folder, place in FOLDERS.items():
        markdown = markdown.replace(f'../{folder}/{README}', f'{place}/{PAGE}')
        markdown = markdown.replace(f'../{folder}/', f'{place}/')
    for path, place in PAGES.items():
        markdown = markdown.replace(f'../{path}', place)
    return markdown
