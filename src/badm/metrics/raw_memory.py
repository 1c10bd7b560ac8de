"""Internal: find the tensors whose memory a kernel may read and write directly."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

import torch
from torch import Tensor

from badm.metrics.protocol import Parameters

DTYPES = {torch.float32, torch.float64}  # that the kernels support

# A subclass such as DTensor has no memory of its own.
PLAIN_TYPES = {torch.nn.Parameter, Tensor}

_dtype_of = attrgetter("dtype")


@dataclass(frozen=True)
class Block:
    """Parameters that a kernel can read, with gradients and buffers of the same sizes."""

    params: Parameters
    dtype: torch.dtype
    sizes: list[int]


def by_layout(params: Parameters, *buffers: str) -> tuple[list[Block], Parameters]:
    """Return the parameters that a kernel can read, by dtype, and the rest.

    One that it cannot read, such as a weight in channels-last order, does not exclude the others.
    """
    if block := _block(params, *buffers):
        return [block], params.select([])
    parts: dict[torch.dtype, list[int]] = defaultdict(list)
    rest: list[int] = []
    for i, w in enumerate(params.w):
        (parts[w.dtype] if _block(params.select([i]), *buffers) else rest).append(i)
    blocks = [_block(params.select(indices), *buffers) for indices in parts.values()]
    return [block for block in blocks if block], params.select(rest)


def _block(params: Parameters, *buffers: str) -> Block | None:
    """Return the parameters as a block, if all have one dtype and plain memory.

    With the negative bit set, a tensor is the negation of its memory. Different sizes raise an
    error. Uses ``map``, since two thousand tiny tensors may be checked at every step.
    """
    tensors = params.w + params.g
    for key in buffers:
        tensors += params.buffers(key)
    sizes = list(map(Tensor.numel, tensors))
    of_parameters = sizes[: len(params)]
    if sizes != of_parameters * (2 + len(buffers)):
        raise RuntimeError(size_mismatch(params, ("grad", *buffers)))
    dtypes = set(map(_dtype_of, tensors))
    readable = (
        len(dtypes) == 1
        and dtypes <= DTYPES
        and all(map(Tensor.is_contiguous, tensors))
        and set(map(type, tensors)) <= PLAIN_TYPES
        and not any(map(Tensor.is_neg, params.w + params.g))
    )
    return Block(params, *dtypes, of_parameters) if readable else None


def size_mismatch(params: Parameters, names: Sequence[str]) -> str:
    """Describe the first gradient or buffer that does not have the size of its parameter."""
    for i, w in enumerate(params.w):
        for name in names:
            x = params.g[i] if name == "grad" else params.states[i][name]
            if x.numel() != w.numel():
                shapes = f"shape {tuple(x.shape)} for a parameter of shape {tuple(w.shape)}"
                return f"{name} of {shapes}"
    raise AssertionError("all sizes match")
