"""Which tensors a kernel may read and write off their memory as it is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from operator import attrgetter

import torch
from torch import Tensor

from badm.metrics.protocol import Parameters

DTYPES = {torch.float32, torch.float64}  # that the kernels know

# A subclass such as DTensor has no memory of its own.
PLAIN_TYPES = {torch.nn.Parameter, Tensor}

_dtype_of = attrgetter("dtype")


def by_layout(params: Parameters, *buffers: str) -> tuple[list[Parameters], Parameters]:
    """Those that a kernel can read, by type, and the rest.

    One that it cannot read, such as a kernel in channels-last order, keeps no others away.
    """
    if _is_readable(params, *buffers):
        return [params], params.pick([])
    parts: dict[torch.dtype, list[int]] = defaultdict(list)
    rest: list[int] = []
    for i, w in enumerate(params.w):
        (parts[w.dtype] if _is_readable(params.pick([i]), *buffers) else rest).append(i)
    return [params.pick(indices) for indices in parts.values()], params.pick(rest)


def _is_readable(params: Parameters, *buffers: str) -> bool:
    """Whether parameters, gradients and buffers are of one type, contiguous, and as they look.

    A negative bit would make a tensor the opposite of its memory. Sizes that differ are an error.
    With ``map``, since two thousand tiny tensors are checked at every step.
    """
    tensors = params.w + params.g
    sizes = list(map(Tensor.numel, tensors))
    for key in buffers:
        column = params.of(key)
        tensors += column
        sizes += map(Tensor.numel, column)
    if sizes != sizes[: len(params)] * (2 + len(buffers)):
        raise RuntimeError(misfit(params, ("grad", *buffers)))
    dtypes = set(map(_dtype_of, tensors))
    return (
        len(dtypes) == 1
        and dtypes <= DTYPES
        and all(map(Tensor.is_contiguous, tensors))
        and set(map(type, tensors)) <= PLAIN_TYPES
        and not any(map(Tensor.is_neg, params.w + params.g))
    )


def misfit(params: Parameters, names: Sequence[str]) -> str:
    """Which gradient or buffer has not the size of its parameter."""
    for i, w in enumerate(params.w):
        for name in names:
            x = params.g[i] if name == "grad" else params.states[i][name]
            if x.numel() != w.numel():
                shapes = f"shape {tuple(x.shape)} for a parameter of shape {tuple(w.shape)}"
                return f"{name} of {shapes}"
    raise AssertionError("all of them fit")
