"""Running averages that soon forget the value they start from."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor


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
