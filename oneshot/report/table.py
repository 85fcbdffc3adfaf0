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
    of_score = {key: one for key, one in results.items() if key[0] == score}
    of_method = {key: one for key, one in results.items() if key[1] == result.method}
    sure = f'each with {100 * next(iter(results.values())).confidence:.4g} % confidence'
    rows = [row[1:] for row in result_rows(of_score)]
    console.print(_table(f'{score} by every method, {sure}', COLUMNS[1:], rows))
    if len(of_method) > 1:
        rows = [(row[0], *row[2:4]) for row in result_rows(of_method)]
        columns = COLUMNS[0], *COLUMNS[2:4]
        console.print(_table(f'{result.method} of every score', columns, rows))


def _table(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
    table = Table(title=title, title_justify='left')
    for name in columns:
        table.add_column(name, no_wrap=name != 'assumes')
    for row in rows:
        table.add_row(*row)
    return table
