"""Shampoo of ``pytorch_optimizer``, made to train well and to resume exactly."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from badm.bench.method import trainable_parameters
from badm.bench.methods.as_matrix import AsMatrix, gradients_of


class Shampoo:
    """Shampoo with the step lengths of RMSprop, for matrices and flattened kernels.

    Of the package's two forms this is the one that trains well: its authors use the step lengths of
    another optimizer ("grafting"), and those of the other form shrink as sums of squares grow.
    Three things differ from the package's defaults. Kernels are flattened and shapes are not
    merged, because the package merges a matrix of up to ``block_size`` elements into a vector and
    then does not precondition it. Roots are computed every 10 steps, not 1,000. And random numbers
    for them come from a separate generator, so that they do not affect others.

    >>> model = nn.Linear(3, 2)
    >>> shampoo = Shampoo(model, lr=1e-3)
    >>> model(torch.ones(1, 3)).sum().backward()
    >>> shampoo.step()
    >>> sorted(shampoo.state_dict()["state"][0]["pre_conditioner"])
    ['pre_conditioners', 'statistics']
    """

    def __init__(
        self,
        module: nn.Module,
        lr: float,
        beta1: float = 0.9,
        beta2: float = 0.95,
        eps: float = 1e-10,
        matrix_eps: float = 1e-6,
        weight_decay: float = 0.0,
        precondition_frequency: int = 10,
        block_size: int = 512,
    ) -> None:
        from pytorch_optimizer import ScalableShampoo
        from pytorch_optimizer.optimizer.utils.graft import LayerWiseGrafting

        self.kernels = [AsMatrix(p) for p in trainable_parameters(module) if p.ndim > 2]
        matrices = {id(kernel.parameter): kernel.matrix for kernel in self.kernels}
        self.optimizer = ScalableShampoo(
            [matrices.get(id(p), p) for p in trainable_parameters(module)],
            lr=lr,
            betas=(beta1, beta2),
            moving_average_for_momentum=True,
            weight_decay=weight_decay,
            decoupled_weight_decay=True,
            # Before the first roots there is no preconditioner.
            start_preconditioning_step=precondition_frequency,
            preconditioning_compute_steps=precondition_frequency,
            block_size=block_size,
            shape_interpretation=False,
            graft_type=LayerWiseGrafting.RMSPROP,
            diagonal_eps=eps,
            matrix_eps=matrix_eps,
        )
        self.param_groups: list[dict[str, Any]] = self.optimizer.param_groups

    def step(self) -> None:
        with gradients_of(self.kernels), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the state with plain data instead of the package's objects."""
        state_dict: dict[str, Any] = self.optimizer.state_dict()
        state = {
            index: {
                name: {part: _copy(getattr(value, part)) for part in _PARTS[name]}
                if name in _PARTS
                else value
                for name, value in of_parameter.items()
            }
            for index, of_parameter in state_dict["state"].items()
        }
        return {**state_dict, "state": state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        saved = state_dict["state"]
        plain = {
            index: {name: value for name, value in of_parameter.items() if name not in _PARTS}
            for index, of_parameter in saved.items()
        }
        self.optimizer.load_state_dict({**state_dict, "state": plain})
        self.param_groups = self.optimizer.param_groups
        for group, saved_group in zip(self.param_groups, state_dict["param_groups"], strict=True):
            for p, index in zip(group["params"], saved_group["params"], strict=True):
                if index in saved:
                    self._restore(p, group, saved[index])

    def _restore(self, p: nn.Parameter, group: dict[str, Any], saved: dict[str, Any]) -> None:
        """Let the package make its objects, and restore the saved data into them."""
        loaded, gradient = self.optimizer.state.pop(p), p.grad
        p.grad = torch.zeros_like(p)  # it makes no objects for parameters without a gradient
        self.optimizer.init_group({**group, "params": [p]})
        p.grad = gradient
        state = self.optimizer.state[p]
        state.update(loaded)
        for name, parts in _PARTS.items():
            for part in parts:
                setattr(state[name], part, _copy(saved[name][part]))


# Attributes of the objects in Shampoo's state that change during training.
_PARTS = {
    "pre_conditioner": ("statistics", "pre_conditioners"),
    "graft": ("momentum", "statistics"),
}


def _copy(value: Tensor | list[Tensor]) -> Tensor | list[Tensor]:
    return value.clone() if isinstance(value, Tensor) else [x.clone() for x in value]
