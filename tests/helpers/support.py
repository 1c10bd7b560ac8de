"""Plain helpers of the tests: the tables they cross, and gradients to drive an optimizer with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from badm import BADM, metrics
from badm.metrics import eigenbases

METRICS = metrics.names()

PATHS: dict[str, dict[str, Any]] = {
    "loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}

# A scalar, a vector, a square, a wide and a tall matrix, a convolution kernel.
SHAPES = ((), (5,), (4, 4), (3, 7), (8, 2), (3, 2, 2, 2))

Gradients = Callable[[int, Sequence[Tensor]], list[Tensor]]


def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(
    shape: Sequence[int], seed: int = 0, dtype: torch.dtype = torch.float64, scale: float = 1.0
) -> Tensor:
    """The same numbers in every dtype, up to its rounding."""
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return (scale * torch.randn(tuple(shape), generator=rng(seed), dtype=wide)).to(dtype)


def parameters(
    shapes: Iterable[Sequence[int]] = SHAPES, seed: int = 0, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    return [
        normal(shape, 1000 * seed + i, dtype).requires_grad_() for i, shape in enumerate(shapes)
    ]


def restless(step: int, params: Sequence[Tensor]) -> list[Tensor]:
    """Gradients that depend on the point and do not die out.

    Where gradients vanish an adaptive metric divides noise by noise, and two ways of rounding part.
    """
    return [
        0.3 * torch.sin(0.3 * w.detach()) + normal(w.shape, 7919 * (step + 1) + i, w.dtype)
        for i, w in enumerate(params)
    ]


def drive(
    optimizer: torch.optim.Optimizer,
    params: Sequence[Tensor],
    steps: int,
    gradients: Gradients = restless,
    start: int = 0,
) -> list[Tensor]:
    """Take ``steps`` steps and return the parameters as they are then."""
    for step in range(start, start + steps):
        for w, g in zip(params, gradients(step, params), strict=True):
            w.grad = g
        optimizer.step()
    return values(params)


def values(params: Iterable[Tensor]) -> list[Tensor]:
    return [w.detach().clone() for w in params]


def trajectory(
    shapes: Iterable[Sequence[int]] = SHAPES,
    steps: int = 25,
    dtype: torch.dtype = torch.float64,
    gradients: Gradients = restless,
    **options: Any,
) -> list[Tensor]:
    """Where a fresh BADM with these options is after ``steps`` steps from the common start."""
    params = parameters(shapes, dtype=dtype)
    return drive(BADM(params, **options), params, steps, gradients)


def assert_near(
    actual: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float = 1e-12
) -> None:
    """Equal up to ``tolerance``, relative for numbers above 1, absolute below."""
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.detach(), b.detach(), rtol=tolerance, atol=tolerance)


def assert_identical(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.detach(), b.detach(), rtol=0, atol=0, equal_nan=True)


def duals(optimizer: BADM) -> list[Tensor]:
    """The duals as a checkpoint shows them; those of the kronecker metric out of their basis."""
    plain = []
    params = [p for group in optimizer.param_groups for p in group["params"]]
    for index, state in optimizer.state_dict()["state"].items():
        m = state["dual"].clone()
        if eigenbases.has_bases(state):
            w = params[index]
            blocks = basis_of(state, "left", m) @ m @ basis_of(state, "right", m).mT
            m = eigenbases.from_blocks(blocks, len(w), w[0].numel()).reshape(w.shape)
        plain.append(m)
    return plain


def basis_of(state: Mapping[str, Any], side: str, blocks: Tensor) -> Tensor:
    """A basis of the kronecker metric; the identity where it keeps none."""
    length = blocks.shape[1 if side == "left" else 2]
    basis: Tensor = state.get(f"{side}_basis", torch.eye(length, dtype=blocks.dtype))
    return basis
