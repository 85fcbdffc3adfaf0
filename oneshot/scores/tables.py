"""Scores and coins from files: .npz and .csv."""

import csv
import pathlib
import zipfile
import zlib

import numpy as np

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
