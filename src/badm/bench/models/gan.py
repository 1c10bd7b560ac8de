"""The conditional GAN of the public example: a generator and a discriminator that get the class."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, one_hot, pad

from badm.bench.models.convolutional import Convolution
from badm.bench.models.keras_layers import Dense

SIDE = 28  # of an image; the generator enlarges a quarter of it twice
SLOPE = 0.2
NOISE = 128

LabelMap = Literal["bands", "one-hot"]


class Generator(nn.Module):
    """Maps noise and a class to an image ``(N, 1, side, side)`` from 0 to 1.

    ``channels`` are those before the first and after both transposed convolutions; in the example
    the first is the size of its input.

    >>> sum(p.numel() for p in Generator().parameters())
    1491215
    """

    def __init__(
        self,
        classes: int = 10,
        side: int = SIDE,
        channels: tuple[int, int, int] | None = None,
        noise: int = NOISE,
    ) -> None:
        super().__init__()
        self.classes, self.noise, self.quarter = classes, noise, _quarter(side)
        first, second, third = channels or (noise + classes, 128, 128)
        self.start = Dense(noise + classes, self.quarter**2 * first)
        self.middle = TransposedConvolution(first, second)
        self.large = TransposedConvolution(second, third)
        self.output = Convolution(third, 1, 7, padding=3)

    def forward(self, noise: Tensor, labels: Tensor) -> Tensor:
        x = torch.cat([noise, one_hot(labels, self.classes).to(noise.dtype)], 1)
        x = leaky_relu(self.start(x), SLOPE)
        # In the order of Keras: channels last.
        x = x.reshape(len(x), self.quarter, self.quarter, -1).permute(0, 3, 1, 2)
        x = leaky_relu(self.middle(x), SLOPE)
        x = leaky_relu(self.large(x), SLOPE)
        images: Tensor = self.output(x)
        return images.sigmoid()


class Discriminator(nn.Module):
    """Maps an image and its class to a logit ``(N,)``, high for generated images.

    The class is given as ten more channels: see :func:`label_map`.

    >>> sum(p.numel() for p in Discriminator().parameters())
    80385
    """

    def __init__(
        self,
        classes: int = 10,
        side: int = SIDE,
        channels: tuple[int, int] = (64, 128),
        labels: LabelMap = "bands",
    ) -> None:
        super().__init__()
        first, second = channels
        self.first = Halving(1 + classes, first)
        self.second = Halving(first, second)
        self.output = Dense(second, 1)
        self.register_buffer("maps", label_map(classes, labels, side), persistent=False)
        self.maps: Tensor

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = torch.cat([images, self.maps[labels]], 1)
        x = leaky_relu(self.first(x), SLOPE)
        x = leaky_relu(self.second(x), SLOPE)
        logits: Tensor = self.output(x.amax((2, 3)))
        return logits.squeeze(1)


def label_map(classes: int, kind: LabelMap, side: int = SIDE) -> Tensor:
    """Return the discriminator's channels for each class: ``(classes, classes, side, side)``.

    ``"one-hot"`` has one channel of ones for each class. ``"bands"`` is what the public example
    computes, with a wrong reshape: all channels are one in a band of a
    tenth of the rows, further down for each class, and zero elsewhere.

    >>> label_map(10, "one-hot")[3].mean((1, 2))
    tensor([0., 0., 0., 1., 0., 0., 0., 0., 0., 0.])
    >>> label_map(10, "bands")[1].mean((0, 2))[:7]  # of each row
    tensor([0.0000, 0.0000, 0.2000, 1.0000, 1.0000, 0.6000, 0.0000])
    """
    if kind not in ("bands", "one-hot"):
        raise ValueError(f"label map must be 'bands' or 'one-hot', got {kind!r}")
    ones = torch.eye(classes)
    if kind == "one-hot":
        return ones[:, :, None, None].expand(-1, -1, side, side).contiguous()
    repeated = ones.repeat_interleave(side * side, dim=1)
    return repeated.reshape(classes, side, side, classes).permute(0, 3, 1, 2).contiguous()


def _quarter(side: int) -> int:
    if side < 4 or side % 4:
        raise ValueError(f"side must be a multiple of 4, got {side}")
    return side // 4


class ConditionalGan(nn.Module):
    """Both networks in one module, for a task with two players."""

    def __init__(self, generator: Generator, discriminator: Discriminator) -> None:
        super().__init__()
        self.generator, self.discriminator = generator, discriminator

    def sample(self, labels: Tensor) -> Tensor:
        """Generate an image of each of those classes, with noise from torch's generator."""
        noise = torch.randn(len(labels), self.generator.noise, device=labels.device)
        images: Tensor = self.generator(noise, labels)
        return images


class TransposedConvolution(nn.ConvTranspose2d):
    """4×4 with stride 2, which doubles the side, initialised as in Keras."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 4, stride=2, padding=1)

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class Halving(Convolution):
    """3×3 with stride 2, which halves an even side. Keras pads at the right and the bottom."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(pad(x, (0, 1, 0, 1)))
