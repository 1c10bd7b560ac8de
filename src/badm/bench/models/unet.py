"""The U-Net of the diffusion task, which predicts the noise in an image."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, interpolate, silu

from badm.bench.models.convolutional import Convolution
from badm.bench.models.keras_layers import BatchNorm

WIDTHS = (32, 64, 96, 128)
DEPTH = 2  # blocks of each width
LOWEST, HIGHEST = 1.0, 1000.0  # frequencies of the embedding


class UNet(nn.Module):
    """Predicts the noise in images ``(N, 3, side, side)``, given its variance ``(N,)``.

    There is a level for each width but the last, which is that of the bottom; every block on the
    way down has a skip connection to one on the way up.

    >>> from badm.bench.models.keras_layers import parameter_counts
    >>> network = UNet()
    >>> total, trained = parameter_counts(network)
    >>> trained, total - trained
    (1950627, 2880)
    >>> network(torch.randn(2, 3, 64, 64), torch.tensor([0.1, 0.9])).shape
    torch.Size([2, 3, 64, 64])
    """

    def __init__(
        self, widths: Sequence[int] = WIDTHS, depth: int = DEPTH, *, warm_up: bool = False
    ) -> None:
        super().__init__()
        first, *_, lowest, bottom = widths
        levels = widths[:-1]

        def level(inputs: int, width: int, skip: int = 0) -> nn.ModuleList:
            before = (inputs, *[width] * (depth - 1))
            return nn.ModuleList(Block(each + skip, width, warm_up) for each in before)

        self.image = Convolution(3, first, 1)
        self.embedding = NoiseEmbedding(first)
        self.down = nn.ModuleList(map(level, (2 * first, *levels), levels))
        self.bottom = nn.Sequential(*level(lowest, bottom))
        # Skip connections are as wide as their level.
        self.up = nn.ModuleList(map(level, widths[:0:-1], levels[::-1], levels[::-1]))
        self.noise = Convolution(first, 3, 1)
        nn.init.zeros_(self.noise.weight)  # initially it predicts no noise

    def forward(self, images: Tensor, variance: Tensor) -> Tensor:
        embedded = self.embedding(variance)[:, :, None, None]
        x = self.image(images)
        x = torch.cat([x, embedded.expand(-1, -1, *x.shape[2:])], 1)
        skips = []
        for level in self.down:
            assert isinstance(level, nn.ModuleList)
            for block in level:
                x = block(x)
                skips.append(x)
            x = avg_pool2d(x, 2)
        x = self.bottom(x)
        for level in self.up:
            assert isinstance(level, nn.ModuleList)
            x = interpolate(x, scale_factor=2, mode="bilinear")
            for block in level:
                x = block(torch.cat([x, skips.pop()], 1))
        noise: Tensor = self.noise(x)
        return noise


class Block(nn.Module):
    """BatchNorm without scale and offset, and two 3×3 convolutions, with a residual connection."""

    def __init__(self, inputs: int, outputs: int, warm_up: bool = False) -> None:
        super().__init__()
        same = inputs == outputs
        self.shortcut = nn.Identity() if same else Convolution(inputs, outputs, 1)
        self.norm = BatchNorm(inputs, affine=False, warm_up=warm_up)
        self.first = Convolution(inputs, outputs, 3, padding=1)
        self.second = Convolution(outputs, outputs, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.shortcut(x) + self.second(silu(self.first(self.norm(x))))
        return out


class NoiseEmbedding(nn.Module):
    """Embeds a variance as sines and cosines, at frequencies from 1 to 1,000.

    >>> NoiseEmbedding(4)(torch.tensor([0.25])).round(decimals=2).abs().tolist()
    [[1.0, 0.0, 0.0, 1.0]]
    """

    angles: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        exponents = torch.linspace(math.log(LOWEST), math.log(HIGHEST), width // 2)
        self.register_buffer("angles", 2 * math.pi * exponents.exp(), persistent=False)

    def forward(self, variance: Tensor) -> Tensor:
        angles = variance[:, None] * self.angles
        return torch.cat([angles.sin(), angles.cos()], 1)
