"""The expected ε_LB of an audit, for any choice of guesses, from the law of the scores."""

import dataclasses
import itertools
import math
from collections.abc import Callable

import numpy as np
import scipy

from oneshot import inputs
from oneshot.plan.score_law import Law, Scoring
from oneshot.results import guess
from oneshot.results.methods import METHODS, ConfusionCounts, Tally

PLANNED_METHODS = tuple(name for name, method in METHODS.items() if not method.pairs)
# Those for which (k_plus, k_minus) is chosen; for `weighted` it is weights.
COUNT_METHODS = tuple(
    name for name in PLANNED_METHODS if METHODS[name].takes_counts and not METHODS[name].by_weights
)
MOST_CANARIES = 10**7
LATTICE = 8  # weights are multiples of its inverse

# Points and weights for the mean of a function of a standard normal.
NORMAL_POINTS, NORMAL_WEIGHTS = np.polynomial.hermite_e.hermegauss(5)
_NODES = 25  # numbers of wrong guesses at which a bound is computed, if there are more

Rule = tuple[int, int] | guess.Ranked | guess.Threshold | None


@dataclasses.dataclass(frozen=True)
class AuditSetting:
    """All that a plan has to know of an audit: everything but the guesses."""

    scoring: Scoring
    m: int
    delta: float
    confidence: float = 0.95
    method: str = 'one_run'

    def __post_init__(self) -> None:
        inputs.count('m, the number of canaries,', self.m, 2, MOST_CANARIES)
        inputs.delta(self.delta)
        inputs.confidence(self.confidence)
        inputs.choice('method', self.method, PLANNED_METHODS)

    def eps_lb(self, tally: Tally) -> float:
        """The bound on ε if the guesses come to this."""
        return METHODS[self.method].eps_lower_bound(tally, self.delta, self.confidence)

    def rejects(self, tally: Tally, eps: float) -> bool:
        """Whether the claim (eps, delta) is rejected if the guesses come to this."""
        p_value = METHODS[self.method].p_value(tally, eps, self.delta, self.confidence)
        return p_value <= 1.0 - self.confidence


def expected_eps_lb(
    audit: AuditSetting, rule: Rule, noise_multiplier: float | None = None
) -> float:
    """The mean of ε_LB over scores and coins, for these guesses; ∞ if ε_LB may be.

    `noise_multiplier` is that of the algorithm, if it is not the claimed one.
    """
    law = audit.scoring.law(noise_multiplier)
    if rule is None:
        return expected_for_gaussian_pair(audit, law)
    if isinstance(rule, guess.Threshold):
        return expected_for_threshold(audit, law, rule.value)
    slow = isinstance(rule, guess.Ranked) or audit.method == 'fdp_dpsgd'
    return expected_for_guesses(audit, law, rule, 5 if slow else _NODES)


def outcomes(
    audit: AuditSetting, rule: tuple[int, int] | guess.Ranked
) -> tuple[int, Callable[[int], Tally], Callable[[Law], np.ndarray]]:
    """What guesses by counts or by weights may come to, by how many of them are wrong.

    Returns the most that can be wrong (for weights, in units of 1 / LATTICE), the tally if so many
    are, and the chances of 0, 1, 2 … as a function of the law of the scores.
    """
    m, claim = audit.m, audit.scoring.claim
    if isinstance(rule, guess.Ranked):
        weights = np.asarray(rule.weights)
        sizes = np.abs(weights)
        total, r = float(np.sum(sizes)), int(np.count_nonzero(sizes))
        return (
            round(LATTICE * total),
            lambda wrong: Tally(m, r, max(0.0, total - wrong / LATTICE), sizes),
            lambda law: _wrong_weight(law, weights),
        )
    r = sum(rule)
    return (
        r,
        lambda wrong: Tally(m, r, r - wrong, claim=claim),
        lambda law: wrong_guesses(law, m, *rule),
    )


def expected_for_guesses(
    audit: AuditSetting, law: Law, rule: tuple[int, int] | guess.Ranked, nodes: int
) -> float:
    """The mean over how many are wrong: over all numbers, or interpolated between some."""
    _, tally, chances = outcomes(audit, rule)
    return _mean(chances(law), lambda wrong: audit.eps_lb(tally(wrong)), nodes)


def wrong_guesses(law: Law, m: int, k_plus: int, k_minus: int) -> np.ndarray:
    """The probability of 0, 1, 2 … wrong guesses."""
    k_plus = inputs.count('k_plus', k_plus, 0, m)
    k_minus = inputs.count('k_minus', k_minus, 0 if k_plus else 1, m - k_plus)
    both = _wrong(law, m, k_plus, 'in'), _wrong(law, m, k_minus, 'out')
    return np.maximum(0.0, scipy.signal.convolve(*both))  # by Fourier transforms, if long


def _wrong(law: Law, m: int, k: int, side: str) -> np.ndarray:
    """The probability of 0, 1, 2 … wrong guesses among the k surest of one side.

    The score after the k-th is where a share u ~ Beta(k + 1, m − k) of scores lies beyond.
    Given it, the k guesses are independent, and wrong with the share that the law has there.
    """
    if k == 0:
        return np.ones(1)
    nodes, weights = np.polynomial.legendre.leggauss(8)
    share, weights = scipy.special.betaincinv(k + 1, m - k, 0.5 * (1.0 + nodes)), 0.5 * weights
    if k == m:
        share, weights = np.ones(1), np.ones(1)
    return weights @ _binomial(k, np.clip(law.wrong_share(share, side), 0.0, 1.0))


def _binomial(n: int, rates: np.ndarray) -> np.ndarray:
    """P[Binomial(n, rate) = 0, 1, 2 …], a row for each rate, as far as there is any."""
    top = float(rates.max())
    most = min(n, math.ceil(n * top + 9.0 * math.sqrt(n * top * (1.0 - top)) + 20.0))
    k, p = np.arange(most + 1), rates[:, None]
    logs = -np.log(n + 1.0) - scipy.special.betaln(n - k + 1, k + 1)
    return np.exp(logs + scipy.special.xlogy(k, p) + scipy.special.xlog1py(n - k, -p))


def _mean(chances: np.ndarray, value: Callable[[int], float], nodes: int) -> float:
    """The mean of a smooth function of 0, 1, 2 …, computed at so many of them.

    The function falls, and may begin with ∞, as bounds on Gaussian mechanisms do at δ = 0.
    """
    likely = np.flatnonzero(chances > 1e-6 * chances.max())
    points = likely
    if likely.size > nodes:
        points = np.unique(np.rint(np.linspace(*np.sqrt(likely[[0, -1]]), nodes) ** 2).astype(int))
    values = np.array([value(point) for point in points.tolist()])
    if np.isinf(values[0]):
        return math.inf
    if likely.size > nodes:
        values = scipy.interpolate.PchipInterpolator(points, values)(likely)
    return float(chances[likely] @ values / chances[likely].sum())


def rank_rates(law: Law, m: int, side: str) -> np.ndarray:
    """How often the i-th surest guess of one side is wrong."""
    share = np.arange(1, m + 1) / m
    mass = np.maximum.accumulate(share * law.wrong_share(share, side))
    return np.clip(m * np.diff(mass, prepend=0.0), 1e-12, 1.0)


def _wrong_weight(law: Law, weights: np.ndarray) -> np.ndarray:
    """The probability of a weight of 0, 1, 2 … eighths of wrong guesses.

    Guesses of one weight count as wrong equally often, which is near enough.
    """
    m, eighths = weights.size, np.rint(LATTICE * np.abs(weights)).astype(int)
    wrong = np.where(weights > 0, rank_rates(law, m, 'in')[::-1], rank_rates(law, m, 'out'))
    chances = np.ones(1)
    for size in range(1, LATTICE + 1):
        rates_of_size = wrong[eighths == size]
        if rates_of_size.size:
            counts = _binomial(rates_of_size.size, np.array([rates_of_size.mean()]))[0]
            spaced = np.zeros(size * (counts.size - 1) + 1)
            spaced[::size] = counts
            chances = scipy.signal.convolve(chances, spaced)
    return np.maximum(0.0, chances)


def rates(law: Law, threshold: float) -> tuple[float, float]:
    """How often a canary that is in, and one that is out, scores above a threshold."""
    above = np.interp(threshold, law.points, law.above_in)
    return float(above), float(np.interp(threshold, law.points, law.above_out))


def tally_for_rates(m: int, hit_rate: float, alarm_rate: float) -> Tally:
    """A tally of m canaries, half of them in, with these rates."""
    n_in, n_out = m // 2, m - m // 2
    hits = round(min(1.0, max(0.0, hit_rate)) * n_in)
    alarms = round(min(1.0, max(0.0, alarm_rate)) * n_out)
    confusion = ConfusionCounts(n_in, hits, n_out, alarms)
    return Tally(m=m, r=m, v=hits + n_out - alarms, confusion=confusion)


def expected_for_threshold(audit: AuditSetting, law: Law, threshold: float) -> float:
    """The mean over the normal distributions of both rates."""
    half = audit.m / 2.0
    (hits, alarms), total = rates(law, threshold), 0.0
    spread = [math.sqrt(rate * (1.0 - rate) / half) for rate in (hits, alarms)]
    nodes = list(zip(NORMAL_POINTS.tolist(), NORMAL_WEIGHTS.tolist(), strict=True))
    for (x, x_weight), (y, y_weight) in itertools.product(nodes, repeat=2):
        tally = tally_for_rates(audit.m, hits + x * spread[0], alarms + y * spread[1])
        total += x_weight * y_weight * audit.eps_lb(tally)
    return total / float(NORMAL_WEIGHTS.sum()) ** 2


def expected_for_gaussian_pair(audit: AuditSetting, law: Law) -> float:
    """The mean over the normal distribution of the difference of means, in deviations."""
    (mean_in, var_in), (mean_out, var_out) = law.moments(True), law.moments(False)
    half = audit.m / 2.0
    pooled = 0.5 * (var_in + var_out)
    shift = (mean_in - mean_out) / math.sqrt(pooled)
    spread = math.sqrt((var_in + var_out) / (pooled * half) + shift**2 / (2.0 * audit.m))
    n_in = max(2, audit.m // 2)
    signs = np.where(np.arange(n_in) % 2 == 0, 1.0, -1.0)
    values = []
    for z in NORMAL_POINTS.tolist():
        samples = signs + shift + z * spread, signs[: max(2, audit.m - n_in)]
        values.append(audit.eps_lb(Tally(m=audit.m, r=0, v=0, samples=samples)))
    return float(NORMAL_WEIGHTS @ values / NORMAL_WEIGHTS.sum())
