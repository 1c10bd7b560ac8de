"""An optimizer of interchangeable parts, to measure what each of BADM's is worth (ablation.py).

One statement per equation, one matrix after the other: readable and slow. The base variant is BADM
at its defaults. In the kronecker metrics, sides above ``longest`` keep the identity here and are
split into blocks in the library.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

import badm
from badm.metrics import orthogonal
from badm.metrics.eigenbases import rotate, rotate_back
from badm.metrics.matrices import as_matrix, is_matrix

State = dict[str, Any]

# Of the largest eigenvalue: keeps the basis where the covariance is zero.
SHIFT = 2**-11.5

# By number, solved by benchmarks/quintic_steps.py: two for [0.05, 1].
QUINTIC_STEPS: dict[int, orthogonal.Steps] = {
    2: (
        (6.752375277478279, -18.350969052931887, 13.26326473794108),
        (2.5378644995691277, -1.874676930101781, 0.4412803604915994),
    ),
    3: orthogonal.STEPS_WHITENED,
    4: orthogonal.STEPS,
}


@dataclass(frozen=True)
class Variant:
    """What the optimizer is made of; the defaults are the base variant."""

    metric: Literal["spectral", "kronecker", "kronecker-spectral"] = "spectral"
    form: Literal["admm", "nesterov", "average"] = "admm"
    lr: float = 1e-2
    beta: float = 0.9
    beta2: float = 0.95  # of the rotated second moment and the covariances
    beta2_rest: float = 0.999  # of the diagonal metric
    eps: float = 1e-8
    scale: float = 0.4  # root mean square of an orthogonal step
    by_fan_in_from: float = math.inf  # times √(from/columns) where there are more columns
    length: Literal["constant", "of u", "of the kronecker direction"] = "constant"
    steps: int = 3  # of the quintic iteration
    refresh: int = 5  # steps between two updates of a basis
    longest: int = 700  # side that gets a basis
    one_sided_from: float = math.inf  # aspect from which the long side gets none
    output_layer: bool = True  # whether it is a matrix like others
    row_moments: float = 0.0  # memory of the second moment of rows, as in NorMuon; 0: none
    bias_correction: bool = False  # of the dual
    memory_warmup: bool = False  # β rises from 0.2 as (1 + t)/(10 + t)
    look_ahead: float = 0.0  # gradient taken this many average displacements ahead
    rest_scale: float = 1.0  # of the diagonal steps
    whitened: bool = False  # covariance of each side whitened by the other side, as in KL-Shampoo
    weight_decay: float = 0.0
    cautious: bool = False  # decay only where it agrees with the step
    distance_first: float = 0.0  # lr = the largest distance so far/√t, this much at first; 0: no


class Prototype(torch.optim.Optimizer):
    """BADM, one part of which can be exchanged."""

    def __init__(self, module: nn.Module, variant: Variant) -> None:
        self.variant = variant
        # In this metric's groups the output layer is no matrix.
        wanted = badm.parameter_groups(module, metric="kronecker")
        hidden = [group for group in wanted if group["metric"] == "kronecker"]
        matrices = {id(p) for group in hidden for p in group["params"]}
        if variant.output_layer:
            embeddings = {id(m.weight) for m in module.modules() if isinstance(m, nn.Embedding)}
            matrices = {id(p) for p in module.parameters() if p.ndim >= 2} - embeddings
        params = [p for p in module.parameters() if p.requires_grad]
        groups = [{"params": [p], "matrix": id(p) in matrices and is_matrix(p)} for p in params]
        super().__init__(groups, {"lr": variant.lr})
        self.start: list[Tensor] = []
        self.distance, self.steps = 0.0, 0

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        v, distance_lr = self.variant, self._distance_lr()
        for index, group in enumerate(self.param_groups):
            (w,) = group["params"]
            if w.grad is None:
                continue
            lr = group["lr"] * distance_lr
            state = self.state[w]
            state["step"] = state.get("step", 0) + 1
            if "ahead" in state:
                w.sub_(state["ahead"])
            before = w.clone()
            if group["matrix"]:
                x = self._matrix_step(as_matrix(w.grad), state, index).reshape(w.shape)
            else:
                u = self._dual_step(w.grad, state)
                x = v.rest_scale * u / self._root(w.grad, state, v.beta2_rest)
            if v.weight_decay and w.ndim > 1:
                decayed = w * (x * w > 0) if v.cautious else w
                w.sub_(lr * v.weight_decay * decayed)
            w.sub_(lr * x)
            if v.look_ahead:
                drift = state.setdefault("drift", torch.zeros_like(w))
                drift.lerp_(w - before, 1 - v.beta)
                state["ahead"] = v.look_ahead * drift
                w.add_(state["ahead"])

    def _distance_lr(self) -> float:
        """Return the root mean square distance from the start, at its largest, over ``√t``.

        As in "DoG is SGD's best friend" (Ivgi et al. 2023), for steps whose size does not depend on
        the gradient's. The learning rate of a group is the schedule's factor of it.
        """
        if not self.variant.distance_first:
            return 1.0
        params = [group["params"][0] for group in self.param_groups]
        if not self.start:
            self.start = [p.clone() for p in params]
        squares = sum(
            float((p - at).square().sum()) for p, at in zip(params, self.start, strict=True)
        )
        rms = math.sqrt(squares / sum(p.numel() for p in params))
        self.distance = max(self.distance, rms, self.variant.distance_first)
        self.steps += 1
        return self.distance / math.sqrt(self.steps)

    def _dual_step(self, g: Tensor, state: State) -> Tensor:
        v, t = self.variant, state["step"]
        beta = min(v.beta, (1 + t) / (10 + t)) if v.memory_warmup else v.beta
        m = state.setdefault("dual", torch.zeros_like(g))
        before = m.clone()
        m.lerp_(g, 1 - beta)  # m⁺
        if v.form == "admm":
            u = 2 * m - before
        elif v.form == "nesterov":
            u = beta * m + (1 - beta) * g
        else:
            u = m.clone()
        return u / (1 - beta**t) if v.bias_correction else u

    def _root(self, g: Tensor, state: State, beta2: float) -> Tensor:
        moment = state.setdefault("second_moment", torch.zeros_like(g))
        moment.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        return (moment / (1 - beta2 ** state["step"])).sqrt() + self.variant.eps

    def _matrix_step(self, g: Tensor, state: State, index: int) -> Tensor:
        v = self.variant
        c = v.scale * math.sqrt(max(g.shape))
        c *= math.sqrt(min(1.0, v.by_fan_in_from / g.shape[1]))
        if v.metric == "spectral":
            u = self._dual_step(g, state)
            if v.length == "of u":
                c *= self._length(u, g, state)
            return c * self._rows_evened(orthogonal.orthogonalize(u), state)
        left, right = state.get("left"), state.get("right")
        rotated = rotate(g, left, right)
        u = self._dual_step(rotated, state)
        x = rotate_back(u / self._root(rotated, state, v.beta2), left, right)
        self._update_bases(g, state, index)
        if v.metric == "kronecker":
            return x
        if v.length == "of the kronecker direction":
            c *= float(x.square().mean().sqrt())
        return c * self._rows_evened(orthogonal.orthogonalize(x, QUINTIC_STEPS[v.steps]), state)

    def _length(self, u: Tensor, g: Tensor, state: State) -> float:
        """``‖u‖`` over the root of the average of ``‖g‖²``: the length of a step of Adam's."""
        beta2, t = self.variant.beta2_rest, state["step"]
        state["square"] = beta2 * state.get("square", 0.0) + (1 - beta2) * float(g.square().sum())
        return float(u.norm()) / (math.sqrt(state["square"] / (1 - beta2**t)) + 1e-30)

    def _rows_evened(self, x: Tensor, state: State) -> Tensor:
        """Divide each row, or column of a wide matrix, by its recent size; keep the norm."""
        memory = self.variant.row_moments
        if not memory:
            return x
        squares = x.square().mean(1 if x.shape[0] >= x.shape[1] else 0, keepdim=True)
        moment = state.setdefault("row_moment", torch.zeros_like(squares))
        moment.lerp_(squares, 1 - memory)
        even = x / (moment.sqrt() + self.variant.eps)
        return even * (x.norm() / even.norm().clamp(min=1e-12))

    def _whitened(self, x: Tensor, side: str, state: State) -> Tensor:
        """``x·C^(-1/2)`` with the covariance ``C`` of the other side, up to its mean eigenvalue."""
        other = "right" if side == "left" else "left"
        if other not in state:
            return x
        basis, covariance = state[other], state[f"{other}_covariance"]
        values = (basis * (covariance @ basis)).sum(0)
        relative = values / values.mean().clamp(min=1e-30)
        return (x @ basis) / relative.clamp(min=SHIFT).sqrt()

    def _update_bases(self, g: Tensor, state: State, index: int) -> None:
        v, (rows, cols) = self.variant, g.shape
        first = state["step"] == 1
        for side, x, other in (("left", g, cols), ("right", g.mT, rows)):
            length = len(x)
            if first and length <= v.longest and length <= v.one_sided_from * other:
                state[f"{side}_covariance"] = torch.zeros(length, length)
            if f"{side}_covariance" in state:
                covariance = state[f"{side}_covariance"]
                y = self._whitened(x, side, state) if v.whitened else x
                covariance.mul_(v.beta2).addmm_(y, y.mT, alpha=1 - v.beta2)
        if not first and (state["step"] + index) % v.refresh:
            return
        outside = rotate_back(state["dual"], state.get("left"), state.get("right"))
        for axis, side in enumerate(("left", "right")):
            if f"{side}_covariance" not in state:
                continue
            covariance = state[f"{side}_covariance"]
            basis = state.get(side, torch.eye(len(covariance)))
            product = covariance @ basis
            values = (basis * product).sum(0)
            order = values.argsort(descending=True, stable=True)
            product += SHIFT * values.amax() * basis
            state[side] = torch.linalg.qr(product[:, order])[0]
            state["second_moment"] = state["second_moment"].index_select(axis, order)
        state["dual"] = rotate(outside, state.get("left"), state.get("right"))
        if first:  # its moment belongs to the identity
            rotated = rotate(g, state.get("left"), state.get("right"))
            state["second_moment"] = rotated.square() * (1 - v.beta2)
