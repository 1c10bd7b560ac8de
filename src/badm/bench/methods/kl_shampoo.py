"""KL-Shampoo of ``heavyball``, with AdamW for what is not a matrix."""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
from torch import nn

from badm.bench.methods.matrices_and_rest import MatricesAndRest


class _Matrices:
    """The package's optimizer: not compiled, with random numbers of its own and a plain state.

    Its own state dict has pickled functions in it, which a checkpoint of ours may not.
    """

    def __init__(self, matrices: list[nn.Parameter], **setting: Any) -> None:
        import heavyball
        import heavyball.utils

        # It compiles each of its functions for each shape, for minutes; its results are the same.
        heavyball.utils.compile_mode = None
        dtype = reduce(torch.promote_types, (p.dtype for p in matrices), torch.float32)
        self.optimizer = heavyball.KLShampoo(
            matrices,
            **setting,
            merge_dims=False,
            storage_dtype=str(dtype).removeprefix("torch."),
            compile_step=False,
        )
        self.param_groups: list[dict[str, Any]] = self.optimizer.param_groups

    def step(self) -> None:
        for group in self.param_groups:
            group["base_lr"] = group["lr"]  # of which it takes its own; without, it warns
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)  # for its damping, by a billionth of a gradient
            self.optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self.optimizer.state_dict()
        counters = state.pop("heavyball")["inner_group"]
        return {**state, "counters": dict(counters)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        state = dict(state_dict)
        self.optimizer.inner_group = dict(state.pop("counters"))
        self.optimizer.load_state_dict(state)
        self.param_groups = self.optimizer.param_groups


class KLShampoo(MatricesAndRest):
    """KL-Shampoo for hidden matrices and kernels, AdamW for the rest.

    The package has no preconditioner for vectors, and one for the rows of an embedding would be
    made of the few rows that a step reaches.

    >>> model = nn.Sequential(nn.Linear(16, 8), nn.Linear(8, 2))
    >>> shampoo = KLShampoo(model, lr=1e-3)
    >>> [[tuple(p.shape) for p in group["params"]] for group in shampoo.param_groups]
    [[(8, 16)], [(2, 8)], [(8,), (2,)]]
    """

    def __init__(
        self,
        module: nn.Module,
        lr: float,
        beta1: float = 0.9,
        beta2: float = 0.95,
        shampoo_beta: float = 0.95,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        precondition_frequency: int = 10,
        max_precondition_dim: int = 2048,
    ) -> None:
        def make(matrices: list[nn.Parameter]) -> _Matrices:
            return _Matrices(
                matrices,
                lr=lr,
                betas=(beta1, beta2),
                shampoo_beta=shampoo_beta,
                eps=eps,
                weight_decay=weight_decay,
                precondition_frequency=precondition_frequency,
                max_precond_dim=max_precondition_dim,
            )

        super().__init__(module, make, lr=lr, betas=(beta1, beta2), weight_decay=weight_decay)
