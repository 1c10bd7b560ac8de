"""Parameters as matrices, and matrices of one shape as a stack ``(k, rows, cols)``."""

from __future__ import annotations

import torch
from torch import Tensor


def as_matrix(x: Tensor) -> Tensor:
    """Kernels (out, in, kh, kw) as matrices (out, in·kh·kw)."""
    return x if x.ndim == 2 else x.reshape(x.shape[0], -1)


def matrix_shape(x: Tensor) -> tuple[int, int]:
    """Rows and columns of ``as_matrix(x)``."""
    return x.shape[0], x.numel() // x.shape[0]


def stack(tensors: list[Tensor]) -> Tensor:
    """One alone is not copied."""
    return (
        as_matrix(tensors[0])[None]
        if len(tensors) == 1
        else torch.stack([as_matrix(x) for x in tensors])
    )


def unstack(x: Tensor, shape: torch.Size) -> list[Tensor]:
    return [matrix.reshape(shape) for matrix in x.unbind()]
