import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from oneshot.dpsgd import sampling
from tests.chance import plausible


def _draws(steps, n, q, eligible=None):
    eligible = jnp.ones(n, bool) if eligible is None else eligible
    keys = jax.vmap(lambda t: jax.random.fold_in(jax.random.key(3), t))(jnp.arange(steps))
    return np.asarray(jax.vmap(lambda key: sampling.poisson(key, q, eligible))(keys))


@pytest.mark.parametrize('q', [0.02, 0.3, 0.9])
def test_inclusion_is_independent_with_probability_q(q):
    """Single, pairwise over examples and pairwise over steps; a false alarm is below 1e-6."""
    steps, n = 20_000, 12
    drawn = _draws(steps, n, q)
    for i in range(n):
        assert plausible(drawn[:, i].sum(), steps, q)
        assert plausible((drawn[:-1:2, i] & drawn[1::2, i]).sum(), steps // 2, q * q)
    for i, j in itertools.combinations(range(n), 2):
        assert plausible((drawn[:, i] & drawn[:, j]).sum(), steps, q * q)


def test_batch_sizes_are_binomial():
    """Every size by itself: at most 61 checks of 1e-9."""
    steps, n, q = 50_000, 60, 0.15
    sizes = np.bincount(_draws(steps, n, q).sum(axis=1), minlength=n + 1)
    for size, count in enumerate(sizes.tolist()):
        assert plausible(count, steps, scipy.stats.binom.pmf(size, n, q))


def test_who_is_not_eligible_is_never_drawn():
    eligible = jnp.arange(50) % 2 == 0
    drawn = _draws(500, 50, 0.5, eligible)
    assert not drawn[:, 1::2].any()
    assert drawn[:, ::2].any(axis=0).all()


def test_q_of_one_draws_everybody():
    assert _draws(3, 7, 1.0).all()
    assert _draws(1000, 7, 1.0 - 1e-12).mean() > 0.99


@pytest.mark.parametrize('size', [1, 3, 8, 64, 100])
@pytest.mark.parametrize('q', [0.0, 0.1, 0.7, 1.0])
def test_microbatches_hold_every_drawn_example_once(size, q):
    drawn = np.random.default_rng(0).random(64) < q
    cut = jax.jit(sampling.microbatches, static_argnums=1)(drawn, size)
    assert int(cut.count) == drawn.sum()
    assert int(cut.trips) == -(-drawn.sum() // size)
    seen = []
    for trip in range(int(cut.trips)):
        indices, mask = cut.get(jnp.int32(trip), size)
        seen += np.asarray(indices)[np.asarray(mask)].tolist()
    assert seen == np.flatnonzero(drawn).tolist()
