"""The compiled kernel of the diagonal metric (kernel.c): finding it, calling it.

It is built when the package is installed, if there is a C compiler.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from array import array
from collections import defaultdict
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from badm.metric import State

if TYPE_CHECKING:
    from badm.update import Settings

DTYPES = (torch.float32, torch.float64)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def available() -> bool:
    """Whether the kernel was built. ``fused=True`` uses foreach where it was not."""
    return _library() is not None


# Raw addresses mean nothing to a tracer.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def diagonal(w: list[Tensor], g: list[Tensor], states: list[State], s: Settings) -> None:
    """One step of the diagonal metric on contiguous CPU tensors of float32 or float64."""
    library = _library()
    assert library is not None
    by_dtype: dict[torch.dtype, list[int]] = defaultdict(list)
    for i, p in enumerate(w):
        by_dtype[p.dtype].append(i)
    lr = float(s.lr)
    for dtype, indices in by_dtype.items():
        columns = (
            [w[i] for i in indices],
            [g[i] for i in indices],
            [states[i]["dual"] for i in indices],
            [states[i]["second_moment"] for i in indices],
            [states[i]["step"] for i in indices],
        )
        sizes = array("q", [p.numel() for p in columns[0]])
        addresses = [array("q", [x.data_ptr() for x in column]) for column in columns]
        function = getattr(library, f"badm_diagonal_{str(dtype).removeprefix('torch.')}")
        failed = function(
            len(indices),
            sizes.buffer_info()[0],
            *(column.buffer_info()[0] for column in addresses),
            lr,
            1 - s.beta,
            s.beta2,
            s.eps,
            1 - lr * s.weight_decay,
            -1.0 if s.maximize else 1.0,
            torch.get_num_threads(),
        )
        if failed:
            raise MemoryError("no memory for the step of the diagonal metric")
    # Autograd has to know that the parameters changed under it.
    torch.autograd.graph.increment_version(w)


@functools.cache
def _library() -> ctypes.CDLL | None:
    found = importlib.util.find_spec("badm._kernel")
    if found is None or found.origin is None:
        return None
    library = ctypes.CDLL(found.origin)
    for dtype in ("float32", "float64"):
        function = getattr(library, f"badm_diagonal_{dtype}")
        function.restype = ctypes.c_int
        function.argtypes = (
            [ctypes.c_int64] + [ctypes.c_void_p] * 6 + [ctypes.c_double] * 6 + [ctypes.c_int]
        )
    return library
