"""One sentence for each bad input: what was given, and what would be right."""

import importlib.util
import math
import numbers
from collections.abc import Callable, Sequence

import numpy as np

MOST = 10**12  # the largest count; a bound takes time and memory in its square root


def _is_number(value: object) -> bool:
    if not isinstance(value, numbers.Real) or isinstance(value, (bool, np.bool_)):
        return False
    return not isinstance(value, numbers.Integral) or abs(value) < 2**1023  # fits a float


def count(name: str, value: object, low: int, high: int = MOST) -> int:
    """Returns `value` as an int if it is a whole number in [low, high]."""
    if not _is_number(value) or not low <= value <= high or value != int(value):
        raise ValueError(
            f'{name} must be a whole number from {low} to {high}, but {value!r} was given.'
        )
    return int(value)


def real(
    name: str,
    value: object,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    open_low: bool = False,
    open_high: bool = False,
) -> float:
    """Returns `value` as a float if it is a number in the interval."""
    right = _is_number(value) and (low < value if open_low else low <= value)
    right = right and (value < high if open_high else value <= high)
    if not right:
        interval = f'{"(" if open_low else "["}{low:g}, {high:g}{")" if open_high else "]"}'
        raise ValueError(f'{name} must be a number in {interval}, but {value!r} was given.')
    return float(value)


def array(value: object, check: Callable[[object], float]) -> np.ndarray:
    """Returns `value` as an array whose every entry passed `check`."""
    try:
        entries = np.asarray(value)
    except ValueError:  # ragged nested sequences
        check(value)
        raise
    return np.array([check(one) for one in entries.ravel().tolist()]).reshape(entries.shape)


def counts(m: object, r: object, v: object) -> tuple[int, int, int]:
    """Checks 0 <= v <= r <= m and 1 <= m: canaries, guesses, right guesses."""
    m = count('m, the number of canaries,', m, 1)
    r = count('r, the number of guesses,', r, 0, m)
    return m, r, count('v, the number of right guesses,', v, 0, r)


def eps(value: object) -> float:
    return real('eps', value, 0.0)


def delta(value: object) -> float:
    return real('delta', value, 0.0, 1.0)


def confidence(value: object) -> float:
    return real('confidence', value, 0.0, 1.0, open_low=True, open_high=True)


def choice(name: str, value: object, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise ValueError(f'{name} must be one of {", ".join(allowed)}, but {value!r} was given.')
    return value


def vector(name: str, value: object) -> np.ndarray:
    """Returns `value` as a float vector with at least one entry and no NaN."""
    try:
        array = np.asarray(value)
        numeric = array.dtype.kind in 'biuf'
    except ValueError:  # ragged nested sequences
        numeric = False
    if not numeric or array.ndim != 1 or array.size == 0:
        given = f'shape {array.shape}, type {array.dtype}' if numeric else f'{value!r}'
        given = given if len(given) <= 80 else given[:77] + '...'
        raise ValueError(
            f'{name} must be a vector of at least one real number, but {given} was given.'
        )
    array = array.astype(float)
    if bad := np.flatnonzero(np.isnan(array)).tolist():
        raise ValueError(
            f'{name} must not contain NaN, but {len(bad)} of {array.size} entries are NaN, '
            f'the first at position {bad[0]}.'
        )
    return array


def weights(value: object, v: object, *, bounded: bool) -> tuple[np.ndarray, float]:
    """Checks the weights |t_i|, at most 1 if `bounded`, and the right guesses' share v."""
    sizes = np.abs(vector('weights', value))
    largest = float(sizes.max())
    if largest == math.inf or (bounded and largest > 1.0):
        limit = 'lie in [-1, 1] where delta > 0' if bounded else 'be finite'
        raise ValueError(f'weights must {limit}, but one of size {largest!r} was given.')
    # v is a float sum, perhaps in another order than the total is.
    with np.errstate(over='ignore'):
        total = float(sizes.sum())
    if total == math.inf:
        raise ValueError(f'weights must have a finite sum, but {largest!r} is the largest given.')
    v = real('v, the weight of the right guesses,', v, 0.0, total * (1.0 + 1e-12))
    return sizes, min(total, v)


def one_line(error: BaseException) -> str:
    """The beginning of what an error says, for a sentence."""
    return str(error).strip().partition('\n')[0][:200] or type(error).__name__


def require(extra: str, *modules: str) -> None:
    """Raises an ImportError that names the extra to install, where a library is missing."""
    for name in modules:
        if importlib.util.find_spec(name) is None:
            raise ImportError(f"oneshot needs {name} for this: pip install 'oneshot[{extra}]'.")
