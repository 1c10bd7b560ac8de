"""One step of BADM in one pass over memory, where a kernel can do it; ``foreach`` for the rest.

**Euclidean**: torch's own SGD kernel, on every device that has it. With ``c = (ρ−σ)(ρ+σ)/(ρσ)``,
SGD with momentum ``β``, Nesterov, step ``1/ρ`` and dampening ``1 − c(1−β)`` makes BADM's step while
its buffer holds ``c·m``. So the dual is kept under a scale, and ``dual_scale`` in the state says
which: it is adjusted when ``β`` changes, and undone for another path or a checkpoint. Where ``c``
is 0 (``ρ = σ``) or undefined (``β = 0``) the buffer could not hold ``m``: ``foreach`` takes over.

**Diagonal**: a kernel of our own (kernel.c), on the CPU. **Spectral** and **kronecker** are matrix
products, which ``foreach`` has stacked already.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.optim.sgd import sgd

from badm import kernel
from badm.metric import State
from badm.update import Batch, Settings, by_kind, decay, foreach, plain_duals

_SGD_DEVICES = ("cpu", "cuda", "mps", "xpu")


def fused(batch: Batch, s: Settings) -> None:
    for kind, part in by_kind(batch, s.metric):
        rest = part
        if kind == "euclidean" and sgd_scale(s.beta):
            fits, rest = _divide(part, _fits_sgd_kernel)
            _euclidean(fits, s)
        elif kind == "diagonal" and kernel.available():
            fits, rest = _divide(part, _fits_own_kernel)
            plain_duals(fits.states)
            kernel.diagonal(fits.w, fits.g, fits.states, s)
        if len(rest):
            foreach(rest, s)


def sgd_scale(beta: float) -> float:
    """``c``, in terms of ``β``; 0 where there is none.

    Near ``ρ = σ`` the kernel would take ``c(1−β)`` from ``1 − (1 − c(1−β))`` and lose its digits.
    """
    c = (2 * beta - 1) / (beta * (1 - beta)) if beta > 0 else 0.0
    return c if abs(c) > 1e-2 else 0.0


def _euclidean(batch: Batch, s: Settings) -> None:
    if not len(batch):
        return
    c = sgd_scale(s.beta)
    for state in batch.states:
        if (scale := state.get("dual_scale", 1.0)) != c:
            state["dual"].mul_(c / scale)
            state["dual_scale"] = c
    decay(batch.w, s)
    sgd(
        batch.w,
        batch.g,
        list(batch.of("dual")),
        fused=True,
        weight_decay=0.0,
        momentum=s.beta,
        lr=s.lr * ((1 - s.beta) / s.beta),  # type: ignore[arg-type]  # 1/ρ; torch takes a tensor too
        dampening=1 - c * (1 - s.beta),
        nesterov=True,
        maximize=s.maximize,
    )
    # torch's fused kernels do not tell autograd that the parameters changed under it.
    torch.autograd.graph.increment_version(batch.w)


def _divide(batch: Batch, fits: Callable[[Tensor, Tensor, State], bool]) -> tuple[Batch, Batch]:
    """The part a kernel can take, and the rest. Mostly all fit, and then nothing is copied."""
    verdicts = [
        fits(w, g, state) for w, g, state in zip(batch.w, batch.g, batch.states, strict=True)
    ]
    if all(verdicts):
        return batch, batch.pick([])
    return (
        batch.pick([i for i, verdict in enumerate(verdicts) if verdict]),
        batch.pick([i for i, verdict in enumerate(verdicts) if not verdict]),
    )


def _plain(w: Tensor, g: Tensor, m: Tensor) -> bool:
    """Kernels read raw memory: no subclass such as DTensor, one type, one order of elements."""
    return (
        type(w) in (Tensor, torch.nn.Parameter)
        and type(g) is Tensor
        and w.dtype == g.dtype == m.dtype
        and w.is_contiguous()
        and g.is_contiguous()
        and m.is_contiguous()
    )


def _fits_sgd_kernel(w: Tensor, g: Tensor, state: State) -> bool:
    return w.device.type in _SGD_DEVICES and _plain(w, g, state["dual"])


def _fits_own_kernel(w: Tensor, g: Tensor, state: State) -> bool:
    return (
        w.device.type == "cpu"
        and w.dtype in kernel.DTYPES
        and _plain(w, g, state["dual"])
        and state["second_moment"].is_contiguous()
    )
