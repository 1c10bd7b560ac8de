"""The U-Net of the diffusion task, which predicts the noise in an image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

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
        self.norm = (WarmBatchNorm if warm_up else BatchNorm)(inputs, affine=False)
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


class WarmBatchNorm(BatchNorm):
    """BatchNorm whose running averages soon forget their initial values.

    Keras's change by 0.01 per step: after a hundred steps a third of them is still the initial
    value.
    """

    def observe(self, mean: Tensor, variance: Tensor) -> None:
        with torch.no_grad():
            self.num_batches_tracked += 1
            share = warmup_share(1 - 0.01, self.num_batches_tracked)
            self.running_mean.lerp_(mean, share)
            self.running_var.lerp_(variance, share)


def warmup_decay(decay: float, step: int) -> float:
    """Return the decay of a running average at a step, lower at first to forget its start.

    >>> [round(warmup_decay(0.99, step), 2) for step in (1, 10, 100, 1000)]
    [0.18, 0.55, 0.92, 0.99]
    """
    return min(decay, (1 + step) / (10 + step))


def warmup_share(decay: float, step: Tensor) -> Tensor:
    """What a running average takes of a new value: 1 less :func:`warmup_decay`.

    Looked up where the count of steps is: nobody waits for a device to say how many there were.

    >>> warmup_share(0.99, torch.tensor([1, 100, 1000]))
    tensor([0.8182, 0.0818, 0.0100])
    """
    shares = _warmup_shares(decay, step.device)
    # Not by an index of no dimensions, whose value torch would ask for.
    found = shares.index_select(0, step.clamp(max=len(shares) - 1).flatten())
    return found.view_as(step)


@lru_cache(maxsize=8)
def _warmup_shares(decay: float, device: torch.device) -> Tensor:
    """By step, until the decay is what it stays."""
    last = math.ceil((10 * decay - 1) / (1 - decay))
    return torch.tensor([1 - warmup_decay(decay, step) for step in range(last + 2)]).to(device)
