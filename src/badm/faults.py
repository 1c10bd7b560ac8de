"""Internal: mistakes that would pass in silence, each warned of once, with its remedy.

What shapes and options show is checked when the optimizer is made; what gradients show, over its
first steps. Afterwards nothing is looked at, so a step costs no more than without.
"""

from __future__ import annotations

import difflib
import math
import os
import sys
import warnings
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo as not_compiled  # as torch.optim: dynamo comes late

from badm import metrics
from badm.distributed import fsdp
from badm.groups.roles import recall
from badm.metrics.matrices import matrix_shape
from badm.update import as_blocks

Group = dict[str, Any]

_INSIDE = ("badm", "torch")

# A forked process has none of torch's threads, and operations on tensors could wait for them.
_PROCESS = os.getpid()

# A vector of so many elements is hardly a bias: layers were flattened into it.
_FLATTENED = 4096
# Schedulers, trainers and torch add these to groups.
_FOREIGN = {"betas", "initial_lr", "param_names", "lr_scale", "max_lr", "min_lr", "swa_lr"}


def check_group(group: Group, options: Collection[str]) -> None:
    """Refuse what has no gradient, and warn of options that look misspelled."""
    for p in group["params"]:
        if not (p.is_floating_point() or p.is_complex()):
            raise ValueError(
                f"params must be floating-point tensors, got one of {p.dtype} and shape "
                f"{tuple(p.shape)}: keep it as a buffer of the module"
            )
    for name in sorted(set(group) - set(options) - _FOREIGN - {"params"}):
        if close := difflib.get_close_matches(name, options, 1, 0.8):
            _warn(f"a parameter group has {name!r}, which nothing reads: do you mean {close[0]!r}?")


def check_blocks(group: Group) -> None:
    """Refuse blocks into which a matrix of the group cannot be cut."""
    blocks = as_blocks(group["blocks"])
    for p in group["params"]:
        if blocks and p.ndim >= 2:
            matrix_shape(p, blocks)


def check_parameters(groups: Sequence[Group], metric_given: bool) -> None:
    """Warn of parameters that will not be treated as the caller probably thinks."""
    _check_flattened(groups, metric_given)
    params = [p for group in groups for p in group["params"]]
    meta = [p for p in params if p.is_meta]
    if meta and len(meta) < len(params):
        _warn(
            f"{len(meta)} of {len(params)} parameters are on the meta device and have no values: "
            "load or initialise them before you make the optimizer"
        )
    _check_shared_memory([p for p in params if not p.is_meta])


def _check_flattened(groups: Sequence[Group], metric_given: bool) -> None:
    asked = [group for group in groups if not _is_elementwise(group["metric"])]
    params = [p for group in asked for p in group["params"]]
    if not params or any(
        metrics.find(g["metric"], as_blocks(g["blocks"])).applies_to(p)
        for g in asked
        for p in g["params"]
    ):
        return
    if metric_given or any(p.numel() >= _FLATTENED for p in params):
        metric = metrics.find(asked[0]["metric"])
        largest = tuple(max(params, key=Tensor.numel).shape)
        _warn(
            f"metric={metric.name!r} is for matrices, and none of {len(params)} parameters is one "
            f"(the largest has shape {largest}): their metric is {metric.fallback!r}. FSDP1 and "
            "DeepSpeed ZeRO flatten parameters: use fully_shard (FSDP2) instead. If it is meant "
            f"so, say metric={metric.fallback!r}"
        )


def _check_shared_memory(params: Iterable[Tensor]) -> None:
    places: dict[tuple[Any, ...], int] = {}
    for p in params:
        if p.numel() and not fsdp.is_sharded(p):
            key = (p.device, p.data_ptr(), tuple(p.shape))
            places[key] = places.get(key, 0) + 1
    if twice := [key[2] for key, count in places.items() if count > 1]:
        _warn(
            f"parameters of shape {', '.join(map(str, twice))} share their memory and would be "
            "stepped twice: tie weights by assigning the same Parameter"
        )


def _is_elementwise(metric: str) -> bool:
    """Return whether a metric applies to parameters of any shape, such as a vector."""
    return metrics.find(metric).applies_to(torch.empty(2, device="meta"))


class FirstSteps:
    """Look at the gradients of the first steps, and warn of what they show."""

    steps = 5

    def __init__(self) -> None:
        self.left = self.steps
        self.seen: set[int] = set()
        self.norms: list[Tensor] = []
        self.largest: list[Tensor] = []
        self.touched: dict[int, list[Tensor]] = {}

    @not_compiled  # what is left to look at changes with every step
    @torch.no_grad()
    def look(self, groups: Sequence[Group]) -> FirstSteps | None:
        """Look at the gradients before a step; return what looks at the next ones, if any."""
        if os.getpid() != _PROCESS:
            return None
        params = [p for group in groups for p in group["params"] if p.grad is not None]
        if not params:
            _warn(
                "step() was called and no parameter has a gradient: call backward() before, and "
                "make the optimizer after the model is wrapped, moved or converted"
            )
            return None
        if any(p.is_meta for p in params):  # there is nothing to look at
            return None
        self.seen |= {id(p) for p in params}
        self._measure([p.grad for p in params if p.grad is not None])
        self._count_rows(groups)
        self.left -= 1
        if self.left:
            return self
        self._warn_of_untrained(groups)
        self._warn_of_gradients(groups)
        self._warn_of_embeddings(groups)
        return None

    def _measure(self, gradients: list[Tensor]) -> None:
        """Keep the norm and the largest element of all gradients, without waiting for a device."""
        if any(fsdp.is_sharded(g) or g.is_sparse for g in gradients):
            return
        if len({g.device for g in gradients}) > 1:
            return
        gradients = [g.float() if g.dtype.itemsize < 4 else g for g in gradients if g.numel()]
        if not gradients:
            return
        self.norms.append(_joint_norm(gradients, 2.0))
        self.largest.append(_joint_norm(gradients, math.inf))

    def _count_rows(self, groups: Sequence[Group]) -> None:
        """Count the rows with a gradient of what is stepped as a matrix."""
        for group in groups:
            if _is_elementwise(group["metric"]):
                continue
            for p in group["params"]:
                g = p.grad
                if g is None or g.ndim != 2 or len(g) < 16 or fsdp.is_sharded(g) or g.is_sparse:
                    continue
                self.touched.setdefault(id(p), []).append((g != 0).any(1).sum() / len(g))

    def _warn_of_untrained(self, groups: Sequence[Group]) -> None:
        untrained = {
            name: p for name, p in _named(groups).items() if id(p) not in self.seen and p.numel()
        }
        frozen = [name for name, p in untrained.items() if not p.requires_grad]
        unused = [name for name, p in untrained.items() if p.requires_grad]
        if frozen:
            _warn(
                f"{_listed(frozen)} in the optimizer and frozen (requires_grad=False): "
                "badm.parameter_groups(model) leaves frozen parameters out"
            )
        if unused:
            _warn(
                f"{_listed(unused)} without a gradient in the first {self.steps} steps: the loss "
                "does not depend on them, or the model was wrapped, moved or converted after the "
                "optimizer was made"
            )

    def _warn_of_gradients(self, groups: Sequence[Group]) -> None:
        if len(self.norms) < self.steps:
            return
        norms, largest = torch.stack(self.norms), torch.stack(self.largest)
        if not bool(norms.isfinite().all()):
            _warn(
                f"a gradient of the first {self.steps} steps was infinite or NaN, and it stays in "
                "the state: with AMP call scaler.step(optimizer), else skip such steps"
            )
            return
        # Gradients that differ and whose norms do not: someone has set the norm.
        same_norm = bool(norms.max() <= (1 + 1e-4) * norms.min())
        differ = bool(largest.max() > 1.01 * largest.min())
        scale_free = [g["metric"] for g in groups if not _is_elementwise(g["metric"])]
        if same_norm and differ and scale_free and float(norms[0]) > 0:
            _warn(
                f"gradients had the norm {float(norms[0]):.4g} in each of the first {self.steps} "
                f"steps, so they are clipped: {scale_free[0]} steps have the same length whatever "
                "the gradient's. Leave clipping out and limit the step by lr"
            )

    def _warn_of_embeddings(self, groups: Sequence[Group]) -> None:
        names = [
            name
            for name, p in _named(groups).items()
            if (parts := self.touched.get(id(p))) and bool(torch.stack(parts).max() < 0.5)
        ]
        if names:
            _warn(
                f"{_listed(names)} stepped as a matrix, and few of the rows have a gradient, as in "
                "an embedding: badm.parameter_groups(model) or BADM(model) give embeddings the "
                "diagonal metric"
            )


def _joint_norm(gradients: list[Tensor], order: float) -> Tensor:
    norms = torch.stack([n.float() for n in torch._foreach_norm(gradients, order)])
    joint: Tensor = torch.linalg.vector_norm(norms, order)
    return joint


def _named(groups: Sequence[Group]) -> dict[str, Tensor]:
    """Map names to parameters: as far as known, else their place in the groups."""
    named = {}
    for index, group in enumerate(groups):
        for i, p in enumerate(group["params"]):
            known = recall(p)
            names = group.get("param_names")
            place = f"parameter {i} of group {index}"
            named[names[i] if names else known.role.name if known else place] = p
    return named


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"{shown} {'is' if len(names) == 1 else 'are'}"


def _warn(message: str) -> None:
    """Warn at the line of the caller's own code, outside of badm and torch."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in _INSIDE:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)
