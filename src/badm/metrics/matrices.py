"""Internal: parameters as matrices, and matrices of one shape as a stack ``(k, rows, cols)``.

Some layers keep several matrices in one parameter: experts, fused projections, gates and the groups
of a convolution. ``blocks`` says into how many equal blocks its axes are cut, in order; axes that
it does not name stay whole, and ``()`` is one matrix. A block of one row and more than two axes
loses its first axis, so that ``(8,)`` reads ``(8, out, in)`` as 8 matrices ``(out, in)``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence

import torch
from torch import Tensor

Blocks = tuple[int, ...]


def as_matrix(x: Tensor) -> Tensor:
    """View kernels (out, in, kh, kw) as matrices (out, in·kh·kw)."""
    return x if x.ndim == 2 else x.reshape(x.shape[0], -1)


def is_matrix(x: Tensor, blocks: Blocks = ()) -> bool:
    """Return whether it has rows and columns; with a side of length 1 it is a vector."""
    return x.ndim >= 2 and x.numel() > 0 and min(matrix_shape(x, blocks)) > 1


def matrix_shape(x: Tensor, blocks: Blocks = ()) -> tuple[int, int]:
    """Return the rows and columns of each matrix of ``as_stack(x, blocks)``.

    >>> matrix_shape(torch.ones(12, 4)), matrix_shape(torch.ones(12, 4), (3,))
    ((12, 4), (4, 4))
    """
    rows, *rest = _block_shape(x.shape, blocks) if blocks else x.shape
    return rows, math.prod(rest)


def as_stack(x: Tensor, blocks: Blocks = ()) -> Tensor:
    """Return the matrices of a parameter as a stack; without a copy where its memory allows it.

    >>> as_stack(torch.ones(12, 4), (3,)).shape, as_stack(torch.ones(4, 12), (1, 3)).shape
    (torch.Size([3, 4, 4]), torch.Size([3, 4, 4]))
    """
    if not blocks:
        return as_matrix(x)[None]
    counts, sizes = _cut(x.shape, blocks)
    pairs = [length for pair in zip(counts, sizes, strict=True) for length in pair]
    cut = x.reshape(pairs).permute(*range(0, 2 * x.ndim, 2), *range(1, 2 * x.ndim, 2))
    return cut.reshape(math.prod(counts), *matrix_shape(x, blocks))


def from_stack(x: Tensor, shape: Sequence[int], blocks: Blocks = ()) -> Tensor:
    """Return the parameter of that shape whose matrices these are.

    >>> x = torch.randn(4, 6, 2)
    >>> all(from_stack(as_stack(x, b), x.shape, b).equal(x) for b in ((), (4,), (4, 2), (1, 3)))
    True
    """
    if not blocks:
        return x.reshape(shape)
    counts, sizes = _cut(shape, blocks)
    axes = [axis for i in range(len(counts)) for axis in (i, len(counts) + i)]
    return x.reshape(*counts, *sizes).permute(axes).reshape(shape)


def _cut(shape: Sequence[int], blocks: Blocks) -> tuple[list[int], list[int]]:
    """Return for each axis the number of blocks and the length of each."""
    if len(blocks) > len(shape) or any(n % b for n, b in zip(shape, blocks, strict=False)):
        raise ValueError(
            "blocks must divide the axes of a parameter in order, got "
            f"blocks={blocks} for a parameter of shape {tuple(shape)}"
        )
    counts = [*blocks, *[1] * (len(shape) - len(blocks))]
    return counts, [n // b for n, b in zip(shape, counts, strict=True)]


def _block_shape(shape: Sequence[int], blocks: Blocks) -> list[int]:
    _, sizes = _cut(shape, blocks)
    return sizes[1:] if sizes[0] == 1 and len(sizes) > 2 else sizes


def largest_entry(x: Tensor) -> Tensor:
    """Return ``max |x|`` of each matrix of a stack, as a stack of 1 × 1 matrices.

    The vector norm of order ∞ takes twenty times as long, and ``x.abs()`` would be a copy.
    """
    dims = (-2, -1)
    # abs: of 0 and −0, which the negative of a zero is, the maximum is either.
    return torch.maximum(x.amax(dims, keepdim=True), x.amin(dims, keepdim=True).neg()).abs()


def stack(tensors: list[Tensor], blocks: Blocks = ()) -> Tensor:
    """Stack the matrices of all tensors; those of a single one are not copied."""
    if len(tensors) == 1:
        return as_stack(tensors[0], blocks)
    if blocks:
        return torch.cat([as_stack(x, blocks) for x in tensors])
    return torch.stack([as_matrix(x) for x in tensors])


def unstack(x: Tensor, shape: torch.Size, blocks: Blocks = ()) -> list[Tensor]:
    """Return the tensors of that shape whose matrices these are."""
    if blocks:
        return [from_stack(part, shape, blocks) for part in torch.split(x, math.prod(blocks))]
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
