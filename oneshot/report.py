"""What a run leaves behind: the printed table and the files of its workdir."""

import functools
import html
import importlib.metadata
import math
import pathlib
import platform
import shutil
import subprocess
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from oneshot import plots, workdir
from oneshot.methods import ASSUMPTIONS, METHODS, AuditResult, to_json

Results = dict[tuple[str, str], AuditResult]  # by score and method

_PACKAGES = ('oneshot', 'jax', 'jaxlib', 'flax', 'optax', 'dp-accounting', 'numpy', 'scipy')


# How guesses were chosen, in words.
RULES = {
    'fixed': 'fixed before the run',
    'planned': 'planned before the run',
    'preset': 'from m alone',
    'grid': 'the best of a grid that shares the confidence',
    'best_of_all': 'chosen by their success',
}


def verdict(result: AuditResult) -> str:
    """What the result says of the claim, in words."""
    if result.violated and result.kind != 'bound':
        return f'above the claim, which proves nothing: the result is of kind "{result.kind}"'
    if result.violated and result.assumptions == 'none':
        return 'the claim is violated: its proof or its code is wrong'
    if result.violated:
        return 'the claim is violated, unless the assumption does not hold'
    return 'consistent with the claim'


def about(config: dict[str, Any], record: dict[str, Any]) -> dict[str, str]:
    """What was audited, from the files of a run."""
    dp, scores = config['dp'], dict.fromkeys(row['score'] for row in record['rows'])
    headline = f'{config["audit"]["canaries"]} canaries, scored by {record["score"]}'
    if config['audit']['headline'] == 'best':
        headline += f', the best of {", ".join(scores)}, which share the confidence'
    return {
        'audited': f'DP-SGD, {record["steps"]:,} steps, q = {dp["sampling_prob"]:g}, '
        f'σ = {record["noise_multiplier"]:.4g}, c = {float(dp["clip_norm"]):g}',
        'data': f'{config["data"]["name"]}, n = {record["n"]:,}',
        'test accuracy': f'{record["test_accuracy"]:.1%}',
        'headline': headline,
        'seed': str(record['seed']),
        'time': f'{record["seconds"]:.1f} s',
    }


def headline_rows(about: dict[str, str], result: AuditResult) -> list[tuple[str, str]]:
    """The rows of the table: what was audited, the two bounds, and the verdict."""
    method = METHODS[result.method]
    claimed = f'{result.eps_claimed:.4g} at δ = {result.delta:g}'
    if math.isinf(result.eps_claimed):
        claimed = f'∞ at δ = {result.delta:g}: nothing is proven'
    guesses = (
        f'{result.guesses:,} (k+ = {result.k_plus:,} "in", k- = {result.k_minus:,} "out"), '
        f'{RULES[result.rule]}'
    )
    canaries = f'm = {result.m:,}, each in or out by a fair coin'
    if result.method == 'replacement':
        canaries = f'm = {result.m:,} pairs, one of each in by a fair coin'
    made = result.guesses if result.weight is None else result.weight
    right = (
        f'{result.correct:,.6g} of {made:,.6g} ({result.correct / made:.1%})' if made else 'none'
    )
    return [
        *about.items(),
        ('ε_UB', claimed),
        ('ε_LB', f'{result.eps_lb:.4g} {result.sure}'),
        ('method', f'{result.method}, by {method.theorem}'),
        ('assumes', f'{ASSUMPTIONS[result.assumptions]}; {method.condition}'),
        ('canaries', canaries),
        ('guesses', guesses),
        ('right guesses', right),
        ('p-value of the claim', f'{result.p_value:.3g}'),
        ('verdict', verdict(result)),
    ]


def result_rows(results: Results) -> list[tuple[str, ...]]:
    """Every score by every method: score, method, ε_LB, right guesses, kind, assumption."""
    return [
        (
            score,
            method,
            f'{result.eps_lb:.4g}',
            f'{result.correct:,.5g} of {_made(result)}' if result.guesses else '',
            result.kind,
            ASSUMPTIONS[result.assumptions],
        )
        for (score, method), result in results.items()
    ]


def _made(result: AuditResult) -> str:
    """The number of guesses, or their weight."""
    return f'{result.guesses:,}' if result.weight is None else f'{result.weight:,.5g}'


_COLUMNS = ('score', 'method', 'ε_LB', 'right', 'kind', 'assumes')


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
    console.print(_table(f'{score} by every method, {sure}', _COLUMNS[1:], rows))
    if len(of_method) > 1:
        rows = [(row[0], *row[2:4]) for row in result_rows(of_method)]
        columns = _COLUMNS[0], *_COLUMNS[2:4]
        console.print(_table(f'{result.method} of every score', columns, rows))


def _table(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
    table = Table(title=title, title_justify='left')
    for name in columns:
        table.add_column(name, no_wrap=name != 'assumes')
    for row in rows:
        table.add_row(*row)
    return table


@functools.cache
def provenance() -> dict[str, Any]:
    """Which code and which libraries made a result."""
    commit = None
    if shutil.which('git'):
        line = ['git', 'describe', '--always', '--dirty', '--abbrev=12']
        folder = pathlib.Path(__file__).parent
        done = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)
        commit = done.stdout.strip() or None  # None where this is not a checkout
    versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
    return {'git': commit, 'versions': versions | {'python': platform.python_version()}}


def write_coins(directory: pathlib.Path, coins: np.ndarray) -> None:
    """Writes the coins, which are for the eyes of the owner alone."""
    ids = np.arange(coins.size)
    workdir.write_arrays(directory / 'coins.npz', mode=0o600, ids=ids, included=coins)


def write_scores(path: pathlib.Path, headline: str, scores: dict[str, np.ndarray]) -> None:
    """Writes scores with the ids of their canaries: as `scores` the headline's, and all by name."""
    ids = np.arange(scores[headline].size)
    workdir.write_arrays(path, ids=ids, scores=scores[headline], **scores)


def write_result(directory: pathlib.Path, record: dict[str, Any]) -> None:
    """Writes the result, which is the last that a run does: with it, it is finished."""
    workdir.write(directory / 'result.json', f'{to_json(record)}\n'.encode())


def write_html(
    directory: pathlib.Path,
    about: dict[str, str],
    result: AuditResult,
    results: Results,
    scores: np.ndarray,
    coins: np.ndarray,
) -> None:
    """Draws the plots, and puts them with the tables on one page without links."""
    folder = directory / 'plots'
    folder.mkdir(exist_ok=True)
    pictures = plots.draw(folder, scores, coins, result)
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
        _html_table(_COLUMNS, result_rows(results)),
        '</html>',
    ]
    workdir.write(directory / 'report.html', '\n'.join(page).encode())


def _html_table(header: tuple[str, ...] | list[str], rows: list[tuple[str, ...]]) -> str:
    def line(cells: Any, tag: str) -> str:
        return '<tr>' + ''.join(f'<{tag}>{html.escape(c)}</{tag}>' for c in cells) + '</tr>'

    head = [line(header, 'th')] if header else []
    return '\n'.join(['<table>', *head, *(line(row, 'td') for row in rows), '</table>'])
