"""dlADMM (Wang, Yu, Chen, Zhao, KDD 2019): train a perceptron layer by layer on all samples.

    min  Σ_n CE(z_L; y) + (ρ/2) Σ_{l<L} (‖z_l − W_l a_{l−1} − b_l‖² + ‖a_l − relu(z_l)‖²)
    subject to  z_L = W_L a_{L−1} + b_L,  with the multiplier u

Each variable in turn takes a step that lowers the augmented Lagrangian, from the last layer to the
first and back; then ``u`` takes its dual step. Here a sample is a row, so ``W a`` reads
``a @ W.T``, and layers count from 0: ``a[i]`` is the input of layer ``i`` and ``a[0]`` the data.

The products ``c_l = W_l a_{l−1}`` are kept, and updated whenever ``W`` or ``a`` moves along a
direction. Testing a step length then needs no product: ``φ`` is a parabola along the
gradient, so ``φ(W⁺) ≤ φ(W) + <∇φ, Δ> + (θ/2)‖Δ‖²`` says ``θ ≥ ρ‖D a‖²/‖D‖²`` for ``D = ∇φ/ρ``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm
from torch.nn.functional import cross_entropy

from badm.bench.method import Method, Range, Setting, Trainer, TrainingSetup
from badm.bench.methods import proximal
from badm.bench.methods.layer_wise import LayerWiseTrainer, own_settings
from badm.bench.methods.perceptron import Perceptron, perceptron

# Products over all samples in an iteration. Two sweeps move W twice, with a product for the
# gradient and one for its effect; one recomputes c, so that rounding errors do not add up. Above
# the first layer a moves twice too, and the training loss needs a product.
FIRST, OTHERS = 5, 10
ROWS = 256  # at a time in the elementwise step, to fit the cache
DOUBLINGS = 60  # at most; more are needed only for NaN


@dataclass
class Penalties:
    """``ρ`` and the first ``θ`` and ``τ`` to try; multiplied by ten if the loss keeps rising.

    >>> penalties = Penalties(rho=0.01, theta=1.0, tau=1.0, highest=0.1)
    >>> [penalties.follow(rise) for rise in (True, True, True, False, True)]
    [False, False, True, False, False]
    >>> penalties.rho, penalties.theta
    (0.1, 10.0)
    """

    rho: float
    theta: float
    tau: float
    highest: float  # of ρ
    rises: int = 0  # in a row

    def follow(self, rise: bool) -> bool:
        """Record whether the loss rose; return whether the penalties were raised."""
        self.rises = self.rises + 1 if rise else 0
        if self.rises < 3 or self.rho >= self.highest:
            return False
        self.rho = min(10 * self.rho, self.highest)
        self.theta, self.tau = 10 * self.theta, 10 * self.tau
        return True


class DLADMM:
    """The variables of dlADMM, and the steps that change them.

    >>> mlp = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> x = torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    >>> setup = TrainingSetup(mlp, 1, supervised=lambda: (x, torch.tensor([0, 0, 1, 1])))
    >>> penalties = Penalties(rho=1e-3, theta=1e-3, tau=1e-3, highest=0.1)
    >>> admm = DLADMM(perceptron(setup, "dladmm"), penalties)
    >>> before = admm.lagrangian()
    >>> admm.update_z(1), admm.update_b(1), admm.update_W(1)
    (None, None, None)
    >>> admm.lagrangian() < before
    True
    """

    def __init__(self, mlp: Perceptron, penalties: Penalties) -> None:
        self.mlp, self.penalties, self.y = mlp, penalties, mlp.y
        # These share memory with the module, which so has the new weights at once.
        self.W = [layer.weight.detach() for layer in mlp.layers]
        self.b = [layer.bias.detach() for layer in mlp.layers]
        self.last = len(self.W) - 1
        self.a, self.z, self.c = [mlp.x], list[Tensor](), list[Tensor]()
        for i in range(self.last):  # z, a by a forward pass
            self.c.append(self.a[i] @ self.W[i].T)
            self.z.append(self.c[i] + self.b[i])
            self.a.append(self.z[i].relu())
        self.c.append(self.a[self.last] @ self.W[self.last].T)
        # z_L = ±1 by label
        self.z.append(torch.full_like(self.c[self.last], -1.0))
        self.z[self.last].scatter_(1, self.y[:, None], 1.0)
        self.u = torch.zeros_like(self.c[self.last])
        # Buffers for r and Da: allocating memory of this size costs as much as filling it.
        self._r = [torch.empty_like(c) for c in self.c]
        self._Da = [torch.empty_like(c) for c in self.c]
        self.iterations, self.loss = 0, self.network_loss()

    def residual(self, i: int) -> Tensor:
        """``z_l − W_l a_{l−1} − b_l + u_l/ρ``, where ``u_l`` is zero for all but the last."""
        r = torch.sub(self.z[i], self.c[i], out=self._r[i]).sub_(self.b[i])
        return r.add_(self.u, alpha=1 / self.penalties.rho) if i == self.last else r

    def update_W(self, i: int) -> None:
        """``W⁺ = W − ∇φ/θ``, where ``∇φ = −ρD`` with ``D = rᵀa``."""
        rho = self.penalties.rho
        D = self.residual(i).T @ self.a[i]
        Da = torch.mm(self.a[i], D.T, out=self._Da[i])
        theta = doubled(self.penalties.theta, rho * _ratio(Da, D))
        self.W[i].add_(D, alpha=rho / theta)
        self.c[i].add_(Da, alpha=rho / theta)

    def update_b(self, i: int) -> None:
        """``b⁺ = b − mean_n(W a + b − z − u/ρ)``: the minimiser."""
        self.b[i].add_(self.residual(i).mean(0))

    def update_a(self, i: int) -> None:
        """``a⁺ = a − ∇/τ`` of ``φ_l + (ρ/2)‖a − relu(z)‖²``; the gradient is ``−ρd``."""
        rho = self.penalties.rho
        d = torch.clamp(self.z[i - 1], min=0, out=self._r[i - 1]).sub_(self.a[i])
        d.addmm_(self.residual(i), self.W[i])
        Wd = torch.mm(d, self.W[i].T, out=self._Da[i])
        tau = doubled(self.penalties.tau, rho * (_ratio(Wd, d) + 1))
        self.a[i].add_(d, alpha=rho / tau)
        self.c[i].add_(Wd, alpha=rho / tau)

    def update_z(self, i: int) -> None:
        """The minimiser: exact in hidden layers, by FISTA in the last."""
        if i < self.last:
            for z, c, a in zip(*map(_blocks, (self.z[i], self.c[i], self.a[i + 1])), strict=True):
                z.copy_(proximal.hidden(c + self.b[i], a))
        else:
            rho = self.penalties.rho
            target = (self.c[i] + self.b[i]).sub_(self.u, alpha=1 / rho)
            self.z[i] = proximal.output(self.z[i], target, self.y, rho)

    def update_u(self) -> None:
        """``u⁺ = u + ρ(z_L − W_L a_{L−1} − b_L)``: the only step that raises the Lagrangian."""
        torch.mul(self.residual(self.last), self.penalties.rho, out=self.u)  # u/ρ is in there

    def sweep(self) -> None:
        """Update all variables, from the last layer to the first and back, then the multiplier."""
        last = self.last
        self.update_z(last)
        self.update_b(last)
        self.update_W(last)
        for i in reversed(range(last)):
            self.update_a(i + 1)
            self.update_z(i)
            self.update_b(i)
            self.update_W(i)
        for i in range(last):
            self.update_W(i)
            self.update_b(i)
            self.update_z(i)
            self.update_a(i + 1)
        self.update_W(last)
        self.update_b(last)
        self.update_z(last)
        self.update_u()

    def refresh(self) -> None:
        """Recompute the products ``c``, whose rounding errors add up over updates."""
        for c, a, W in zip(self.c, self.a, self.W, strict=True):
            torch.mm(a, W.T, out=c)

    def check_loss(self, loss: float) -> bool:
        """Record the training loss; return whether the penalties were raised for it."""
        before, self.loss = self.loss, loss
        self.iterations += 1
        return self.penalties.follow(self.iterations > 1 and loss > before)

    def iterate(self) -> float:
        self.sweep()
        self.refresh()
        self.check_loss(self.network_loss())
        return self.mlp.epochs(FIRST, OTHERS)

    def network_loss(self) -> float:
        """Compute the mean cross-entropy of the network, without ``a`` and ``z``."""
        h = torch.add(self.c[0], self.b[0], out=self._r[0])
        for W, b, room in zip(self.W[1:], self.b[1:], self._r[1:], strict=True):
            h = torch.addmm(b, h.relu_(), W.T, out=room)
        return cross_entropy(h, self.y).item()

    def lagrangian(self) -> float:
        """``Σ CE + <u, r> + (ρ/2)‖r‖²`` with the terms of the hidden layers."""
        rho, last = self.penalties.rho, self.last
        total = cross_entropy(self.z[last], self.y, reduction="sum").double().item()
        total -= _square(self.u) / (2 * rho)  # <u, r> + (ρ/2)‖r‖² = (ρ/2)(‖r + u/ρ‖² − ‖u/ρ‖²)
        for i in range(last + 1):
            total += rho / 2 * _square(self.residual(i))
            if i < last:
                gap = torch.clamp(self.z[i], min=0, out=self._r[i]).sub_(self.a[i + 1])
                total += rho / 2 * _square(gap)
        return total

    def gap(self) -> float:
        """``‖z_L − W_L a_{L−1} − b_L‖``: how far the constraint is from being met."""
        return _norm(self.z[self.last] - self.c[self.last] - self.b[self.last])

    def state_dict(self) -> dict[str, Any]:
        return {
            "a": self.a[1:],
            "z": self.z,
            "u": self.u,
            "iterations": self.iterations,
            "loss": self.loss,
            "penalties": dict(vars(self.penalties)),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.a[1:] = [a.clone() for a in state["a"]]
        self.z = [z.clone() for z in state["z"]]
        self.u = state["u"].clone()
        self.iterations, self.loss = state["iterations"], state["loss"]
        self.penalties = Penalties(**state["penalties"])
        self.refresh()


def doubled(first: float, enough: float) -> float:
    """Return ``first``, doubled until it is enough.

    >>> doubled(1.0, 5.0), doubled(1.0, 0.1), doubled(1.0, 8.0)
    (8.0, 1.0, 8.0)
    """
    for _ in range(DOUBLINGS):
        if first >= enough:
            break
        first *= 2
    return first


def start(mlp: Perceptron, std: float) -> None:
    """Draw weights and biases from N(0, std²), as in the public code; keep them if std is 0."""
    if std:
        for layer in mlp.layers:
            nn.init.normal_(layer.weight, std=std)
            nn.init.normal_(layer.bias, std=std)


def make(setup: TrainingSetup, setting: Setting, name: str = "dladmm") -> DLADMM:
    mlp = perceptron(setup, name)
    start(mlp, setting["std"])
    rho, theta, tau, highest = (float(setting[key]) for key in ("rho", "theta", "tau", "highest"))
    return DLADMM(mlp, Penalties(rho, theta, tau, highest))


def _build(setup: TrainingSetup, setting: Setting) -> Trainer:
    return LayerWiseTrainer(make(setup, setting), setup.steps_per_epoch)


def _blocks(x: Tensor) -> tuple[Tensor, ...]:
    return torch.split(x, ROWS)


def _norm(x: Tensor) -> float:
    return float(vector_norm(x))


def _square(x: Tensor) -> float:
    return _norm(x) ** 2


def _ratio(x: Tensor, y: Tensor) -> float:
    """Compute ``‖x‖²/‖y‖²``, or zero if both are zero."""
    return (_norm(x) / _norm(y)) ** 2 if _norm(y) else 0.0


DEFAULTS = {"rho": 1e-6, "theta": 1.0, "tau": 1.0, "highest": 0.1, "std": 0.1}
# From the first to the last ρ of the public code. Its first θ of 1 suits the curvature of tens of
# thousands of samples; a small dataset needs a higher ρ to move at all.
SPACE = {"rho": Range(1e-6, 0.1)}

METHODS = (
    Method(
        "dladmm",
        "ADMM layer by layer on the whole training set, for perceptrons with ReLU",
        "layer-wise",
        _build,
        DEFAULTS,
        SPACE,
        paper=own_settings,
    ),
)
