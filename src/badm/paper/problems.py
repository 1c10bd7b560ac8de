"""Smooth problems with per-sample losses and the constants the convergence theorem needs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

__all__ = ["LeastSquares", "LogisticRegression", "Minimum"]


@dataclass(frozen=True, eq=False)
class Minimum:
    """The infimum ``F*`` of a problem, or a number below it.

    ``point`` is where it is attained; ``None`` means that no minimiser was found and ``value`` is
    only a lower bound. Bounds computed from it are then still true, but looser.

    >>> LeastSquares(torch.eye(2), torch.tensor([1.0, 0.0])).minimum.value
    0.0
    """

    value: float
    point: Tensor | None


@dataclass(frozen=True, eq=False)
class _LinearModel:
    """Per-sample losses ``φ(aᵢᵀw, yᵢ) + (l2/2)‖w‖²`` with ``φ'' ≤ curvature``, in float64."""

    features: Tensor
    targets: Tensor
    l2: float = 0.0

    curvature: ClassVar[float]

    def __post_init__(self) -> None:
        if self.features.dim() != 2 or self.targets.shape != self.features.shape[:1]:
            raise ValueError(
                "features and targets must have the shapes (samples, features) and (samples,), "
                f"got {tuple(self.features.shape)} and {tuple(self.targets.shape)}"
            )
        if not (math.isfinite(self.l2) and self.l2 >= 0):
            raise ValueError(f"l2 must be a finite number of at least 0, got {self.l2}")
        object.__setattr__(self, "features", self.features.double())
        object.__setattr__(self, "targets", self.targets.double())

    def _phi(self, scores: Tensor, targets: Tensor) -> Tensor:
        raise NotImplementedError

    def _slope(self, scores: Tensor, targets: Tensor) -> Tensor:
        raise NotImplementedError

    def loss(self, w: Tensor, index: Tensor | None = None) -> Tensor:
        """Return the mean loss over the samples ``index`` (all of them by default)."""
        a, y = self._rows(index)
        return self._phi(a @ w, y).mean() + 0.5 * self.l2 * w.dot(w)

    def gradient(self, w: Tensor, index: Tensor | None = None) -> Tensor:
        """Return the gradient of ``loss``."""
        a, y = self._rows(index)
        return a.T @ self._slope(a @ w, y) / len(y) + self.l2 * w

    @cached_property
    def eta(self) -> float:
        """A Lipschitz constant ``η`` of every per-sample gradient."""
        return self.curvature * float(self.features.square().sum(1).max()) + self.l2

    @cached_property
    def _svd(self) -> tuple[Tensor, Tensor, Tensor]:
        """``features = U diag(s) Vᵀ`` without singular values at the level of rounding."""
        u, s, vt = torch.linalg.svd(self.features, full_matrices=False)
        kept = s > s.max() * torch.finfo(s.dtype).eps * max(self.features.shape)
        return u[:, kept], s[kept], vt[kept].T

    def _rows(self, index: Tensor | None) -> tuple[Tensor, Tensor]:
        if index is None:
            return self.features, self.targets
        return self.features[index], self.targets[index]

    def difference(self, part: Tensor, whole: Tensor, points: Tensor) -> Tensor:
        """Return ``∇F_whole − ∇F_part`` at every row of ``points``; the regulariser cancels."""
        slopes = self._slope(points @ self.features.T, self.targets)
        return (_contrast(part, whole, self.targets) * slopes) @ self.features


class LeastSquares(_LinearModel):
    """Least squares: loss ``½(aᵢᵀw − yᵢ)² + (l2/2)‖w‖²`` for each sample.

    ``eta = maxᵢ‖aᵢ‖² + l2`` is exact.

    >>> problem = LeastSquares(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([2.0, 3.0]))
    >>> problem.eta, problem.minimum.point
    (4.0, tensor([1., 3.], dtype=torch.float64))
    """

    curvature = 1.0

    def _phi(self, scores: Tensor, targets: Tensor) -> Tensor:
        return 0.5 * (scores - targets).square()

    def _slope(self, scores: Tensor, targets: Tensor) -> Tensor:
        return scores - targets

    @cached_property
    def minimum(self) -> Minimum:
        """``F*`` by singular values; the shortest minimiser where there are many."""
        u, s, v = self._svd
        point = v @ (s / (s.square() + len(self.targets) * self.l2) * (u.T @ self.targets))
        return Minimum(float(self.loss(point)), point)

    def gap(self, part: Tensor, whole: Tensor, center: Tensor, radius: float) -> float:
        """Bound ``‖∇F_whole − ∇F_part‖`` over the ball; the difference is affine in ``w``."""
        at_center = self.difference(part, whole, center).norm()
        hessian = (self.features.T * _contrast(part, whole, self.targets)) @ self.features
        return float(at_center + radius * torch.linalg.matrix_norm(hessian, 2))


class LogisticRegression(_LinearModel):
    """Logistic regression: loss ``log(1 + exp(aᵢᵀw)) − yᵢaᵢᵀw + (l2/2)‖w‖²`` for each sample.

    Labels are 0 and 1.

    ``eta = maxᵢ‖aᵢ‖²/4 + l2`` is a bound, met where ``aᵢᵀw = 0``.

    >>> separable = LogisticRegression(torch.tensor([[4.0], [-4.0]]), torch.tensor([1.0, 0.0]))
    >>> separable.eta, separable.minimum       # the infimum 0 is not attained
    (4.0, Minimum(value=0.0, point=None))
    """

    curvature = 0.25

    def __post_init__(self) -> None:
        super().__post_init__()
        if not ((self.targets == 0) | (self.targets == 1)).all():
            raise ValueError(
                f"targets must be 0 or 1, got {sorted(set(self.targets.tolist()))[:5]}"
            )

    def _phi(self, scores: Tensor, targets: Tensor) -> Tensor:
        return torch.logaddexp(scores, torch.zeros_like(scores)) - targets * scores

    def _slope(self, scores: Tensor, targets: Tensor) -> Tensor:
        return scores.sigmoid() - targets

    @cached_property
    def minimum(self) -> Minimum:
        """``F*`` by Newton's method; 0, below every loss, where there is no minimiser."""
        samples, dimensions = self.features.shape
        w = self.features.new_zeros(dimensions)
        for _ in range(100):
            scores = self.features @ w
            if self.l2 == 0 and ((2 * self.targets - 1) * scores > 0).all():
                break  # separated: scaling w up drives the loss to 0
            p = scores.sigmoid()
            hessian = (self.features.T * (p * (1 - p))) @ self.features / samples
            hessian += self.l2 * torch.eye(dimensions, dtype=hessian.dtype)
            gradient, value = self.gradient(w), self.loss(w)
            direction = torch.linalg.pinv(hessian, hermitian=True) @ gradient
            decrement = gradient.dot(direction)
            if decrement <= 1e-14 * value:  # near F* it is twice the remaining loss
                u = self._svd[0]
                flat = torch.linalg.eigvalsh((u.T * (p * (1 - p))) @ u)[:1] < 1e-10
                if self.l2 == 0 and flat.any():
                    break  # some samples are separated: w diverges
                return Minimum(float(value), w)
            while self.loss(w - direction) > value - decrement / 4 and decrement > 1e-20 * value:
                direction, decrement = direction / 2, decrement / 2
            w = w - direction
        return Minimum(0.0, None)

    def gap(self, part: Tensor, whole: Tensor, center: Tensor, radius: float) -> float:
        """Bound ``‖∇F_whole − ∇F_part‖`` over all ``w``: every probability is ½ ± ½."""
        at_half = self.difference(part, whole, torch.zeros_like(center)).norm()
        rows = _contrast(part, whole, self.targets)[:, None] * self.features
        spread = min(rows.norm(dim=1).sum(), torch.linalg.matrix_norm(rows, 2) * len(whole) ** 0.5)
        return float(at_half + spread / 2)


def _contrast(part: Tensor, whole: Tensor, like: Tensor) -> Tensor:
    """Return weights ``c`` with ``Σ cᵢ∇fᵢ = ∇F_whole − ∇F_part``, exactly 0 for equal sets."""
    c = torch.zeros_like(like)
    c[whole] = 1 / len(whole)
    c[part] -= 1 / len(part)
    return c
