"""Synthetic colour images that can be learned, for tests and scale ``smoke``."""

from __future__ import annotations

import torch
from torch.nn.functional import interpolate

from badm.bench.data.images import Images

SHIFT = 3  # pixels, each way
NOISE = 0.2


def synthetic_images(count: int, classes: int, side: int = 32, *, seed: int) -> Images:
    """Generate images with a coloured pattern per class, shifted, with noise.

    The patterns are the same for every seed, so a second seed gives a test set for the first.

    >>> made = synthetic_images(6, classes=3, side=16, seed=0)
    >>> made.pixels.shape, made.pixels.dtype, made.labels.sort().values.tolist()
    (torch.Size([6, 16, 16, 3]), torch.uint8, [0, 0, 1, 1, 2, 2])
    """
    # One generator for each class: more classes do not change the patterns of the first ones.
    coarse = torch.stack(
        [torch.rand(3, 4, 4, generator=torch.Generator().manual_seed(c)) for c in range(classes)]
    )
    patterns = interpolate(coarse, size=(side, side), mode="bilinear").permute(0, 2, 3, 1)
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count).remainder(classes)[torch.randperm(count, generator=generator)]
    shifts = torch.randint(-SHIFT, SHIFT + 1, (count, 2), generator=generator)
    rows = (torch.arange(side) + shifts[:, :1]).remainder(side)
    columns = (torch.arange(side) + shifts[:, 1:]).remainder(side)
    shifted = patterns[labels[:, None, None], rows[:, :, None], columns[:, None, :]]
    noisy = shifted + NOISE * torch.randn(shifted.shape, generator=generator)
    return Images((255 * noisy).round().clamp(0, 255).to(torch.uint8), labels)
