"""One step of BADM in one pass over memory, where a kernel can do it; ``foreach`` for the rest.

**Euclidean**: torch's own SGD kernel, on every device that has it. With ``c = (ρ−σ)(ρ+σ)/(ρσ)``,
SGD with momentum ``β``, Nesterov, step ``1/ρ`` and dampening ``1 − c(1−β)`` makes BADM's step while
its buffer holds ``c·m``. So the dual is kept under a scale, and ``dual_scale`` in the state says
which: it is adjusted when ``β`` changes, and undone for another path or a checkpoint. Where ``c``
is next to 0 (``ρ ≈ σ``) or undefined (``β = 0``) the buffer cannot hold ``m``: ``foreach`` does it.

**Diagonal**: a kernel of our own (kernel.c), on the CPU. **Spectral** and **kronecker** are matrix
products, which ``foreach`` has stacked already.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from operator import attrgetter

import torch
from torch import Tensor

from badm import kernel
from badm.update import Batch, Settings, by_kind, decay, foreach, plain_duals

_SGD_DEVICES = ("cpu", "cuda", "mps", "xpu")

# Kernels read raw memory, which a subclass such as DTensor does not have.
PLAIN_TYPES = {torch.nn.Parameter, Tensor}

_dtype_of = attrgetter("dtype")


def fused(batch: Batch, s: Settings) -> None:
    for kind, part in by_kind(batch, s.metric):
        device = part.w[0].device.type
        if kind == "euclidean" and device in _SGD_DEVICES and sgd_scale(s.beta):
            _with_kernel(_euclidean, part, s, "dual")
        elif kind == "diagonal" and device == "cpu" and kernel.available():
            _with_kernel(_diagonal, part, s, "dual", "second_moment")
        else:
            foreach(part, s)


def _with_kernel(
    step: Callable[[Batch, Settings], None], batch: Batch, s: Settings, *buffers: str
) -> None:
    if _is_plain(batch, *buffers):
        step(batch, s)
        return
    # One that is not plain, such as a kernel in channels-last order, keeps no others away.
    parts: dict[torch.dtype | None, list[int]] = defaultdict(list)
    for i, w in enumerate(batch.w):
        parts[w.dtype if _is_plain(batch.pick([i]), *buffers) else None].append(i)
    for dtype, indices in parts.items():
        (foreach if dtype is None else step)(batch.pick(indices), s)


def _is_plain(batch: Batch, *buffers: str) -> bool:
    """Whether a kernel can read parameters, gradients and buffers off their memory as it is.

    That is, whether they are of one type that it knows, contiguous, and what the memory says: a
    negative bit would make it the opposite. Sizes that differ are an error. With ``map``, since two
    thousand tiny tensors are checked at every step.
    """
    tensors = batch.w + batch.g
    sizes = list(map(Tensor.numel, tensors))
    for key in buffers:
        column = batch.of(key)
        tensors += column
        sizes += map(Tensor.numel, column)
    if sizes != sizes[: len(batch)] * (1 + len(buffers) + 1):
        raise RuntimeError(kernel.misfit(batch, ("grad", *buffers)))
    dtypes = set(map(_dtype_of, tensors))
    return (
        len(dtypes) == 1
        and dtypes <= kernel.DTYPES
        and all(map(Tensor.is_contiguous, tensors))
        and set(map(type, tensors)) <= PLAIN_TYPES
        and not any(map(Tensor.is_neg, batch.w + batch.g))
    )


def sgd_scale(beta: float) -> float:
    """``c``, in terms of ``β``; 0 where there is none.

    Near ``ρ = σ`` the kernel would take ``c(1−β)`` from ``1 − (1 − c(1−β))`` and lose its digits.
    """
    c = (2 * beta - 1) / (beta * (1 - beta)) if beta > 0 else 0.0
    return c if abs(c) > 1e-2 else 0.0


def _euclidean(batch: Batch, s: Settings) -> None:
    c = sgd_scale(s.beta)
    for state in batch.states:
        if (scale := state.get("dual_scale", 1.0)) != c:
            state["dual"].mul_(c / scale)
            state["dual_scale"] = c
    decay(batch.w, s)
    torch._fused_sgd_(
        batch.w,
        batch.g,
        batch.of("dual"),
        weight_decay=0.0,
        momentum=s.beta,
        lr=s.lr * ((1 - s.beta) / s.beta),  # 1/ρ
        dampening=1 - c * (1 - s.beta),
        nesterov=True,
        maximize=s.maximize,
        is_first_step=False,
    )
    # torch's fused kernels do not tell autograd that the parameters changed under it.
    torch.autograd.graph.increment_version(batch.w)


def _diagonal(batch: Batch, s: Settings) -> None:
    plain_duals(batch.states)
    kernel.diagonal(batch, s)
