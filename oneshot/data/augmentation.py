"""Views of an image: random flips and crops, several of them for one gradient.

Augmentation multiplicity (De et al., Unlocking High-Accuracy Differentially Private Image
Classification through Scale, 2022): the gradient of an example is averaged over K views of
it before it is clipped, so that K views cost no more privacy than one.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from oneshot.dpsgd.gradients.strategy import LossFn

Example = tuple[jax.Array, jax.Array]  # image, or images, and label


def make_augment(number: int, pad: int = 4) -> Callable[[jax.Array, Example], Example]:
    """augment(key, (image, label)), which gives `number` views and the label.

    A view is flipped with probability 1/2, and shifted by up to `pad` pixels down and
    across; what comes in from outside is the image, reflected.
    """

    def view(key: jax.Array, image: jax.Array) -> jax.Array:
        flip_key, crop_key = jax.random.split(key)
        around = [(pad, pad), (pad, pad)] + [(0, 0)] * (image.ndim - 2)
        padded = jnp.pad(image, around, mode='reflect')
        start = jax.random.randint(crop_key, (2,), 0, 2 * pad + 1)
        corner = (*start, *[0] * (image.ndim - 2))
        crop = jax.lax.dynamic_slice(padded, corner, image.shape)
        return jnp.where(jax.random.bernoulli(flip_key), crop[:, ::-1], crop)

    def augment(key: jax.Array, example: Example) -> Example:
        image, label = example
        return jax.vmap(view, (0, None))(jax.random.split(key, number), image), label

    return augment


def mean_loss(loss_fn: LossFn) -> LossFn:
    """The loss of views and their label: the mean over the views."""

    def loss(params: jax.Array, example: Example) -> jax.Array:
        images, label = example
        return jnp.mean(jax.vmap(lambda image: loss_fn(params, (image, label)))(images))

    return loss


def scale(image: jax.Array) -> jax.Array:
    """Bytes as numbers from −1 to 1; floats as they are."""
    return image / 127.5 - 1.0 if image.dtype == jnp.uint8 else image
