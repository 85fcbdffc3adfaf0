"""The noise: its deviation in every leaf, its law, and whether it is independent."""

import itertools
import math

import jax
import numpy as np
import scipy

from oneshot.check.runner import STEPS, Finding, Leaf, Runner

_MOST = 4_096  # coordinates of a step that are compared with those of another
_PREFIX = 256  # coordinates of a leaf that are compared with those of another
_SAMPLE = 100_000  # values of which the law is looked at
_REPEATED = 1e-9  # a p-value at which coordinates, steps or leaves are taken for alike


def noise_only_gradients(runner: Runner, key: jax.Array) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of examples that have none: the noise, beside few examples and beside many."""
    rows = np.arange(runner.step.rows, dtype=np.int32)
    examples, noise = runner.zero_gradient_examples(runner.room), []
    for i, count in enumerate((2, rows.size)):
        indices = np.tile(np.where(rows < count, rows, -1), (STEPS, 1))
        noise.append(runner.run(jax.random.fold_in(key, i), examples, indices).astype(np.float64))
    return noise[0], noise[1]


def examine(runner: Runner, few: np.ndarray, many: np.ndarray) -> list[Finding]:
    """All that can be said of the noise."""
    values = many / runner.step.deviation
    if not np.isfinite(values).all():
        cause = 'There is a division by 0, or the noise itself is not finite.'
        return [Finding('noise', 'finite', 'NaN or ∞ without any example', wrong=True, cause=cause)]
    # By the deviation that is measured on each leaf, where there is any noise.
    measured = [_rms(leaf.of(values)) or 1.0 for leaf in runner.leaves]
    unit = values / np.repeat(measured, [leaf.size for leaf in runner.leaves])
    within = _within(runner, unit[:1])
    if within.p_value < _REPEATED:  # coordinates that are alike say nothing of anything else
        return [within]
    steps = _steps(runner, unit)
    if steps.p_value < _REPEATED:  # and nor do steps
        few, many, values, unit = (rows[:1] for rows in (few, many, values, unit))
    leaves = _leaves(runner, unit)
    if leaves.p_value < _REPEATED:
        few, many = (_largest(runner, unit).of(noise) for noise in (few, many))
    rows = _rows(few, many)
    deviation, law = _deviation(runner, values, rows), _law(unit)
    return [deviation, rows, law, steps, leaves, _within(runner, unit)]


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def _deviation(runner: Runner, values: np.ndarray, rows: Finding) -> Finding:
    """Σ x²/σ² of N values has the chi-squared distribution with N degrees of freedom."""

    def tail(leaf: Leaf) -> tuple[float, float]:
        own = leaf.of(values)
        return float(scipy.stats.chi2.cdf(np.sum(np.square(own)), own.size)), _rms(own)

    # Of leaves that are as unlikely as can be, the one with the least noise is shown.
    tails = [tail(leaf) for leaf in runner.leaves]
    (p_value, measured), worst = min(zip(tails, runner.leaves, strict=True), key=lambda x: x[0])
    too_little = sum(rms < 0.9 for _, rms in tails)
    overall, unit = _rms(values), runner.step.deviation
    note = ''
    if all(rms > 1.1 for _, rms in tails):
        note = f'The noise is {overall:.4g} times what is claimed: more private, less useful.'
    return Finding(
        'noise',
        f'the deviation σc/B = {unit:.4g} in every leaf',
        f'{measured * unit:.4g} in {worst.name}, of {worst.of(values).size:,} values; '
        f'less by a tenth in {too_little} of {len(tails)} leaves',
        p_value=min(1.0, len(tails) * p_value),
        cause=rows.cause if rows.p_value < _REPEATED else _cause(runner, overall, too_little),
        note=note,
    )


def _cause(runner: Runner, share: float, too_little: int) -> str:
    step = runner.step
    if too_little < len(runner.leaves):
        return (
            'Noise is left off some leaves: frozen, added late, or not in the list of parameters.'
        )
    if share == 0.0:
        return 'There is no noise at all.'
    guesses = {
        'The noise is not multiplied by the clip norm.': 1.0 / step.clip_norm,
        'The noise is divided by the batch size twice.': 1.0 / step.expected_batch_size,
        'σ is taken as a variance.': 1.0 / math.sqrt(step.noise_multiplier),
    }
    for words, factor in guesses.items():
        if factor < 0.9 and abs(share / factor - 1.0) < 0.02:
            return words
    parts = share**-2
    if abs(parts - round(parts)) < 0.05 * parts:
        return (
            f'It is 1/√{round(parts)} of what it should be: each of {round(parts)} devices or '
            'parts of a batch adds too little, or only one of them adds any.'
        )
    return 'σ, the clip norm or the batch size are not those of the claim.'


def _rows(few: np.ndarray, many: np.ndarray) -> Finding:
    """The ratio of two mean squares has the F distribution."""
    squares = np.mean(np.square(few)), np.mean(np.square(many))
    p_value = 1.0
    if squares[0] != squares[1]:
        ratio = scipy.stats.f(few.size, many.size)
        share = squares[0] / squares[1] if squares[1] > 0.0 else math.inf
        p_value = float(2.0 * min(ratio.cdf(share), ratio.sf(share)))
    return Finding(
        'noise by batch size',
        'the same noise beside few examples and beside many',
        f'{_rms(few):.4g} beside two, {_rms(many):.4g} in a full batch',
        p_value=min(1.0, p_value),
        cause='The noise is divided by, or made for, the number of drawn examples, which is not '
        'public: how large it is tells how many there were.',
    )


def _law(unit: np.ndarray) -> Finding:
    """Kolmogorov and Smirnov's test; with a measured deviation it is careful."""
    values = unit[unit != 0.0]  # where there is none, another check says so
    if not values.size:
        return Finding('law of the noise', 'a normal law', 'no noise', p_value=1.0)
    test = scipy.stats.kstest(values[:: max(1, values.size // _SAMPLE)], 'norm')
    return Finding(
        'law of the noise',
        'a normal law',
        f'{test.statistic:.2g} away from one, in distribution',
        p_value=float(test.pvalue),
        cause='The noise is not Gaussian, or the same value stands at many coordinates, and the '
        'accountant takes it for Gaussian.',
    )


def correlation_p_value(correlation: np.ndarray, size: np.ndarray | int) -> np.ndarray:
    """Two-sided, of ⟨x, y⟩/‖x‖‖y‖ of independent normal vectors: Student's t."""
    freedom, left = np.asarray(size) - 1, np.maximum(1.0 - np.square(correlation), 1e-300)
    return 2.0 * scipy.stats.t.sf(np.abs(correlation) * np.sqrt(freedom / left), freedom)


def _normalized(rows: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(rows, axis=-1, keepdims=True)
    return rows / np.where(norms > 0.0, norms, 1.0)


def _largest(runner: Runner, unit: np.ndarray) -> Leaf:
    """The largest leaf with noise."""
    return max(runner.leaves, key=lambda leaf: (bool(leaf.of(unit).any()), leaf.size))


def _steps(runner: Runner, unit: np.ndarray) -> Finding:
    """Every step against every other, on one leaf: leaves may be alike."""
    some = _largest(runner, unit).of(unit)[:, :_MOST]
    rows = _normalized(some)
    products = np.triu(rows @ rows.T, 1)
    first, second = np.unravel_index(np.argmax(np.abs(products)), products.shape)
    worst, pairs = products[first, second], len(some) * (len(some) - 1) // 2
    return Finding(
        'steps',
        'noise that is independent from step to step',
        f'correlation {worst:.2g} between steps {first + 1} and {second + 1}',
        p_value=min(1.0, pairs * float(correlation_p_value(worst, some.shape[1]))),
        cause='The key is not split or folded with the number of the step, so that the '
        'difference of two steps has no noise.',
    )


def _leaves(runner: Runner, unit: np.ndarray) -> Finding:
    """The beginning of every leaf against that of every other."""
    if len(runner.leaves) < 2:
        return Finding('leaves', 'noise of its own in every leaf', 'one leaf', p_value=1.0)
    pairs, values, sizes = list(itertools.combinations(runner.leaves, 2)), [], []
    for pair in pairs:
        width = min(_PREFIX, *(leaf.size for leaf in pair))
        rows = [leaf.of(unit)[:, :width].reshape(-1) for leaf in pair]
        first, second = _normalized(np.stack(rows, axis=1).T)
        values.append(float(first @ second))
        sizes.append(first.size)
    chances = correlation_p_value(np.array(values), np.array(sizes))
    worst = int(np.lexsort((-np.abs(values), chances))[0])
    first, second = pairs[worst]
    return Finding(
        'leaves',
        'noise of its own in every leaf',
        f'correlation {values[worst]:.2g} between {first.name} and {second.name}',
        p_value=min(1.0, len(pairs) * float(chances[worst])),
        cause='One key makes the noise of all leaves, so that the difference of two leaves has '
        'none.',
    )


def _within(runner: Runner, unit: np.ndarray) -> Finding:
    """Every leaf against itself, moved along each of its axes.

    The correlation at a lag, around a circle, has a variance of at most 2/N (at half of it).
    """
    tests, worst = 0, (1.0, 0.0, '', 0)
    for leaf in runner.leaves:
        block = leaf.of(unit).reshape(len(unit), *leaf.shape)
        for axis in range(len(leaf.shape)):
            moved = np.moveaxis(block, 1 + axis, 1).reshape(len(unit), -1)
            spectrum = np.sum(np.abs(np.fft.rfft(moved, axis=1)) ** 2, axis=0)
            lags = np.fft.irfft(spectrum, moved.shape[1])[: moved.shape[1] // 2 + 1]
            if lags[0] == 0.0 or leaf.shape[axis] < 2:
                continue
            values = lags[1:] / lags[0]
            lag = int(np.argmax(np.abs(values)))
            chance = correlation_p_value(values[lag], max(2, moved.size // 2))
            tests += values.size
            worst = min(worst, (float(chance), float(values[lag]), leaf.name, lag + 1))
    chance, value, name, lag = worst
    return Finding(
        'coordinates and shards',
        'noise of its own at every coordinate',
        f'correlation {value:.2g} at a distance of {lag} in {name}' if tests else 'no noise',
        p_value=min(1.0, max(1, tests) * chance),
        cause='Shards of a leaf draw their noise from the same key, or one value is broadcast.',
    )
