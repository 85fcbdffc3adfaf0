"""The picture at the top of the README: the default audit, from coins to ε.

    python -m experiments.picture       # half a minute on two cores

Runs configs/digits_wb.py as it is, and draws the scores of its canaries, the guesses, and
what every method makes of them. Writes results/picture.png.
"""

import pathlib

import numpy as np
from matplotlib.figure import Figure

from configs import digits_wb
from oneshot.run import outcome, training

RESULTS = pathlib.Path(__file__).parent / 'results'
IN, OUT, CLAIM = 'tab:orange', 'tab:blue', 'tab:red'
METHODS = {
    'one_run': 'assumes nothing',
    'weighted': 'assumes nothing',
    'fdp': 'a Gaussian trade-off curve',
    'cp_gdp': 'and independent scores',
}


def main() -> None:
    run = training.prepare(digits_wb.get_config())
    eps_ub = run.spec.eps_ub
    state = training.train(run)
    found = training.collect_scores(run, state)
    name, headline = outcome.headline(run, results := outcome.audit_all(run, found))
    scores, coins = found[name], np.asarray(run.canaries.coins)

    figure = Figure(figsize=(10, 3.4), layout='constrained')
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    edges = np.histogram_bin_edges(scores, 70)
    counts = [
        left.hist(scores[mask], edges, alpha=0.6, color=color, label=label)[0]
        for mask, color, label in ((~coins, OUT, 'out'), (coins, IN, 'in'))
    ]
    ordered, top = np.sort(scores), 1.05 * np.max(counts)
    low, high = ordered[headline.k_minus - 1], ordered[-headline.k_plus]
    left.axvspan(edges[0], low, color=OUT, alpha=0.12, linewidth=0)
    left.axvspan(high, edges[-1], color=IN, alpha=0.12, linewidth=0)
    left.text(edges[0], top, f'{headline.k_minus} guessed “out”', va='top', color=OUT)
    right_side = {'va': 'top', 'ha': 'right', 'color': IN}
    left.text(edges[-1], top, f'{headline.k_plus} guessed “in”', **right_side)
    left.set(xlabel='score of a canary', ylabel='canaries', ylim=(0, top))
    left.set_xlim(edges[0], edges[-1])
    title = f'{headline.m:,} canaries, a coin each, one training run: '
    left.set_title(
        f'{title}{headline.correct} of {headline.guesses} guesses right', loc='left', fontsize=10
    )
    left.legend(frameon=False, loc='center right')

    places = np.arange(len(METHODS))[::-1]
    values = [results[name, method].eps_lb for method in METHODS]
    right.barh(places, values, height=0.6, color='0.35')
    for place, value, assumed in zip(places, values, METHODS.values(), strict=True):
        inside = {'va': 'center', 'color': 'white', 'fontsize': 8}
        right.text(0.1, place, assumed, **inside)
        right.text(value + 0.1, place, f'{value:.2f}', va='center', fontsize=9)
    right.axvline(eps_ub, color=CLAIM, linestyle='--')
    right.text(eps_ub - 0.1, 3.62, 'proven: ε_UB', color=CLAIM, ha='right', va='center')
    right.set_yticks(places, METHODS)
    right.set(xlabel=f'ε at δ = {headline.delta:g}', xlim=(0, eps_ub + 0.6), ylim=(-0.5, 3.9))
    right.set_title('ε_LB with 95 % confidence, by method', loc='left', fontsize=10)
    for axes in (left, right):
        axes.spines[['top', 'right']].set_visible(False)
    figure.savefig(RESULTS / 'picture.png', dpi=120)
    print(f'Written to {RESULTS.name}/picture.png.')


if __name__ == '__main__':
    main()
