"""The fused scores against Algorithm audit, replayed line by line from stored iterates."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from oneshot import dpsgd
from oneshot.audit import canaries
from oneshot.audit.attacks import Accumulator, black_box, white_box
from oneshot.audit.score import Score, white_box_scores
from oneshot.dpsgd import sampling
from oneshot.dpsgd.clipping import Clipping

INPUTS, HIDDEN, CLASSES = 6, 5, 3
STEPS, CLIP, SIGMA, Q, RATE, SIZE = 40, 0.8, 0.7, 0.3, 3.0, 12.0


def _loss(params, example):
    x, label = example
    logits = jnp.tanh(x @ params['a'] + params['b']) @ params['c'] + params['d']
    return jax.nn.logsumexp(logits) - logits[label]


def _params():
    keys = jax.random.split(jax.random.key(0), 2)
    return {
        'a': jax.random.normal(keys[0], (INPUTS, HIDDEN)) / 2,
        'b': jnp.zeros(HIDDEN),
        'c': jax.random.normal(keys[1], (HIDDEN, CLASSES)) / 2,
        'd': jnp.zeros(CLASSES),
    }


def _examples(n, seed):
    rng = np.random.default_rng(seed)
    images = rng.normal(size=(n, INPUTS)).astype(np.float32)
    return images, rng.integers(0, CLASSES, n).astype(np.int32)


# The same model in NumPy, float64, with its gradient by hand.


def _numpy_loss(w, x, label):
    logits = np.tanh(x @ w['a'] + w['b']) @ w['c'] + w['d']
    return np.log(np.sum(np.exp(logits))) - logits[label]


def _numpy_gradient(w, x, label):
    hidden = np.tanh(x @ w['a'] + w['b'])
    logits = hidden @ w['c'] + w['d']
    error = np.exp(logits) / np.sum(np.exp(logits)) - np.eye(CLASSES)[label]
    back = (w['c'] @ error) * (1 - hidden**2)
    parts = np.outer(x, back), back, np.outer(hidden, error), error  # the order of ravel_pytree
    return np.concatenate([part.ravel() for part in parts])


def _clip(g):
    return min(1.0, CLIP / np.linalg.norm(g)) * g


def _flat(params):
    return np.asarray(ravel_pytree(params)[0], np.float64)


def _float64(params):
    return jax.tree.map(lambda x: np.asarray(x, np.float64), params)


def _run(chosen, included, attacks, optimizer=None, strategy='vmap'):
    """One fused run, and all of its iterates w_0 … w_ℓ."""
    init, step = dpsgd.make_step(
        _loss,
        optimizer or optax.sgd(RATE),
        clipping=Clipping(CLIP, 4, strategy),
        noise_multiplier=SIGMA,
        sampling_prob=Q,
        expected_batch_size=SIZE,
        attacks=attacks,
    )
    population = _examples(30, seed=1)
    state, step = init(_params()), jax.jit(step)
    iterates = [state.params]
    for _ in range(STEPS):
        state, _ = step(state, jax.random.key(9), population, chosen, included)
        iterates.append(state.params)
    fused = {}
    for name, attack in attacks.items():
        fused |= attack.scores(state.audits[name], state.params)
    return {name: np.asarray(value) for name, value in fused.items()}, iterates


def _others(t, w):
    """G_t: the clipped sum of the drawn examples that are not canaries."""
    key, _, _ = jax.random.split(jax.random.fold_in(jax.random.key(9), t), 3)
    drawn = np.asarray(sampling.poisson(key, Q, jnp.ones(30, bool)))
    images, labels = _examples(30, seed=1)
    return sum(_clip(_numpy_gradient(w, images[i], labels[i])) for i in np.flatnonzero(drawn))


def _white_box(iterates, gradient, m, signal, score):
    """Procedure Score of Algorithm audit for every canary."""
    scores = np.zeros(m)
    for t in range(STEPS):
        w = _float64(iterates[t])
        seen = _flat(iterates[t]) - _flat(iterates[t + 1])
        if signal == 'residual':
            seen = seen * SIZE / RATE - _others(t, w)
        elif score == 'llr':
            seen = seen * SIZE / RATE
        for i in range(m):
            g = _clip(gradient(w, i))
            if score == 'dot':
                scores[i] += seen @ g
            else:
                exponent = (2 * seen @ g - g @ g) / (2 * SIGMA**2 * CLIP**2)
                scores[i] += np.log(1 - Q + Q * np.exp(exponent))
    return scores


def _close(ours, literal):
    np.testing.assert_allclose(ours, literal, rtol=1e-5, atol=1e-5 * np.abs(literal).max())


M = 20
INCLUDED = jnp.arange(M) % 3 != 0
SIGNALS = 'iterates', 'residual'
SCORES = white_box_scores(SIGNALS, ('dot', 'llr'))
WHITE_BOX = {
    'clipping': Clipping(CLIP, 6),
    'noise_multiplier': SIGMA,
    'sampling_prob': Q,
    'expected_batch_size': SIZE,
}


def _replay(fused, iterates, gradient):
    """Every score of `WHITE_BOX`, against the algorithm's."""
    for signal in SIGNALS:
        _close(fused[signal], _white_box(iterates, gradient, M, signal, 'dot'))
        _close(fused[f'{signal}_llr'], _white_box(iterates, gradient, M, signal, 'llr'))


@pytest.mark.parametrize('strategy', ['vmap', 'ghost'])
def test_dirac_white_box(strategy):
    chosen = canaries.dirac(jax.random.key(4), M, _params())
    attack = white_box(chosen, SCORES, **WHITE_BOX | {'clipping': Clipping(CLIP, 6, strategy)})
    fused, iterates = _run(chosen, INCLUDED, {'wb': attack}, strategy=strategy)
    size = _flat(_params()).size

    def gradient(w, i):
        return CLIP * np.eye(size)[int(chosen.coordinates[i])]

    _replay(fused, iterates, gradient)


@pytest.mark.parametrize(
    ('kind', 'strategy'),
    [('in_distribution', 'vmap'), ('mislabeled', 'vmap'), ('mislabeled', 'ghost')],
)
def test_input_white_box_and_black_box(kind, strategy):
    held = _examples(M, seed=5)
    key = jax.random.key(4)
    if kind == 'mislabeled':
        chosen = canaries.mislabeled(key, M, *held, classes=CLASSES)
    else:
        chosen = canaries.in_distribution(key, M, *held)
    options = WHITE_BOX | {'clipping': Clipping(CLIP, 6, strategy), 'loss_fn': _loss}
    attacks = {
        'wb': white_box(chosen, SCORES, **options),
        'bb': black_box(chosen, loss_fn=_loss, microbatch_size=6),
    }
    fused, iterates = _run(chosen, INCLUDED, attacks, strategy=strategy)
    images, labels = map(np.asarray, chosen.examples)

    def gradient(w, i):
        return _numpy_gradient(w, images[i], labels[i])

    _replay(fused, iterates, gradient)
    norms = [np.linalg.norm(gradient(_float64(w), i)) for w in iterates for i in range(M)]
    assert min(norms) < CLIP < max(norms)  # ‖ĝ‖ is not always c
    first, last = _float64(iterates[0]), _float64(iterates[-1])
    literal = [
        _numpy_loss(first, images[i], labels[i]) - _numpy_loss(last, images[i], labels[i])
        for i in range(M)
    ]
    _close(fused['loss'], np.array(literal))


def test_the_gradient_signal_serves_other_optimizers():
    """For plain SGD it is the iterates over the learning rate; for Adam it still is g̃/B."""
    chosen = canaries.dirac(jax.random.key(4), M, _params())
    scores = white_box_scores(('iterates', 'gradient'), ('dot', 'llr'))
    attack = white_box(chosen, scores, **WHITE_BOX)
    fused, _ = _run(chosen, INCLUDED, {'wb': attack})
    _close(fused['iterates'], RATE * fused['gradient'])
    adam, _ = _run(chosen, INCLUDED, {'wb': attack}, optax.adam(1e-4))
    assert np.abs(adam['gradient']).max() > 100 * np.abs(adam['iterates']).max()
    for scores in (fused, adam):  # who sees the iterates knows the gradient
        np.testing.assert_array_equal(scores['iterates_llr'], scores['gradient_llr'])


@pytest.mark.parametrize('q', [1.0, 0.999, 0.3, 1e-6])
def test_likelihood_ratios_of_any_size(q):
    """One step, with c = σ = 1: the exponent is what stands at the coordinate, less 1/2."""
    exponents = np.array([-1e6, -1e3, -90.5, -1.0, 0.0, 1e-3, 2.5, 14.0, 90.5, 1e3, 1e6])
    seen = jnp.asarray(exponents + 0.5, jnp.float32)
    exact = np.float64(seen) - 0.5
    chosen = canaries.Dirac(jnp.arange(seen.size))
    known = {'clipping': Clipping(1.0, 1), 'noise_multiplier': 1.0, 'sampling_prob': q}
    attack = white_box(chosen, [Score('residual', 'llr')], **known)
    observed = dpsgd.Observation(seen, seen, seen, seen)
    state = jax.jit(attack.update)(attack.init(seen), observed)
    scores = np.asarray(attack.scores(state, seen)['residual_llr'])
    if q == 1.0:
        np.testing.assert_array_equal(scores, exact)
    else:
        expected = np.logaddexp(np.log1p(-q), np.log(q) + exact)
        np.testing.assert_allclose(scores, expected, rtol=1e-6, atol=2e-7)


def test_scores_in_any_order():
    """Each score is the same, whatever is asked for beside it."""
    params, keys = _params(), jax.random.split(jax.random.key(3), 3)
    seen = dpsgd.Observation(params, *(dpsgd.gaussian_noise(key, params, 1.0) for key in keys))
    chosen, found = canaries.dirac(jax.random.key(4), M, params), []
    for signals, scores in (
        (SIGNALS, ('dot', 'llr')),
        (('residual', 'gradient', 'iterates'), ('llr', 'dot')),
        (('iterates',), ('llr',)),
    ):
        asked = white_box_scores(signals, scores)
        attack = white_box(chosen, asked, **WHITE_BOX)
        found.append(attack.scores(attack.update(attack.init(params), seen), params))
        assert tuple(found[-1]) == tuple(score.name for score in asked)
    assert tuple(found[0]) == ('iterates', 'residual', 'iterates_llr', 'residual_llr')
    assert tuple(found[2]) == ('iterates_llr',)
    for some in found:
        for name, values in some.items():
            np.testing.assert_array_equal(values, found[1][name])


def test_float32_scores_do_not_drift():
    """10,000 steps of values that a plain float32 sum gets wrong in the third digit."""
    values = np.random.default_rng(0).normal(1e-3, 1e-2, (10_000, 5)).astype(np.float32)
    values[0] += 1e4

    def add(state, value):
        return state.add(value), None

    start = Accumulator(jnp.zeros(5), jnp.zeros(5))
    state, _ = jax.jit(lambda s, v: jax.lax.scan(add, s, v))(start, values)
    exact = values.astype(np.float64).sum(axis=0)
    total, lost = (np.asarray(part, np.float64) for part in state)
    np.testing.assert_allclose(total + lost, exact, rtol=1e-9)
    np.testing.assert_allclose(state.sum(), exact, rtol=1e-7)
    plain, _ = jax.lax.scan(lambda s, v: (s + v, None), jnp.zeros(5), values)
    assert np.abs(plain - exact).max() > 100 * np.abs(state.sum() - exact).max()


def test_no_function_that_scores_receives_the_coins():
    for function in (white_box, black_box):
        assert 'included' not in inspect.signature(function).parameters
    assert not {'included', 'coins'} & set(dpsgd.Observation._fields)
    chosen = canaries.dirac(jax.random.key(4), M, _params())
    attack = white_box(chosen, clipping=Clipping(CLIP, 1))
    assert list(inspect.signature(attack.update).parameters) == ['state', 'seen']
    assert list(inspect.signature(attack.scores).parameters) == ['state', 'params']


def test_bad_input():
    chosen = canaries.dirac(jax.random.key(4), M, _params())
    with pytest.raises(ValueError, match=r"signal must be one of iterates, .* 'weights'"):
        white_box_scores(('weights',), ('dot',))
    with pytest.raises(ValueError, match=r'canaries must be examples .* Dirac were given'):
        black_box(chosen, loss_fn=_loss)
    with pytest.raises(ValueError, match=r"score must be one of dot, llr, but 'loss' was given\."):
        white_box_scores(('iterates',), ('loss',))
    inputs = canaries.in_distribution(jax.random.key(0), 3, *_examples(5, 0))
    with pytest.raises(ValueError, match='loss_fn must be given for input canaries'):
        white_box(inputs, clipping=Clipping(1.0, 1))


@pytest.mark.parametrize(
    ('name', 'value', 'interval'),
    [
        ('noise_multiplier', None, r'\(0, inf\)'),
        ('noise_multiplier', 0.0, r'\(0, inf\)'),
        ('noise_multiplier', np.inf, r'\(0, inf\)'),
        ('sampling_prob', None, r'\(0, 1\]'),
        ('sampling_prob', 0.0, r'\(0, 1\]'),
        ('sampling_prob', 1.1, r'\(0, 1\]'),
        ('clip_norm', np.inf, r'\(0, inf\)'),
        ('expected_batch_size', None, r'\(0, inf\)'),
        ('expected_batch_size', np.nan, r'\(0, inf\)'),
    ],
)
def test_llr_without_what_it_needs_is_refused(name, value, interval):
    chosen = canaries.dirac(jax.random.key(4), M, _params())
    change = {'clipping': Clipping(value, 6)} if name == 'clip_norm' else {name: value}
    options = WHITE_BOX | change
    message = rf'^{name}, which llr needs, must be a number in {interval}, but {value} was given\.$'
    with pytest.raises(ValueError, match=message):
        white_box(chosen, SCORES, **options)
    white_box(chosen, white_box_scores(SIGNALS, ('dot',)), **options)
    if name == 'expected_batch_size':
        white_box(chosen, white_box_scores(('residual',), ('dot', 'llr')), **options)
