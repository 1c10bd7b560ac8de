"""Diffusion in continuous time: images become noise, and a network learns to reverse it.

At time t from 0 to 1 an image is ``cos(φ)·image + sin(φ)·noise``, φ being linear in t. Sampling is
deterministic (DDIM with η = 0): only the initial noise is random.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import l1_loss

from badm.bench.models.running_averages import warmup_share
from badm.bench.models.unet import WIDTHS, UNet

# Signal rates at both ends: never quite 0, because it is divided by, and never quite 1.
LARGEST, SMALLEST = 0.95, 0.02
DECAY = 0.999  # of the averaged weights
PIECE = 64  # images that pass through the network at once


def rates(times: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rates of image and noise at each time; their squares sum to one.

    >>> image, noise = rates(torch.tensor([0.0, 1.0]))
    >>> image.round(decimals=4).tolist(), (image**2 + noise**2).round(decimals=4).tolist()
    ([0.949999988079071, 0.019999999552965164], [1.0, 1.0])
    """
    first, last = math.acos(LARGEST), math.acos(SMALLEST)
    angles = first + times * (last - first)
    return angles.cos(), angles.sin()


class Diffusion(nn.Module):
    """A network, its averaged copy, and mean and deviation of each channel of the images.

    Images ``(N, 3, side, side)`` have pixels from 0 to 1. The network is trained; the copy (EMA) is
    sampled and evaluated. It starts equal to the network, is updated by :meth:`update_average`
    after every step, and averages the statistics of BatchNorm as well.

    >>> _ = torch.manual_seed(0)
    >>> model = Diffusion(torch.rand(8, 3, 16, 16), (8, 8, 8))
    >>> model.sample(torch.randn(2, 3, 16, 16), steps=5).shape
    torch.Size([2, 3, 16, 16])
    """

    mean: Tensor
    deviation: Tensor
    steps: Tensor

    def __init__(
        self, images: Tensor, widths: Sequence[int] = WIDTHS, *, warm_up: bool = False
    ) -> None:
        super().__init__()
        deviation, mean = torch.std_mean(images, (0, 2, 3), correction=0, keepdim=True)
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation)
        self.register_buffer("steps", torch.tensor(0))
        self.warm_up = warm_up
        self.network = UNet(widths, warm_up=warm_up)
        self.average = copy.deepcopy(self.network).requires_grad_(False).eval()

    def train(self, mode: bool = True) -> Diffusion:
        super().train(mode)
        self.average.eval()  # its BatchNorm never uses statistics of a batch
        return self

    def loss(self, images: Tensor) -> Tensor:
        """Compute the mean absolute error of the noise, at random times with random noise.

        In evaluation mode it is the error of the averaged copy.
        """
        network = self.network if self.training else self.average
        noise = torch.randn_like(images)
        image_rates, noise_rates = rates(torch.rand(len(images), 1, 1, 1, device=images.device))
        mixed = image_rates * self.normalised(images) + noise_rates * noise
        return l1_loss(network(mixed, noise_rates.flatten() ** 2), noise)

    def update_average(self) -> None:
        """Update the averaged copy from the network by one step."""
        self.steps += 1
        share = warmup_share(DECAY, self.steps) if self.warm_up else 1 - DECAY
        theirs = self.network.state_dict()
        for name, ours in self.average.state_dict().items():
            if ours.is_floating_point():
                ours.lerp_(theirs[name], share)
            else:
                ours.copy_(theirs[name])  # BatchNorm's count of batches

    @torch.no_grad()
    def sample(self, noise: Tensor, steps: int) -> Tensor:
        """Denoise ``noise`` to images with the averaged copy, in that many steps."""
        return torch.cat([self._sample(piece, steps) for piece in torch.split(noise, PIECE)])

    def _sample(self, x: Tensor, steps: int) -> Tensor:
        times = torch.linspace(1, 0, steps + 1, device=x.device)
        for now, then in pairwise(times):
            (image_rate, noise_rate), (image_then, noise_then) = rates(now), rates(then)
            noise = self.average(x, (noise_rate**2).expand(len(x)))
            image = (x - noise_rate * noise) / image_rate
            x = image_then * image + noise_then * noise
        found: Tensor = self.mean + self.deviation * image
        return found.clamp(0, 1)

    def normalised(self, images: Tensor) -> Tensor:
        """Normalise channels to mean 0 and variance 1 over the training images."""
        return (images - self.mean) / self.deviation
