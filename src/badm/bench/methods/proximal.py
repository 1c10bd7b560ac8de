"""The two sub-problems of dlADMM that are not quadratic, solved for all samples at once."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import one_hot

# The Hessian of softmax cross-entropy, diag(p) − ppᵀ, has no eigenvalue above 1/2, so steps up to
# 2 are safe. (The public code uses 4.)
ETA = 2.0
ITERATIONS, TOLERANCE = 500, 1e-3


def hidden(c: Tensor, a: Tensor) -> Tensor:
    """Minimise ``(z − c)² + (a − relu(z))²``, elementwise.

    On each side of zero it is a parabola. Its minima are ``min(c, 0)`` and
    ``max((c + a)/2, 0)``, and the second is the lower one if ``c > 0``, or if ``c + a > 0`` and
    ``(c − a)²/2 < a²``, which together is ``c > −(√2 − 1) relu(a)``.

    >>> hidden(torch.tensor([2.0, -1.0, -1.0]), torch.tensor([0.0, 0.5, 3.0]))
    tensor([ 1., -1.,  1.])
    """
    positive = (c + a).mul_(0.5).relu_()
    return torch.where(c > a.relu().mul_(1 - math.sqrt(2)), positive, c)


def output(
    z: Tensor,
    target: Tensor,
    y: Tensor,
    rho: float,
    iterations: int = ITERATIONS,
    tolerance: float = TOLERANCE,
) -> Tensor:
    """Minimise ``Σ_n CE(z_n, y_n) + (ρ/2)‖z − target‖²``, by FISTA from ``z``.

    Stops when the objective changes by less than ``tolerance``. The result is never worse than
    ``z``: FISTA that starts at rest never exceeds its first value, because
    ``F(ζ⁺) + ‖ζ⁺ − ζ‖²/(2η)`` falls in every step.

    >>> z = output(torch.zeros(1, 2), torch.zeros(1, 2), torch.tensor([0]), 0.5, tolerance=0.0)
    >>> probability = z.softmax(1)
    >>> bool((probability - torch.tensor([[1.0, 0.0]]) + 0.5 * z).abs().max() < 1e-5)
    True
    """
    # Classes × samples: a softmax over long rows is some ten times faster than over short ones.
    z, target = z.T.contiguous(), target.T.contiguous()
    labels = one_hot(y, len(z)).T.to(z.dtype).contiguous()
    pulled, weight = rho * target, rho + 1 / ETA
    zeta, lam, before = z, 1.0, math.inf
    for _ in range(iterations):
        log_p = z.log_softmax(0)
        objective = (rho / 2) * (z - target).square_().sum().item() - (log_p * labels).sum().item()
        if abs(objective - before) < tolerance:
            break
        before = objective
        # ζ⁺ = (ρ·target + (1/η)(z − η(softmax(z) − y))) / (ρ + 1/η)
        step = z.div(ETA).sub_(log_p.exp_()).add_(labels).add_(pulled).div_(weight)
        # λ⁺ = (1 + √(1 + 4λ²))/2,  γ = (1 − λ)/λ⁺,  z⁺ = (1 − γ)ζ⁺ + γζ
        after = (1 + math.sqrt(1 + 4 * lam * lam)) / 2
        gamma, lam = (1 - lam) / after, after
        z = torch.lerp(step, zeta, gamma)
        zeta = step
    return zeta.T.contiguous()
