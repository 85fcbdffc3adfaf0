"""Speed of ε_LB, side by side with the definition and with a peer.

    python -m experiments.bench_bounds        # 5 minutes, nothing else running

- `definition`: a plain loop of scipy.stats calls that follows Corollary ternary term
  by term, inside a search up in steps of 1 and down by 30 bisections.
- `jax_privacy`: `jax_privacy.auditing.CanaryScoreAuditor.epsilon_one_run` with an
  explicit threshold, on scores that give the same (m, r, v). Its δ and confidence
  are the same, and it stops at 1e-6 where ours stops at 1e-12.

All are timed in this one process, in turn; the ratios are what counts. Writes
results/bench_bounds.csv.
"""

import csv
import math
import pathlib
import time
from collections.abc import Callable

import numpy as np
import scipy.stats
from jax_privacy import auditing
from rich.console import Console
from rich.progress import track
from rich.table import Table

from oneshot import bounds

RESULTS = pathlib.Path(__file__).parent / 'results'
DELTA = 1e-5

# (m, r, v)
CASES = [(100_000, 1_500, 1_429), (100_000, 100_000, 75_000), (1_000_000, 1_000_000, 750_000)]
DEFINITION = CASES[1]


def definition_p_value(m: int, r: int, v: int, eps: float, delta: float) -> float:
    """Corollary ternary, term by term."""
    q = 1.0 / (1.0 + math.exp(-eps))
    beta = scipy.stats.binom.sf(v - 1, r, q)
    total = alpha = 0.0
    for i in range(1, v + 1):
        total += scipy.stats.binom.pmf(v - i, r, q)
        alpha = max(alpha, total / i)
    return min(1.0, beta + 2.0 * m * delta * alpha)


def definition_eps_lower_bound(m: int, r: int, v: int, delta: float, level: float) -> float:
    """Lemma testci by bisection."""
    low, high = 0.0, 1.0
    while definition_p_value(m, r, v, high, delta) < level:
        high += 1.0
    for _ in track(range(30), description='definition'):
        middle = (low + high) / 2.0
        if definition_p_value(m, r, v, middle, delta) < level:
            low = middle
        else:
            high = middle
    return low


def peer(m: int, r: int, v: int) -> Callable[[], float]:
    """jax_privacy on scores with r of m above a threshold, v of them included."""
    included = np.concatenate([np.ones(v), np.zeros(m // 2 - v)]) if v <= m // 2 else np.ones(v)
    excluded = np.concatenate([np.ones(r - v), np.zeros(m - included.size - (r - v))])
    auditor = auditing.CanaryScoreAuditor(included, excluded)
    strategy = auditing.Explicit(0.5)
    return lambda: auditor.epsilon_one_run(0.05, DELTA, threshold_strategy=strategy)


def seconds(call: Callable[[], float], repeats: int) -> float:
    """The median time of a call, after one to warm up."""
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def main() -> None:
    rows = []
    for m, r, v in CASES:
        ours = bounds.eps_lower_bound(m, r, v, DELTA)
        call = peer(m, r, v)
        assert abs(call() - ours) < 1e-5, (call(), ours)
        row = {
            'm': m,
            'r': r,
            'v': v,
            'eps_lb': ours,
            'ours': seconds(lambda m=m, r=r, v=v: bounds.eps_lower_bound(m, r, v, DELTA), 25),
            'jax_privacy': seconds(call, 3),
            'definition': math.nan,
        }
        if (m, r, v) == DEFINITION:
            start = time.perf_counter()
            literal = definition_eps_lower_bound(m, r, v, DELTA, 0.05)
            row['definition'] = time.perf_counter() - start
            assert abs(literal - ours) < 1e-8, (literal, ours)
        rows.append(row)

    table = Table(title=f'seconds for one ε_LB at δ = {DELTA:g}', title_justify='left')
    for name in ('m', 'r', 'v', 'ε_LB', 'ours', 'jax_privacy', 'ratio', 'definition', 'ratio'):
        table.add_column(name, justify='right')
    for row in rows:
        row['jax_privacy_ratio'] = row['jax_privacy'] / row['ours']
        row['definition_ratio'] = row['definition'] / row['ours']
        table.add_row(
            *(f'{row[name]:,}' for name in ('m', 'r', 'v')),
            f'{row["eps_lb"]:.4f}',
            f'{row["ours"]:.5f}',
            f'{row["jax_privacy"]:.3f}',
            f'{row["jax_privacy_ratio"]:,.0f}',
            '' if math.isnan(row['definition']) else f'{row["definition"]:.1f}',
            '' if math.isnan(row['definition']) else f'{row["definition_ratio"]:,.0f}',
        )
    Console(width=100).print(table)
    with (RESULTS / 'bench_bounds.csv').open('w', newline='') as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator='\n')
        writer.writeheader()
        for row in rows:
            writer.writerow({k: f'{x:.6g}' if isinstance(x, float) else x for k, x in row.items()})
    print(f'Written to {RESULTS.name}/bench_bounds.csv.')


if __name__ == '__main__':
    main()
