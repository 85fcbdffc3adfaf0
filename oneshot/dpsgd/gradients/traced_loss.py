"""The loss of one example as a list of operations, as JAX traces it.

Functions that are nested in it are taken away, so that what happens to each parameter can
be seen, and the loss can be run again with something changed (`oneshot.dpsgd.gradients.ghost`).
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend import core

from oneshot.dpsgd.gradients.strategy import LossFn

PyTree = Any

_NESTED = ('jit', 'pjit')  # the second, in older releases of JAX
# Functions of our own that stay whole: what is done to a kernel before it is used.
KERNEL_FUNCTIONS = ('oneshot_standardize_kernel', 'oneshot_prepare_kernel')


class Slot(NamedTuple):
    """The place of a value that is not known while the loss is traced."""

    index: int


class Op(NamedTuple):
    """One operation of the loss."""

    eqn: core.JaxprEqn
    jaxpr: core.Jaxpr  # of this operation alone
    ins: list[Any]  # a Slot, or a value
    outs: list[Slot]

    @property
    def name(self) -> str:
        nested = self.eqn.primitive.name in _NESTED
        return self.eqn.params['name'] if nested else self.eqn.primitive.name

    def __call__(self, *ins: Any) -> Sequence[Any]:
        values = dict(_variables(self.eqn, ins)).values()
        return core.jaxpr_as_fun(core.ClosedJaxpr(self.jaxpr, ()))(*values)


def _variables(eqn: core.JaxprEqn, ins: Sequence[Any]) -> list[tuple[core.Var, Any]]:
    """The inputs that are not written into the operation itself."""
    atoms = zip(eqn.invars, ins, strict=True)
    return [(atom, x) for atom, x in atoms if not isinstance(atom, core.Literal)]


class Program(NamedTuple):
    """The operations of a loss, in order."""

    ops: list[Op]
    leaves: list[Slot]  # the parameters
    inputs: list[Slot]  # the example
    loss: Any

    def users(self) -> dict[Slot, list[Op]]:
        """The operations that take a value, once for each time that they take it."""
        users: dict[Slot, list[Op]] = {}
        for op in self.ops:
            for place in op.ins:
                if isinstance(place, Slot):
                    users.setdefault(place, []).append(op)
        return users


def trace(loss_fn: LossFn, params: PyTree, example: PyTree) -> Program:
    """The program of a loss; parameters and example may be shapes."""
    leaves, tree = jax.tree.flatten(params)
    inputs, example_tree = jax.tree.flatten(example)
    closed = jax.make_jaxpr(
        lambda leaves, inputs: loss_fn(tree.unflatten(leaves), example_tree.unflatten(inputs))
    )(leaves, inputs)
    fresh = map(Slot, itertools.count())
    slots = [next(fresh) for _ in (*leaves, *inputs)]
    ops: list[Op] = []
    (loss,) = _flatten(closed, slots, fresh, ops)
    return Program(ops, slots[: len(leaves)], slots[len(leaves) :], loss)


def _flatten(
    closed: core.ClosedJaxpr, ins: Sequence[Any], fresh: Iterator[Slot], ops: list[Op]
) -> list[Any]:
    """Appends the operations of a function to `ops`, and gives its results."""
    values = dict(zip(closed.jaxpr.invars, ins, strict=True))
    values |= dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else values[atom]

    for eqn in closed.jaxpr.eqns:
        ins = [read(atom) for atom in eqn.invars]
        if eqn.primitive.name in _NESTED and eqn.params['name'] not in KERNEL_FUNCTIONS:
            outs = _flatten(eqn.params['jaxpr'], ins, fresh, ops)
        else:
            outs = [next(fresh) for _ in eqn.outvars]
            variables = dict(_variables(eqn, ins))
            alone = closed.jaxpr.replace(
                constvars=[], invars=list(variables), outvars=eqn.outvars, eqns=[eqn]
            )
            ops.append(Op(eqn, alone, ins, outs))
        values |= dict(zip(eqn.outvars, outs, strict=True))
    return [read(atom) for atom in closed.jaxpr.outvars]
