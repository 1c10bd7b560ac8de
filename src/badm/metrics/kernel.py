"""Internal: find and call the compiled kernels of the euclidean and diagonal metrics (kernel.c).

They are built when the package is installed, if there is a C compiler.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
from array import array
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo as not_compiled  # as torch.optim: dynamo comes late

from badm.metrics.protocol import Settings
from badm.metrics.raw_memory import Block

# A name changes with arguments and behaviour, so that a library built from an older kernel.c is not
# used. Names end with the dtype.
_EUCLIDEAN = "badm_euclidean_step_"
_DIAGONAL = "badm_limited_diagonal_step_"

# Number of tensors, sizes, w, g, m; lr, θ, 1 − lr·weight_decay, sign; threads and their team.
_ARGUMENTS = (
    [ctypes.c_int64]
    + [ctypes.c_void_p] * 4
    + [ctypes.c_double] * 4
    + [ctypes.c_int, ctypes.c_void_p]
)
_SIGNATURES = {
    _EUCLIDEAN: (None, _ARGUMENTS),
    # v, step counts; β₂, ε
    _DIAGONAL: (ctypes.c_int, _ARGUMENTS + [ctypes.c_void_p] * 2 + [ctypes.c_double] * 2),
}

_PROCESS = os.getpid()


@not_compiled
def available() -> bool:
    """Return whether the kernels were built; without them ``fused=True`` uses foreach."""
    return _library() is not None


# Raw addresses mean nothing to a tracer.
@not_compiled
def euclidean(block: Block, s: Settings) -> None:
    """Take one step on CPU tensors; the block has their duals."""
    _call(_EUCLIDEAN, block, s)


@not_compiled
def diagonal(block: Block, s: Settings) -> None:
    """Do the same in the diagonal metric; the block has duals and second moments."""
    steps = block.params.buffers("step")
    if any(step.dtype != block.dtype for step in steps):
        raise RuntimeError(f"the fused step needs step counts of dtype {block.dtype}")
    counts = array("q", map(Tensor.data_ptr, steps))
    failed = _call(
        _DIAGONAL, block, s, block.column(2), counts.buffer_info()[0], s.second_memory, s.eps
    )
    if failed:
        raise MemoryError("out of memory in the fused step of the diagonal metric")


def _call(name: str, block: Block, s: Settings, *more: float) -> Any:
    """Call a kernel with what all of them take, and ``more``."""
    lr = float(s.lr)
    sizes = array("q", block.sizes)
    gradients = array("q", map(Tensor.data_ptr, block.params.g))
    failed = _function(name, block.dtype)(
        len(sizes),
        sizes.buffer_info()[0],
        block.column(0),
        gradients.buffer_info()[0],
        block.column(1),
        lr,
        1 - s.beta,
        1 - lr * s.weight_decay,
        -1.0 if s.maximize else 1.0,
        torch.get_num_threads(),
        # A forked process has none of torch's threads, and OpenMP would wait for them forever.
        _team() if os.getpid() == _PROCESS else None,
        *more,
    )
    # Tell autograd that the parameters changed.
    torch.autograd.graph.increment_version(block.params.w)
    return failed


def _function(name: str, dtype: torch.dtype) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(_library(), f"{name}{str(dtype).removeprefix('torch.')}")
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
    for name, (result, arguments) in _SIGNATURES.items():
        for dtype in ("float32", "float64"):
            if not hasattr(library, f"{name}{dtype}"):
                return None
            function = getattr(library, f"{name}{dtype}")
            function.restype = result
            function.argtypes = arguments
    return library
