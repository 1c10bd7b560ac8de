"""NorMuon of ``pytorch_optimizer``, with AdamW for what is not a matrix.

On a CPU its products are in the weights' dtype, for the reason that ``muon.py`` gives.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from torch import Tensor, nn

from badm.bench.method import OptimizerLike
from badm.bench.methods.matrices_and_rest import MatricesAndRest, on_cpu


@cache
def full_precision_normuon() -> Any:
    """Return the package's class, made to orthogonalize without rounding to bfloat16."""
    from pytorch_optimizer import NorMuon as OfPackage
    from pytorch_optimizer.optimizer.utils.matrix import zero_power_via_newton_schulz_5

    class FullPrecisionNorMuon(OfPackage):
        @staticmethod
        def _orthogonalize(group: dict[str, Any], updates: list[Tensor]) -> list[Tensor]:
            return [
                zero_power_via_newton_schulz_5(
                    update,
                    num_steps=group["ns_steps"],
                    weights=group["ns_coeffs"],
                    dtype=update.dtype,
                )
                for update in updates
            ]

    return FullPrecisionNorMuon


class NorMuon(MatricesAndRest):
    """Muon whose rows are divided by the root of their second moment; AdamW for the rest.

    Its steps have a root mean square of 0.2, as in its paper and as those of AdamW, so that one
    learning rate fits both parts. (The package's default keeps the lengths of Muon's first form.)

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(16, 8), nn.Linear(8, 2))
    >>> before = model[0].weight.detach().clone()
    >>> normuon = NorMuon(model, lr=0.1)
    >>> model(torch.randn(4, 16)).square().sum().backward()
    >>> normuon.step()
    >>> round((model[0].weight - before).square().mean().sqrt().item(), 3)
    0.02
    """

    def __init__(
        self,
        module: nn.Module,
        lr: float,
        momentum: float = 0.95,
        nesterov: bool = True,
        row_beta2: float = 0.95,
        beta1: float = 0.9,
        beta2: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:
        def make(matrices: list[nn.Parameter]) -> OptimizerLike:
            from pytorch_optimizer import NorMuon as OfPackage

            optimizer: OptimizerLike = (
                full_precision_normuon() if on_cpu(matrices) else OfPackage
            )(
                [{"params": matrices, "use_muon": True}],
                lr=lr,
                momentum=momentum,
                beta2=row_beta2,
                nesterov=nesterov,
                weight_decay=weight_decay,
                update_scale="match_rms",
                foreach=True,  # its loop does not ask for the method above
            )
            return optimizer

        super().__init__(module, make, lr=lr, betas=(beta1, beta2), weight_decay=weight_decay)
