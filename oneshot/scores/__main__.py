"""ε from the command line: python -m oneshot.bounds --help."""

import argparse
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from oneshot import command, inputs
from oneshot.claims.claim import DPSGD
from oneshot.json_text import number_text
from oneshot.plan.score_law import Scoring
from oneshot.results import guess
from oneshot.results.methods import METHODS, Tally, audit_tally
from oneshot.results.result import ASSUMPTIONS, AuditResult
from oneshot.scores.front_door import audit_scores, pool
from oneshot.scores.tables import column, join, read

_USAGE = """--m M --r R --v V --delta DELTA [option ...]
       %(prog)s --scores FILE [...] --delta DELTA [option ...]"""

_EPILOG = """examples:
  %(prog)s --m=1000 --r=100 --v=75 --delta=1e-4 --eps=0.5
  %(prog)s --scores=scores.npz --coins=coins.npz --delta=1e-5 --method=fdp

Columns are `scores`, `included` and, for coins in a file of their own, `id`. Coins are 0 and 1, or
-1 and +1. Several files are several runs with fresh coins, and are audited as one."""


def main(argv: list[str] | None = None, prog: str | None = None) -> int:
    """Prints ε_LB, the p-value of a claim and the assumption; returns the exit status."""
    parser = _parser(prog or 'python -m oneshot.bounds')
    return command.run(parser, argv, _audit, AuditResult.as_dict, _show)


def _parser(prog: str) -> argparse.ArgumentParser:
    description = 'A lower bound on ε from the number of right guesses, or from scores.'
    parser = command.make_parser(prog, _USAGE, description, _EPILOG)
    paths = {'type': pathlib.Path, 'nargs': '+', 'metavar': 'FILE'}
    counts = parser.add_argument_group('from counts')
    counts.add_argument('--m', type=float, help='the number of canaries')
    counts.add_argument('--r', type=float, help='the number of guesses')
    counts.add_argument('--v', type=float, help='the number of right guesses')
    files = parser.add_argument_group('from scores')
    files.add_argument('--scores', **paths, help='.npz or .csv, one a run')
    files.add_argument('--coins', **paths, help='the coins, if apart')
    for flag, words in ('--k-plus', '"included"'), ('--k-minus', '"excluded"'):
        files.add_argument(flag, type=float, metavar='K', help=f'the number of guesses {words}')
    files.add_argument('--threshold', type=float, help='guess "included" above it')
    files.add_argument('--guesses', help=f'{", ".join(guess.NAMED_RULES)}; default planned')
    known = parser.add_argument_group(
        'the DP-SGD that gave the scores, for which guesses are planned'
    )
    known.add_argument('--noise-multiplier', '--sigma', type=float, metavar='σ', help='σ')
    known.add_argument(
        '--sampling-prob', '--q', type=float, default=1.0, metavar='q', help='q; default 1'
    )
    known.add_argument('--steps', type=float, default=1, help='default 1')
    known.add_argument('--score', default='dot', help='dot or llr; default dot')
    known.add_argument(
        '--scale', type=float, default=1.0, help='what c² is in the scores; default 1'
    )
    parser.add_argument('--delta', type=float, required=True, help='δ in [0, 1]')
    parser.add_argument('--eps', type=float, help='a claimed ε, for the p-value of the claim')
    parser.add_argument('--confidence', type=float, default=0.95, help='default 0.95')
    parser.add_argument('--method', default='one_run', help=f'{", ".join(METHODS)}')
    return parser


def _audit(flags: argparse.Namespace) -> AuditResult:
    options = {
        'delta': flags.delta,
        'confidence': flags.confidence,
        'method': flags.method,
        'eps_claimed': flags.eps,
    }
    counts = [name for name in ('m', 'r', 'v') if getattr(flags, name) is not None]
    claim = None
    if flags.noise_multiplier is not None:
        steps = inputs.count('--steps', flags.steps, 1, 10**7)
        claim = DPSGD(flags.noise_multiplier, flags.sampling_prob, steps)
    if flags.scores is None:
        of_scores = flags.coins, flags.k_plus, flags.k_minus, flags.threshold, flags.guesses
        if len(counts) < 3 or any(value is not None for value in of_scores):
            raise ValueError(
                'Either --m, --r and --v must be given, or --scores with what belongs to it.'
            )
        return audit_tally(Tally(*inputs.counts(flags.m, flags.r, flags.v), claim=claim), **options)
    if counts:
        raise ValueError(f'--scores takes no counts, but --{" and --".join(counts)} was given.')
    options['guesses'] = _rule(flags)
    if claim is not None:
        options['mechanism'] = Scoring(claim, flags.score, scale=flags.scale)
    runs = list(_runs(flags))
    return audit_scores(*(runs[0] if len(runs) == 1 else pool(runs)), **options)


def _rule(flags: argparse.Namespace) -> Any:
    if (flags.k_plus is None) != (flags.k_minus is None):
        raise ValueError('--k-plus and --k-minus must be given together or not at all.')
    rules = {
        '--k-plus': None if flags.k_plus is None else (flags.k_plus, flags.k_minus),
        '--threshold': None if flags.threshold is None else guess.Threshold(flags.threshold),
        '--guesses': flags.guesses,
    }
    chosen = [name for name, rule in rules.items() if rule is not None]
    if len(chosen) > 1:
        raise ValueError(f'Guesses are chosen in one way, but {" and ".join(chosen)} were given.')
    return rules[chosen[0]] if chosen else 'planned'


def _runs(flags: argparse.Namespace) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Scores and coins of each run, joined by id where they are in files of their own."""
    coins_paths = flags.coins or [None] * len(flags.scores)
    if len(coins_paths) != len(flags.scores):
        raise ValueError(
            f'--coins must be as many files as --scores, but {len(coins_paths)} and '
            f'{len(flags.scores)} were given.'
        )
    for path, coins_path in zip(flags.scores, coins_paths, strict=True):
        table = read(path)
        scores = column(table, 'scores', path)
        if coins_path is None:
            yield scores, column(table, 'included', path)
        else:
            coins = read(coins_path)
            ids = column(table, 'ids', path), column(coins, 'ids', coins_path)
            yield scores, join(scores, column(coins, 'included', coins_path), *ids)


def _show(result: AuditResult) -> None:
    method = METHODS[result.method]
    lines = [
        ('eps_lb', f'{number_text(result.eps_lb, ".6g")} {result.certainty}'),
        ('delta', f'{result.delta:g}'),
        ('assumes', f'{ASSUMPTIONS[result.assumptions]}; {method.condition}'),
        ('method', f'{result.method}, by {method.theorem}'),
        ('guesses', f'{result.correct:.6g} right of {result.guesses}, m = {result.m}'),
    ]
    if result.eps_claimed is not None:
        claim = f'{result.p_value:.4g} of the claim eps = {number_text(result.eps_claimed, "g")}'
        rejected = 'rejected' if result.violated else 'not rejected'
        lines.insert(1, ('p-value', f'{claim}: {rejected}'))
    for name, text in lines:
        print(f'{name:<9}{text}')


if __name__ == '__main__':
    sys.exit(main())
