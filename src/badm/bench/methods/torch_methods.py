"""Torch's optimizers of the same names as Keras's, at torch's defaults.

AdamW is among the peers, because there is only one form of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from badm.bench.method import Method, Range, optimizer_method, trainable_parameters


def _method(
    name: str, like: str, make: Callable[..., torch.optim.Optimizer], rates: Range, **defaults: Any
) -> Method:
    def on_module(module: nn.Module, **setting: Any) -> torch.optim.Optimizer:
        if "beta1" in setting:
            setting["betas"] = (setting.pop("beta1"), setting.pop("beta2"))
        return make(trainable_parameters(module), **setting)

    return optimizer_method(
        name,
        f"{like} from torch.optim",
        on_module,
        family="torch",
        defaults=defaults,
        space={"lr": rates},
        package="torch",
    )


_SGD_RATES = Range(1e-3, 1.0, per_gradient=True)
_SGD = {"dampening": 0.0, "weight_decay": 0.0, "nesterov": False}
_BETAS = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}

# The ranges are those of keras_methods.py, except for SGD, whose default is lower here.
METHODS = (
    _method("torch-sgd", "SGD", torch.optim.SGD, _SGD_RATES, lr=1e-3, momentum=0.0, **_SGD),
    _method(
        "torch-sgd-momentum",
        "SGD with momentum 0.9",
        torch.optim.SGD,
        _SGD_RATES,
        lr=1e-3,
        momentum=0.9,
        **_SGD,
    ),
    _method(
        "torch-adagrad",
        "Adagrad",
        torch.optim.Adagrad,
        Range(1e-3, 1.0),
        lr=0.01,
        lr_decay=0.0,
        weight_decay=0.0,
        initial_accumulator_value=0.0,
        eps=1e-10,
    ),
    _method(
        "torch-rmsprop",
        "RMSprop",
        torch.optim.RMSprop,
        Range(1e-4, 0.1),
        lr=0.01,
        alpha=0.99,
        eps=1e-8,
        weight_decay=0.0,
        momentum=0.0,
        centered=False,
    ),
    _method(
        "torch-adam",
        "Adam",
        torch.optim.Adam,
        Range(1e-4, 0.1),
        lr=1e-3,
        **_BETAS,
        amsgrad=False,
    ),
    _method(
        "torch-nadam",
        "NAdam",
        torch.optim.NAdam,
        Range(1e-4, 0.1),
        lr=2e-3,
        **_BETAS,
        momentum_decay=4e-3,
        decoupled_weight_decay=False,
    ),
    _method("torch-adamax", "Adamax", torch.optim.Adamax, Range(1e-4, 0.1), lr=2e-3, **_BETAS),
)
