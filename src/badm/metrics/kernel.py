"""Internal: find and call the compiled kernel of the diagonal metric (kernel.c).

It is built when the package is installed, if there is a C compiler.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
from array import array
from collections.abc import Callable

import torch
from torch import Tensor
from torch._compile import _disable_dynamo as not_compiled  # as torch.optim: dynamo comes late

from badm.metrics.protocol import Parameters, Settings
from badm.metrics.raw_memory import size_mismatch

# Changes with the arguments, so that a library built from an older kernel.c is not used.
_SYMBOL = "badm_diagonal_step_on_team_"

_PROCESS = os.getpid()


@not_compiled
def available() -> bool:
    """Return whether the kernel was built; without it ``fused=True`` uses foreach."""
    return _library() is not None


# Raw addresses mean nothing to a tracer.
@not_compiled
def diagonal(params: Parameters, s: Settings) -> None:
    """Take one step on contiguous CPU tensors, all float32 or all float64."""
    names = ("grad", "dual", "second_moment", "step")
    columns = (params.w, params.g, *(params.buffers(name) for name in names[1:]))
    dtypes = {x.dtype for column in columns for x in column}
    if len(dtypes) > 1:
        raise RuntimeError(
            "the fused step needs parameters, gradients and state of one dtype, got "
            + ", ".join(sorted(str(dtype) for dtype in dtypes))
        )
    addresses = [array("q", [x.data_ptr() for x in column]) for column in columns]
    sizes = [array("q", map(Tensor.numel, column)) for column in columns[:-1]]
    lr = float(s.lr)
    failed = _function(*dtypes)(
        len(params),
        *(column.buffer_info()[0] for column in (*sizes, *addresses)),
        lr,
        1 - s.beta,
        s.second_memory,
        s.eps,
        1 - lr * s.weight_decay,
        -1.0 if s.maximize else 1.0,
        torch.get_num_threads(),
        # A forked process has none of torch's threads, and OpenMP would wait for them forever.
        _team() if os.getpid() == _PROCESS else None,
    )
    if failed > 0:
        raise RuntimeError(size_mismatch(params.select([failed - 1]), names[:-1]))
    if failed:
        raise MemoryError("out of memory in the fused step of the diagonal metric")
    # Tell autograd that the parameters changed.
    torch.autograd.graph.increment_version(params.w)


def _function(dtype: torch.dtype) -> Callable[..., int]:
    function: Callable[..., int] = getattr(
        _library(), f"{_SYMBOL}{str(dtype).removeprefix('torch.')}"
    )
    return function


@functools.cache
def _team() -> int | None:
    """Return the address of ``GOMP_parallel``, which runs work on torch's threads, if there is one.

    A library is searched together with all that it needs, here with torch's OpenMP library.
    """
    try:
        function = ctypes.CDLL(torch._C.__file__).GOMP_parallel
    except (AttributeError, OSError):
        return None
    return ctypes.cast(function, ctypes.c_void_p).value


@functools.cache
def _library() -> ctypes.CDLL | None:
    found = importlib.util.find_spec("badm.metrics._kernel")
    if found is None or found.origin is None:
        return None
    library = ctypes.CDLL(found.origin)
    for dtype in ("float32", "float64"):
        if not hasattr(library, f"{_SYMBOL}{dtype}"):
            return None
        function = getattr(library, f"{_SYMBOL}{dtype}")
        function.restype = ctypes.c_int64
        function.argtypes = (
            [ctypes.c_int64]
            + [ctypes.c_void_p] * 9
            + [ctypes.c_double] * 6
            + [ctypes.c_int, ctypes.c_void_p]
        )
    return library
