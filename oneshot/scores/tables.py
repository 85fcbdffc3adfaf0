"""Scores and coins from files, .npz and .csv, and joined by the names of their canaries."""

import collections
import csv
import pathlib
import zipfile
import zlib
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from oneshot import inputs

# What reading a broken .npz may raise; an array of objects, which is a pickle, is a ValueError.
_BROKEN = (ValueError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError)

# What a column may be called.
_NAMES = {
    'scores': ('scores', 'score'),
    'included': ('included', 'coins', 'coin'),
    'ids': ('ids', 'id'),
}


def read(path: pathlib.Path) -> dict[str, np.ndarray]:
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


def column(table: dict[str, np.ndarray], name: str, path: pathlib.Path) -> np.ndarray:
    """A column of the table, under any of its names."""
    alias = next((alias for alias in _NAMES[name] if alias in table), None)
    if alias is None:
        names, present = ' or '.join(_NAMES[name]), ', '.join(table) or 'none'
        raise ValueError(f'{path} must have a column {names}, but has {present}.')
    if name == 'ids':
        return table[alias].astype(str)
    try:
        if table[alias].dtype.kind not in 'biufU':
            raise ValueError
        return table[alias].astype(float)
    except ValueError:
        raise ValueError(f'{path} must have numbers only in its column {alias}.') from None


def join(
    scores: ArrayLike, included: ArrayLike, ids: ArrayLike | None, included_ids: ArrayLike | None
) -> np.ndarray:
    """The coins in the order of the scores, by name."""
    size, included = np.size(scores), inputs.vector('included', included)
    if ids is None or included_ids is None:
        missing = 'ids' if ids is None else 'included_ids'
        raise ValueError(f'ids and included_ids must be given together, but {missing} is missing.')
    names = _names('ids', ids, size)
    coins = dict(zip(_names('included_ids', included_ids, included.size), included, strict=True))
    without_coin = [name for name in names if name not in coins]
    without_score = list(coins.keys() - set(names))
    if without_coin or without_score:
        raise ValueError(
            'scores and coins must name the same canaries, but '
            f'{_some(without_coin)} have no coin and {_some(without_score)} have no score.'
        )
    return np.array([coins[name] for name in names])


def _names(what: str, ids: ArrayLike, size: int) -> list[Any]:
    """The ids as plain Python values, which are equal only if they are the same."""
    ids = np.asarray(ids, dtype=object) if isinstance(ids, (list, tuple)) else np.asarray(ids)
    if ids.shape != (size,):
        raise ValueError(f'{what} must name each of {size} entries, but has shape {ids.shape}.')
    names = ids.tolist()
    repeated = [name for name, count in collections.Counter(names).items() if count > 1]
    if repeated:
        raise ValueError(f'{what} must be unique, but {_some(repeated)} repeat.')
    return names


def _some(ids: list[Any]) -> str:
    """The first few ids, for an error message."""
    if not ids:
        return 'no ids'
    ordered = sorted(ids, key=lambda name: (str(type(name)), name))
    shown = ', '.join(map(str, ordered[:5]))
    return f'ids {shown}' + (f' and {len(ids) - 5} more' if len(ids) > 5 else '')
