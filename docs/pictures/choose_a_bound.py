"""Draws which method to choose, by what may be assumed: choose_a_bound.svg.

    python docs/pictures/choose_a_bound.py

What each method finds of ε = 8 comes from experiments/results/tightness.csv.
"""

import csv
import html
import pathlib

PICTURE = pathlib.Path(__file__).with_suffix('.svg')
RESULTS = PICTURE.parents[2] / 'experiments/results/tightness.csv'

FIRST = 'May the algorithm be assumed to be', 'more than (ε, δ)-DP?'
# For each side of the first answer: questions with the method that a "yes" leads to, and the
# method where all answers are "no".
SIDES = {
    'no': (
        (('Is a coin not fair, or do', 'canaries come in pairs?'), 'approx_…, replacement'),
        (('Did the scores decide how', 'many guesses were made?'), 'adaptive'),
        (('May a guess count', 'less than another?'), 'weighted'),
        'one_run',
    ),
    'yes': (
        (('Are scores independent, and', 'is the curve a Gaussian’s?'), 'cp_gdp'),
        (('Are scores independent', 'given the coins?'), 'clopper_pearson'),
        (('Is it DP-SGD with', 'known q and steps?'), 'fdp_dpsgd'),
        'fdp',
    ),
}
REMARKS = {
    'approx_…, replacement': 'coins of probability p, or pairs',
    'adaptive': 'any guesses, for a small price',
    'fdp': 'Gaussian curve',
    'one_run': 'if in doubt',
}
BOX, GAP, HEIGHT, STEP = 206, 40, 50, 86
COLUMNS = {  # the middle of questions and of methods
    'no': (10 + 1.5 * BOX + GAP, 10 + 0.5 * BOX),
    'yes': (10 + 2.5 * BOX + 2 * GAP, 10 + 3.5 * BOX + 3 * GAP),
}
WIDTH = 20 + 4 * BOX + 3 * GAP


def found() -> dict[str, str]:
    """The mean ε_LB of each method for ε = 8, 5,000 canaries, by `llr` and planned guesses."""
    with RESULTS.open(newline='') as file:
        return {
            row['method']: f'{float(row["mean"]):.2f}'
            for row in csv.DictReader(file)
            if (row['case'], row['guesses'], row['score']) == ('ε = 8', 'planned', 'llr')
        }


def svg() -> str:
    """The picture."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {5 * STEP + 10}" '
        'font-family="system-ui, sans-serif" role="img">',
        '<title>Which method to choose, by what may be assumed</title>',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z" fill="#546e7a"/></marker></defs>',
        '<rect width="100%" height="100%" rx="8" fill="#fff"/>',
        _box(WIDTH / 2, 10, FIRST, question=True, width=2 * BOX + GAP),
    ]
    for answer, branch in SIDES.items():
        *questions, last = branch
        x, u = COLUMNS[answer]
        parts.append(_arrow(f'M{x:g} {10 + HEIGHT} V{8 + STEP}', x + 14, 82, answer))
        for place, (text, method) in enumerate(questions, 1):
            y, side = 10 + place * STEP, (1 if u > x else -1) * BOX / 2
            parts += [_box(x, y, text, question=True), _box(u, y, _method(method))]
            parts.append(
                _arrow(f'M{x + side:g} {y + 25} H{u - side:g}', (x + u) / 2, y + 18, 'yes')
            )
            parts.append(_arrow(f'M{x:g} {y + HEIGHT} V{y + STEP - 2}', x + 14, y + 72, 'no'))
        parts.append(_box(x, 10 + 4 * STEP, _method(last)))
    return '\n'.join([*parts, '</svg>\n'])


def _method(name: str) -> tuple[str, str]:
    """A method, and what it finds or is for."""
    finds = f'finds {found()[name]} of ε = 8' if name in found() else None
    return name, ', '.join(filter(None, (finds, REMARKS.get(name))))


def _box(x: float, y: float, lines: tuple[str, str], question: bool = False, width: int = BOX):
    fill, stroke = ('#fff8e1', '#ffa000') if question else ('#e8f5e9', '#388e3c')
    first, second = html.escape(lines[0]), html.escape(lines[1])
    style = 'font-size="13"' if question else 'font-size="14" font-weight="bold"'
    return (
        f'<rect x="{x - width / 2:g}" y="{y:g}" width="{width}" height="{HEIGHT}" rx="6" '
        f'fill="{fill}" stroke="{stroke}"/>'
        f'<text x="{x:g}" y="{y + 21:g}" text-anchor="middle" {style}>{first}</text>'
        f'<text x="{x:g}" y="{y + 39:g}" text-anchor="middle" font-size="{13 if question else 11}">'
        f'{second}</text>'
    )


def _arrow(path: str, x: float, y: float, answer: str) -> str:
    style = 'fill="none" stroke="#546e7a" stroke-width="1.5" marker-end="url(#tip)"'
    text = f'<text x="{x:g}" y="{y:g}" text-anchor="middle" font-size="12">{answer}</text>'
    return f'<path d="{path}" {style}/>{text}'


if __name__ == '__main__':
    PICTURE.write_text(svg())
