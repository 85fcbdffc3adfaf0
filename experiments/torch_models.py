"""The models of `oneshot.data.models` in PyTorch, and their steps: ordinary and with Opacus.

Layers and parameters are the same. At stride 2 PyTorch pads images on all sides, where
XLA's SAME pads below and on the right: the outputs have the same shapes and cost.

Opacus has no rule for standardized kernels. `_standardized_grad_sample` is one, made of
its own rule for convolutions. Its ghost mode makes the gradients of every convolution,
standardized or not, one layer at a time: it has a rule for norms of dense layers only.
"""

import copy
import itertools
import warnings
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from opacus.grad_sample import (
    GradSampleModule,
    GradSampleModuleFastGradientClipping,
    register_grad_sampler,
)
from opacus.grad_sample.conv import compute_conv_grad_sample
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import nn

from oneshot.dpsgd.gradients.cpu_conv import NORM_FLOOR

MODES = ('hooks', 'ghost', 'ordinary')  # the first two are Opacus'

# The images ask for no gradient: so the first layer's backward hook is called, but warns.
warnings.filterwarnings('ignore', 'Full backward hook is firing')


class WSConv(nn.Conv2d):
    """A convolution, its kernel standardized."""

    def standardized(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The standardized kernel, and the squared norms that it was divided by."""
        centred = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        square = centred.square().sum((1, 2, 3), keepdim=True)
        return centred * torch.rsqrt(square.clamp(min=NORM_FLOOR)), square

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, self.standardized()[0], None, self.stride, self.padding)


@register_grad_sampler(WSConv)
def _standardized_grad_sample(
    layer: WSConv, activations: list[torch.Tensor], backprops: torch.Tensor
) -> dict[nn.Parameter, torch.Tensor]:
    """Opacus' gradients in the standardized kernel, pulled back to the kernel."""
    plain = copy.copy(layer)
    plain.__class__ = nn.Conv2d  # Opacus' rule asks for the exact class
    grads = compute_conv_grad_sample(plain, activations, backprops)[layer.weight].flatten(2)
    with torch.no_grad():
        kernel, square = layer.standardized()
    kernel, square = kernel.flatten(1), square.flatten(1)
    # Of the gradient, what is constant or along the kernel goes.
    grads -= grads.mean(2, keepdim=True)
    along = torch.einsum('nop,op->no', grads, kernel * (square > NORM_FLOOR))
    grads -= along[:, :, None] * kernel
    grads *= torch.rsqrt(square.clamp(min=NORM_FLOOR))
    return {layer.weight: grads.unflatten(2, layer.weight.shape[1:])}


def check_standardized() -> None:
    """Compares the rule with autograd, one example at a time."""
    images = torch.randn(3, 16, 8, 8)
    for size, stride, scale in itertools.product((1, 3), (1, 2), (1.0, 1e-3)):
        layer = WSConv(16, 32, size, stride, size // 2, bias=False)
        layer.weight.data *= scale  # the smaller one is below the floor of the norms
        outputs = layer(images)
        back = torch.randn_like(outputs)
        got = _standardized_grad_sample(layer, [images], back)[layer.weight]
        for i in range(len(images)):
            want = torch.autograd.grad(layer(images[i : i + 1]), layer.weight, back[i : i + 1])[0]
            torch.testing.assert_close(got[i], want, rtol=1e-4, atol=1e-4 * want.abs().max().item())


class Block(nn.Module):
    """Two times relu, norm, convolution, and the shortcut around them."""

    def __init__(self, inputs: int, outputs: int, stride: int, conv: type[nn.Conv2d]) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(16, n) for n in (inputs, outputs)])
        self.first = conv(inputs, outputs, 3, stride, 1, bias=False)
        self.second = conv(outputs, outputs, 3, 1, 1, bias=False)
        same = inputs == outputs and stride == 1
        self.shortcut = None if same else conv(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norms[0](F.relu(x))
        shortcut = x if self.shortcut is None else self.shortcut(h)
        h = self.norms[1](F.relu(self.first(h)))
        return shortcut + self.second(h)


def make(name: str, *, standardized: bool = True) -> nn.Module:
    """A model by name, for images of 3×32×32 and ten classes."""
    if name == 'mlp':
        return nn.Sequential(nn.Flatten(), nn.Linear(3072, 64), nn.Tanh(), nn.Linear(64, 10))
    if name == 'cnn':
        layers = []
        for number, widths in enumerate(itertools.pairwise((3, 32, 32, 64, 64, 128))):
            layers += [nn.Conv2d(*widths, 3, padding=1), nn.Tanh()]
            layers += [nn.AvgPool2d(2)] if number in (1, 3, 4) else []
        head = nn.Linear(2048, 128), nn.Tanh(), nn.Linear(128, 10)
        return nn.Sequential(*layers, nn.Flatten(), *head)
    conv = WSConv if standardized else nn.Conv2d
    widths, strides = (16, 64, 64, 128, 128, 256, 256), (1, 1, 2, 1, 2, 1)
    blocks = [
        Block(*pair, stride, conv)
        for pair, stride in zip(itertools.pairwise(widths), strides, strict=True)
    ]
    head = nn.ReLU(), nn.GroupNorm(16, 256), nn.AvgPool2d(8), nn.Flatten(), nn.Linear(256, 10)
    return nn.Sequential(conv(3, 16, 3, 1, 1, bias=False), *blocks, *head)


def make_step(
    mode: str,
    model: nn.Module,
    batch: Sequence[torch.Tensor],
    size: int,
    learning_rate: float,
    clip_norm: float,
    noise_multiplier: float,
) -> Callable[[], None]:
    """One step on (images, labels), `size` examples at a time.

    With Opacus, parts are added up in the way of its own `BatchMemoryManager`.
    """
    examples, parts = len(batch[1]), list(zip(*(x.split(size) for x in batch), strict=True))
    optimizer = torch.optim.SGD(model.parameters(), learning_rate)
    criterion = nn.CrossEntropyLoss()
    privacy = {'noise_multiplier': noise_multiplier, 'max_grad_norm': clip_norm}
    if mode == 'hooks':
        model = GradSampleModule(model)
        optimizer = DPOptimizer(optimizer, expected_batch_size=examples, **privacy)
    elif mode == 'ghost':
        model = GradSampleModuleFastGradientClipping(model, max_grad_norm=clip_norm)
        optimizer = DPOptimizerFastGradientClipping(
            optimizer, expected_batch_size=examples, **privacy
        )
        criterion = DPLossFastGradientClipping(model, optimizer, criterion)

    def ordinary() -> None:
        optimizer.zero_grad()
        for images, labels in parts:
            (criterion(model(images), labels) * (len(labels) / examples)).backward()
        optimizer.step()

    def private() -> None:
        for number, (images, labels) in enumerate(parts, start=1):
            optimizer.signal_skip_step(do_skip=number < len(parts))
            optimizer.zero_grad()
            criterion(model(images), labels).backward()
            optimizer.step()

    return ordinary if mode == 'ordinary' else private
