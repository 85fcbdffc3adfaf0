"""The self-contained page of a run."""

import html
import pathlib
from typing import Any

from oneshot import files
from oneshot.report import plots
from oneshot.report.words import COLUMNS, Results, headline_rows, result_rows, verdict
from oneshot.results.result import AuditResult


def write_html(
    directory: pathlib.Path,
    about: dict[str, str],
    result: AuditResult,
    results: Results,
    curves: plots.Curves,
) -> None:
    """Draws the plots, and puts them with the tables on one page without links."""
    folder = directory / 'plots'
    folder.mkdir(exist_ok=True)
    pictures = plots.draw(folder, curves, result)
    page = [
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>oneshot audit</title>',
        '<style>body{font:16px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;'
        'padding:0 1rem}table{border-collapse:collapse;margin:1rem 0}td,th{padding:.25rem .75rem;'
        'border-bottom:1px solid #ddd;text-align:left;vertical-align:top}img{max-width:100%}'
        f'.verdict{{font-size:1.3rem;color:{"#b00020" if result.violated else "#1b5e20"}}}</style>',
        '<h1>Audit in one run</h1>',
        f'<p class="verdict">ε<sub>LB</sub> = {result.eps_lb:.3g}, ε<sub>UB</sub> = '
        f'{result.eps_claimed:.3g}: {html.escape(verdict(result))}.</p>',
        _html_table([], headline_rows(about, result)),
        *(
            f'<figure><img src="data:image/png;base64,{data}" alt="{html.escape(caption)}">'
            f'<figcaption>{html.escape(caption)}</figcaption></figure>'
            for caption, data in pictures
        ),
        '<h2>Every score by every method</h2>',
        f'<p>Each with {100 * next(iter(results.values())).confidence:.4g} % confidence.</p>',
        _html_table(COLUMNS, result_rows(results)),
        '</html>',
    ]
    files.write(directory / 'report.html', '\n'.join(page).encode())


def _html_table(header: tuple[str, ...] | list[str], rows: list[tuple[str, ...]]) -> str:
    def line(cells: Any, tag: str) -> str:
        return '<tr>' + ''.join(f'<{tag}>{html.escape(c)}</{tag}>' for c in cells) + '</tr>'

    head = [line(header, 'th')] if header else []
    return '\n'.join(['<table>', *head, *(line(row, 'td') for row in rows), '</table>'])
