"""The printed tables of a run."""

from rich.console import Console
from rich.table import Table

from oneshot.report.words import Results, headline_rows, result_rows
from oneshot.results.result import AuditResult

COLUMNS = ('score', 'method', 'ε_LB', 'right', 'kind', 'assumes')


def show(
    console: Console, about: dict[str, str], score: str, result: AuditResult, results: Results
) -> None:
    """Prints the headline and, below it, its score by every method and every score by its own."""
    table = Table(title='audit in one run', show_header=False, title_justify='left')
    table.add_column(style='bold', no_wrap=True)
    table.add_column(overflow='fold')
    for row in headline_rows(about, result):
        table.add_row(*row)
    console.print(table)
    rows, confidence = result_rows(results), next(iter(results.values())).confidence
    of_score = [row[1:] for row in rows if row[0] == score]
    of_method = [(row[0], *row[2:4]) for row in rows if row[1] == result.method]
    title = f'{score} by every method, each with {100 * confidence:.4g} % confidence'
    console.print(_table(title, COLUMNS[1:], of_score))
    if len(of_method) > 1:
        title = f'{result.method} of every score'
        console.print(_table(title, (COLUMNS[0], *COLUMNS[2:4]), of_method))


def _table(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
    table = Table(title=title, title_justify='left')
    for name in columns:
        table.add_column(name, no_wrap=name != 'assumes')
    for row in rows:
        table.add_row(*row)
    return table
