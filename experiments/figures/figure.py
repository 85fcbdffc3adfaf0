"""What a figure is, and the command that draws it."""

import argparse
import dataclasses
import importlib
import pathlib
import sys
from collections.abc import Callable
from typing import NamedTuple

import matplotlib.figure

from experiments.csv_files import Row
from experiments.figures import style
from experiments.figures.sweep import Sweep

RESULTS = pathlib.Path(__file__).parents[1] / 'results/figures'


class Claim(NamedTuple):
    """What is said of a figure, whether it holds in the data, and by what."""

    text: str
    holds: bool
    evidence: str


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure of the paper, or of ours: what a module of this folder says of it.

    Attributes:
        name: of the module, the label of the paper's figure.
        title: TITLE, what it shows, in a line.
        paper: PAPER_SAYS, what the paper says of it; of our own, what is asked.
        sweep: sweep(full, data_dir), what is measured for it.
        draw: the picture of the rows.
        measured: what was measured, a sentence each.
        claims: what is claimed of it, each tested on the rows.
        differs: where it differs from the paper, and why.
        results: RESULTS, the figure whose results it is drawn from, if that is another.
        legend: LEGEND, the number of columns of the legend.
    """

    name: str
    title: str
    paper: str
    sweep: Callable[[bool, str | None], Sweep]
    draw: Callable[[list[Row]], matplotlib.figure.Figure]
    measured: Callable[[list[Row]], list[str]]
    claims: Callable[[list[Row]], list[Claim]]
    differs: Callable[[list[Row]], str]
    results: str | None = None
    legend: int = 2

    def path(self, suffix: str, full: bool = False) -> pathlib.Path:
        """Of its CSV or its picture."""
        stem = self.results if self.results and suffix == 'csv' else self.name
        of_others = stem.startswith('..')  # an experiment's, which has one size
        return RESULTS / ('full' if full and not of_others else '') / f'{stem}.{suffix}'

    def rows(self, full: bool = False, data_dir: str | None = None) -> list[Row]:
        """What the CSV has, and what it does not have yet.

        Raises:
            ValueError: it takes a data set that is not there.
        """
        return self.sweep(full, data_dir).complete(self.path('csv', full))

    def make(self, full: bool = False, data_dir: str | None = None) -> list[Row]:
        """Measures what is missing, draws, and says what came out."""
        rows = self.rows(full, data_dir)
        style.save(self.draw(rows), self.path('png', full), self.legend)
        print(f'{self.name}: {self.title}\n  paper     {self.paper}')
        for sentence in self.measured(rows):
            print(f'  measured  {sentence}')
        for claim in self.claims(rows):
            verdict = 'holds' if claim.holds else 'DOES NOT HOLD'
            print(f'  {verdict}: {claim.text} ({claim.evidence})')
        for suffix, what in (('png', 'picture'), ('csv', 'points')):
            print(f'  {what:9} {self.path(suffix, full).resolve()}')
        print(flush=True)
        return rows


def load(name: str) -> Figure:
    """The figure that a module of this folder is."""
    module = importlib.import_module(f'experiments.figures.{name}')
    functions = 'sweep', 'draw', 'measured', 'claims', 'differs'
    return Figure(
        name,
        module.TITLE,
        module.PAPER_SAYS,
        *(getattr(module, function) for function in functions),
        results=getattr(module, 'RESULTS', None),
        legend=getattr(module, 'LEGEND', 2),
    )


def parser(description: str) -> argparse.ArgumentParser:
    """Of the flags that all figures have."""
    found = argparse.ArgumentParser(description=description.split('\n')[0])
    found.add_argument('--full', action='store_true', help="the paper's size, for an accelerator")
    found.add_argument('--data_dir', help='where TFDS keeps CIFAR-10, if not at its default')
    return found


def main(name: str, argv: list[str] | None = None) -> int:
    """Draws one figure; returns the exit status."""
    figure = load(name)
    flags = parser(f'{name}: {figure.title}').parse_args(argv)
    try:
        figure.make(flags.full, flags.data_dir)
    except ValueError as error:
        print(f'{name}: {error}', file=sys.stderr)
        return 2
    return 0
