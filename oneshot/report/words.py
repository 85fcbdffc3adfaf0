"""What is said of a result: the verdict, and the tables, which are printed here."""

import math
from typing import Any

from rich.console import Console
from rich.table import Table

from oneshot.json_text import number_text
from oneshot.results.guess import RULES
from oneshot.results.methods import METHODS
from oneshot.results.result import ASSUMPTIONS, AuditResult

Results = dict[tuple[str, str], AuditResult]  # by score and method
COLUMNS = ('score', 'method', 'ε_LB', 'right', 'kind', 'assumes')


def verdict(result: AuditResult) -> str:
    """What the result says of the claim, in words."""
    if result.violated and result.kind != 'bound':
        return f'above the claim, which proves nothing: the result is of kind "{result.kind}"'
    if result.violated and result.assumptions == 'none':
        return 'the claim is violated: its proof or its code is wrong'
    if result.violated:
        return 'the claim is violated, unless the assumption does not hold'
    return 'consistent with the claim'


def description(config: dict[str, Any], record: dict[str, Any]) -> dict[str, str]:
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
    method, claimed, verdicts = METHODS[result.method], 'none is claimed', []
    if result.eps_claimed is not None:
        proven = ': nothing is proven' if math.isinf(result.eps_claimed) else ''
        claimed = f'{number_text(result.eps_claimed)} at δ = {result.delta:g}{proven}'
        verdicts = [('p-value of the claim', f'{result.p_value:.3g}'), ('verdict', verdict(result))]
    guesses = (
        f'{result.guesses:,} (k+ = {result.k_plus:,} "in", k- = {result.k_minus:,} "out"), '
        f'{RULES[result.rule].words}'
    )
    coin = ' pairs, one of each in' if method.pairs else ', each in or out'
    made = result.guesses if result.weight is None else result.weight
    right = (
        f'{result.correct:,.6g} of {made:,.6g} ({result.correct / made:.1%})' if made else 'none'
    )
    return [
        *about.items(),
        ('ε_UB', claimed),
        ('ε_LB', f'{number_text(result.eps_lb)} {result.certainty}'),
        ('method', f'{result.method}, by {method.theorem}'),
        ('assumes', f'{ASSUMPTIONS[result.assumptions]}; {method.condition}'),
        ('canaries', f'm = {result.m:,}{coin} by a fair coin'),
        ('guesses', guesses),
        ('right guesses', right),
        *verdicts,
    ]


def result_rows(results: Results) -> list[tuple[str, ...]]:
    """Every score by every method, as `COLUMNS` has it."""
    return [
        (
            score,
            method,
            number_text(result.eps_lb),
            f'{result.correct:,.5g} of {_made(result)}' if result.guesses else '',
            result.kind,
            ASSUMPTIONS[result.assumptions],
        )
        for (score, method), result in results.items()
    ]


def _made(result: AuditResult) -> str:
    """The number of guesses, or their weight."""
    return f'{result.guesses:,}' if result.weight is None else f'{result.weight:,.5g}'


def show(about: dict[str, str], score: str, result: AuditResult, results: Results) -> None:
    """Prints the headline and, below it, its score by every method and every score by its own."""
    console = Console()
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
