"""Modern optimizers, each in its strongest fair form, at the settings its authors recommend.

Their packages are imported where they are used, because every worker process imports this file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from badm.bench.method import Method, OptimizerLike, Range, optimizer_method, trainable_parameters
from badm.bench.methods.muon import Muon
from badm.bench.methods.schedule_free import schedule_free
from badm.bench.methods.shampoo import Shampoo


def _from_package(name: str) -> Callable[..., OptimizerLike]:
    """Make an optimizer of ``pytorch_optimizer``, which takes betas as a tuple."""

    def make(module: nn.Module, **setting: Any) -> OptimizerLike:
        import pytorch_optimizer

        betas = tuple(setting.pop(option) for option in sorted(setting) if "beta" in option)
        if betas:
            setting["betas"] = betas
        optimizer: OptimizerLike = getattr(pytorch_optimizer, name)(
            trainable_parameters(module), **setting
        )
        return optimizer

    return make


def _adamw(module: nn.Module, beta1: float, beta2: float, **setting: Any) -> torch.optim.AdamW:
    return torch.optim.AdamW(trainable_parameters(module), betas=(beta1, beta2), **setting)


_ADAM = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
_LIKE_ADAM = {"lr": Range(1e-4, 0.1)}

METHODS = (
    optimizer_method(
        "adamw",
        "Adam with decoupled weight decay, from torch.optim",
        _adamw,
        defaults={"lr": 1e-3, **_ADAM, "weight_decay": 0.01},
        space=_LIKE_ADAM,
        package="torch",
    ),
    optimizer_method(
        "qhm",
        "quasi-hyperbolic momentum at its authors' settings",
        _from_package("QHM"),
        # They advise dividing the learning rate of SGD with momentum 0.9 by 1 - 0.9: so range and
        # default are ten times those of sgd-momentum.
        defaults={"lr": 0.1, "momentum": 0.999, "nu": 0.7, "weight_decay": 0.0},
        space={"lr": Range(3e-3, 3.0, per_gradient=True)},
        package="pytorch_optimizer",
    ),
    optimizer_method(
        "muon",
        "orthogonalized steps for hidden matrices and kernels, AdamW for the rest",
        Muon,
        defaults={
            "lr": 1e-3,
            "momentum": 0.95,
            "nesterov": True,
            "beta1": 0.9,
            "beta2": 0.999,
            "weight_decay": 0.0,
        },
        space=_LIKE_ADAM,
        version=2,  # 2: products in the dtype of the weights
        package="torch",
    ),
    optimizer_method(
        "soap",
        "Adam in the eigenbasis of Shampoo",
        _from_package("SOAP"),
        # Kernels stay as they are: preconditioned on all four sides, SOAP did slightly better on
        # Fashion-MNIST than with kernels flattened to matrices.
        defaults={
            "lr": 3e-3,
            "beta1": 0.95,
            "beta2": 0.95,
            "eps": 1e-8,
            "weight_decay": 0.01,
            "precondition_frequency": 10,
            "max_precondition_dim": 10_000,
        },
        space=_LIKE_ADAM,
        package="pytorch_optimizer",
    ),
    optimizer_method(
        "shampoo",
        "Kronecker-factored preconditioning with the step lengths of RMSprop",
        Shampoo,
        defaults={
            "lr": 1e-3,
            "beta1": 0.9,
            "beta2": 0.95,
            "eps": 1e-10,
            "matrix_eps": 1e-6,
            "weight_decay": 0.0,
            "precondition_frequency": 10,
            "block_size": 512,
        },
        space=_LIKE_ADAM,
        package="pytorch_optimizer",
    ),
    Method(
        "schedule-free",
        "AdamW that averages its weights instead of a schedule",
        "peer",
        schedule_free,
        # Its authors recommend a warmup and took 2 % of the steps for AlgoPerf; runs as short as
        # ours do no worse with 5 %. They find 1 to 10 times the learning rates of AdamW to work.
        defaults={"lr": 2.5e-3, **_ADAM, "weight_decay": 0.0, "warmup": 0.05},
        space={"lr": Range(3e-4, 0.3)},
        package="schedulefree",
    ),
    optimizer_method(
        "lion",
        "steps along the sign of the momentum",
        _from_package("Lion"),
        # Its authors: learning rates 3 to 10 times lower and weight decay higher than AdamW's.
        defaults={"lr": 1e-4, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1},
        space={"lr": Range(3e-5, 3e-2)},
        package="pytorch_optimizer",
    ),
    optimizer_method(
        "adan",
        "Adam with a momentum of gradient differences",
        _from_package("Adan"),
        # Its authors: 0.02 of weight decay everywhere, 5 to 10 times the learning rates of Adam.
        defaults={
            "lr": 1e-3,
            "beta1": 0.98,
            "beta2": 0.92,
            "beta3": 0.99,
            "eps": 1e-8,
            "weight_decay": 0.02,
        },
        space={"lr": Range(3e-4, 0.3)},
        package="pytorch_optimizer",
    ),
)
