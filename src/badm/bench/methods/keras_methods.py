"""The paper's baselines: the optimizers of Keras at the defaults of Keras."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

from torch import nn

from badm.bench.method import Method, Range, Setting, optimizer_method, trainable_parameters
from badm.bench.methods.badm_methods import stated_penalties
from badm.bench.methods.keras_optimizers import OPTIMIZERS, KerasOptimizer
from badm.bench.paper import Paper

_DESCRIPTIONS = {
    "sgd": "plain gradient steps",
    "sgd-momentum": "gradient steps with momentum 0.9",
    "adagrad": "steps scaled by the sum of squared gradients",
    "rmsprop": "steps scaled by a moving average of squared gradients",
    "adam": "RMSprop with momentum and bias correction",
    "nadam": "Adam with Nesterov momentum",
    "adamax": "Adam with a decaying maximum of gradients",
}

# Three decades each. Momentum 0.9 makes a step up to ten times as long, so its range is lower; the
# steps of Adagrad shrink during training, so its range is higher than Adam's.
_LEARNING_RATES = {
    "sgd": Range(3e-3, 3.0, per_gradient=True),
    "sgd-momentum": Range(1e-3, 1.0, per_gradient=True),
    "adagrad": Range(1e-3, 1.0),
    "rmsprop": Range(1e-4, 0.1),
    "adam": Range(1e-4, 0.1),
    "nadam": Range(1e-4, 0.1),
    "adamax": Range(1e-4, 0.1),
}


def _method(name: str) -> Method:
    def make(module: nn.Module, **setting: Any) -> KerasOptimizer:
        return OPTIMIZERS[name](trainable_parameters(module), **setting)

    return optimizer_method(
        name,
        f"{_DESCRIPTIONS[name]}, as in Keras",
        make,
        family="keras",
        defaults=_defaults(OPTIMIZERS[name]),
        space={"lr": _LEARNING_RATES[name]},
    )


def _defaults(make: Callable[..., KerasOptimizer]) -> dict[str, Any]:
    """Return the defaults without an instance, which would import torch's compiler for seconds."""
    changed = make.keywords if isinstance(make, partial) else {}
    optimizer = cast(type[KerasOptimizer], make.func if isinstance(make, partial) else make)
    return {**optimizer.options, **changed}


def _step(paper: Paper) -> Setting:
    """Return the paper's step of BADM, 1/σ, without its memory."""
    return {k: v for k, v in stated_penalties(paper).items() if k == "lr"}


def _control(name: str, description: str) -> Method:
    """Make a control: a baseline with BADM's step, to see what is due to the step alone."""
    return replace(_method(name), name=f"{name}-sigma", description=description, paper=_step)


METHODS = (
    *(_method(name) for name in OPTIMIZERS),
    _control("sgd", "plain gradient steps with BADM's step 1/σ, as in Keras"),
    _control("adam", "Adam with BADM's learning rate 1/σ, as in Keras"),
)
