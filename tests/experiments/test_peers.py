"""DP-SGD that others wrote, audited from outside: optax; see also experiments/audit_peers.py."""

import csv
import math
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats

import oneshot
from oneshot import audit
from oneshot.audit import canaries
from oneshot.claims import accounting

M, N, Q, STEPS, CLIP, ROWS, DELTA = 200, 40, 0.2, 30, 0.5, 120, 1e-5
RESULTS = pathlib.Path(__file__).parents[2] / 'experiments' / 'results'


def _loss(params, example):
    image, target = example
    return jnp.square(image @ params['model'] - target)


def _run(noise_multiplier, seed):
    """Linear regression by optax, with canaries among the examples and a leaf for them.

    Gives the parameters, the audit, and how often each canary was drawn.
    """
    rng = np.random.default_rng(seed)
    population = rng.normal(size=(N, 3)), rng.normal(size=N)
    population = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), population)
    params = {'canaries': jnp.zeros(M), 'model': jnp.zeros(3)}
    coin_key, noise_key = jax.random.split(jax.random.key(seed))
    chosen, coins = canaries.Dirac(jnp.arange(M)), canaries.flip_coins(coin_key, M)
    data = chosen.join(population, coins)
    loss = canaries.with_dirac(_loss, 100.0 * CLIP)
    aggregate = optax.contrib.differentially_private_aggregate(CLIP, noise_multiplier, noise_key)
    optimizer = optax.chain(aggregate, optax.sgd(1.0))
    claim = oneshot.DPSGD(noise_multiplier or 1.0, Q, STEPS)
    sizes = {'clip_norm': CLIP, 'expected_batch_size': ROWS}
    audited = audit.start(
        chosen, coins, params, claim, in_data=True, signals=('gradient',), **sizes
    )

    @jax.jit
    def step(params, opt_state, audited, indices):
        batch = jax.tree.map(lambda x: x[indices], data)
        grads = jax.vmap(jax.grad(loss), (None, 0))(params, batch)
        # Padded rows have no gradient; how many rows there are is public.
        grads = jax.tree.map(lambda g: jax.vmap(jnp.multiply)(g, indices >= 0), grads)
        updates, opt_state = optimizer.update(grads, opt_state)
        new_params = optax.apply_updates(params, updates)
        gradient = jax.tree.map(jnp.negative, updates)
        return new_params, opt_state, audit.update(audited, params, new_params, gradient)

    opt_state, draws = optimizer.init(params), np.zeros(M, int)
    places = np.asarray(data[1])
    for _ in range(STEPS):
        drawn = np.flatnonzero(rng.random(places.size) < Q)
        draws[places[drawn][places[drawn] >= 0]] += 1
        indices = np.pad(drawn, (0, ROWS - drawn.size), constant_values=-1)
        params, opt_state, audited = step(params, opt_state, audited, indices)
    return params, audited, draws


def test_canaries_arrive_as_examples_clipped_to_c():
    params, audited, draws = _run(noise_multiplier=0.0, seed=0)
    scores = audit.scores(audited, params)['gradient']
    # ⟨gradient, ĝ⟩ is c²/B for every draw, though the gradient is 100·c before clipping.
    np.testing.assert_allclose(scores * ROWS / CLIP, CLIP * draws, rtol=1e-5, atol=1e-6)
    included = np.asarray(audited.included)
    assert draws[included].max() > 0
    assert not draws[~included].any()
    assert np.any(np.asarray(params['model']) != 0.0)  # the others were trained on as well


def test_optax_with_padded_rows_is_consistent_with_its_claim():
    """A p-value below 1e-6 comes with probability 1e-6, if the claim holds."""
    params, audited, _ = _run(noise_multiplier=1.0, seed=1)
    result = audit.result(audited, params, delta=DELTA, score='gradient_llr')
    assert result.eps_claimed == accounting.eps_upper_bound(1.0, Q, STEPS, DELTA)
    assert result.p_value > 1e-6
    assert result.rule == 'planned'


# optax given the drawn rows alone: σ, q, steps, other examples, untouched coordinates.
SIGMA, HALF, FEW, OTHERS, COORDINATES = 10.0, 0.5, 8, 3, 2_000
TINY = 1e-10  # δ, so that no p-value is as large as m·δ


@jax.jit
def _measured_noise(key, grads):
    aggregate = optax.contrib.differentially_private_aggregate(CLIP, SIGMA, key)
    mean, _ = aggregate.update(grads, aggregate.init(None))
    return jnp.sqrt(jnp.mean(jnp.square(mean[1:])))


def _drawn_rows_run(seed, included, padded):
    """How many rows more than the others' the noise tells, in all steps together."""
    rng, key, more = np.random.default_rng(seed), jax.random.key(seed), 0.0
    for step in range(FEW):
        known = int(np.sum(rng.random(OTHERS) < HALF))
        drawn = known + int(included and rng.random() < HALF)
        rows = OTHERS + 1 if padded else drawn
        if rows > 0:
            grads = np.zeros((rows, 1 + COORDINATES), np.float32)
            grads[:drawn, 0] = CLIP
            measured = float(_measured_noise(jax.random.fold_in(key, step), grads))
            more += SIGMA * CLIP / measured - known
    return more


def _audit_rows(padded, seed, coins=200):
    included = np.random.default_rng(seed).random(coins) < 0.5
    runs = [
        ([_drawn_rows_run(1_000 * seed + i, coin, padded)], [coin])
        for i, coin in enumerate(included.tolist())
    ]
    claim = accounting.eps_upper_bound(SIGMA, HALF, FEW, TINY)
    scores, included = oneshot.pool(runs)
    return oneshot.audit_scores(scores, included, delta=TINY, guesses=(60, 0), eps_claimed=claim)


def test_the_number_of_drawn_rows_shows_in_the_noise_of_optax():
    """Fails with probability 1e-8: if fewer than 60 of 200 are in and drawn.

    If the claim held, a p-value below 1e-6 would come with probability 1e-6.
    """
    result = _audit_rows(padded=False, seed=2)
    assert result.correct == result.guesses == 60
    assert result.p_value < 1e-6
    assert result.eps_lb > 3.0 * result.eps_claimed


def test_a_fixed_number_of_rows_shows_nothing():
    """A p-value below 1e-6 comes with probability 1e-6."""
    assert _audit_rows(padded=True, seed=3).p_value > 1e-6


def test_no_proof_could_cover_the_number_of_drawn_rows():
    """By the χ² law of the measured noise, without any audit.

    The event is that some step looks as if it had one row more than the others' number k,
    which it does if Σ x² is nearer to that of k + 1 rows. If the algorithm were
    (ε, δ)-DP, P[event | in] ≤ e^ε·P[event | out] + δ.
    """
    law = scipy.stats.chi2(COORDINATES)
    # Midway between σ/k and σ/(k + 1); with k = 0 the step is skipped but for the canary.
    cuts = [0.5 * (1.0 / k + 1.0 / (k + 1)) for k in range(1, OTHERS + 1)]
    alarm = [law.cdf(COORDINATES * (k * cut) ** 2) for k, cut in enumerate(cuts, start=1)]
    miss = [law.sf(COORDINATES * ((k + 1) * cut) ** 2) for k, cut in enumerate(cuts, start=1)]
    out = FEW * max(alarm)
    inside = 1.0 - HALF**FEW - FEW * max(miss)
    claim = accounting.eps_upper_bound(SIGMA, HALF, FEW, TINY)
    assert claim < 1.0
    assert inside > 0.99
    assert out < 1e-6
    assert inside > math.exp(5.0) * out + TINY


def test_the_committed_results_say_what_the_readme_says():
    with (RESULTS / 'audit_peers.csv').open(newline='') as file:
        rows = list(csv.DictReader(file))
    verdicts = {
        (row['peer'], row['use']): row['verdict'] for row in rows if row['method'] == 'one_run'
    }
    whole = [key for key in verdicts if key[1].startswith(('rows padded', 'its Poisson'))]
    assert [peer for peer, _ in whole] == ['optax', 'jax_privacy', 'Opacus']
    safe = *whole, ('jax_privacy', 'one example not finite')
    for key, verdict in verdicts.items():
        assert verdict == ('consistent' if key in safe else 'violated'), key
    for row in rows:
        claim = float(row['eps_claimed'] or row['eps_ub'])
        assert (float(row['eps_lb']) > claim) == (row['verdict'] == 'violated')
        assert bool(row['reason']) == (verdicts[row['peer'], row['use']] == 'violated')


def test_dpsgd_of_optax_is_the_chain_that_is_audited():
    """`optax.contrib.dpsgd` itself, which warns of its own argument, gives the same bits."""
    grads = {'a': jax.random.normal(jax.random.key(0), (6, 5)), 'b': jnp.ones((6, 3))}
    with pytest.warns(DeprecationWarning, match='"seed" is deprecated'):
        whole = optax.contrib.dpsgd(2.0, CLIP, 1.5, seed=7)
    aggregate = optax.contrib.differentially_private_aggregate(CLIP, 1.5, jax.random.key(7))
    chain, states = optax.chain(aggregate, optax.sgd(2.0)), {}
    for name, optimizer in (('whole', whole), ('chain', chain)):
        state = optimizer.init(grads)
        first, state = optimizer.update(grads, state)
        states[name] = first, optimizer.update(grads, state)[0]
    for one, other in zip(*map(jax.tree.leaves, states.values()), strict=True):
        np.testing.assert_array_equal(one, other)
