"""PSGD Kron of ``pytorch_optimizer``, with AdamW for what is not a matrix.

It multiplies five tensors at once, which without the package ``opt_einsum`` would be done from
left to right: with an outer product of both sides of a matrix, squared, in between.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from badm.bench.methods.matrices_and_rest import MatricesAndRest


class _Matrices:
    """The package's optimizer, made to resume exactly.

    The preconditioner is fitted to random vectors. They come from generators of its own, seeded
    with the number of the step, so that they do not affect others and are the same after resuming.
    """

    def __init__(self, matrices: list[nn.Parameter], **setting: Any) -> None:
        from pytorch_optimizer import Kron

        self.optimizer = Kron(
            matrices,
            **setting,
            # The package has float32 for all, float64 included.
            precondition_dtype=torch.promote_types(matrices[0].dtype, torch.float32),
        )
        self.param_groups: list[dict[str, Any]] = self.optimizer.param_groups

    def step(self) -> None:
        seed = self.param_groups[0].get("step", 0)
        of_numpy = np.random.get_state()  # noqa: NPY002
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            np.random.seed(seed)  # noqa: NPY002
            try:
                self.optimizer.step()
            finally:
                np.random.set_state(of_numpy)  # noqa: NPY002

    def state_dict(self) -> dict[str, Any]:
        """Return the state without einsum expressions, which loading would garble, and dtypes."""
        state_dict: dict[str, Any] = self.optimizer.state_dict()
        return {
            **state_dict,
            "state": {
                index: {name: value for name, value in of_p.items() if name != "expressions"}
                for index, of_p in state_dict["state"].items()
            },
            "param_groups": [
                {name: value for name, value in group.items() if name != "precondition_dtype"}
                for group in state_dict["param_groups"]
            ],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        from pytorch_optimizer.optimizer.psgd import initialize_q_expressions

        (dtype,) = (group["precondition_dtype"] for group in self.param_groups)
        self.optimizer.load_state_dict(state_dict)
        self.param_groups = self.optimizer.param_groups
        (group,) = self.param_groups
        group["precondition_dtype"] = dtype
        for p, state in self.optimizer.state.items():
            state["Q"] = [q.to(dtype) for q in state["Q"]]  # loading gave it that of the weights
            _, state["expressions"] = initialize_q_expressions(
                p,
                group["precondition_init_scale"],
                group["max_size_triangular"],
                group["min_ndim_triangular"],
                group["memory_save_mode"],
                dtype=dtype,
            )


class PSGDKron(MatricesAndRest):
    """PSGD Kron for hidden matrices and kernels, AdamW for the rest.

    Its triangular factors would mix rows of an embedding that a step reaches with those that it
    does not, and for vectors it would be a diagonal method, which AdamW is as well.

    >>> model = nn.Sequential(nn.Linear(16, 8), nn.Linear(8, 2))
    >>> kron = PSGDKron(model, lr=1e-3)
    >>> [[tuple(p.shape) for p in group["params"]] for group in kron.param_groups]
    [[(8, 16)], [(2, 8)], [(8,), (2,)]]
    """

    def __init__(
        self,
        module: nn.Module,
        lr: float,
        momentum: float = 0.9,
        beta1: float = 0.9,
        beta2: float = 0.999,
        weight_decay: float = 0.0,
        max_size_triangular: int = 8192,
    ) -> None:
        def make(matrices: list[nn.Parameter]) -> _Matrices:
            return _Matrices(
                matrices,
                lr=lr,
                momentum=momentum,
                weight_decay=weight_decay,
                max_size_triangular=max_size_triangular,
            )

        super().__init__(module, make, lr=lr, betas=(beta1, beta2), weight_decay=weight_decay)
