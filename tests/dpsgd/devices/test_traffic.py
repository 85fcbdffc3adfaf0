"""What one step moves between devices, in the compiled program."""

import jax
import pytest

from configs import digits_bb, digits_wb
from experiments.scaling import STATISTICS, sent
from experiments.traffic import collectives
from oneshot.dpsgd import sharding
from oneshot.run import training
from tests import small


def _exchanges(of, data, model, **changes):
    prepared = training.prepare(small.config(of, mesh__data=data, mesh__model=model, **changes))
    given = prepared.arrays.state, prepared.arrays.key, *prepared.step_arguments
    with sharding.use_mesh(prepared.layout.mesh):
        compiled = jax.jit(prepared.program.step).lower(*given).compile()
    found = collectives(compiled)
    assert {one.computation for one in found} == {'ENTRY'}  # none in the loop over microbatches
    return found, sum(leaf.size for leaf in jax.tree.leaves(prepared.arrays.state.params))


@pytest.mark.parametrize(
    ('of', 'model', 'gradients'),
    [(digits_wb, 'mlp', 1), (digits_wb, 'cnn', 1), (digits_bb, 'mlp', 2)],
)
def test_one_all_reduce_of_the_gradient_and_nothing_else(of, model, gradients):
    """Of canaries that are examples, the sum is one of its own, in the same exchange."""
    changes = {'model__name': model, 'model__widths': ((8,), (8,)), 'audit__m': 104}
    (one,), parameters = _exchanges(of, 8, 1, **changes)
    assert (one.kind, one.devices) == ('all-reduce', 8)
    assert one.size == 4 * (gradients * parameters + STATISTICS)
    if gradients == 1:
        assert one.sent == pytest.approx(sent(parameters, 8, 1))


@pytest.mark.parametrize('m', [96, 1000])
def test_with_split_parameters_each_is_gathered_once_and_reduced_once(m):
    """Whatever the number of canaries: a Dirac canary's score is found where its coordinate is."""
    found, parameters = _exchanges(digits_wb, 4, 2, audit__m=m)
    by_kind = {one.kind: [] for one in found}
    for one in found:
        by_kind[one.kind].append(one)
    assert by_kind.keys() == {'all-gather', 'reduce-scatter', 'all-reduce'}
    assert sum(one.size for one in by_kind['all-gather']) == 4 * parameters
    assert sum(one.size for one in by_kind['reduce-scatter']) == 4 * parameters // 2
    sizes = sorted(one.size for one in by_kind['all-reduce'])
    assert sizes == [4 * STATISTICS, 4 * parameters // 2]
    assert {one.devices for kind in ('all-gather', 'reduce-scatter') for one in by_kind[kind]} == {
        2
    }
    gradient = max(by_kind['all-reduce'], key=lambda one: one.size)
    assert gradient.devices == 4
    reduction = [one for one in found if one.kind != 'all-gather']
    assert sum(one.sent for one in reduction) < sent(parameters, 8, 1)  # less than one over all
    assert sum(one.sent for one in found) == pytest.approx(sent(parameters, 4, 2))


def test_examples_as_canaries_send_nothing_of_their_own_either():
    """Parameters, and each signal, are gathered; with more canaries, not more of it."""
    sizes = {}
    for m in (96, 200):
        found, parameters = _exchanges(digits_bb, 4, 2, audit__m=m)
        sizes[m] = sorted((one.kind, one.size) for one in found)
        gathered = sum(one.size for one in found if one.kind == 'all-gather')
        assert gathered == 4 * parameters * 4  # w, and iterates, gradient and residual
        assert sum(one.size for one in found if one.kind == 'reduce-scatter') == 4 * parameters
    assert sizes[96] == sizes[200]
