"""Digest and size of many tensors at once."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def digest(weights: Mapping[str, Tensor]) -> str:
    """Compute a checksum: equal for weights that are equal bit for bit, and for no others.

    >>> digest({"w": torch.zeros(2)}) == digest({"w": torch.zeros(2)})
    True
    >>> digest({"w": torch.zeros(2)}) == digest({"w": -torch.zeros(2)})
    False
    """
    hashed = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        hashed.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        flat = tensor.detach().cpu().contiguous().flatten()
        hashed.update(flat.view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()


def tensor_bytes(nest: Any) -> int:
    """Count the bytes of the tensors in a nest."""
    if isinstance(nest, Tensor):
        return nest.numel() * nest.element_size()
    if isinstance(nest, Mapping):
        return sum(map(tensor_bytes, nest.values()))
    if isinstance(nest, (list, tuple)):
        return sum(map(tensor_bytes, nest))
    return 0
