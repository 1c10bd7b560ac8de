"""Internal: find the tensors whose memory a kernel may read and write directly."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from operator import attrgetter

import torch
from torch import Tensor

from badm.metrics.protocol import Parameters

DTYPES = {torch.float32, torch.float64}  # that the kernels support

# A subclass such as DTensor has no memory of its own.
PLAIN_TYPES = {torch.nn.Parameter, Tensor}

_dtype_of = attrgetter("dtype")


def by_layout(params: Parameters, *buffers: str) -> tuple[list[Parameters], Parameters]:
    """Return the parameters that a kernel can read, by dtype, and the rest.

    One that it cannot read, such as a weight in channels-last order, does not exclude the others.
    """
    if _is_readable(params, *buffers):
        return [params], params.select([])
    parts: dict[torch.dtype, list[int]] = defaultdict(list)
    rest: list[int] = []
    for i, w in enumerate(params.w):
        (parts[w.dtype] if _is_readable(params.select([i]), *buffers) else rest).append(i)
    return [params.select(indices) for indices in parts.values()], params.select(rest)


def _is_readable(params: Parameters, *buffers: str) -> bool:
    """Return whether parameters, gradients and buffers have one dtype and plain memory.

    With the negative bit set, a tensor is the negation of its memory. Different sizes raise an
    error. Uses ``map``, since two thousand tiny tensors may be checked at every step.
    """
    tensors = params.w + params.g
    sizes = list(map(Tensor.numel, tensors))
    for key in buffers:
        column = params.buffers(key)
        tensors += column
        sizes += map(Tensor.numel, column)
    if sizes != sizes[: len(params)] * (2 + len(buffers)):
        raise RuntimeError(size_mismatch(params, ("grad", *buffers)))
    dtypes = set(map(_dtype_of, tensors))
    return (
        len(dtypes) == 1
        and dtypes <= DTYPES
        and all(map(Tensor.is_contiguous, tensors))
        and set(map(type, tensors)) <= PLAIN_TYPES
        and not any(map(Tensor.is_neg, params.w + params.g))
    )


def size_mismatch(params: Parameters, names: Sequence[str]) -> str:
    """Describe the first gradient or buffer that does not have the size of its parameter."""
    for i, w in enumerate(params.w):
        for name in names:
            x = params.g[i] if name == "grad" else params.states[i][name]
            if x.numel() != w.numel():
                shapes = f"shape {tuple(x.shape)} for a parameter of shape {tuple(w.shape)}"
                return f"{name} of {shapes}"
    raise AssertionError("all sizes match")
