"""Internal: find the tensors whose memory a kernel may read and write directly."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

import torch
from torch import Tensor
from torch._compile import _disable_dynamo as not_compiled  # as torch.optim: dynamo comes late
from torch.utils.weak import WeakTensorKeyDictionary

from badm.metrics.protocol import Parameters

DTYPES = {torch.float32, torch.float64}  # that the kernels support

# A subclass such as DTensor has no memory of its own.
PLAIN_TYPES = {torch.nn.Parameter, Tensor}

_dtype_of = attrgetter("dtype")


# What was found at the last step, by the first parameter: while parameters and buffers have these
# sizes and addresses, their memory is the same one.
_checked: MutableMapping[Tensor, tuple[torch.dtype, list[int], array[int]]]
_checked = WeakTensorKeyDictionary()


@dataclass(frozen=True)
class Block:
    """Parameters that a kernel can read, with gradients and buffers of the same sizes.

    Attributes:
        params: The parameters.
        dtype: Of parameters, gradients and buffers.
        sizes: Numbers of elements.
        addresses: Of parameters, then of each buffer, in the order in which they were named.
    """

    params: Parameters
    dtype: torch.dtype
    sizes: list[int]
    addresses: array[int]

    def column(self, number: int) -> int:
        """Return where in memory the addresses are: 0 of parameters, from 1 on of buffers."""
        start, _ = self.addresses.buffer_info()
        return start + number * len(self.sizes) * self.addresses.itemsize


# Raw addresses mean nothing to a tracer.
@not_compiled
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

    Different sizes raise an error. Uses ``map``, since two thousand tiny tensors may be checked at
    every step.
    """
    w, g = params.w, params.g
    kept = w + [state[key] for key in buffers for state in params.states]
    tensors = kept + g
    numbers = list(map(Tensor.numel, tensors))
    sizes = numbers[: len(w)]
    if numbers != sizes * (2 + len(buffers)):
        raise RuntimeError(size_mismatch(params, ("grad", *buffers)))
    if not set(map(type, tensors)) <= PLAIN_TYPES:
        return None
    dtype = w[0].dtype
    addresses = array("q", map(Tensor.data_ptr, kept))
    if _checked.get(w[0]) != (dtype, sizes, addresses):
        if dtype not in DTYPES or not _is_readable(kept, dtype):
            return None
        _checked[w[0]] = dtype, sizes, addresses
    # A transposed parameter has the same address.
    if not (_is_readable(g, dtype) and all(map(Tensor.is_contiguous, w))):
        return None
    return Block(params, dtype, sizes, addresses)


def _is_readable(tensors: list[Tensor], dtype: torch.dtype) -> bool:
    """Return whether all have that dtype and their elements in order.

    With the negative bit set, a tensor is the negation of its memory.
    """
    return (
        set(map(_dtype_of, tensors)) == {dtype}
        and all(map(Tensor.is_contiguous, tensors))
        and not any(map(Tensor.is_neg, tensors))
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
