"""DP-SGD steps with one thing wrong, and some that are right, for `experiments.faults`.

Each is a function gradient(claim, loss_fn, params, batch, mask, key), as small as DP-SGD
is: gradients of single examples, clipped and summed, noise, division. What is wrong is
marked with a comment.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from oneshot.dpsgd import sampling

PyTree = Any
PARTS = 16  # devices, or parts of a batch
VIEWS = 4
USES = 4  # of a parameter that is shared


class Claim(NamedTuple):
    """What a step is meant to do."""

    sigma: float
    c: float
    batch: float  # the expected batch size
    q: float


def per_example(loss_fn, params, batch, mask) -> PyTree:
    """The gradient of every example, and 0 for padding."""
    grads = jax.vmap(jax.grad(loss_fn), (None, 0))(params, batch)
    return jax.tree.map(lambda g: jnp.where(_along(mask, g), g, 0.0), grads)


def norms(grads: PyTree) -> jax.Array:
    """Of gradients along a leading axis."""
    squares = [jnp.sum(jnp.square(g), range(1, g.ndim)) for g in jax.tree.leaves(grads)]
    return jnp.sqrt(sum(squares))


def clip(grads: PyTree, c: float, lengths: jax.Array | None = None) -> PyTree:
    """Each gradient to a norm of at most c; 0 in place of one that is not finite."""
    lengths = norms(grads) if lengths is None else lengths
    scale = jnp.where(jnp.isfinite(lengths), jnp.minimum(1.0, c / lengths), 0.0)
    return jax.tree.map(lambda g: jnp.where(_along(scale > 0, g), _along(scale, g) * g, 0.0), grads)


def total(grads: PyTree) -> PyTree:
    return jax.tree.map(lambda g: jnp.sum(g, 0), grads)


def add_noise(key: jax.Array, tree: PyTree, deviation: float) -> PyTree:
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(key, len(leaves))
    noisy = [
        x + deviation * jax.random.normal(k, jnp.shape(x))
        for k, x in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, noisy)


def divide(tree: PyTree, by: float) -> PyTree:
    return jax.tree.map(lambda x: x / by, tree)


def add(one: PyTree, other: PyTree) -> PyTree:
    return jax.tree.map(jnp.add, one, other)


def in_parts(grads: PyTree) -> PyTree:
    """Examples, cut into `PARTS` along a new leading axis."""
    return jax.tree.map(lambda g: g.reshape(PARTS, -1, *g.shape[1:]), grads)


def _along(values: jax.Array, like: jax.Array) -> jax.Array:
    return values.reshape(-1, *[1] * (like.ndim - 1))


def clipped_sum(claim, loss_fn, params, batch, mask) -> PyTree:
    return total(clip(per_example(loss_fn, params, batch, mask), claim.c))


# Right ones, and too careful ones.


def right(claim, loss_fn, params, batch, mask, key):
    summed = clipped_sum(claim, loss_fn, params, batch, mask)
    return divide(add_noise(key, summed, claim.sigma * claim.c), claim.batch)


def sum_noise_on_the_mean(claim, loss_fn, params, batch, mask, key):
    mean = divide(clipped_sum(claim, loss_fn, params, batch, mask), claim.batch)
    return add_noise(key, mean, claim.sigma * claim.c)  # B times as much as is needed


def replace_one(claim, loss_fn, params, batch, mask, key):
    summed = clipped_sum(claim, loss_fn, params, batch, mask)
    return divide(add_noise(key, summed, 2.0 * claim.sigma * claim.c), claim.batch)


def layers_share_the_norm(claim, loss_fn, params, batch, mask, key):
    grads = per_example(loss_fn, params, batch, mask)
    share = claim.c / math.sqrt(len(jax.tree.leaves(grads)))
    summed = total(jax.tree.map(lambda g: clip(g, share), grads))
    return divide(add_noise(key, summed, claim.sigma * claim.c), claim.batch)


def noise_in_parts(claim, loss_fn, params, batch, mask, key):
    parts = in_parts(clip(per_example(loss_fn, params, batch, mask), claim.c))
    deviation = claim.sigma * claim.c / math.sqrt(PARTS)
    noisy = jax.vmap(add_noise, (0, 0, None))(
        jax.random.split(key, PARTS), jax.vmap(total)(parts), deviation
    )
    return divide(total(noisy), claim.batch)


def views_averaged(claim, loss_fn, params, batch, mask, key):
    def loss(params, example):
        return jnp.mean(jnp.stack([loss_fn(params, view) for view in views(example)]))

    return right(claim, loss, params, batch, mask, key)


def normalized(claim, loss_fn, params, batch, mask, key):
    grads = per_example(loss_fn, params, batch, mask)
    lengths = norms(grads) + 0.01
    scaled = clip(grads, claim.c, jnp.maximum(lengths, claim.c))
    factor = jnp.where(lengths < claim.c, claim.c / lengths, 1.0)
    summed = total(jax.tree.map(lambda g: _along(factor, g) * g, scaled))
    return divide(add_noise(key, summed, claim.sigma * claim.c), claim.batch)


# The noise is wrong.


def noise_missing(claim, loss_fn, params, batch, mask, key):
    return divide(clipped_sum(claim, loss_fn, params, batch, mask), claim.batch)  # and nothing else


def noise_without_c(claim, loss_fn, params, batch, mask, key):
    summed = clipped_sum(claim, loss_fn, params, batch, mask)
    return divide(add_noise(key, summed, claim.sigma), claim.batch)  # not σ·c


def noise_divided_twice(claim, loss_fn, params, batch, mask, key):
    mean = divide(clipped_sum(claim, loss_fn, params, batch, mask), claim.batch)
    deviation = claim.sigma * claim.c / claim.batch
    return add_noise(key, mean, deviation / claim.batch)  # again


def sigma_as_variance(claim, loss_fn, params, batch, mask, key):
    summed = clipped_sum(claim, loss_fn, params, batch, mask)
    deviation = math.sqrt(claim.sigma)  # of a distribution N(0, σ)
    return divide(add_noise(key, summed, deviation * claim.c), claim.batch)


def noise_off_one_layer(claim, loss_fn, params, batch, mask, key):
    summed = clipped_sum(claim, loss_fn, params, batch, mask)
    noisy = add_noise(key, summed, claim.sigma * claim.c)
    late = min(noisy)  # a layer that was added later, and is not in the list
    noisy[late] = summed[late]
    return divide(noisy, claim.batch)


def keep_the_key(params, key):
    return key


def same_key_each_step(claim, loss_fn, params, batch, mask, key):
    return right(claim, loss_fn, params, batch, mask, key), key  # the state is never split


def same_key_on_every_leaf(claim, loss_fn, params, batch, mask, key):
    summed = clipped_sum(claim, loss_fn, params, batch, mask)
    deviation = claim.sigma * claim.c

    def noisy(x):
        return x + deviation * jax.random.normal(key, x.shape)  # one key for all

    return divide(jax.tree.map(noisy, summed), claim.batch)


def one_value_per_leaf(claim, loss_fn, params, batch, mask, key):
    summed = clipped_sum(claim, loss_fn, params, batch, mask)
    scalars = add_noise(key, jax.tree.map(lambda x: 0.0, summed), claim.sigma * claim.c)
    return divide(add(summed, scalars), claim.batch)  # broadcast


def too_little_per_shard(claim, loss_fn, params, batch, mask, key):
    parts = in_parts(clip(per_example(loss_fn, params, batch, mask), claim.c))
    deviation = claim.sigma * claim.c / PARTS  # should be 1/√PARTS
    noisy = jax.vmap(add_noise, (0, 0, None))(
        jax.random.split(key, PARTS), jax.vmap(total)(parts), deviation
    )
    return divide(total(noisy), claim.batch)


def noise_on_the_first_part(claim, loss_fn, params, batch, mask, key):
    parts = jax.vmap(total)(in_parts(clip(per_example(loss_fn, params, batch, mask), claim.c)))
    first = jax.tree.map(lambda g: g[0], parts)
    rest = jax.tree.map(lambda g: g[1:], parts)
    deviation = claim.sigma * claim.c / math.sqrt(PARTS)  # of every part
    return divide(add(add_noise(key, first, deviation), total(rest)), claim.batch)


# The clipping is wrong.


def mean_clipped(claim, loss_fn, params, batch, mask, key):
    mean = divide(total(per_example(loss_fn, params, batch, mask)), claim.batch)
    clipped = clip(jax.tree.map(lambda g: g[None], mean), claim.c)  # not each example
    return add_noise(key, total(clipped), claim.sigma * claim.c / claim.batch)


def microbatch_clipped(claim, loss_fn, params, batch, mask, key):
    parts = jax.vmap(total)(in_parts(per_example(loss_fn, params, batch, mask)))
    summed = total(clip(parts, claim.c))  # the sums of several
    return divide(add_noise(key, summed, claim.sigma * claim.c), claim.batch)


def clip_norm_ignored(claim, loss_fn, params, batch, mask, key):
    summed = total(per_example(loss_fn, params, batch, mask))  # not clipped
    return divide(add_noise(key, summed, claim.sigma * claim.c), claim.batch)


def layers_clipped_alone(claim, loss_fn, params, batch, mask, key):
    grads = per_example(loss_fn, params, batch, mask)
    summed = total(jax.tree.map(lambda g: clip(g, claim.c), grads))  # √layers·c in all
    return divide(add_noise(key, summed, claim.sigma * claim.c), claim.batch)


def views(example):
    """The example moved to the right by 0 to `VIEWS` − 1 pixels."""
    image, label = example.natural
    moved = [jnp.roll(image, shift, axis=-1) for shift in range(VIEWS)]
    return [example._replace(natural=(image, label)) for image in moved]


def views_clipped_one_by_one(claim, loss_fn, params, batch, mask, key):
    summed = None
    for i in range(VIEWS):  # each view is clipped, and all are summed

        def loss(params, example, i=i):
            return loss_fn(params, views(example)[i])

        view = clipped_sum(claim, loss, params, batch, mask)
        summed = view if summed is None else add(summed, view)
    return divide(add_noise(key, summed, claim.sigma * claim.c), claim.batch)


def raw_gradient_mixed_in(claim, loss_fn, params, batch, mask, key):
    grads = per_example(loss_fn, params, batch, mask)
    raw = divide(total(grads), claim.batch)  # left over from an ordinary backward pass
    summed = add(total(clip(grads, claim.c)), raw)
    return divide(add_noise(key, summed, claim.sigma * claim.c), claim.batch)


def tied_counted_once(claim, loss_fn, params, batch, mask, key):
    def loss(uses, example):  # of parameters that are used several times
        return loss_fn(jax.tree.map(lambda *w: sum(w) / USES, *uses), example)

    grads = per_example(loss, [params] * USES, batch, mask)
    lengths = norms(grads[-1])  # of the last use, which took the place of those before
    summed = total(clip(jax.tree.map(lambda *g: sum(g), *grads), claim.c, lengths))
    return divide(add_noise(key, summed, claim.sigma * claim.c), claim.batch)


def float16_norms(claim, loss_fn, params, batch, mask, key):
    grads = per_example(loss_fn, params, batch, mask)
    half = jax.tree.map(lambda g: g.astype(jnp.float16), grads)
    lengths = norms(half).astype(jnp.float32)  # squares below 6e-8 are 0
    summed = total(clip(grads, claim.c, lengths))
    return divide(add_noise(key, summed, claim.sigma * claim.c), claim.batch)


def batch_norm(claim, loss_fn, params, batch, mask, key):
    images, labels = batch.natural
    real = _along(mask, images)
    mean = jnp.sum(jnp.where(real, images, 0.0), 0) / jnp.maximum(jnp.sum(mask), 1)
    spread = jnp.sum(jnp.where(real, (images - mean) ** 2, 0.0), 0) / jnp.maximum(jnp.sum(mask), 1)
    normal = (images - mean) / jnp.sqrt(spread + 1e-5)  # by what the others are
    batch = batch._replace(natural=(normal, labels))
    return right(claim, loss_fn, params, batch, mask, key)


def divided_by_the_drawn(claim, loss_fn, params, batch, mask, key):
    summed = clipped_sum(claim, loss_fn, params, batch, mask)
    noisy = add_noise(key, summed, claim.sigma * claim.c)
    return divide(noisy, jnp.maximum(jnp.sum(mask), 1))  # not by the expected number


def not_finite_kept(claim, loss_fn, params, batch, mask, key):
    grads = per_example(loss_fn, params, batch, mask)
    scale = jnp.minimum(1.0, claim.c / norms(grads))
    summed = jax.tree.map(lambda g: jnp.tensordot(scale, g, 1), grads)  # 0 · ∞
    return divide(add_noise(key, summed, claim.sigma * claim.c), claim.batch)


# The sampling is wrong.


def poisson(claim, key, n, steps):
    return sampling.poisson(key, claim.q, jnp.ones((steps, n), bool))


def shuffled(claim, key, n, steps):
    """Every epoch in another order, cut into batches of qn."""
    size = math.ceil(claim.q * n)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).tolist())
    counts, step = np.zeros((steps, n), int), 0
    while step < steps:
        order = rng.permutation(n)
        for batch in np.split(order, range(size, n, size))[: steps - step]:
            counts[step, batch] += 1
            step += 1
    return counts


def every_batch_twice(claim, key, n, steps):
    return jnp.repeat(poisson(claim, key, n, -(-steps // 2)), 2, axis=0)[:steps]


def eight_devices(claim, key, n, steps):
    """The accountant is told of the batch of one device."""
    return poisson(claim._replace(q=8.0 * claim.q), key, n, steps)
