"""Logistic regression by output perturbation, and two that only claim to be: all audited.

    python -m experiments.generic_audit       # five seconds

Even against odd, on 1,000 of the embedded digits. The loss Σ_i log(1 + exp(−y_i⟨w, x_i⟩)) +
(λ/2)‖w‖² is minimised, and noise is added to the weights. All three claim the same ε:

- 'output perturbation' has the noise that the claim takes (the proof is at `fit`);
- 'sensitivity of the mean' has noise for 1/(nλ) in the place of 1/λ, as if the mean of the
  losses were minimised and not their sum: n times too little;
- 'no noise' has none.

Each is audited by `oneshot.audit_algorithm` with two kinds of canaries. 2,000 have a feature of
their own each. Such a canary moves its own weight by 0.46/λ, because the slope of the loss is
1/2 at margin 0 and less above: with the noise of the claim that is worth ε = 1.67, the most
that they can show of the first algorithm. The others are 400 held-out digits with the wrong
label. Their margins show next to nothing, even without noise, because all of them share 64
weights: a small ε_LB says as much about canaries as about privacy.

A quarter of the canaries is guessed "in" and a quarter "out". The 140 guesses that
`guess.preset` has for m = 2,000 would show 3.78, were they all right: too few to reject a
claim of 4. The least p-value is 0.0016 here, because δ = 1e-5 allows for that much. Data, λ,
canaries and guesses are fixed; a seed is for coins and noise. Writes
results/generic_audit.csv (every seed) and results/generic_audit.png (seed 0).
"""

import argparse
import dataclasses
import pathlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy
from rich.console import Console
from rich.progress import track
from rich.table import Table

from experiments import csv_files
from oneshot import AuditResult, audit_scores, bounds
from oneshot.data import datasets
from oneshot.scores import any_algorithm
from oneshot.scores.any_algorithm import Sample

RESULTS = pathlib.Path(__file__).parent / 'results'
SEEDS = 20
EPS, DELTA = 4.0, 1e-5  # the claim
LAMBDA = 3.0  # by test accuracy, before any audit
N, OWN, MISLABELED = 1_000, 2_000, 400
OWN_FEATURES, MISLABELED_DIGITS = 'own features', 'mislabeled digits'
GRADIENT = 1e-6  # its norm where the solver may stop
SENSITIVITY = (1.0 + 2.0 * GRADIENT) / LAMBDA  # of what `fit` returns
SIGMA = SENSITIVITY / bounds.gaussian_mu(EPS, DELTA)
ALGORITHMS = {
    'output perturbation': SIGMA,
    'sensitivity of the mean': SIGMA / N,
    'no noise': 0.0,
}


class Example(NamedTuple):
    x: np.ndarray  # features, of norm at most 1
    y: float  # −1 or +1


@dataclasses.dataclass(frozen=True)
class Problem:
    """What is fixed before the coins: data, canaries, and a model without any of them."""

    x: scipy.sparse.csr_array  # the data, then all canaries
    y: np.ndarray
    canaries: list[Example]
    reference: np.ndarray
    test: Example  # all of them


def fit(x: scipy.sparse.csr_array, y: np.ndarray) -> np.ndarray:
    """The minimum w of Σ_i log(1 + exp(−y_i⟨w, x_i⟩)) + (λ/2)‖w‖², up to GRADIENT/λ.

    One example more or less, with ‖x‖ ≤ 1, moves the minimum by at most 1/λ: let F be the
    loss without it and F + ℓ that with it, w and w' their minima. F is λ-strongly convex,
    so λ‖w' − w‖ ≤ ‖∇F(w') − ∇F(w)‖ = ‖∇F(w')‖ = ‖∇ℓ(w')‖ ≤ ‖x‖ ≤ 1.
    In the same way, where ‖∇F‖ ≤ g, the minimum is at most g/λ away: with the error of the
    solver on both sides, what is returned moves by at most (1 + 2g)/λ, `SENSITIVITY`.
    """
    norms = np.sqrt(x.power(2).sum(axis=1))
    if norms.max() > 1.0 + 1e-9:
        raise ValueError(f'The rows of x must be of norm 1 or less, but one has {norms.max():g}.')
    signed = x.multiply(y[:, None]).tocsr()
    across = signed.T.tocsr()

    def loss(w: np.ndarray) -> float:
        return np.logaddexp(0.0, -(signed @ w)).sum() + 0.5 * LAMBDA * w @ w

    def gradient(w: np.ndarray) -> np.ndarray:
        return LAMBDA * w - across @ scipy.special.expit(-(signed @ w))

    def curvature(w: np.ndarray, v: np.ndarray) -> np.ndarray:
        margins = signed @ w
        slopes = scipy.special.expit(margins) * scipy.special.expit(-margins)
        return LAMBDA * v + across @ (slopes * (signed @ v))

    w = scipy.optimize.minimize(
        loss,
        np.zeros(x.shape[1]),
        jac=gradient,
        hessp=curvature,
        method='Newton-CG',
        options={'xtol': 1e-10},
    ).x
    size = np.linalg.norm(gradient(w))
    if size > GRADIENT:
        raise RuntimeError(f'The solver stopped at a gradient of norm {size:.1e}.')
    return w


def trainer(
    problem: Problem, sigma: float, rng: np.random.Generator
) -> Callable[[np.ndarray], np.ndarray]:
    """The algorithm: from who is in to weights with noise. With σ = `SIGMA`, ε is `EPS`."""
    always = np.ones(problem.y.size - len(problem.canaries), bool)

    def train(included: np.ndarray) -> np.ndarray:
        rows = np.concatenate([always, included])
        w = fit(problem.x[rows], problem.y[rows])
        return w + sigma * rng.standard_normal(w.size)

    return train


def scorer(problem: Problem) -> Callable[[np.ndarray, Example], float]:
    """By how much the margin of a canary is larger than without any canary."""
    return lambda w, canary: float(canary.y * (canary.x @ (w - problem.reference)))


def _features(split: datasets.Split) -> np.ndarray:
    """Pixels less one half, scaled to norm 1: each row by itself, so that nothing leaks."""
    x = split.images.reshape(len(split.labels), -1).astype(float) - 0.5
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def _parity(split: datasets.Split) -> np.ndarray:
    return np.where(split.labels % 2 == 0, 1.0, -1.0)


def problems(n: int = N, own: int = OWN, mislabeled: int = MISLABELED) -> dict[str, Problem]:
    """By the kind of canaries. The test examples are the same for both."""
    digits = datasets.digits(n, seed=0)
    x, y = _features(digits.train), _parity(digits.train)
    held_out, parity = _features(digits.test), _parity(digits.test)
    test = Example(held_out[mislabeled:], parity[mislabeled:])
    # Orthogonal to all else: what a canary leaves in its own weight, no other one touches.
    own_x = np.hstack([np.zeros((own, x.shape[1])), np.eye(own)])
    return {
        OWN_FEATURES: _problem(x, y, own_x, np.ones(own), test),
        MISLABELED_DIGITS: _problem(x, y, held_out[:mislabeled], -parity[:mislabeled], test),
    }


def _problem(
    x: np.ndarray, y: np.ndarray, canaries: np.ndarray, labels: np.ndarray, test: Example
) -> Problem:
    def wide(rows: np.ndarray) -> np.ndarray:
        return np.pad(rows, ((0, 0), (0, canaries.shape[1] - rows.shape[1])))

    data_x = scipy.sparse.csr_array(wide(x))
    return Problem(
        x=scipy.sparse.vstack([data_x, scipy.sparse.csr_array(canaries)], format='csr'),
        y=np.concatenate([y, labels]),
        canaries=[Example(*pair) for pair in zip(canaries, labels.tolist(), strict=True)],
        reference=fit(data_x, y),
        test=Example(wide(test.x), test.y),
    )


def run(problem: Problem, sigma: float, seed: int) -> tuple[AuditResult, Sample, float]:
    """One audit: the result, what it is from, and the test accuracy of the model."""
    rng = np.random.default_rng(seed)
    models = []
    train = trainer(problem, sigma, rng)

    def kept(included: np.ndarray) -> np.ndarray:
        models.append(train(included))
        return models[0]

    sample = any_algorithm.sample(kept, scorer(problem), problem.canaries, rng=rng)
    quarter = len(problem.canaries) // 4
    result = audit_scores(*sample, delta=DELTA, guesses=(quarter, quarter), eps_claimed=EPS)
    right = np.sign(problem.test.x @ models[0]) == problem.test.y
    return result, sample, float(right.mean())


def row(kind: str, name: str, seed: int, result: AuditResult, accuracy: float) -> csv_files.Row:
    return {
        'canaries': kind,
        'algorithm': name,
        'seed': seed,
        'eps_claimed': EPS,
        'delta': DELTA,
        'sigma': ALGORITHMS[name],
        'm': result.m,
        'guesses': result.guesses,
        'correct': result.correct,
        'eps_lb': result.eps_lb,
        'p_value': result.p_value,
        'test_accuracy': accuracy,
    }


def print_table(rows: list[csv_files.Row]) -> None:
    seeds = 1 + max(row['seed'] for row in rows)
    title = f'ε = {EPS:g} claimed at δ = {DELTA:g}; seed 0, and all of {seeds} seeds'
    table = Table(title=title, title_justify='left')
    for name in ('canaries', 'algorithm'):
        table.add_column(name, no_wrap=True)
    for name in ('claimed ε', 'ε_LB', 'right guesses', 'p-value', 'verdict'):
        table.add_column(name, justify='right')
    for name in ('mean ε_LB', 'rejected', 'mean accuracy'):
        table.add_column(name, justify='right')
    for first in rows:
        if first['seed'] != 0:
            continue
        own = [one for one in rows if all(one[k] == first[k] for k in ('canaries', 'algorithm'))]
        table.add_row(
            first['canaries'],
            first['algorithm'],
            f'{EPS:g}',
            f'{first["eps_lb"]:.2f}',
            f'{first["correct"]:,} of {first["guesses"]:,}',
            f'{first["p_value"]:.2g}',
            'rejected' if first['eps_lb'] > EPS else 'consistent',
            f'{np.mean([one["eps_lb"] for one in own]):.2f}',
            f'{sum(one["eps_lb"] > EPS for one in own)} of {seeds}',
            f'{np.mean([one["test_accuracy"] for one in own]):.1%}',
        )
    Console(width=150).print(table)


def plot(shown: dict[tuple[str, str], tuple[AuditResult, Sample]]) -> None:
    from matplotlib.figure import Figure

    panels = [(OWN_FEATURES, name) for name in ALGORITHMS] + [(MISLABELED_DIGITS, 'no noise')]
    figure = Figure(figsize=(10, 2.9), layout='constrained')
    bins = 0.05 * (np.arange(-30, 31) - 0.5)  # with 0 in the middle of one
    for axes, (kind, name) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        result, (scores, included) = shown[kind, name]
        for label, who, color in (('out', ~included, 'tab:blue'), ('in', included, 'tab:orange')):
            axes.hist(scores[who], bins, color=color, alpha=0.6, label=label)
        axes.set_title(f'{name}\n{kind}: ε_LB = {result.eps_lb:.2f}', loc='left', fontsize=9)
        axes.set(xlabel='gain in margin', xlim=(-1.5, 1.5), yticks=[])
        axes.spines[['top', 'right', 'left']].set_visible(False)
        axes.legend(frameon=False, fontsize=9, loc='upper left')
    title = f'Scores of canaries that are in and out; all claim ε = {EPS:g} at δ = {DELTA:g}'
    figure.suptitle(title, x=0.005, ha='left', fontsize=11)
    figure.savefig(RESULTS / 'generic_audit.png', dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument(
        '--seeds', type=int, default=SEEDS, help=f'other than {SEEDS}: nothing is written'
    )
    seeds = parser.parse_args().seeds
    made = problems()
    cases = [(kind, name, seed) for kind in made for name in ALGORITHMS for seed in range(seeds)]
    rows, shown = [], {}
    for kind, name, seed in track(cases, description='auditing'):
        result, sample, accuracy = run(made[kind], ALGORITHMS[name], seed)
        rows.append(row(kind, name, seed, result, accuracy))
        if seed == 0:
            shown[kind, name] = result, sample
    print_table(rows)
    if seeds == SEEDS:
        words = 'canaries', 'algorithm'
        numbers = [name for name in rows[0] if name not in words]
        csv_files.write(RESULTS / 'generic_audit.csv', rows, words, numbers)
        plot(shown)
        print(f'Written to {RESULTS.name}/generic_audit.csv and generic_audit.png.')


if __name__ == '__main__':
    main()
