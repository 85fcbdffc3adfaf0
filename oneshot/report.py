"""What a run leaves behind: the printed table and the files of its workdir."""

import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from oneshot.scores import ASSUMPTIONS, METHODS, AuditResult

_PACKAGES = ('oneshot', 'numpy', 'scipy')


def verdict(result: AuditResult) -> str:
    """What the result says of the claim, in words."""
    if result.violated:
        return 'the claim is violated: its proof or its code is wrong'
    return 'consistent with the claim'


def headline(result: AuditResult, about: dict[str, str]) -> list[tuple[str, str]]:
    """The rows of the table: what was audited, the two bounds, and the verdict."""
    method = METHODS[result.method]
    rows = list(about.items())
    if result.eps_claimed is not None:
        rows.append(('ε_UB', f'{result.eps_claimed:.4g} at δ = {result.delta:g}, as claimed'))
    rows += [
        ('ε_LB', f'{result.eps_lb:.4g} with {100 * result.confidence:g} % confidence'),
        ('method', f'{result.method}, by {method.theorem}'),
        ('assumes', f'{ASSUMPTIONS[result.assumptions]}; {method.condition}'),
        ('canaries', f'm = {result.m:,}, each in or out by a fair coin'),
    ]
    guesses = f'{result.guesses:,}'
    if result.k_plus is not None:
        guesses += f' (k+ = {result.k_plus:,} "in", k- = {result.k_minus:,} "out")'
    right = f' ({result.correct / result.guesses:.1%})' if result.guesses else ''
    rows += [('guesses', guesses), ('right guesses', f'{result.correct:,.6g}{right}')]
    if result.eps_claimed is not None:
        rows += [('p-value of the claim', f'{result.p_value:.3g}'), ('verdict', verdict(result))]
    return rows


def show(console: Console, rows: list[tuple[str, str]], results: list[AuditResult]) -> None:
    """Prints the headline and, below it, every method side by side."""
    table = Table(title='audit in one run', show_header=False, title_justify='left')
    table.add_column(style='bold', no_wrap=True)
    table.add_column(overflow='fold')
    for row in rows:
        table.add_row(*row)
    console.print(table)
    methods = Table(title='all methods, the headline first', title_justify='left')
    for name in ('method', 'ε_LB', 'kind', 'assumes'):
        methods.add_column(name)
    for result in results:
        value = f'{result.eps_lb:.4g}'
        methods.add_row(result.method, value, 'bound', ASSUMPTIONS[result.assumptions])
    console.print(methods)


def provenance() -> dict[str, Any]:
    """Which code and which libraries made a result."""
    git = subprocess.run(
        ['git', 'describe', '--always', '--dirty', '--abbrev=12'],
        cwd=pathlib.Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
    return {
        'git': git.stdout.strip() or None,
        'versions': versions | {'python': platform.python_version()},
    }


def write_json(path: pathlib.Path, content: dict[str, Any]) -> None:
    """Writes under a temporary name first, so that no half-written file is left."""
    partial = path.with_suffix('.partial')
    partial.write_text(json.dumps(content, indent=2, ensure_ascii=False) + '\n')
    os.replace(partial, path)


def write_scores(workdir: pathlib.Path, scores: np.ndarray, included: np.ndarray) -> None:
    """Scores and coins in files of their own, joined by the canaries' ids."""
    ids = np.arange(scores.size)
    np.savez_compressed(workdir / 'scores.npz', ids=ids, scores=scores)
    np.savez_compressed(workdir / 'coins.npz', ids=ids, included=included)
