"""Modern optimizers, each in its strongest fair form, at the settings its authors recommend.

Their packages are imported where they are used, because every worker process imports this file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from badm.bench.method import (
    Method,
    OptimizerLike,
    OptimizerTrainer,
    Range,
    Setting,
    Trainer,
    TrainingSetup,
    optimizer_method,
    trainable_parameters,
)
from badm.bench.methods.kl_shampoo import KLShampoo
from badm.bench.methods.muon import Muon
from badm.bench.methods.normuon import NorMuon
from badm.bench.methods.psgd_kron import PSGDKron
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


def _mars(module: nn.Module, lr: float, **setting: Any) -> OptimizerLike:
    """MARS-AdamW for matrices and kernels, AdamW at the same learning rate for vectors."""
    from pytorch_optimizer import MARS

    optimizer: OptimizerLike = MARS(
        trainable_parameters(module),
        lr=1.0,  # of which it takes the ratio to the next one, so neither may be 0
        lr_1d=1.0,
        betas=(setting["beta1"], setting["beta2"]),
        betas_1d=(setting["vector_beta1"], setting["vector_beta2"]),
        gamma=setting["gamma"],
        eps=setting["eps"],
        weight_decay=setting["weight_decay"],
        weight_decay_1d=0.0,
    )
    for group in optimizer.param_groups:
        group["lr"] = lr
    return optimizer


def _prodigy(module: nn.Module, beta1: float, beta2: float, **setting: Any) -> OptimizerLike:
    from pytorch_optimizer import Prodigy

    optimizer: OptimizerLike = Prodigy(
        trainable_parameters(module),
        betas=(beta1, beta2),
        # As its authors advise where a schedule starts low, for the estimate not to explode then.
        safeguard_warmup=True,
        **setting,
    )
    return optimizer


def _ademamix(setup: TrainingSetup, setting: Setting) -> Trainer:
    """AdEMAMix whose slow average is as long a part of the run as in its paper."""
    from pytorch_optimizer import AdEMAMix

    steps = max(1, setup.steps)
    beta1, length = setting["beta1"], setting["slow"] * steps
    return OptimizerTrainer(
        AdEMAMix(
            trainable_parameters(setup.module),
            lr=setting["lr"],
            betas=(beta1, setting["beta2"], max(beta1, 1 - 1 / max(1.0, length))),
            alpha=setting["alpha"],
            t_alpha_beta3=steps,
            eps=setting["eps"],
            weight_decay=setting["weight_decay"],
            weight_decouple=True,
        )
    )


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
        "normuon",
        "Muon with a second moment for each row, AdamW for the rest",
        NorMuon,
        # Its authors: 0.95 for both moments and for AdamW beside it, the learning rates of Muon.
        defaults={
            "lr": 1e-3,
            "momentum": 0.95,
            "nesterov": True,
            "row_beta2": 0.95,
            "beta1": 0.9,
            "beta2": 0.95,
            "weight_decay": 0.01,
        },
        space=_LIKE_ADAM,
        package="pytorch_optimizer",
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
    optimizer_method(
        "kl-shampoo",
        "Shampoo whose sides whiten each other, AdamW for embeddings and vectors",
        KLShampoo,
        # Its authors find it ahead of KL-SOAP, which the package has as well. The covariances of
        # SOAP, roots every 10 steps, and no weight decay of theirs beyond SOAP's.
        defaults={
            "lr": 3e-3,
            "beta1": 0.9,
            "beta2": 0.95,
            "shampoo_beta": 0.95,
            "eps": 1e-8,
            "weight_decay": 0.01,
            "precondition_frequency": 10,
            "max_precondition_dim": 2048,
        },
        space=_LIKE_ADAM,
        package="heavyball",
    ),
    optimizer_method(
        "psgd-kron",
        "preconditioning fitted on a Lie group, AdamW for embeddings and vectors",
        PSGDKron,
        # Its authors: learning rates up to three times lower than Adam's. The preconditioner is
        # updated at every one of the first 500 steps, and ever less often after them.
        defaults={
            "lr": 1e-3,
            "momentum": 0.9,
            "beta1": 0.9,
            "beta2": 0.999,
            "weight_decay": 0.0,
            "max_size_triangular": 8192,
        },
        space={"lr": Range(3e-5, 3e-2)},
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
        "adabelief",
        "Adam scaled by how far gradients are from their mean",
        _from_package("AdaBelief"),
        # As in the second version of its authors' package, which rectifies the first steps.
        defaults={
            "lr": 1e-3,
            "beta1": 0.9,
            "beta2": 0.999,
            "eps": 1e-16,
            "weight_decay": 0.0,
            "rectify": True,
        },
        space=_LIKE_ADAM,
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
    Method(
        "ademamix",
        "Adam with a second, slow momentum that grows over the run",
        "peer",
        _ademamix,
        # Its authors: a weight of 8 and β₃ = 0.9999, both reached at the end of 256,000 steps: an
        # average over 10,000, 4 % of the run. In a run of a few hundred steps β₃ = 0.9999 would
        # average nothing, so the part of the run stays and β₃ follows from it.
        defaults={"lr": 1e-3, **_ADAM, "alpha": 8.0, "slow": 0.04, "weight_decay": 0.0},
        space=_LIKE_ADAM,
        package="pytorch_optimizer",
    ),
    optimizer_method(
        "mars",
        "AdamW on gradients corrected by the difference to the last ones",
        _mars,
        # MARS-AdamW in the form without a second gradient, at its authors' settings for matrices
        # and, after "vector", for vectors; of those they decay none that other methods do not.
        defaults={
            "lr": 3e-3,
            "beta1": 0.95,
            "beta2": 0.99,
            "gamma": 0.025,
            "vector_beta1": 0.9,
            "vector_beta2": 0.95,
            "eps": 1e-8,
            "weight_decay": 0.01,
        },
        space=_LIKE_ADAM,
        package="pytorch_optimizer",
    ),
    optimizer_method(
        "prodigy",
        "Adam that estimates its own learning rate",
        _prodigy,
        # Its learning rate multiplies an estimate of the distance to the optimum, and its authors
        # leave it at 1 for every task: so that is where the range has its centre.
        defaults={"lr": 1.0, **_ADAM, "d_coef": 1.0, "weight_decay": 0.0},
        space={"lr": Range(0.03, 30.0)},
        package="pytorch_optimizer",
    ),
)
