"""AA-dlADMM (Ebrahimi, Batista, Deghat 2024): dlADMM with Anderson acceleration and a safeguard.

A sweep of dlADMM is a map ``G``, and a solution one of its fixed points. Anderson acceleration
extrapolates from the last few sweeps, as a secant method does in many dimensions.

Weights, biases and the multiplier are extrapolated. The activations ``z`` and ``a`` are left as the
sweep computed them: they follow from the weights within a sweep, and a history of them would take
``2 · memory`` times their size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from badm.bench.method import Method, Setting, Trainer, TrainingSetup
from badm.bench.methods import dladmm
from badm.bench.methods.layer_wise import LayerWiseTrainer, own_settings


class Anderson:
    """Extrapolates a fixed-point iteration from the last ``memory`` pairs of points.

    >>> anderson, x = Anderson(memory=2), torch.tensor([1.0, 1.0])
    >>> for _ in range(4):
    ...     x = anderson.next(x, torch.tensor([0.9, 0.5]) * x)  # G shrinks by a tenth and a half
    >>> bool(x.norm() < 1e-6)  # where G alone would be at 0.66
    True
    """

    def __init__(self, memory: int) -> None:
        self.memory = memory
        self.differences_f: list[Tensor] = []  # ΔF: f_{j+1} − f_j
        self.differences_g: list[Tensor] = []  # ΔG: G(x_{j+1}) − G(x_j)
        self.before: tuple[Tensor, Tensor] | None = None

    def next(self, x: Tensor, g: Tensor) -> Tensor:
        """Return ``x_{k+1}``, given ``x_k`` and ``G(x_k)``; ``G(x_k)`` itself without a history."""
        f = g - x  # f_k = G(x_k) − x_k
        if self.before is not None:
            self.differences_f.append(f - self.before[0])
            self.differences_g.append(g - self.before[1])
            del self.differences_f[: -self.memory], self.differences_g[: -self.memory]
        self.before = f, g
        if not self.differences_f:
            return g
        F, G = torch.stack(self.differences_f), torch.stack(self.differences_g)
        # γ = argmin ‖f − ΔFγ‖, from the normal equations, which are small.
        # The minimum-norm solution, for sweeps that hardly differ.
        normal, right = (F @ F.T).double(), (F @ f).double()
        gamma = torch.linalg.lstsq(normal, right[:, None], driver="gelsd").solution[:, 0]
        return torch.sub(g, gamma.to(g) @ G)  # x_{k+1} = G(x_k) − ΔGγ

    def reset(self) -> None:
        """Discard the history, because the map has changed."""
        self.differences_f, self.differences_g, self.before = [], [], None

    def state_dict(self) -> dict[str, Any]:
        return {
            "differences_f": self.differences_f,
            "differences_g": self.differences_g,
            "before": None if self.before is None else list(self.before),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.differences_f = list(state["differences_f"])
        self.differences_g = list(state["differences_g"])
        self.before = None if state["before"] is None else tuple(state["before"])


class AcceleratedDLADMM:
    """dlADMM whose sweeps are extrapolated wherever that lowers the training loss.

    The augmented Lagrangian would be no safeguard: ``W`` and ``b`` are to lower it and ``u`` to
    raise it, and an extrapolated ``u`` lowers it at the cost of the network.
    """

    def __init__(self, plain: dladmm.DLADMM, memory: int) -> None:
        self.plain, self.anderson = plain, Anderson(memory)
        self.accepted = 0

    @property
    def loss(self) -> float:
        return self.plain.loss

    def iterate(self) -> float:
        plain = self.plain
        x = self._read()
        plain.sweep()
        g, merit = self._read(), plain.network_loss()
        self._write(self.anderson.next(x, g))
        plain.refresh()
        loss = plain.network_loss()
        accepted = loss <= merit  # false for NaN
        if accepted:
            self.accepted += 1
        else:
            self._write(g)
            plain.refresh()
        if plain.check_loss(loss if accepted else merit):
            self.anderson.reset()
        # One more loss than dlADMM; a rejected step recomputes c once more.
        back = 0 if accepted else 1
        return plain.mlp.epochs(dladmm.FIRST + back, dladmm.OTHERS + 1 + back)

    def state_dict(self) -> dict[str, Any]:
        return {
            "plain": self.plain.state_dict(),
            "anderson": self.anderson.state_dict(),
            "accepted": self.accepted,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.plain.load_state_dict(state["plain"])
        self.anderson.load_state_dict(state["anderson"])
        self.accepted = state["accepted"]

    def _parts(self) -> list[Tensor]:
        return [*self.plain.W, *self.plain.b, self.plain.u]

    def _read(self) -> Tensor:
        return torch.cat([part.flatten() for part in self._parts()])

    def _write(self, x: Tensor) -> None:
        parts = self._parts()
        for part, new in zip(parts, torch.split(x, [part.numel() for part in parts]), strict=True):
            part.copy_(new.view_as(part))


def make(setup: TrainingSetup, setting: Setting) -> AcceleratedDLADMM:
    return AcceleratedDLADMM(dladmm.make(setup, setting, "aa-dladmm"), setting["memory"])


def _build(setup: TrainingSetup, setting: Setting) -> Trainer:
    return LayerWiseTrainer(make(setup, setting), setup.steps_per_epoch)


METHODS = (
    Method(
        "aa-dladmm",
        "dlADMM with Anderson acceleration, rejected where it does not help",
        "layer-wise",
        _build,
        {**dladmm.DEFAULTS, "memory": 5},
        dladmm.SPACE,
        paper=own_settings,
    ),
)
