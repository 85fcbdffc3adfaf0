"""The page of all figures, experiments/RESULTS.md, from their results."""

import pathlib

from experiments.csv_files import Row
from experiments.figures import PAPERS, wb_dpsgd_cifar
from experiments.figures.figure import Figure

PAGE = pathlib.Path(__file__).parents[1] / 'RESULTS.md'

_HEAD = """# Every figure of the paper, and ours beside it

Made by `make figures` from the CSVs in `results/figures/`, as [the other experiments](README.md) \
are by their own commands. One command a figure, `python -m experiments.figures.v_p`. \
All training is real DP-SGD on CIFAR-10 at a size for two cores; `--full` has the paper's, for an \
accelerator, and has not been run. Lines are means over seeds, bands reach from the least seed to \
the most; {CLAIMS}

The paper has no table of its figures: stars mark the values that its text gives.

## Theoretical ε, and what was found

Mean ε_LB of three runs on CIFAR-10 (all 50,000 images, m = 5,000 Dirac canaries, δ = 1e-5, 95 % \
confidence). "k planned" is fixed before the run, and what is not marked otherwise is a valid bound:

{HEADLINE}
"""


def text(figures: list[tuple[Figure, list[Row]]]) -> str:
    """The page, from the rows of every figure."""
    claims = [claim for figure, rows in figures for claim in figure.claims(rows)]
    held = sum(claim.holds for claim in claims)
    count = (
        f'{held} of {len(claims)} claims hold in the data, by tests that are wrong in at most one '
        'of 10⁶ cases where chance is in it.'
    )
    (headline,) = [rows for figure, rows in figures if figure.name == 'wb_dpsgd_cifar']
    parts = [
        _HEAD.replace('{CLAIMS}', count).replace('{HEADLINE}', wb_dpsgd_cifar.headline(headline))
    ]
    parts += [_section(figure, rows) for figure, rows in figures]
    return '\n'.join(parts)


def _section(figure: Figure, rows: list[Row]) -> str:
    picture, table = (_link(figure, suffix) for suffix in ('png', 'csv'))
    of_paper = figure.name in PAPERS
    lines = [
        f'## {figure.name}: {figure.title}',
        '',
        f'![{figure.title}]({picture})',
        '',
        f'`python -m experiments.figures.{figure.name}` ([points]({table}))',
        '',
        f'- **{"The paper" if of_paper else "The question"}:** {figure.paper}',
    ]
    lines += [f'- **Measured:** {sentence}' for sentence in figure.measured(rows)]
    for claim in figure.claims(rows):
        verdict = 'Holds' if claim.holds else 'Does not hold'
        lines.append(f'- **{verdict}:** {claim.text} ({claim.evidence}).')
    if said := figure.differs(rows):
        lines.append(f'- **{"Differs" if of_paper else "Why"}:** {said}')
    return '\n'.join([*lines, ''])


def _link(figure: Figure, suffix: str) -> str:
    path = figure.path(suffix).resolve()
    return path.relative_to(PAGE.parent).as_posix()
