"""The files that a run leaves behind."""

import pathlib
from typing import Any

import numpy as np

from oneshot import files
from oneshot.json_text import to_json


def write_coins(directory: pathlib.Path, coins: np.ndarray) -> None:
    """Writes the coins, which are for the eyes of the owner alone."""
    ids = np.arange(coins.size)
    files.write_arrays(directory / 'coins.npz', mode=0o600, ids=ids, included=coins)


def write_scores(path: pathlib.Path, headline: str, scores: dict[str, np.ndarray]) -> None:
    """Writes scores with the ids of their canaries: as `scores` the headline's, and all by name."""
    ids = np.arange(scores[headline].size)
    files.write_arrays(path, ids=ids, scores=scores[headline], **scores)


def write_result(directory: pathlib.Path, record: dict[str, Any]) -> None:
    """Writes the result, which is the last that a run does: with it, it is finished."""
    files.write(directory / 'result.json', f'{to_json(record)}\n'.encode())
