"""Examples over all devices, by sharding: nothing of the audit knows of it.

    XLA_FLAGS=--xla_force_host_platform_device_count=2 python -m experiments.loops.optax_sharded

`jit` follows the sharding of its inputs. The examples are spread over the devices, and so
are the columns of the kernels; the audit is wherever the compiler puts it.
"""

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from experiments.loops import optax_scan
from experiments.loops.problem import Problem, report


def run(problem: Problem):
    mesh = jax.make_mesh((jax.device_count(),), ('devices',), axis_types=(AxisType.Auto,))

    def spread(tree, *axes):
        return jax.device_put(tree, NamedSharding(mesh, PartitionSpec(*axes)))

    layers = [(spread(bias), spread(kernel, None, 'devices')) for bias, kernel in problem.layers]
    return optax_scan.run(
        problem._replace(examples=spread(problem.examples, 'devices'), layers=layers)
    )


if __name__ == '__main__':
    report(run)
