"""SISA (Zhou, Wang, Luo, Zhu, Li 2025): batch ADMM with a second moment for every sub-batch.

    local      v_s = βv_s + (1−β)(g_s + π_s)²
               w_s = w − (g_s + π_s)/(σ + ρ(√v̂_s + ε))
    dual       π_s = π_s + σ(w_s − w)
    aggregate  w   = Σ_s α_s(σw_s + π_s)/(σ + λ)

The moments differ between sub-batches, so unlike BADM it does not reduce to a form without
sub-batches: it keeps ``v_s`` and ``π_s`` for each of them. It needs no ``w_s``, which
starts from ``w`` every time.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from badm.bench.method import (
    Method,
    Range,
    Setting,
    StepBatch,
    Trainer,
    TrainingSetup,
    trainable_parameters,
)


@dataclass
class SubBatchState:
    """The state of a sub-batch: how often it was seen, duals and second moments."""

    steps: int
    pi: list[Tensor]
    v: list[Tensor]


@dataclass
class SisaTrainer:
    """Trains with SISA.

    Sub-batches are identified by their number in the batch. A batch with fewer of them, such as the
    last of an epoch, does not change the duals and moments of the others, and the weights ``α_s``
    of its own sum to one, as in the exact form of Algorithm 1. If the task's loss is a sum over
    samples, SISA minimises the mean over sub-batches, which is the same up to a factor.

    The schedule divides both penalties, which multiplies the step and leaves the duals as they are.
    """

    parameters: list[torch.nn.Parameter]
    rho: float
    sigma: float
    beta: float = 0.999
    lam: float = 0.0
    eps: float = 1e-8
    parts: list[SubBatchState] = field(default_factory=list)

    def step(self, batch: StepBatch) -> float:
        sigma = self.sigma / batch.lr_factor
        moved: list[Tensor | None] = [None] * len(self.parameters)
        loss = weight = 0.0
        for s, (alpha, sub_loss) in enumerate(batch.sub_gradients()):
            loss, weight = loss + alpha * sub_loss, weight + alpha
            for i, change in enumerate(self._local(s, batch.lr_factor)):
                if change is not None:
                    before = moved[i]
                    moved[i] = alpha * change if before is None else before + alpha * change
        with torch.no_grad():
            for w, total in zip(self.parameters, moved, strict=True):
                if total is not None:
                    # w⁺ = Σ α_s(σw_s + π_s)/(σ + λ), as a change of w, which loses fewer digits
                    w.add_((total / weight - self.lam * w) / (sigma + self.lam))
        return loss

    @torch.no_grad()
    def _local(self, s: int, lr_factor: float) -> list[Tensor | None]:
        """Take the local and dual step of sub-batch ``s``; return ``σ(w_s − w) + π_s``."""
        if s == len(self.parts):
            zeros = [[torch.zeros_like(w) for w in self.parameters] for _ in range(2)]
            self.parts.append(SubBatchState(0, *zeros))
        part, sigma, rho = self.parts[s], self.sigma / lr_factor, self.rho / lr_factor
        part.steps += 1
        correction = 1 - self.beta**part.steps
        changes: list[Tensor | None] = []
        for w, pi, v in zip(self.parameters, part.pi, part.v, strict=True):
            if w.grad is None:
                changes.append(None)
                continue
            g = w.grad + pi
            # v_s = βv_s + (1−β)(g_s + π_s)²
            v.mul_(self.beta).addcmul_(g, g, value=1 - self.beta)
            # w_s − w = −(g_s + π_s)/(σ + ρ(√v̂_s + ε))
            root = (v / correction).sqrt_().add_(self.eps)
            local = g.div_(root.mul_(rho).add_(sigma)).neg_()
            # π_s = π_s + σ(w_s − w)
            pi.add_(local, alpha=sigma)
            changes.append(local.mul_(sigma).add_(pi))
        return changes

    def evaluation_weights(self) -> AbstractContextManager[None]:
        return nullcontext()

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [dict(vars(part)) for part in self.parts]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.parts = [
            SubBatchState(p["steps"], [t.clone() for t in p["pi"]], [t.clone() for t in p["v"]])
            for p in state["parts"]
        ]


def _build(setup: TrainingSetup, setting: Setting) -> Trainer:
    lr, sigma = setting["lr"], setting["sigma"]
    return SisaTrainer(
        trainable_parameters(setup.module),
        rho=1 / lr - sigma,
        sigma=sigma,
        beta=setting["beta"],
        lam=setting["lambda"],
        eps=setting["eps"],
    )


METHODS = (
    Method(
        "sisa",
        "batch ADMM with second moments of each sub-batch, by the authors of BADM",
        "peer",
        _build,
        # As published for ImageNet: σ = 1, ρ = 1/lr − σ. (For CIFAR-10 it is σ = 0.1, ρ = 5000.)
        defaults={"lr": 5e-4, "sigma": 1.0, "beta": 0.999, "lambda": 0.0, "eps": 1e-8},
        # Lower than Adam's, because the duals accumulate steps: from 0.03 on, digits is unstable.
        space={"lr": Range(3e-5, 3e-2)},
    ),
)
