"""Algorithm 1 of the BADM paper, word for word: the oracle of everything else.

It keeps the ``2S`` copies of the model that the optimizer does without, and optimizes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from badm import metrics
from badm.metrics import Operator, Settings
from badm.metrics.euclidean import Identity
from badm.metrics.matrices import Blocks

__all__ = ["Algorithm1", "Gradients"]

Gradients = Sequence[Sequence[Tensor] | None]


class Algorithm1:
    """Run batch ADMM with every local point ``w_s`` and dual ``π_s`` kept.

    Starting from ``w_s = w`` and ``π_s = 0``, one batch with gradients ``g_s`` at ``w`` is::

        w_s = w − Q⁻¹(g_s + π_s)/(ρ+σ)          local
        π_s ← π_s + σQ(w_s − w)                 dual
        w   = Σ_s α_s (w_s + Q⁻¹π_s/σ)          aggregate, for the next batch

    For each batch, compute the gradient of every sub-batch at the global point ``params`` and call
    :meth:`step`. A metric ``Q`` other than the euclidean scales both the penalty and the proximal
    term (docs/theory.md); it is fixed during a step and updated between steps.

    Args:
        params: The global point; updated in place.
        sub_batches: Number of sub-batches ``S``, at least 1.
        rho: Proximal weight ``ρ`` > 0.
        sigma: Penalty ``σ`` > 0, the inverse of the learning rate.
        alpha: Weights ``α_s`` of the sub-batches, which sum to 1; equal by default.
        metric: Name of the metric; the default is the paper's.
        beta2: Memory of the second moment, in [0, 1), as in :class:`badm.BADM`.
        eps: Added to the root of the second moment, as in :class:`badm.BADM`.
        blocks: Into how many blocks the axes of each parameter are cut; ``()``: one matrix each.

    >>> w = torch.tensor([1.0, -2.0])
    >>> algorithm = Algorithm1([w], sub_batches=2, rho=1.0, sigma=4.0)
    >>> for _ in range(100):
    ...     algorithm.step([[w.clone()], [3 * w]])    # two sub-batches of a quadratic
    >>> bool(w.norm() < 1e-6)
    True
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        sub_batches: int,
        rho: float,
        sigma: float,
        alpha: Sequence[float] | None = None,
        metric: str = "euclidean",
        *,
        beta2: float | None = None,
        eps: float = 1e-8,
        blocks: Blocks = (),
    ) -> None:
        self.params = list(params)
        if not self.params:
            raise ValueError("params must contain at least one tensor, got none")
        if sub_batches < 1:
            raise ValueError(f"sub_batches must be at least 1, got {sub_batches}")
        for name, value in (("rho", rho), ("sigma", sigma)):
            if not 0 < value < float("inf"):
                raise ValueError(f"{name} must be a finite number greater than 0, got {value}")
        if not metrics.find(metric).linear and any(w.is_complex() for w in self.params):
            raise ValueError(
                f"metric must be 'euclidean' for complex parameters, got {metric!r}; "
                "pass torch.view_as_real of them instead"
            )
        self.rho = rho
        self.sigma = sigma
        self.alpha = _weights(alpha, sub_batches)
        self.locals = [[w.detach().clone() for w in self.params] for _ in range(sub_batches)]
        self.duals = [[torch.zeros_like(w) for w in self.params] for _ in range(sub_batches)]
        self._settings = Settings(
            1 / sigma, rho / (rho + sigma), metric, beta2, eps, 0.0, False, blocks
        )
        self._metrics = [metrics.metric_for(metric, w, blocks) for w in self.params]
        self._states = [
            metric_.new_state(w, metric_.place_of(w, index))
            for index, (metric_, w) in enumerate(zip(self._metrics, self.params, strict=True))
        ]
        self._operators: list[Operator] = [Identity()] * len(self.params)

    @torch.no_grad()
    def step(self, gradients: Gradients, alpha: Sequence[float] | None = None) -> None:
        """Process one batch: local and dual step of every sub-batch, then the aggregate.

        Args:
            gradients: ``gradients[s][i]`` is the mean gradient over sub-batch ``s`` for parameter
                ``i`` at ``params``; ``None`` if it is empty, which keeps its ``w_s`` and ``π_s``.
            alpha: Weights for this batch only (``α_bs`` renormalised weights it exactly).
        """
        if len(gradients) != len(self.duals):
            raise ValueError(
                f"gradients must have one entry per sub-batch, {len(self.duals)}, "
                f"got {len(gradients)}"
            )
        for row in gradients:
            if row is not None and len(row) != len(self.params):
                raise ValueError(
                    f"gradients must have one tensor per parameter, {len(self.params)}, "
                    f"got {len(row)}"
                )
        weights = self.alpha if alpha is None else _weights(alpha, len(self.duals))
        gradients = [
            row and [metric.limit(g) for metric, g in zip(self._metrics, row, strict=True)]
            for row in gradients
        ]
        self._update_metrics(gradients, weights)
        for s, sub_batch_gradients in enumerate(gradients):
            if sub_batch_gradients is None:
                continue
            for i, g in enumerate(sub_batch_gradients):
                w, pi, Q = self.params[i], self.duals[s][i], self._operators[i]
                # local: w_s = w − Q⁻¹(g_s + π_s)/(ρ+σ)
                self.locals[s][i] = w - Q.inverse(g + pi) / (self.rho + self.sigma)
                # dual: π_s = π_s + σQ(w_s − w)
                self.duals[s][i] = pi + self.sigma * Q.forward(self.locals[s][i] - w)
        self.aggregate(weights)

    @torch.no_grad()
    def aggregate(self, alpha: Sequence[float] | None = None) -> None:
        """Set ``params`` to ``w = Σ_s α_s (w_s + Q⁻¹π_s/σ)``."""
        weights = self.alpha if alpha is None else _weights(alpha, len(self.duals))
        for i, w in enumerate(self.params):
            inverse = self._operators[i].inverse
            total = torch.zeros_like(w)
            for a, w_s, pi_s in zip(weights, self.locals, self.duals, strict=True):
                total += a * (w_s[i] + inverse(pi_s[i]) / self.sigma)
            w.copy_(total)

    def _update_metrics(self, gradients: Gradients, weights: Sequence[float]) -> None:
        """Compute the metric of this batch from the means ḡ and m = −Σ α_s π_s."""
        theta = self.sigma / (self.rho + self.sigma)
        for i, w in enumerate(self.params):
            mean_gradient = torch.zeros_like(w)
            m = torch.zeros_like(w)
            for a, g, pi in zip(weights, gradients, self.duals, strict=True):
                mean_gradient += a * (-pi[i] if g is None else g[i])
                m -= a * pi[i]
            u = m + 2 * theta * (mean_gradient - m)  # 2m⁺ − m
            self._operators[i] = self._metrics[i].operator(
                mean_gradient, u, self._states[i], self._settings.for_metric(self._metrics[i])
            )


def _weights(alpha: Sequence[float] | None, sub_batches: int) -> list[float]:
    if alpha is None:
        return [1 / sub_batches] * sub_batches
    weights = [float(a) for a in alpha]
    if len(weights) != sub_batches:
        raise ValueError(f"alpha must have {sub_batches} weights, got {len(weights)}")
    if not (min(weights) >= 0 and abs(sum(weights) - 1) <= 1e-6):
        raise ValueError(f"alpha must be weights of at least 0 that sum to 1, got {weights}")
    return weights
