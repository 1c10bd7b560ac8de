"""Images that are changed by chance, as the public Flowers example does in its second version."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

TURN, ZOOM = 0.1, 0.1  # of a whole turn and of the size, at most, each way


def augment(images: Tensor) -> Tensor:
    """Each image mirrored or not, turned and zoomed, drawn with torch's generator.

    Takes squares ``(N, side, side, 3)`` and gives the same shape as floats; what comes in from
    outside is the image mirrored at its edge.

    >>> augment(torch.full((2, 8, 8, 3), 7, dtype=torch.uint8)).round().unique()
    tensor([7.])
    """
    count, side, *_ = images.shape
    device = images.device
    mirror = 1 - 2 * torch.randint(0, 2, (count,), device=device)
    angle = 2 * math.pi * TURN * (2 * torch.rand(count, device=device) - 1)
    zoom = 1 + ZOOM * (2 * torch.rand(count, device=device) - 1)
    # One transformation of the coordinates, from -1 to 1, that are looked up for each pixel.
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
    return moved.permute(0, 2, 3, 1).contiguous()  # channels last in memory, as networks want it
