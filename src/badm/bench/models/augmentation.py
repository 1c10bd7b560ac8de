"""Random augmentation, as in the second version of the public Flowers example."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

TURN, ZOOM = 0.1, 0.1  # largest rotation, in full turns, and zoom, each way


def augment(images: Tensor) -> Tensor:
    """Flip, rotate and zoom each image at random, with torch's generator.

    Takes squares ``(N, side, side, 3)`` and returns floats of the same shape; beyond its edges the
    image is mirrored.

    >>> augment(torch.full((2, 8, 8, 3), 7, dtype=torch.uint8)).round().unique()
    tensor([7.])
    """
    count, side, *_ = images.shape
    device = images.device
    mirror = 1 - 2 * torch.randint(0, 2, (count,), device=device)
    angle = 2 * math.pi * TURN * (2 * torch.rand(count, device=device) - 1)
    zoom = 1 + ZOOM * (2 * torch.rand(count, device=device) - 1)
    # One affine map per image, of the coordinates from -1 to 1 where each pixel is sampled.
    cos, sin = zoom * angle.cos(), zoom * angle.sin()
    nowhere = torch.zeros(count, device=device)
    looked_up = torch.stack(
        [
            torch.stack([mirror * cos, -mirror * sin, nowhere], 1),
            torch.stack([sin, cos, nowhere], 1),
        ],
        1,
    )
    grid = affine_grid(looked_up, [count, 3, side, side], align_corners=False)
    moved = grid_sample(
        images.permute(0, 3, 1, 2).float(), grid, padding_mode="reflection", align_corners=False
    )
    return moved.permute(0, 2, 3, 1).contiguous()  # channels last in memory, as the networks expect
