"""Results as CSV files: columns of words, then columns of numbers, empty where there is none."""

import csv
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

Row = dict[str, Any]


def read(path: pathlib.Path, numbers: Sequence[str]) -> list[Row]:
    """The rows of a file; none if there is no file."""
    if not path.exists():
        return []
    with path.open(newline='') as file:
        rows = list(csv.DictReader(file))
    return [row | {name: float(row[name] or 'nan') for name in numbers} for row in rows]


def column(rows: Sequence[Row], name: str, **chosen: Any) -> np.ndarray:
    """What the rows with these values have in a column."""
    matching = (row for row in rows if all(row[key] == value for key, value in chosen.items()))
    return np.array([row[name] for row in matching])


def write(
    path: pathlib.Path, rows: Sequence[Row], words: Sequence[str], numbers: Sequence[str]
) -> None:
    """Whole or not at all: who is stopped while writing keeps what there was."""
    new = path.with_suffix('.new')
    with new.open('w', newline='') as file:
        writer = csv.DictWriter(file, [*words, *numbers], lineterminator='\n')
        writer.writeheader()
        for row in rows:
            writer.writerow(row | {k: f'{row[k]:.9g}'.replace('nan', '') for k in numbers})
    new.replace(path)
