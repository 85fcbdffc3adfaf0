"""One sentence for each bad input: what was given, and what would be right."""

import functools
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
    name: str, value: object, low: float = -math.inf, high: float = math.inf, ends: str = '[]'
) -> float:
    """Returns `value` as a float if it is a number in the interval, such as '(]' without low."""
    right = _is_number(value) and (low < value if ends[0] == '(' else low <= value)
    if not right or not (value < high if ends[1] == ')' else value <= high):
        interval = f'{ends[0]}{low:g}, {high:g}{ends[1]}'
        raise ValueError(f'{name} must be a number in {interval}, but {value!r} was given.')
    return float(value)


def array(value: object, check: Callable[[object], float]) -> np.ndarray:
    """Returns `value` as an array whose every entry passed `check`."""
    entries = np.asarray(value, dtype=object)
    return np.array([check(entry) for entry in entries.ravel()]).reshape(entries.shape)


def counts(m: object, r: object, v: object) -> tuple[int, int, int]:
    """Checks 0 <= v <= r <= m and 1 <= m: canaries, guesses, right guesses."""
    m = count('m, the number of canaries,', m, 1)
    r = count('r, the number of guesses,', r, 0, m)
    return m, r, count('v, the number of right guesses,', v, 0, r)


eps = functools.partial(real, 'eps', low=0.0)
delta = functools.partial(real, 'delta', low=0.0, high=1.0)
confidence = functools.partial(real, 'confidence', low=0.0, high=1.0, ends='()')


def choice(name: str, value: object, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise ValueError(f'{name} must be one of {", ".join(allowed)}, but {value!r} was given.')
    return value


def vector(name: str, value: object) -> np.ndarray:
    """Returns `value` as a float vector with at least one entry and no NaN."""
    try:
        array = np.asarray(value)
    except ValueError:  # ragged nested sequences
        array = np.asarray(None)
    numeric = array.dtype.kind in 'biuf'
    if not numeric or array.ndim != 1 or array.size == 0:
        shown = f'shape {array.shape}, type {array.dtype}' if numeric else short(value)
        raise ValueError(
            f'{name} must be a vector of at least one real number, but {shown} was given.'
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
    with np.errstate(over='ignore'):
        total = float(sizes.sum())
    if total == math.inf:
        raise ValueError(f'weights must have a finite sum, but {largest!r} is the largest given.')
    # v is a float sum, perhaps in another order than the total is.
    v = real('v, the weight of the right guesses,', v, 0.0, total * (1.0 + 1e-12))
    return sizes, min(total, v)


def short(value: object) -> str:
    """The beginning of a value's representation, for a sentence."""
    text = ' '.join(repr(value).split())
    return text if len(text) <= 80 else text[:77] + '...'


def one_line(error: BaseException) -> str:
    """The beginning of what an error says, for a sentence."""
    return str(error).strip().partition('\n')[0][:200] or type(error).__name__


def require(extra: str, *modules: str) -> None:
    """Raises an ImportError that names the extra to install, where a library is missing."""
    for name in modules:
        if importlib.util.find_spec(name) is None:
            raise ImportError(f"oneshot needs {name} for this: pip install 'oneshot[{extra}]'.")
