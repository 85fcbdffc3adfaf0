"""Figure delta_eps: ε_LB of the Gaussian mechanism by δ, at three confidences."""

import sys

import matplotlib.figure
import numpy as np

from experiments.csv_files import Row, column
from experiments.figures import figure, style
from experiments.figures.figure import Claim
from experiments.figures.sweep import Sweep
from oneshot import bounds

TITLE = 'ε_LB of the Gaussian mechanism by δ, at three confidences'
PAPER_SAYS = '(4.38, 1e-5)-DP; no other number is given.'

M, R, V, SIGMA = 100_000, 1_500, 1_429, 2.0
CONFIDENCES = (0.75, 0.95, 0.99)
DELTAS = np.append(np.geomspace(1e-10, 1e-2, 161), 0.0039334)


def sweep(full: bool, data_dir: str | None) -> Sweep:
    settings = [{'confidence': one} for one in CONFIDENCES]
    return Sweep(settings, measure, (), ('confidence', 'delta', 'eps_lb', 'eps_ub'))


def measure(setting: Row) -> list[Row]:
    return [
        {
            'delta': delta,
            'eps_lb': bounds.eps_lower_bound(M, R, V, delta, setting['confidence']),
            'eps_ub': bounds.gaussian_eps(delta, SIGMA, 2.0),
        }
        for delta in np.sort(DELTAS).tolist()
    ]


def draw(rows: list[Row]) -> matplotlib.figure.Figure:
    labels = 'δ', 'ε'
    drawn, axes = style.figure('1,429 right of 1,500 guesses, m = 100,000', *labels)
    delta = column(rows, 'delta', confidence=0.95)
    axes.plot(
        delta, column(rows, 'eps_ub', confidence=0.95), **style.TRUTH, label='ε_UB of N(±1, 4)'
    )
    for confidence, color in zip(CONFIDENCES, style.COLORS, strict=False):
        label = f'ε_LB, {confidence:.0%} confidence'
        axes.plot(delta, column(rows, 'eps_lb', confidence=confidence), color=color, label=label)
    axes.plot([1e-5, 0.0039334], [4.38, 2.675], **style.PAPER, label='paper: points of ε_UB')
    axes.set(xscale='log', xlim=(1e-10, 1e-2), ylim=(0, 7))
    return drawn


def at(rows: list[Row], name: str, delta: float, confidence: float = 0.95) -> float:
    place = np.argmin(np.abs(np.log(column(rows, 'delta', confidence=0.95) / delta)))
    return float(column(rows, name, confidence=confidence)[place])


def measured(rows: list[Row]) -> list[str]:
    found = [f'{at(rows, "eps_lb", 1e-5, one):.3f} with {one:.0%}' for one in CONFIDENCES]
    small = at(rows, 'eps_lb', 1e-8)
    return [
        f'At δ = 1e-5, ε_LB = {", ".join(found)}; ε_UB = {at(rows, "eps_ub", 1e-5):.4f}.',
        f'With less δ it hardly rises, to {small:.3f} at 1e-8; at 1e-3 it is '
        f'{at(rows, "eps_lb", 1e-3):.2f}.',
    ]


def claims(rows: list[Row]) -> list[Claim]:
    ends = at(rows, 'eps_ub', 1e-5), at(rows, 'eps_ub', 0.0039334)
    right = abs(ends[0] - 4.38) < 5e-3 and abs(ends[1] - 2.675) < 2e-3
    gaps = column(rows, 'eps_ub', confidence=0.95) - column(rows, 'eps_lb', confidence=0.95)
    text = 'ε_UB is 4.38 at δ = 1e-5, and 2.675 at δ = 0.0039334'
    least = float(np.min(gaps[column(rows, 'delta', confidence=0.95) <= 1e-5]))
    return [
        Claim(text, right, f'{ends[0]:.4f}, {ends[1]:.4f}'),
        Claim(
            'up to δ = 1e-5 there is a gap between ε_LB and ε_UB',
            least > 0,
            f'at least {least:.2f}',
        ),
    ]


def differs(rows: list[Row]) -> str:
    return 'Nothing that the text lets one see.'


if __name__ == '__main__':
    sys.exit(figure.main('delta_eps'))
