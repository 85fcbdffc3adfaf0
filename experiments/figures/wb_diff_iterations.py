"""Figure wb_diff_iterations: white-box ε_LB by the number of steps, at the same ε."""

import sys

import matplotlib.figure

from experiments.csv_files import Row
from experiments.figures import figure, style, training
from experiments.figures.figure import Claim
from experiments.figures.sweep import Sweep
from experiments.figures.training import Change

TITLE = 'white-box ε_LB by the number of steps, at the same ε'
PAPER_SAYS = 'no significant difference between one step and many at equal ε; no number is given.'

EVERYBODY, SOME = 1.0, 0.08192  # q
CPU = {'model': 'mlp-64', 'm': (5_000,), 'steps': (1, 10, 100, 1_000), 'seeds': 12}
CPU_OTHERS = {EVERYBODY: (1_000,), SOME: (10_000,)}
FULL = {'model': 'wrn', 'm': (5_000,), 'steps': (1, 10, 100, 1_000, 2_000), 'seeds': 3}
FULL_OTHERS = {EVERYBODY: (4_000,), SOME: (50_000,)}


def sweep(full: bool, data_dir: str | None) -> Sweep:
    """σ is recalibrated to ε = 8 for every number of steps."""
    sizes, others = (FULL, FULL_OTHERS) if full else (CPU, CPU_OTHERS)
    planned = [one for q in others for one in training.settings(others=others[q], q=q, **sizes)]
    return training.make_sweep(planned, training.WHITE_BOX, full, data_dir)


def draw(rows: list[Row]) -> matplotlib.figure.Figure:
    title = 'White-box, m = 5,000 canaries, ε_UB = 8 whatever the number of steps'
    labels = 'steps ℓ', 'ε_LB at δ = 1e-5'
    drawn, both = style.panels(title, [labels, labels])
    titles = 'everybody in every step, q = 1', f'Poisson sampling, q = {SOME:g}'
    for axes, q, words in zip(both, (EVERYBODY, SOME), titles, strict=True):
        own = [row for row in rows if row['q'] == q]
        training.draw_white_box(axes, own, 'steps')
        axes.set(xscale='log', ylim=(0, 4.5), title=words)
        style.ticks(axes, training.by(own, 'steps'))
    return drawn


def measured(rows: list[Row]) -> list[str]:
    what = [
        (f'{score}, q = {q:g}', {'score': score, 'rule': 'planned', 'q': q})
        for q in (EVERYBODY, SOME)
        for score in (training.OURS, training.PAPERS)
    ]
    return training.table(rows, 'steps', what)


def change(rows: list[Row], score: str, q: float) -> Change:
    return Change.of(list(training.by(rows, 'steps', score=score, rule='planned', q=q).values()))


def claims(rows: list[Row]) -> list[Claim]:
    found = change(rows, training.OURS, EVERYBODY)
    mean = training.mean(rows, score=training.OURS, q=EVERYBODY)
    unchanged = not found.seen and found.noticed < 0.25 * mean
    text = 'the number of steps at equal ε does not change the bound (residual_llr, q = 1)'
    evidence = f'{found}; one of {found.noticed:.2f} would be noticed'
    return [Claim(text, unchanged, evidence)]


def differs(rows: list[Row]) -> str:
    iterates = change(rows, training.PAPERS, EVERYBODY)
    sampled = change(rows, training.OURS, SOME)
    return (
        'With everybody in every step the law of the scores is the same for every number of steps, '
        'and so is what is measured (of the iterates, which let the gradients of others in: '
        f'{iterates}). With Poisson sampling it is not ({sampled}), as the planner foresees: '
        'equal ε at one δ is not the same trade-off curve. In one step a canary is drawn with '
        'probability q, or not at all, and whoever was in and not drawn cannot be told from '
        'those who were out; over many steps this averages out. The paper does not say what q is '
        'with one iteration; that nothing changes fits q = 1.'
    )


if __name__ == '__main__':
    sys.exit(figure.main('wb_diff_iterations'))
