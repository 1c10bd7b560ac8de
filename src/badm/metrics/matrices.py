"""Internal: parameters as matrices, and matrices of one shape as a stack ``(k, rows, cols)``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence

import torch
from torch import Tensor


def as_matrix(x: Tensor) -> Tensor:
    """View kernels (out, in, kh, kw) as matrices (out, in·kh·kw)."""
    return x if x.ndim == 2 else x.reshape(x.shape[0], -1)


def is_matrix(x: Tensor) -> bool:
    """Return whether it has rows and columns; with a side of length 1 it is a vector."""
    return x.ndim >= 2 and x.numel() > 0 and min(matrix_shape(x)) > 1


def matrix_shape(x: Tensor) -> tuple[int, int]:
    """Return the rows and columns of ``as_matrix(x)``."""
    return x.shape[0], x.numel() // x.shape[0]


def largest_entry(x: Tensor) -> Tensor:
    """Return ``max |x|`` of each matrix of a stack, as a stack of 1 × 1 matrices.

    The vector norm of order ∞ takes twenty times as long, and ``x.abs()`` would be a copy.
    """
    dims = (-2, -1)
    # abs: of 0 and −0, which the negative of a zero is, the maximum is either.
    return torch.maximum(x.amax(dims, keepdim=True), x.amin(dims, keepdim=True).neg()).abs()


def stack(tensors: list[Tensor]) -> Tensor:
    """Stack tensors as matrices; a single one is not copied."""
    return (
        as_matrix(tensors[0])[None]
        if len(tensors) == 1
        else torch.stack([as_matrix(x) for x in tensors])
    )


def unstack(x: Tensor, shape: torch.Size) -> list[Tensor]:
    return [matrix.reshape(shape) for matrix in x.unbind()]


def stacks(
    tensors: Sequence[Tensor], kinds: Sequence[Hashable], elements: int
) -> Iterator[list[int]]:
    """Yield indices of tensors to stack: of the same shape, dtype and kind, so many elements."""
    groups: dict[object, list[int]] = defaultdict(list)
    for i, (x, kind) in enumerate(zip(tensors, kinds, strict=True)):
        groups[x.shape, x.dtype, kind].append(i)
    for indices in groups.values():
        size = max(1, elements // tensors[indices[0]].numel())
        for start in range(0, len(indices), size):
            yield indices[start : start + size]
