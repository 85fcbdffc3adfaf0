"""Several seeds side by side, by `vmap`: one audit of all their canaries.

    python -m experiments.loops.optax_vmap

Each seed has its own model, data, noise and coins. `audit.result` takes all of them as one
audit with so many times the canaries.
"""

import jax
import jax.numpy as jnp

from experiments.loops import optax_scan
from experiments.loops.problem import Problem, make, report, small

SEEDS = 4


def run(problems: list[Problem]):
    """The loop of `optax_scan` on all problems at once; they differ in arrays alone."""
    arrays = [jax.tree.map(jnp.asarray, _arrays(problem)) for problem in problems]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *arrays)
    return jax.jit(jax.vmap(lambda one: optax_scan.run(problems[0]._replace(**one))))(stacked)


def _arrays(problem: Problem):
    names = 'examples', 'layers', 'canaries', 'coins', 'key'
    return {name: getattr(problem, name) for name in names}


if __name__ == '__main__':
    report(lambda first: run([first, *(make(small(seed)) for seed in range(1, SEEDS))]))
