"""The draws of a sampler that is claimed to be Poisson sampling with q."""

import math

import jax
import numpy as np
import scipy

from oneshot.check.runner import STEPS, Finding
from oneshot.check.step import Step

_EXAMPLES, _MOST = 400, 4_000  # at least and at most; the more, the smaller q is
_COMPARED = 100  # steps, and examples, each of which is compared with every other


def examine(step: Step, key: jax.Array) -> list[Finding]:
    """All that can be said of the draws. They are independent coins of probability q."""
    q = step.sampling_prob
    spread = max(q * (1.0 - q), 1e-3)
    n = min(_MOST, max(_EXAMPLES, math.ceil(100.0 / spread)))
    steps = min(_MOST, max(STEPS, math.ceil(25.0 / spread)))
    counts = draw(step, key, n, steps)
    drawn = counts > 0
    return [
        _once(counts),
        _rate(drawn, q),
        _dispersion('batch sizes', drawn.sum(1), n),
        _dispersion('draws of an example', drawn.sum(0), steps),
        _pairs('steps that draw the same', drawn[:_COMPARED]),
        _pairs('examples drawn together', drawn[:, :_COMPARED].T),
    ]


def draw(step: Step, key: jax.Array, n: int, steps: int) -> np.ndarray:
    """How often each step draws each example, by the sampler of the step."""
    counts = np.asarray(step.sample(key, n, steps))
    if counts.shape != (steps, n):
        raise ValueError(
            f'sample must return an array of steps × n = {(steps, n)}, but returned one of '
            f'{counts.shape}.'
        )
    if counts.dtype.kind not in 'bui' or counts.min(initial=0) < 0:
        raise ValueError(
            'sample must return bools, or how often an example is drawn, but returned '
            f'{counts.dtype} from {counts.min()} on.'
        )
    return counts


def _once(counts: np.ndarray) -> Finding:
    most = int(counts.max(initial=0))
    return Finding(
        'draws in a batch',
        'no example more than once in a batch',
        f'at most {most} times',
        wrong=most > 1,
        cause='Examples are drawn with replacement, or stand in the data more than once.',
    )


def _rate(drawn: np.ndarray, q: float) -> Finding:
    share = float(drawn.mean())
    return Finding(
        'sampling rate',
        f'every example with q = {q:.4g}, or less often',
        f'{share:.4g} of {drawn.size:,} chances',
        p_value=float(scipy.stats.binom.sf(drawn.sum() - 1, drawn.size, q)),
        cause='The accountant is given another q than the sampler: the batch of one device, or '
        'the number of examples before some were taken out.',
    )


def _dispersion(check: str, sums: np.ndarray, trials: int) -> Finding:
    """The variance of the sums, at the measured rate, against a gamma distribution like it."""
    q = float(sums.mean()) / trials
    variance, seen = trials * q * (1.0 - q), float(np.var(sums, ddof=1))
    expected = f'a variance of {variance:.4g}, as independent draws have'
    cause = (
        'Batches of a fixed size are drawn, by shuffling or without replacement, and accounted '
        'for as Poisson sampling.'
    )
    if variance == 0.0:
        return Finding(check, expected, f'{seen:.4g}', wrong=seen > 0.0, cause=cause)
    kurtosis = (1.0 - 6.0 * q * (1.0 - q)) / variance  # of one sum, in excess
    relative = 2.0 / (sums.size - 1) + kurtosis / sums.size
    law = scipy.stats.gamma(1.0 / relative, scale=variance * relative)
    chance = float(2.0 * min(law.cdf(seen), law.sf(seen)))
    return Finding(check, expected, f'{seen:.4g}', p_value=min(1.0, chance), cause=cause)


def _pairs(check: str, rows: np.ndarray) -> Finding:
    """What two rows share, given how many each has, has a hypergeometric law."""
    sizes, width = rows.sum(1), rows.shape[1]
    first, second = np.triu_indices(len(rows), 1)
    shared = (rows.astype(np.int64) @ rows.T.astype(np.int64))[first, second]
    laws = scipy.stats.hypergeom(width, sizes[first], sizes[second])
    chances = 2.0 * np.minimum(laws.cdf(shared), laws.sf(shared - 1))
    worst = int(np.argmin(chances))
    mean = sizes[first[worst]] * sizes[second[worst]] / width
    return Finding(
        check,
        'no more and no fewer in common than by chance',
        f'{shared[worst]} where {mean:.4g} are expected',
        p_value=min(1.0, len(first) * float(chances[worst])),
        cause='A batch is used for several steps, or an epoch is cut into batches, or groups of '
        'examples are drawn together.',
    )
