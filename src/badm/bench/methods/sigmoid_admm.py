"""sigmoid-ADMM (Zeng, Lin, Yao, Zhou, JMLR 2021): train a sigmoid perceptron by least squares.

    min  ½‖V_out − Y‖² + (λ/2) Σ_i ‖W̃_i‖²     Y: one-hot labels
    subject to  V_i = ς(W_i V_{i−1} + b_i)  and  V_out = W V_L + b,  with multipliers U_i

A weight matrix and its bias are one matrix: ``W̃ = [W b]`` for ``Ṽ = [V; 1]``. Where there is a
sigmoid, the square is replaced by a parabola that lies above it and touches it at the current
point; so every step but that of the multipliers lowers the augmented Lagrangian. Here a sample is
a row, so ``W V`` reads ``V @ W.T``, and layers count from 0: ``V[i]`` goes into layer ``i``.

Everything is in float64. With ``λ = 1e-6`` and pixels that are black in all images, the matrices to
be inverted have a condition number of 1e13.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from badm.bench.method import Method, Range, Setting, Trainer, TrainingSetup
from badm.bench.methods.layer_wise import LayerWiseTrainer, own_settings
from badm.bench.methods.perceptron import Perceptron, perceptron

# Products over all samples in an iteration: W takes two in the first layer and three above (T, the
# right side, and ṼṼᵀ, which never changes for the data), V three, the output of a layer one, and
# above the first one more for the training loss. With its share of Cholesky factors and elementwise
# work, a product in float64 was measured to take as long as 2.7 in float32 (784–1000–1000–10).
FIRST, OTHERS = 2.7 * 3, 2.7 * 8


class SigmoidADMM:
    """The variables of sigmoid-ADMM, and the steps that change them.

    >>> mlp = nn.Sequential(nn.Linear(2, 8), nn.Sigmoid(), nn.Linear(8, 2))
    >>> x = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    >>> setup = TrainingSetup(mlp, 1, supervised=lambda: (x, torch.tensor([0, 0, 0, 1])))
    >>> admm = SigmoidADMM(perceptron(setup, "sigmoid-admm", nn.Sigmoid), beta=1.0, lam=1e-6)
    >>> before = admm.lagrangian()
    >>> admm.update_W(1), admm.update_W(0), admm.update_V(1), admm.update_output()
    (None, None, None, None)
    >>> admm.lagrangian() < before
    True
    """

    def __init__(self, mlp: Perceptron, beta: float, lam: float) -> None:
        self.mlp, self.beta, self.lam = mlp, beta, lam
        self.Y = one_hot(mlp.y, mlp.layers[-1].out_features).double()
        self.W = [
            torch.cat((layer.weight.detach(), layer.bias.detach()[:, None]), 1).double()
            for layer in mlp.layers
        ]
        self.last = len(self.W) - 1
        self.V = [mlp.x.double()]
        for i in range(self.last + 1):
            self.V.append(self.layer(i))
        self.given = list(self.V)  # the output of the layer below
        self.U = [torch.zeros_like(V) for V in self.V]  # U[i] belongs to V[i]; U[0] to nothing
        self.loss = self._squared_error(self.V[-1])
        self._gram_of_data = _gram(self.V[0])

    def layer(self, i: int) -> Tensor:
        """Compute the output of layer ``i`` for ``V_i``."""
        T = _with_bias(self.V[i], self.W[i])
        return T.sigmoid_() if i < self.last else T

    def update_W(self, i: int) -> None:
        """Minimise over ``W̃_i``; where there is a sigmoid, the parabola above."""
        B = self.V[i + 1] - self.U[i + 1] / self.beta  # the layer's target
        if i == self.last:
            # W = (βV_out − U)Ṽᵀ(λI + βṼṼᵀ)⁻¹
            curvature, target = 1.0, B
        else:
            # W⁺ = β((h/2)T − G)Ṽᵀ(λI + (βh/2)ṼṼᵀ)⁻¹
            T = _with_bias(self.V[i], self.W[i])
            curvature = majorant(B)
            target = T.sub_(slope(T, B).div_(curvature))
        gram = self._gram_of_data if i == 0 else _gram(self.V[i])
        weight = self.beta * curvature
        A = (weight * gram).diagonal_scatter(weight * gram.diagonal() + self.lam)
        right = weight * torch.cat((target.T @ self.V[i], target.sum(0)[:, None]), 1)
        self.W[i] = torch.cholesky_solve(right.T, torch.linalg.cholesky(A)).T.contiguous()

    def update_V(self, i: int) -> None:
        """Minimise over hidden ``V_i``, the output of layer ``i − 1`` and input of layer ``i``."""
        self.given[i] = self.layer(i - 1)
        C = self.given[i] + self.U[i] / self.beta
        B = self.V[i + 1] - self.U[i + 1] / self.beta
        W, b = self.W[i][:, :-1], self.W[i][:, -1]
        if i == self.last:
            # V⁺ = (βI + βWᵀW)⁻¹(U_L + βς(·) − Wᵀ(U_out − β(V_out − b)))
            curvature, target = 1.0, B.sub_(b)
        else:
            # V⁺ = (βI + (βμ/2)WᵀW)⁻¹(βC + βWᵀ((μ/2)T − G))
            T = self.V[i] @ W.T
            curvature = majorant(B)
            target = T.sub_(slope(T + b, B).div_(curvature))
        A = torch.eye(W.shape[1], dtype=W.dtype) + curvature * (W.T @ W)
        right = C.addmm_(target, W, alpha=curvature)
        self.V[i] = right @ torch.cholesky_inverse(torch.linalg.cholesky(A))

    def update_output(self) -> None:
        """``V_out = (Y + U_out + β(WV_L + b))/(1 + β)``: the minimiser."""
        self.given[-1] = self.layer(self.last)
        self.V[-1] = (self.Y + self.U[-1] + self.beta * self.given[-1]) / (1 + self.beta)

    def update_U(self, i: int) -> None:
        """``U_i⁺ = U_i + β(output of the layer below − V_i)``: this raises the Lagrangian."""
        self.U[i].add_(self.given[i] - self.V[i], alpha=self.beta)

    @torch.no_grad()
    def iterate(self) -> float:
        for i in reversed(range(self.last + 1)):
            self.update_W(i)
        for i in range(1, self.last + 1):
            self.update_V(i)
        self.update_output()
        for i in range(1, self.last + 2):
            self.update_U(i)
        self._into_module()
        return self.mlp.epochs(FIRST, OTHERS)

    def lagrangian(self) -> float:
        """``½‖V_out − Y‖² + (λ/2)Σ‖W̃‖² + Σ_i (<U_i, r_i> + (β/2)‖r_i‖²)``, ``r_i`` the defects."""
        total = 0.5 * (self.V[-1] - self.Y).square().sum().item()
        for i, W in enumerate(self.W):
            r = self.layer(i) - self.V[i + 1]
            total += 0.5 * self.lam * W.square().sum().item()
            total += (r * self.U[i + 1]).sum().item() + 0.5 * self.beta * r.square().sum().item()
        return total

    def state_dict(self) -> dict[str, Any]:
        return {"W": self.W, "V": self.V[1:], "U": self.U[1:], "loss": self.loss}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.W = [W.clone() for W in state["W"]]
        self.V[1:] = [V.clone() for V in state["V"]]
        self.U[1:] = [U.clone() for U in state["U"]]
        self.loss = state["loss"]

    def _into_module(self) -> None:
        for layer, W in zip(self.mlp.layers, self.W, strict=True):
            layer.weight.copy_(W[:, :-1])
            layer.bias.copy_(W[:, -1])
        h = self.given[1]  # with the data for V_0 this is the network's own first layer
        for i in range(1, self.last + 1):
            h = _with_bias(h, self.W[i])
            h = h.sigmoid_() if i < self.last else h
        self.loss = self._squared_error(h)

    def _squared_error(self, out: Tensor) -> float:
        """Compute half the squared distance to the one-hot label, averaged over samples."""
        return 0.5 * (out - self.Y).square().sum(1).mean().item()


def slope(T: Tensor, B: Tensor) -> Tensor:
    """``G = (ς(T) − B) ς'(T)``, the derivative of ``(ς(T) − B)²/2``.

    >>> slope(torch.tensor([0.0]), torch.tensor([1.0]))
    tensor([-0.1250])
    """
    s = T.sigmoid()
    return (s - B).mul_(s).mul_(1 - s)


def majorant(B: Tensor) -> float:
    """Curvature of a parabola above ``(ς(t) − B)²/2`` for all ``t``: ``max|B|/2``, as published.

    The second derivative is at most ``1/16 + (1 + |B|)/(6√3)``, which is no more than ``|B|/2``
    from ``|B| = 0.4`` on; for a smaller ``B`` this bound is used, so that the parabola stays above.

    >>> majorant(torch.tensor([0.2, -1.0])), majorant(torch.tensor([0.0]))
    (0.5, 0.2)
    """
    return max(B.abs().max().item(), 0.4) / 2


def _with_bias(V: Tensor, W: Tensor) -> Tensor:
    return torch.addmm(W[:, -1], V, W[:, :-1].T)


def _gram(V: Tensor) -> Tensor:
    """``ṼṼᵀ`` (rows are samples here)."""
    ones = V.new_ones(len(V), 1)
    V = torch.cat((V, ones), 1)
    return V.T @ V


def _build(setup: TrainingSetup, setting: Setting) -> Trainer:
    mlp = perceptron(setup, "sigmoid-admm", nn.Sigmoid)
    admm = SigmoidADMM(mlp, beta=float(setting["beta"]), lam=float(setting["lambda"]))
    return LayerWiseTrainer(admm, setup.steps_per_epoch)


METHODS = (
    Method(
        "sigmoid-admm",
        "ADMM with a multiplier for every layer, for perceptrons with sigmoids and squared loss",
        "layer-wise",
        _build,
        defaults={"beta": 1.0, "lambda": 1e-6},
        # The penalty is the only setting: it weights the layers against the squared loss.
        space={"beta": Range(0.03, 30.0)},
        paper=own_settings,
    ),
)
