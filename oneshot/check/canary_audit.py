"""The doctor's audit in one run: which canaries it takes, and how it scores them.

Canaries are examples whose gradients are far longer than c, so that the step has to clip
them, and 0 but for coordinates of their own. `Dirac` canaries have one, on any leaf, so
that a leaf without noise is seen; `spread` canaries have one in each of many leaves, so
that clipping leaf by leaf is seen. Every other leaf, by size, takes even coordinates only and
the others odd ones: the same place in the next leaf is then nobody's, and its noise can be
taken away, which reveals a key that two leaves share.

There is no other data, and no training: DP-SGD is claimed to be private for any data and any
iterates. The scores share the error of 5 %.
"""

import dataclasses
import math
from typing import NamedTuple

import jax
import numpy as np

from oneshot.audit.canaries import flip_coins
from oneshot.check import sampler
from oneshot.check.runner import CANARIES, STEPS, Finding, Runner
from oneshot.check.step import PLACES
from oneshot.claims import tradeoff
from oneshot.claims.claim import DPSGD
from oneshot.dpsgd import sampling
from oneshot.results.result import AuditResult
from oneshot.scores.front_door import audit_scores

DELTA = 1e-5

_SPREAD = 440  # canaries at most, and the others are Dirac
_FEWEST = 30  # canaries for a score of their own, which costs the others confidence
_LEAST = 4  # Dirac canaries on every leaf that has room for them
_SIZE = 1e3  # of their gradients, in units of c
_SHARE = 0.12  # of the canaries that are guessed "in", and "out"
_LARGEST_MU = 0.55  # of the claim: what an audit of so many canaries can well reject

_CAUSES = {
    'dirac': 'There is less noise on a leaf, or more of an example, than is claimed.',
    'spread': 'There is less noise, or more of an example over many leaves, than is claimed.',
    'changes': 'The noise is the same at every step, so that a canary shows as a change.',
    'leaves': 'The noise is the same in two leaves, so that their difference has none.',
}
_KNOWN_CAUSE = 'As by dirac: what shows the canaries by one score shows them by this one.'


class Canaries(NamedTuple):
    """Where the gradients of m canaries stand, and what stands at the same place elsewhere."""

    places: np.ndarray  # m × `PLACES`, −1 for none
    partners: np.ndarray  # the same place in a leaf beside, where there is no canary

    @property
    def widths(self) -> np.ndarray:
        return np.sum(self.places >= 0, axis=1)


class Audit(NamedTuple):
    """What the audit in one run found."""

    claim: DPSGD  # of the steps that it looked at
    eps_claimed: float  # what is proven of it, at `DELTA`
    results: dict[str, AuditResult]  # by score; with 95 % confidence, all hold

    @property
    def eps_lb(self) -> float:
        """With 95 % confidence."""
        return max(result.eps_lb for result in self.results.values())

    @property
    def findings(self) -> list[Finding]:
        """One for each score. P-values are of the claim, by the trade-off curve of DP-SGD."""
        claim, steps = dataclasses.astuple(self.claim), self.claim.steps
        eps, violated = self.eps_claimed, self.results['dirac'].violated
        return [
            Finding(
                f'audit by {name}',
                f'ε_LB of at most ε = {eps:.4g}, at δ = {DELTA:g}, after {steps} steps',
                f'ε_LB = {result.eps_lb:.4g}, {result.correct:g} of {result.guesses} guesses right',
                p_value=tradeoff.dpsgd_p_value(result.m, result.guesses, result.correct, *claim),
                cause=_KNOWN_CAUSE if violated and name != 'dirac' else _CAUSES[name],
            )
            for name, result in self.results.items()
        ]


def lay_out(runner: Runner, rng: np.random.Generator) -> Canaries:
    """As many canaries as there is room for, on coordinates of their own."""
    step = runner.step
    leaves = sorted(runner.leaves, key=lambda leaf: leaf.size)
    free = [rng.permutation(np.arange(i % 2, leaf.size, 2)) for i, leaf in enumerate(leaves)]
    # As many as fit into the rows of a batch: a mean, and seven deviations.
    mean = ((math.sqrt(49.0 + 4.0 * step.rows) - 7.0) / 2.0) ** 2
    most = int(2.0 * mean / step.sampling_prob)
    spread, wide = _widest([places.size for places in free], min(_SPREAD, most // 3))
    rows = [[(i, int(free[i][j])) for i in wide] for j in range(spread)]  # leaves, and places
    free = [places[spread:] if i in wide else places for i, places in enumerate(free)]
    # Some on every leaf, and the others anywhere.
    singles = [[(i, int(place))] for i, places in enumerate(free) for place in places[:_LEAST]]
    others = [[(i, int(place))] for i, places in enumerate(free) for place in places[_LEAST:]]
    singles += [others[i] for i in rng.permutation(len(others))]
    rows += singles[: min(CANARIES - _SPREAD, most - len(rows))]
    places = np.full((2, len(rows), PLACES), -1, np.int32)
    for number, row in enumerate(rows):
        for column, (i, place) in enumerate(row):
            places[0, number, column] = leaves[i].first + place
            beside = leaves[i + 1] if i + 1 < len(leaves) else leaves[i - 1]
            if len(leaves) > 1 and place < beside.size:
                places[1, number, column] = beside.first + place
    return Canaries(*places)


def _widest(rooms: list[int], most: int) -> tuple[int, list[int]]:
    """How many spread canaries, and over which leaves, take most; each leaf keeps a tenth."""
    best = 0, []
    for room in rooms:
        spread = min(most, int(room / 1.1))
        wide = [i for i, other in enumerate(rooms) if other >= 1.1 * spread][-PLACES:]
        if len(wide) > 1 and spread >= _FEWEST and len(wide) * spread > len(best[1]) * best[0]:
            best = spread, wide
    return best


def claimed(runner: Runner) -> DPSGD:
    """The claim of as many steps as give an ε that can be rejected, and at least one."""
    step = runner.step
    mu = step.sampling_prob * math.sqrt(math.expm1(min(step.noise_multiplier**-2, 700.0)))
    steps = int(np.clip((_LARGEST_MU / mu) ** 2, 1, STEPS))
    return DPSGD(step.noise_multiplier, step.sampling_prob, steps)


def examine(runner: Runner, key: jax.Array, noise: np.ndarray) -> Audit:
    """Audits the step in one run. The leaves are weighed by the noise of empty gradients."""
    step, claim = runner.step, claimed(runner)
    place_key, coin_key, draw_key, run_key = jax.random.split(key, 4)
    seed = np.asarray(jax.random.key_data(place_key)).tolist()
    canaries = lay_out(runner, np.random.default_rng(seed))
    m = len(canaries.places)
    included = np.asarray(flip_coins(coin_key, m))
    examples = runner.zero_gradient_examples(runner.room)
    examples.places[:m] = canaries.places
    examples.size[:m] = _SIZE * step.clip_norm
    indices = _batches(runner, draw_key, np.flatnonzero(included))
    gradients = runner.run(run_key, examples, indices)[: claim.steps]
    values, eps = score(runner, canaries, gradients, noise, claim), claim.eps(DELTA)
    wide = canaries.widths > 1
    paired = np.all((canaries.places >= 0) == (canaries.partners >= 0), axis=1)
    scored = {'dirac': ~wide, 'spread': wide, 'changes': wide | ~wide, 'leaves': paired}
    scored = {k: own for k, own in scored.items() if k == 'dirac' or own.sum() >= _FEWEST}
    known = {'delta': DELTA, 'confidence': 1.0 - 0.05 / len(scored), 'eps_claimed': eps}
    results = {}
    for name, own in scored.items():
        k = max(1, round(_SHARE * int(own.sum())))
        results[name] = audit_scores(values[name][own], included[own], guesses=(k, k), **known)
    return Audit(claim, eps, results)


def _batches(runner: Runner, key: jax.Array, members: np.ndarray) -> np.ndarray:
    """Indices of the drawn canaries for every step, filled with −1."""
    step = runner.step
    if step.sample is None:
        eligible = np.ones((STEPS, members.size), bool)
        counts = np.asarray(sampling.poisson(key, step.sampling_prob, eligible)).astype(int)
    else:
        counts = sampler.draw(step, key, members.size, STEPS)
    indices = np.full((STEPS, step.rows), -1, np.int32)
    for row, count in zip(indices, counts, strict=True):
        drawn = np.repeat(members, count)[: step.rows]  # more come once in 10¹¹, or by a fault
        row[: drawn.size] = drawn
    return indices


def score(
    runner: Runner, canaries: Canaries, gradients: np.ndarray, noise: np.ndarray, claim: DPSGD
) -> dict[str, np.ndarray]:
    """The scores of every canary, of the gradients alone.

    `dirac` and `spread` are how much there is of a canary in all steps, from halfway
    between in and out, weighed by the noise of its leaves. `changes` is how much that
    varies from step to step. `leaves` is what there is of it, unweighed, less what stands
    at the same place of a leaf beside.
    """
    unit = runner.step.expected_batch_size / runner.step.clip_norm / np.sqrt(canaries.widths)
    halfway = claim.sampling_prob * claim.steps / 2.0

    def pick(table: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Of steps × coordinates: the sum over the places of each canary, in units of c."""
        padded = np.concatenate([table, np.zeros((len(table), 1))], axis=1, dtype=np.float64)
        # The last column is 0, and stands for −1.
        return np.nan_to_num(unit * padded[:, places].sum(axis=2))

    along = pick(gradients, canaries.places)
    beside = pick(gradients, canaries.partners)
    squares = [np.full((1, leaf.size), np.mean(leaf.of(noise) ** 2)) for leaf in runner.leaves]
    variance = unit * pick(np.concatenate(squares, axis=1), canaries.places)[0]
    weighed = (along.sum(0) - halfway) / np.maximum(np.nan_to_num(variance), 1e-12)
    changes, leaves = np.var(along, axis=0), (along - beside).sum(0) - halfway
    return {'dirac': weighed, 'spread': weighed, 'changes': changes, 'leaves': leaves}
