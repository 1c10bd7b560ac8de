"""Check the theorem of the BADM paper on a run: descent of the Lagrangian, and its rate.

``Certificate.measure`` runs Algorithm 1 on a smooth problem and measures, at every iteration ``k``,
both sides of the two inequalities the paper states for ``σ ≥ 5·max(η, ρ)``. ``docs/theory.md``
proves them and explains each index.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from badm.paper.algorithm1 import Algorithm1
from badm.paper.partition import Partition
from badm.paper.problems import LeastSquares, LogisticRegression, Minimum

__all__ = ["Certificate", "LeastSquares", "LogisticRegression", "Minimum", "Problem", "Start"]

Problem = LeastSquares | LogisticRegression
Start = Literal["gradient", "zero"]


@dataclass(frozen=True, eq=False)
class Certificate:
    """Compare both sides of the theorem's two inequalities on a run of Algorithm 1.

    ``z^k`` is the global point where iteration ``k`` takes its gradients; ``z_s^k`` and ``v_s^k``
    are the results of its local and dual steps::

        L^k − L^{k−1} ≤ δ/(2σ) − (σ/10) Σ_s α_s (‖z_s^k − z^k‖² + ‖z^k − z^{k−1}‖²)      descent
        min_{j≤k} ‖∇F(z^j)‖² ≤ 12δ + 24σ(L⁰ − F*)/k                                        rate

    :meth:`measure` makes one. The measured tensors have an entry for each ``k = 0 … K``, those
    derived from them (``change``, ``allowed``, ``slack``, ``best``, ``bound``) for ``k = 1 … K``.

    >>> data = torch.Generator().manual_seed(0)
    >>> a, y = torch.randn(24, 3, generator=data), torch.randn(24, generator=data)
    >>> split = Partition(24, 24, sub_batches=4, generator=data)
    >>> certificate = Certificate.measure(LeastSquares(a, y), split, rho=1.0, steps=50)
    >>> certificate.covered, certificate.holds, certificate.delta
    (True, True, 0.0)
    >>> bool((certificate.slack > 0).all() and (certificate.best < certificate.bound).all())
    True
    """

    rho: float
    sigma: float
    start: Start
    eta: float
    delta: float
    """Bound on ``100·sup ‖∇F_s(w) − ∇F_bs(w)‖²`` over a ball that contains every ``z^k``."""
    delta_visited: float
    """The same at the visited points ``z^k`` only: all that the proof needs."""
    minimum: Minimum
    lagrangian: Tensor
    """``L^k``"""
    spread: Tensor
    """``Σ_s α_s ‖z_s^k − z^k‖²``"""
    movement: Tensor
    """``‖z^k − z^{k−1}‖²``, 0 at ``k = 0``"""
    gradient: Tensor
    """``‖∇F(z^k)‖²``"""

    @classmethod
    def measure(
        cls,
        problem: Problem,
        partition: Partition,
        *,
        rho: float,
        sigma: float | None = None,
        steps: int,
        start: Start = "gradient",
        point: Tensor | None = None,
    ) -> Certificate:
        """Run Algorithm 1 on a problem and measure both inequalities at every iteration.

        Args:
            problem: A smooth problem with known constants ``η`` and ``F*``.
            partition: Batches and sub-batches of its samples; none may be empty.
            rho: Proximal weight ``ρ`` > 0.
            sigma: Penalty ``σ`` > 0; by default ``5·max(η, ρ)``, the smallest the theorem allows.
            steps: Number of iterations, batch after batch, at least 1.
            start: Initial duals: ``"gradient"`` is ``−∇F_s(z⁰)``, covered from ``k = 1``;
                ``"zero"``, as in an optimizer, is covered from ``k = 2``.
            point: Initial global point; the origin by default.
        """
        sigma = 5 * max(problem.eta, rho) if sigma is None else sigma
        batches = list(partition.batches())
        _check(problem, batches, rho, sigma, steps, start)
        wholes = [torch.cat(column) for column in zip(*batches, strict=True)]  # D_s
        alpha = partition.alpha_s

        w = torch.zeros_like(problem.features[0]) if point is None else point.double().clone()
        run = Algorithm1([w], len(wholes), rho, sigma, alpha.tolist())
        visited = [w.clone()]
        lagrangian = [problem.loss(w)]  # every z_s⁰ is z⁰, so the other terms of L⁰ are 0
        spread = [w.new_zeros(())]
        if start == "gradient":
            for s, whole in enumerate(wholes):
                run.duals[s][0] = -problem.gradient(w, whole)
            run.aggregate()

        for k in range(1, steps + 1):
            z = w.clone()
            run.step([[problem.gradient(z, part)] for part in batches[(k - 1) % len(batches)]])
            local = torch.stack([w_s[0] for w_s in run.locals])
            dual = torch.stack([pi_s[0] for pi_s in run.duals])
            offset = local - z
            square = offset.square().sum(1)
            losses = torch.stack([problem.loss(local[s], whole) for s, whole in enumerate(wholes)])
            # L^k = Σ α_s (F_s(z_s) + <v_s, z_s − z> + (σ/2)‖z_s − z‖²)
            lagrangian.append(alpha.dot(losses + (dual * offset).sum(1) + sigma / 2 * square))
            spread.append(alpha.dot(square))
            visited.append(z)

        points = torch.stack(visited)
        distance = (points - points[0]).norm(dim=1)
        finite = distance.isfinite()  # a run that the theorem does not cover may diverge
        radius = float(distance[finite].max())
        pairs = [(part, wholes[s]) for batch in batches for s, part in enumerate(batch)]
        gaps = [problem.gap(*pair, points[0], radius) for pair in pairs]
        seen = [problem.difference(*pair, points[finite]).norm(dim=1).max() for pair in pairs]
        return cls(
            rho=rho,
            sigma=sigma,
            start=start,
            eta=problem.eta,
            delta=100 * max(gaps) ** 2,
            delta_visited=100 * float(max(seen)) ** 2,
            minimum=problem.minimum,
            lagrangian=torch.stack(lagrangian),
            spread=torch.stack(spread),
            movement=points.diff(dim=0, prepend=points[:1]).square().sum(1),
            gradient=torch.stack([problem.gradient(z).square().sum() for z in visited]),
        )

    @property
    def threshold(self) -> float:
        """The smallest penalty that the theorem covers, ``5·max(η, ρ)``."""
        return 5 * max(self.eta, self.rho)

    @property
    def covered(self) -> bool:
        """Whether the theorem covers this run: ``σ ≥ 5·max(η, ρ)``."""
        return self.sigma >= self.threshold

    @property
    def first(self) -> int:
        """The first ``k`` whose descent the theorem covers."""
        return 1 if self.start == "gradient" else 2

    @property
    def change(self) -> Tensor:
        """``L^k − L^{k−1}``, measured."""
        return self.lagrangian.diff()

    @property
    def allowed(self) -> Tensor:
        """The bound on ``change``.

        ``δ/(2σ) − (σ/10) Σ_s α_s (‖z_s^k − z^k‖² + ‖z^k − z^{k−1}‖²)``
        """
        return self.delta / (2 * self.sigma) - self.sigma / 10 * (self.spread + self.movement)[1:]

    @property
    def slack(self) -> Tensor:
        """``allowed − change``: the descent inequality holds where this is not negative."""
        return self.allowed - self.change

    @property
    def best(self) -> Tensor:
        """``min_{j≤k} ‖∇F(z^j)‖²``, measured."""
        return self.gradient.cummin(0).values[1:]

    @property
    def bound(self) -> Tensor:
        """``12δ + 24σ(L⁰ − F*)/k``, the bound on ``best``; from ``L¹`` when duals start at 0."""
        k = torch.arange(1, len(self.lagrangian), dtype=self.lagrangian.dtype)
        fall = self.lagrangian[self.first - 1] - self.minimum.value
        return 12 * self.delta + 24 * self.sigma * fall / k

    @property
    def violations(self) -> list[int]:
        """Every ``k`` at which descent (from ``first`` on) or rate fails by more than rounding."""
        size = self.lagrangian.abs()
        rounding = 1e-14 * size[:-1].clamp(min=size[0])
        descends = self.slack >= -rounding
        descends[: self.first - 1] = True
        held = descends & (self.best <= self.bound + 24 * self.sigma * rounding[0])
        return (1 + (~held).nonzero().flatten()).tolist()

    @property
    def holds(self) -> bool:
        """Whether both inequalities held at every ``k``, covered or not."""
        return not self.violations

    @property
    def verdict(self) -> str:
        """The result in a sentence or two."""
        steps, failed = len(self.change), self.violations
        reach = f"5·max(η, ρ) = {self.threshold:.4g}"
        if failed:
            found = (
                f"an inequality failed at {len(failed)} of {steps} steps, first at k = {failed[0]}"
            )
        else:
            found = f"descent and rate held at every step from k = {self.first} to {steps}"
        if self.covered:
            word = "VIOLATED" if failed else "holds"
            sentence = f"{word}: σ = {self.sigma:.4g} ≥ {reach}; {found}."
        else:
            sentence = (
                f"not covered: σ = {self.sigma:.4g} < {reach} "
                f"(η = {self.eta:.4g}, ρ = {self.rho:.4g}); "
                f"{found}{'' if failed else ' nevertheless'}."
            )
        if self.start == "zero":
            sentence += (
                f" Duals started at 0: the first step, L¹ − L⁰ = {float(self.change[0]):+.3g}, is "
                "outside the theorem and the rate counts from L¹."
            )
        return sentence


def _check(
    problem: Problem,
    batches: list[list[Tensor]],
    rho: float,
    sigma: float,
    steps: int,
    start: str,
) -> None:
    for name, value in (("rho", rho), ("sigma", sigma)):
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name} must be a finite number greater than 0, got {value}")
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    if start not in get_args(Start):
        raise ValueError(f"start must be one of {', '.join(get_args(Start))}, got {start!r}")
    sizes = [len(part) for batch in batches for part in batch]
    if sum(sizes) != len(problem.targets):
        raise ValueError(
            f"partition must split the {len(problem.targets)} samples of the problem, "
            f"got {sum(sizes)}"
        )
    if min(sizes) == 0:
        raise ValueError("partition must not have empty sub-batches, got one with 0 samples")
