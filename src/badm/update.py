"""One step of BADM, two ways: ``loop``, the oracle, and ``foreach``. The third is in fused.py.

With the memory ``β = ρ/(ρ+σ)``, ``θ = 1 − β`` and the step ``lr = 1/σ`` (docs/theory.md):

    m⁺ = m + θ(g − m)
    w⁺ = w − lr·Q⁻¹(2m⁺ − m)

Each way takes the parameters that have a gradient, their gradients and their states, all real.
Nothing here waits for a device: ``lr`` may be a tensor, and every step count is one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from badm import kronecker
from badm.matrices import as_matrix, stack, unstack
from badm.metric import (
    State,
    bias_correction,
    kind_for,
    liveliness,
    second_moment_scale,
    spectral_scale,
)
from badm.orthogonal import orthogonalize

# Equal shapes are stacked up to this many elements: beyond, a matrix keeps the cores busy alone.
_STACK_ELEMENTS = 1 << 20


@dataclass(frozen=True)
class Settings:
    """The numbers of one group for one step."""

    lr: float | Tensor
    beta: float
    metric: str
    beta2: float
    eps: float
    weight_decay: float
    maximize: bool


@dataclass(frozen=True)
class Batch:
    """Parameters with their gradients and states, in equal order."""

    w: list[Tensor]
    g: list[Tensor]
    states: list[State]

    def __len__(self) -> int:
        return len(self.w)

    def of(self, key: str) -> list[Tensor]:
        return [state[key] for state in self.states]

    def pick(self, indices: Sequence[int]) -> Batch:
        return Batch(
            [self.w[i] for i in indices],
            [self.g[i] for i in indices],
            [self.states[i] for i in indices],
        )


def plain_duals(states: list[State]) -> None:
    """Undo the scale under which torch's SGD kernel keeps a dual (see fused.py)."""
    for state in states:
        if "dual_scale" in state:
            state["dual"].div_(state.pop("dual_scale"))


def loop(batch: Batch, s: Settings) -> None:
    """Parameter by parameter, one statement per equation."""
    plain_duals(batch.states)
    for w, g, state in zip(batch.w, batch.g, batch.states, strict=True):
        if s.weight_decay:
            w.mul_(1 - s.lr * s.weight_decay)
        g = -g if s.maximize else g
        w.sub_(s.lr * _direction(kind_for(s.metric, w), g.to(state["dual"].dtype), state, s))


def _direction(kind: str, g: Tensor, state: State, s: Settings) -> Tensor:
    """``Q⁻¹(2m⁺ − m)`` for one parameter, its state brought up to date."""
    if kind == "kronecker":
        left, right = kronecker.bases([state])
        matrix = as_matrix(g)
        blocks = kronecker.cut(kronecker.within_range(matrix[None]))
        x = _direction("diagonal", kronecker.rotate(blocks, left, right), state, s)
        x = kronecker.rotate_back(x, left, right)
        kronecker.follow([state], blocks, s.beta2)
        return kronecker.join(x, *matrix.shape).reshape(g.shape)
    m: Tensor = state["dual"]
    d = (1 - s.beta) * (g - m)  # θ(g − m)
    m.add_(d)  # m⁺
    u = m + d  # 2m⁺ − m
    if kind == "euclidean":
        return u
    if kind == "diagonal":
        return u / second_moment_scale(state, g, s.beta2, s.eps)
    part = liveliness(u.detach().abs().amax(), state["peak"], s.beta)
    return spectral_scale(u) * part * orthogonalize(as_matrix(u)).reshape(u.shape)


def foreach(batch: Batch, s: Settings) -> None:
    """All parameters at once, matrices of equal shape in one stack."""
    plain_duals(batch.states)
    if s.maximize:
        batch = Batch(batch.w, list(torch._foreach_neg(batch.g)), batch.states)
    for kind, part in by_kind(batch, s.metric):
        decay(part.w, s)
        part = Batch(part.w, in_dtype_of(part.of("dual"), part.g), part.states)
        if kind == "euclidean":
            descend(part.w, memory(part.g, part.of("dual"), s.beta), s.lr)
        elif kind == "diagonal":
            descend(part.w, _foreach_diagonal(part.g, part.states, s), s.lr)
        elif kind == "spectral":
            _foreach_spectral(part, s)
        else:
            _foreach_kronecker(part, s)


def memory(g: list[Tensor], m: list[Tensor], beta: float) -> list[Tensor]:
    """``2m⁺ − m``, and ``m⁺`` into ``m``."""
    d = list(torch._foreach_sub(g, m))
    torch._foreach_mul_(d, 1 - beta)  # θ(g − m)
    torch._foreach_add_(m, d)  # m⁺
    torch._foreach_add_(d, m)  # 2m⁺ − m
    return d


def _foreach_diagonal(g: list[Tensor], states: list[State], s: Settings) -> list[Tensor]:
    """``(2m⁺ − m)/(√v̂ + ε)``"""
    v = [state["second_moment"] for state in states]
    steps = [state["step"] for state in states]
    u = memory(g, [state["dual"] for state in states], s.beta)
    torch._foreach_mul_(v, s.beta2)
    torch._foreach_addcmul_(v, g, g, 1 - s.beta2)
    torch._foreach_add_(steps, 1)
    corrections = bias_correction(torch.stack(steps), s.beta2).sqrt_().unbind()
    scale = list(torch._foreach_sqrt(v))
    torch._foreach_div_(scale, corrections)
    torch._foreach_add_(scale, s.eps)
    torch._foreach_div_(u, scale)
    return u


def _foreach_spectral(batch: Batch, s: Settings) -> None:
    for indices in _stacks(batch):
        part = batch.pick(indices)
        shape = part.w[0].shape
        u = stack(memory(part.g, part.of("dual"), s.beta))
        scale = spectral_scale(part.w[0]) * alive(largest(u), part.of("peak"), s.beta)
        x = orthogonalize(u).mul_(scale[:, None, None])
        descend(part.w, unstack(x, shape), s.lr)


def largest(u: Tensor) -> Tensor:
    """``max |u|`` of each matrix in a stack."""
    norm: Tensor = torch.linalg.vector_norm(u, math.inf, dim=(-2, -1))
    return norm


def alive(largest: Tensor, peaks: list[Tensor], beta: float) -> Tensor:
    """The liveliness of each matrix in a stack, its peak brought up to date."""
    peak = torch.stack(peaks)
    part = liveliness(largest, peak, beta)
    torch._foreach_copy_(peaks, list(peak.unbind()))
    return part


def _foreach_kronecker(batch: Batch, s: Settings) -> None:
    for indices in _stacks(batch):
        part = batch.pick(indices)
        left, right = kronecker.bases(part.states)
        g = kronecker.within_range(stack(part.g))
        blocks = kronecker.cut(g)
        rotated = kronecker.rotate(blocks, left, right)
        of_each = list(torch.split(rotated, len(blocks) // len(part)))
        x = kronecker.whole(_foreach_diagonal(of_each, part.states, s))
        x = kronecker.join(kronecker.rotate_back(x, left, right), *g.shape[1:])
        descend(part.w, unstack(x, part.w[0].shape), s.lr)
        kronecker.follow(part.states, blocks, s.beta2)


def _stacks(batch: Batch) -> Iterator[list[int]]:
    """Indices of matrices that fit in one stack: of the same shape, type and progress."""
    groups: dict[object, list[int]] = defaultdict(list)
    for i, (w, state) in enumerate(zip(batch.w, batch.states, strict=True)):
        groups[w.shape, w.dtype, kronecker.has_bases(state)].append(i)
    for indices in groups.values():
        size = max(1, _STACK_ELEMENTS // batch.w[indices[0]].numel())
        for start in range(0, len(indices), size):
            yield indices[start : start + size]


def descend(w: list[Tensor], x: list[Tensor], lr: float | Tensor) -> None:
    """``w − lr·x``"""
    if isinstance(lr, Tensor):
        torch._foreach_mul_(x, lr)
        torch._foreach_sub_(w, x)
    else:
        torch._foreach_add_(w, x, alpha=-lr)


def decay(w: list[Tensor], s: Settings) -> None:
    if s.weight_decay:
        if isinstance(s.lr, Tensor):
            torch._foreach_mul_(w, 1 - s.lr * s.weight_decay)
        else:
            # A factor near 1 would be rounded to the type of half precision parameters.
            torch._foreach_add_(w, w, alpha=-s.lr * s.weight_decay)


def in_dtype_of(like: list[Tensor], x: list[Tensor]) -> list[Tensor]:
    return [a if a.dtype == b.dtype else a.to(b.dtype) for a, b in zip(x, like, strict=True)]


def by_kind(batch: Batch, metric: str) -> Iterator[tuple[str, Batch]]:
    """The parameters of each kind of metric, device by device."""
    # Asked for first, because it is quicker to have than the device.
    one_device = all(w.is_cpu for w in batch.w) or len({w.device for w in batch.w}) == 1
    if metric in ("euclidean", "diagonal") and one_device:
        yield metric, batch
        return
    parts: dict[tuple[str, torch.device], list[int]] = defaultdict(list)
    for i, w in enumerate(batch.w):
        parts[kind_for(metric, w), w.device].append(i)
    for (kind, _), indices in parts.items():
        yield kind, batch.pick(indices)
