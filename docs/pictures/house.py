"""Draws the rooms of oneshot and which of them imports which: house.svg, from the real imports.

    python docs/pictures/house.py

The rows are the layers of the rule of imports in pyproject.toml. An arrow is left out where a
longer way of arrows leads to the same room; the description in the picture lists every import.
"""

import functools
import html
import itertools
import pathlib
import tomllib

import grimp

from oneshot import cli

PICTURE = pathlib.Path(__file__).with_name('house.svg')
ROOT = PICTURE.parents[2]

PURPOSES = {
    'cli': 'the command oneshot',
    'main': 'python -m oneshot.main',
    'run': 'one audited run, from config to result',
    'report': 'what people read',
    'keep': 'workdirs, checkpoints, processes',
    'check': 'the doctor: is this step what it claims to be?',
    'audit': 'canaries, coins and attacks in any loop',
    'data': 'data sets and models',
    'dpsgd': 'the private step on any devices',
    'scores': 'from scores of any origin to a result',
    'plan': 'what an audit will find',
    'results': 'methods, guesses and results',
    'claims': 'what is claimed, and the ε that is proven of it',
    'bounds': 'every theorem',
}
WIDTH, BOX, HEIGHT, STEP = 860, 300, 46, 84


def edges() -> dict[str, set[str]]:
    """The rooms that each room imports."""
    graph = grimp.build_graph('oneshot', cache_dir=None)
    found = {room: set() for room in PURPOSES}
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            room, other = (f'{name}.'.split('.')[1] for name in (module, imported))
            if room != other and {room, other} <= PURPOSES.keys():
                found[room].add(other)
    found['cli'] |= {module.split('.')[1] for module in cli._COMMANDS.values()}  # when asked for
    return found


def layers() -> list[list[str]]:
    """The rooms, row by row, as pyproject.toml has them; without the small helpers."""
    contracts = tomllib.loads((ROOT / 'pyproject.toml').read_text())['tool']['importlinter']
    rows = next(c['layers'] for c in contracts['contracts'] if c['type'] == 'layers')
    rows = [[room for room in row.split(' | ') if room in PURPOSES] for row in rows]
    return [row for row in rows if row]


def reduced(imports: dict[str, set[str]]) -> list[tuple[str, str]]:
    """The imports that no longer way of imports stands for."""

    @functools.cache
    def below(room: str) -> frozenset[str]:
        return frozenset(imports[room]).union(*map(below, imports[room]))

    return [
        (room, other)
        for room, others in imports.items()
        for other in sorted(others)
        if not any(other in below(third) for third in others)
    ]


def svg() -> str:
    """The picture."""
    imports, places = edges(), {}
    rows = layers()
    for y, row in enumerate(rows):
        for x, room in enumerate(row):
            left = (WIDTH - len(row) * BOX - (len(row) - 1) * 60) / 2 + x * (BOX + 60)
            places[room] = left + BOX / 2, 30 + y * STEP
    listed = '; '.join(f'{room}: {", ".join(sorted(imports[room]))}' for room in imports)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {len(rows) * STEP + 10}" '
        'font-family="system-ui, sans-serif" role="img">',
        '<title>The rooms of oneshot, and which imports which</title>',
        f'<desc>{html.escape(listed)}</desc>',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z" fill="#5c6bc0"/></marker></defs>',
        '<rect width="100%" height="100%" rx="8" fill="#fff"/>',
    ]
    lanes = {-1: itertools.count(), 1: itertools.count()}  # left and right of all boxes
    parts += [_arrow(places[room], places[other], lanes) for room, other in reduced(imports)]
    parts += [_box(room, *place) for room, place in places.items()]
    return '\n'.join([*parts, '</svg>\n'])


def _arrow(start: tuple[float, float], end: tuple[float, float], lanes: dict) -> str:
    """From the foot of a box to the head of another; around the rows between them."""
    (x, y), (u, v) = start, end
    shift = 0 if x == u else (40 if x > u else -40)  # arrows that meet end side by side
    if y + STEP == v:
        x, y, u, v = x - shift, y + HEIGHT, u + shift, v - 2
        bend = (v - y) / 2
        path = f'M{x:g} {y:g} C{x:g} {y + bend:g} {u:g} {v - bend:g} {u:g} {v:g}'
    else:
        side = -1 if x + u < WIDTH else 1
        lane = WIDTH / 2 + side * (405 - 16 * next(lanes[side]))
        x, y, u, v = x + side * 70, y + HEIGHT, u + side * 70, v - 2
        path = (
            f'M{x:g} {y:g} C{x:g} {y + 30:g} {lane:g} {y:g} {lane:g} {y + 50:g} '
            f'L{lane:g} {v - 50:g} C{lane:g} {v:g} {u:g} {v - 30:g} {u:g} {v:g}'
        )
    style = 'fill="none" stroke="#5c6bc0" stroke-width="1.5" marker-end="url(#tip)"'
    return f'<path d="{path}" {style}/>'


def _box(room: str, x: float, y: float) -> str:
    return (
        f'<rect x="{x - BOX / 2:g}" y="{y:g}" width="{BOX}" height="{HEIGHT}" rx="6" '
        'fill="#e8eaf6" stroke="#3f51b5"/>'
        f'<text x="{x:g}" y="{y + 19:g}" text-anchor="middle" font-weight="bold" font-size="15" '
        f'fill="#1a237e">{room}</text>'
        f'<text x="{x:g}" y="{y + 36:g}" text-anchor="middle" font-size="12.5" '
        f'fill="#333">{PURPOSES[room]}</text>'
    )


if __name__ == '__main__':
    PICTURE.write_text(svg())
