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
    "adagrad": "steps scaled by all squared gradients so far",
    "rmsprop": "steps scaled by a fading mean of squared gradients",
    "adam": "RMSprop with momentum and bias correction",
    "nadam": "Adam with Nesterov's look ahead",
    "adamax": "Adam with a fading maximum of gradients",
}

# Three decades each. Momentum 0.9 makes a step up to ten times as long, so its range is lower; the
# steps of Adagrad shrink as they go, so its range is higher than Adam's.
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
    """Without making one: that has torch import its compiler, which takes seconds."""
    changed = make.keywords if isinstance(make, partial) else {}
    optimizer = cast(type[KerasOptimizer], make.func if isinstance(make, partial) else make)
    return {**optimizer.options, **changed}


def _step(paper: Paper) -> Setting:
    """The step of BADM as the paper states it, 1/σ, without its memory."""
    return {k: v for k, v in stated_penalties(paper).items() if k == "lr"}


def _control(name: str, description: str) -> Method:
    """What of BADM as printed, or in the diagonal metric, is due to the length of its steps."""
    return replace(_method(name), name=f"{name}-sigma", description=description, paper=_step)


METHODS = (
    *(_method(name) for name in OPTIMIZERS),
    _control("sgd", "plain gradient steps of BADM's length 1/σ, as in Keras"),
    _control("adam", "Adam with BADM's learning rate 1/σ, as in Keras"),
)
