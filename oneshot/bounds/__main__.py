"""ε from the command line: python -m oneshot.bounds --help."""

import argparse
import csv
import pathlib
import sys
import zipfile
import zlib

import numpy as np

from oneshot.scores import (
    ASSUMPTIONS,
    METHODS,
    AuditResult,
    Tally,
    audit_scores,
    audit_tally,
    to_json,
)

_EXAMPLES = """examples:
  python -m oneshot.bounds --m=1000 --r=100 --v=75 --delta=1e-4
  python -m oneshot.bounds --m=1000 --r=100 --v=75 --delta=1e-4 --eps=0.5 --json
  python -m oneshot.bounds --scores=scores.npz --coins=coins.npz --delta=1e-5

An .npz has arrays `scores`, `included` and `ids`; a CSV has a header and columns `score`,
`included` and `id`. Ids are needed where the coins are in a file of their own. Coins are 0 and 1,
or -1 and +1. The exit status is 0 whatever the verdict, and 2 on bad input."""

# What reading a broken .npz may raise; an array of objects, which is a pickle, is a ValueError.
_BROKEN = (ValueError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError)

# What a column may be called.
_NAMES = {
    'scores': ('scores', 'score'),
    'included': ('included', 'coins', 'coin'),
    'ids': ('ids', 'id'),
}


def main(argv: list[str] | None = None) -> int:
    """Prints ε_LB, the p-value of a claim and the assumption; returns the exit status."""
    parser = _parser()
    flags = parser.parse_args(argv)
    try:
        result = _audit(flags)
    except (ValueError, OSError) as error:
        print(f'{parser.prog}: {error}', file=sys.stderr)
        return 2
    print(to_json(result.as_dict()) if flags.json else _text(result))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog='python -m oneshot.bounds',
        description='A lower bound on ε from the number of right guesses, or from scores.',
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    counts = parser.add_argument_group('from counts')
    counts.add_argument('--m', type=float, help='the number of canaries')
    counts.add_argument('--r', type=float, help='the number of guesses')
    counts.add_argument('--v', type=float, help='the number of right guesses')
    files = parser.add_argument_group('from scores')
    files.add_argument('--scores', type=pathlib.Path, help='.npz or .csv with the scores')
    files.add_argument('--coins', type=pathlib.Path, help='.npz or .csv with the coins, if apart')
    files.add_argument('--k-plus', type=float, help='the number of guesses "included"')
    files.add_argument('--k-minus', type=float, help='the number of guesses "excluded"')
    parser.add_argument('--delta', type=float, required=True, help='δ in [0, 1]')
    parser.add_argument('--eps', type=float, help='a claimed ε, for the p-value of the claim')
    parser.add_argument('--confidence', type=float, default=0.95, help='default 0.95')
    parser.add_argument(
        '--method', default='one_run', help=f'{", ".join(METHODS)}; default one_run'
    )
    parser.add_argument('--json', action='store_true', help='print JSON')
    return parser


def _audit(flags: argparse.Namespace) -> AuditResult:
    options = {
        'delta': flags.delta,
        'confidence': flags.confidence,
        'method': flags.method,
        'eps_claimed': flags.eps,
    }
    given = [name for name in ('m', 'r', 'v') if getattr(flags, name) is not None]
    if flags.scores is None:
        if len(given) < 3 or any(x is not None for x in (flags.coins, flags.k_plus, flags.k_minus)):
            raise ValueError(
                'Either --m, --r and --v must be given, or --scores with what belongs to it.'
            )
        return audit_tally(Tally.of_counts(flags.m, flags.r, flags.v), **options)
    if given:
        raise ValueError(f'--scores takes no counts, but --{" and --".join(given)} was given.')
    return _audit_files(flags, options)


def _audit_files(flags: argparse.Namespace, options: dict) -> AuditResult:
    if (flags.k_plus is None) != (flags.k_minus is None):
        raise ValueError('--k-plus and --k-minus must be given together or not at all.')
    guesses = 'preset' if flags.k_plus is None else (flags.k_plus, flags.k_minus)
    table = _read(flags.scores)
    scores = _column(table, 'scores', flags.scores)
    if flags.coins is None:
        included = _column(table, 'included', flags.scores)
        return audit_scores(scores, included, guesses=guesses, **options)
    coins = _read(flags.coins)
    return audit_scores(
        scores,
        _column(coins, 'included', flags.coins),
        guesses=guesses,
        ids=_column(table, 'ids', flags.scores),
        included_ids=_column(coins, 'ids', flags.coins),
        **options,
    )


def _read(path: pathlib.Path) -> dict[str, np.ndarray]:
    """The columns of an .npz or a CSV. Nothing in the file is ever executed."""
    if path.suffix == '.csv':
        with path.open(newline='', encoding='utf-8-sig', errors='replace') as file:
            try:
                rows = list(csv.reader(file))
            except csv.Error:
                rows = []
        if not rows or any(len(row) != len(rows[0]) for row in rows):
            raise ValueError(f'{path} must be a CSV with a header and rows of equal length.')
        return dict(zip(rows[0], np.array(rows[1:]).reshape(-1, len(rows[0])).T, strict=True))
    with path.open('rb') as file:
        try:
            if not zipfile.is_zipfile(file):
                raise zipfile.BadZipFile
            with np.load(file, allow_pickle=False) as arrays:
                return {name: np.asarray(arrays[name]) for name in arrays.files}
        except _BROKEN:
            raise ValueError(
                f'{path} must be an .npz of plain arrays or a .csv; pickled files are not read.'
            ) from None


def _column(table: dict[str, np.ndarray], name: str, path: pathlib.Path) -> np.ndarray:
    for alias in _NAMES[name]:
        if alias in table:
            break
    else:
        raise ValueError(
            f'{path} must have a column {" or ".join(_NAMES[name])}, but has '
            f'{", ".join(table) or "none"}.'
        )
    if name == 'ids':
        return table[alias].astype(str)
    try:
        if table[alias].dtype.kind not in 'biufU':
            raise ValueError
        return table[alias].astype(float)
    except ValueError:
        raise ValueError(f'{path} must have numbers only in its column {alias}.') from None


def _text(result: AuditResult) -> str:
    method = METHODS[result.method]
    lines = [
        ('eps_lb', f'{result.eps_lb:.6g} with {100 * result.confidence:g} % confidence'),
        ('delta', f'{result.delta:g}'),
        ('assumes', f'{ASSUMPTIONS[result.assumptions]}; {method.condition}'),
        ('method', f'{result.method}, by {method.theorem}'),
        ('guesses', f'{result.correct:.6g} right of {result.guesses}, m = {result.m}'),
    ]
    if result.eps_claimed is not None:
        rejected = 'rejected' if result.violated else 'not rejected'
        claim = f'{result.p_value:.4g} of the claim eps = {result.eps_claimed:g}: {rejected}'
        lines.insert(1, ('p-value', claim))
    return '\n'.join(f'{name:<9}{text}' for name, text in lines)


if __name__ == '__main__':
    sys.exit(main())
