"""The pages that people read, their blocks of code, and what a command prints that they show."""

import pathlib
import re
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[2]
DOCS = sorted((ROOT / 'docs').rglob('*.md'))
PAGES = [ROOT / 'README.md', *DOCS]
_FENCED = re.compile(r'(?:<!-- (\S+) -->\n)?```(\w*)\n(.*?)```', flags=re.DOTALL)


class Block(NamedTuple):
    """A fenced block: its page, the file that it is a passage of if any, its language."""

    page: str
    source: str | None
    kind: str
    text: str


def read(page: pathlib.Path) -> tuple[str, list[Block]]:
    """The prose of a page, and its blocks."""
    text, name = page.read_text(), str(page.relative_to(ROOT))
    blocks = [Block(name, source or None, *block) for source, *block in _FENCED.findall(text)]
    return _FENCED.sub('', text), blocks


PROSE = {str(page.relative_to(ROOT)): read(page)[0] for page in PAGES}
BLOCKS = [block for page in PAGES for block in read(page)[1]]


def comparable(text: str, numbers: bool) -> list[str]:
    """The lines of an output, without what differs from run to run.

    Args:
        text: the output.
        numbers: whether numbers are kept.

    Training gives the same numbers only on the same kind of device.
    """
    lines = [line for line in text.splitlines() if 'steps/s' not in line and '│ time ' not in line]
    if not numbers:
        lines = [re.sub(r'\d[\d.,]*', '#', re.sub('[━─┳┴╇┬]+', '', line)) for line in lines]
    return [' '.join(line.split()) for line in lines]


# Each command that prints, and what it prints. Where `...` stands for lines, another page has all.
CONSOLE = [
    (block.page, *block.text.removeprefix('$ ').split('\n', 1))
    for block in BLOCKS
    if block.kind == 'console'
]
WHOLE = {command: shown for _, command, shown in CONSOLE if '...' not in shown.splitlines()}
DEFAULT_AUDIT = next(item for item in WHOLE.items() if 'oneshot.main' in item[0])
