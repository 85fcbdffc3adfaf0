"""One device and many give the same: coins, batches, noise, scores, parameters, bounds."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType

from configs import digits_bb, digits_wb
from oneshot import dpsgd
from oneshot.audit import canaries, sharded_canaries
from oneshot.dpsgd import sharding
from oneshot.dpsgd.layout import Layout
from oneshot.run import outcome, training
from oneshot.run.resumption import ResumableRun
from tests import small

pytestmark = pytest.mark.usefixtures('quick_compilation')

LAYOUTS = [(8, 1), (4, 2), (1, 8)]
CNN = {'model__name': 'cnn', 'model__widths': ((8,), (16,)), 'learning_rate': 0.5}
RUNS = {
    'mlp': (digits_wb, {'steps': 50}),
    'cnn': (digits_wb, {'steps': 50, **CNN}),
    # Rows that do not come out even, and every other kind of state.
    'adam': (
        digits_wb,
        {
            'data__n': 301,
            'audit__m': 203,
            'optimizer': 'adam',
            'learning_rate': 0.01,
            'ema_decay': 0.9,
            'evaluate_every': 10,
        },
    ),
    'inputs': (digits_bb, {'data__n': 299, 'audit__m': 101, 'views': 2}),
    'nobody_else': (digits_bb, {'data__n': 0, 'audit__m': 100}),
}


def _config(name, data, model):
    of, changes = RUNS[name]
    return small.config(of, mesh__data=data, mesh__model=model, **changes)


def run(config, folder=None):
    """The run, its last state, its scores, the statistics of its steps, and its bound."""
    prepared, logged = training.prepare(config, folder), []
    state = training.train(prepared, lambda *given: logged.append(given))
    scores = training.collect_scores(prepared, state)
    _, headline = outcome.headline(prepared, outcome.audit_all(prepared, scores))
    return prepared, state, scores, logged, headline


@functools.cache
def alone(name):
    return run(_config(name, 1, 1))


def check_equal(one, other):
    """Scores to 1e-5 of the largest, parameters to 1e-5; all else in full."""
    (a, state_a, scores_a, logged_a, found_a), (b, state_b, scores_b, logged_b, found_b) = (
        one,
        other,
    )
    np.testing.assert_array_equal(a.canaries.coins, b.canaries.coins)
    for (step_a, stats_a, accuracy_a, _), (step_b, stats_b, accuracy_b, _) in zip(
        logged_a, logged_b, strict=True
    ):
        assert (step_a, accuracy_a) == (step_b, accuracy_b)
        np.testing.assert_array_equal(stats_a.examples, stats_b.examples)
        np.testing.assert_allclose(stats_a.loss, stats_b.loss, rtol=1e-5)
    assert scores_a.keys() == scores_b.keys()
    for name, values in scores_a.items():
        assert np.max(np.abs(values - scores_b[name])) < 1e-5 * np.max(np.abs(values)), name
    for x, y in zip(
        jax.tree.leaves((state_a.params, state_a.average)),
        jax.tree.leaves((state_b.params, state_b.average)),
        strict=True,
    ):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-5)
    assert found_a.eps_lb == found_b.eps_lb
    assert training.test_accuracy(a, state_a) == training.test_accuracy(b, state_b)


@pytest.mark.parametrize(
    ('name', 'layout'),
    [
        *((name, layout) for name in ('mlp', 'cnn') for layout in LAYOUTS[:2]),
        ('adam', (4, 2)),
        ('inputs', (4, 2)),
        ('nobody_else', (1, 8)),
    ],
)
def test_many_devices_give_what_one_gives(name, layout):
    made = run(_config(name, *layout))
    assert made[0].layout.shape == dict(zip(('data', 'model'), layout, strict=True))
    for leaf in jax.tree.leaves((made[1].audits, made[0].arrays.population)):
        assert len(leaf.addressable_shards) == 8
    check_equal(alone(name), made)


@pytest.mark.parametrize('size', [200, 203])
def test_the_same_examples_are_drawn(size):
    """The loss of example i is w_i: without noise, the update says who was drawn. In every bit."""
    init, step = dpsgd.make_step(
        lambda params, i: params[i],
        optax.sgd(1.0),
        clipping=dpsgd.Clipping(1.0, 8),
        noise_multiplier=0.0,
        sampling_prob=0.3,
        expected_batch_size=1.0,
        n=size,
    )
    drawn = {}
    for layout in ((1, 1), *LAYOUTS):
        placed = Layout(sharding.make_mesh(*layout))
        population = placed.place_rows(np.arange(size, dtype=np.int32), size)
        with sharding.use_mesh(placed.mesh):
            state, seen = init(jnp.zeros(size)), []
            for _ in range(10):
                before = state.params
                state, stats = jax.jit(step)(state, jax.random.key(3), population)
                seen.append(np.asarray(before - state.params))
                assert np.sum(seen[-1]) == stats.examples
        drawn[layout] = np.stack(seen)
        assert set(np.unique(drawn[layout])) == {0.0, 1.0}
        np.testing.assert_array_equal(drawn[layout], drawn[1, 1])
    assert len(np.unique(drawn[1, 1], axis=0)) == 10  # and others at every step


@pytest.mark.parametrize('kind', [AxisType.Auto, AxisType.Explicit])
def test_a_mesh_of_the_user_with_the_same_axes_is_not_taken_for_ours(kind):
    """With axes `data` and `model`: the step is that of one device, and places nothing."""
    init, step = dpsgd.make_step(
        lambda params, x: jnp.vdot(params['w'], x) ** 2,
        optax.sgd(0.1),
        clipping=dpsgd.Clipping(1.0, 4),
        noise_multiplier=1.0,
        sampling_prob=0.5,
        expected_batch_size=8.0,
    )
    population = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)

    def after_a_step():
        state = init({'w': jnp.ones(8)})
        return jax.jit(step)(state, jax.random.key(0), population)[0].params['w']

    expected = after_a_step()
    users = jax.make_mesh((4, 2), ('data', 'model'), axis_types=(kind,) * 2)
    with jax.set_mesh(users):
        assert sharding.current() is None
        assert sharding.padded_size(5) == 5
        found = after_a_step()
    np.testing.assert_array_equal(found, expected)
    ours = sharding.make_mesh(4, 2)
    assert set(ours.axis_names).isdisjoint(users.axis_names)
    with jax.set_mesh(ours):
        assert sharding.current() is not None
        assert sharding.padded_size(5) == 8


@pytest.mark.parametrize('layout', LAYOUTS)
def test_a_dirac_canary_is_scored_on_the_device_that_has_its_coordinate(layout):
    shapes = {'a': (24, 16), 'b': (16,), 'c': (3, 5), 'd': (2, 3, 8, 24)}
    rng = np.random.default_rng(0)
    tree = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    chosen = canaries.dirac(jax.random.key(0), 700, tree)
    placed = Layout(sharding.make_mesh(*layout))
    spread, rows = sharded_canaries.shard(chosen, placed, tree)
    assert sorted(rows[rows >= 0].tolist()) == list(range(700))
    shardings = placed.like_params(tree)
    there = jax.tree.map(
        lambda x, s: jax.make_array_from_callback(x.shape, s, lambda index: x[index]),
        tree,
        shardings,
    )
    drawn = jnp.asarray(rng.random(700) < 0.5)
    with sharding.use_mesh(placed.mesh):
        compiled = jax.jit(lambda spread, tree: spread.select(tree)).lower(spread, there).compile()
        picked = compiled(spread, there)
        summed = jax.jit(lambda *given: given[0].gradient_sum(*given[1:], 2.0))(
            spread, there, drawn
        )
    assert not any(word in compiled.as_text() for word in ('all-', 'reduce-scatter', 'permute'))
    wanted = np.asarray(chosen.select(tree))
    values = np.asarray(picked)
    np.testing.assert_array_equal(values[rows >= 0], wanted[rows[rows >= 0]])
    assert not np.any(values[rows < 0])
    for one, other in zip(
        jax.tree.leaves(summed), jax.tree.leaves(chosen.gradient_sum(tree, drawn, 2.0)), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    # What each device has of the scores stands in what it has of the tree.
    for shard in picked.addressable_shards:
        own = [
            np.asarray(part.data).ravel()
            for leaf in jax.tree.leaves(there)
            for part in leaf.addressable_shards
            if part.device == shard.device
        ]
        assert np.isin(np.asarray(shard.data), [0.0, *np.concatenate(own)]).all()


def test_memory_falls_with_the_number_of_devices():
    """Parameters, optimizer and average by `model`; examples and scores by all devices."""
    of_params, of_rows = {}, {}
    for data, model in ((1, 1), (1, 2), (1, 4), (1, 8), (8, 1)):
        config = small.config(
            optimizer='adam', ema_decay=0.9, audit__m=800, data__n=400, model__hidden=(64,)
        )
        config.mesh.data, config.mesh.model = data, model
        prepared = training.prepare(config)
        state, first = prepared.arrays.state, prepared.layout.devices[0]

        def held(tree, first=first):
            return sum(
                shard.data.nbytes
                for leaf in jax.tree.leaves(tree)
                for shard in leaf.addressable_shards
                if shard.device == first
            )

        of_params[data, model] = held((state.params, state.opt_state, state.average))
        of_rows[data, model] = held((state.audits, prepared.arrays.population))
    for model in (2, 4, 8):  # beside a bias of 10 numbers, and counters
        assert of_params[1, model] == pytest.approx(of_params[1, 1] / model, rel=0.02)
    assert of_params[8, 1] == of_params[1, 1]
    for layout, size in of_rows.items():  # beside rows that fill up a shard
        assert size == pytest.approx(of_rows[1, 1] / np.prod(layout), rel=0.1)


@pytest.mark.parametrize(('before', 'after'), [((8, 1), (1, 1)), ((1, 1), (4, 2))])
def test_a_run_goes_on_with_another_number_of_devices(before, after, tmp_path, capsys):
    config = _config('adam', *before)
    config.checkpoint_every = 10
    made = run(config)

    prepared = training.prepare(config, tmp_path)
    with prepared.workdir, ResumableRun(prepared) as resumable:
        state, keep = resumable.restore_or_start(), resumable.maybe_save
        training.train(prepared, resumable.log, state=state, until=20, keep=keep)
        resumable.wait()
    config.mesh.data, config.mesh.model = after
    prepared = training.prepare(config, tmp_path)
    headline = training.audit_run(prepared)
    assert 'Going on after step 20 of 25.' in capsys.readouterr().out
    record = json.loads((tmp_path / 'result.json').read_text())
    assert headline.eps_lb == record['eps_lb'] == made[4].eps_lb
    assert record['mesh'] == dict(zip(('data', 'model'), after, strict=True))
    assert len(record['devices']) == np.prod(after)
    with np.load(tmp_path / 'scores.npz') as scores:
        for name, values in made[2].items():
            assert np.max(np.abs(values - scores[name])) < 1e-5 * np.max(np.abs(values)), name


def test_a_mesh_of_more_devices_than_there_are_is_refused():
    with pytest.raises(ValueError, match='must be at most the number of devices, 8, but 3 and 4'):
        training.prepare(small.config(mesh__data=3, mesh__model=4))
    assert Layout(sharding.make_mesh()).shape == {'data': 8, 'model': 1}
    assert Layout(sharding.make_mesh(None, 4)).shape == {'data': 2, 'model': 4}
    assert sharding.make_mesh(1, 1) is None
