"""Joins scores and coins by the names of their canaries."""

import collections
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from oneshot import inputs


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
