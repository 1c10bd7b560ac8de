"""What a model gives out for many inputs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from badm.bench.task import device_of, to_device


def predict(model: nn.Module, pieces: Iterable[Any]) -> Tensor:
    """Pass inputs through a model piece by piece, and return all outputs on the CPU.

    Metrics are computed there, in double precision, which not every device has.

    >>> predict(nn.Linear(2, 1), torch.zeros(5, 2).split(2)).shape
    torch.Size([5, 1])
    """
    device = device_of(model)
    return torch.cat([model(to_device(piece, device)).cpu() for piece in pieces])
