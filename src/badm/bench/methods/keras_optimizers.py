"""The optimizers of Keras 3 in torch: its equations, its defaults, its count of steps.

Those of ``torch.optim`` with the same names differ in defaults, in where ``eps`` is added, in what
the momentum contains and in Nadam's schedule. Here ``t`` counts the steps of the optimizer, as in
Keras, including those in which a parameter has no gradient. ``OPTIMIZERS`` lists them all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, overload

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

State = dict[str, Tensor]
Group = dict[str, Any]


class KerasOptimizer(Optimizer):
    """What the optimizers below share: options, groups, state, step count. No arithmetic.

    >>> Adam([torch.nn.Parameter(torch.ones(1))], momentum=0.9)
    Traceback (most recent call last):
    ValueError: Adam takes lr, beta1, beta2, eps, got momentum=0.9
    """

    options: ClassVar[Mapping[str, float]]  # with the defaults of Keras
    buffers: ClassVar[tuple[str, ...]]  # per parameter, zero at first

    def __init__(self, params: ParamsT, lr: float | None = None, **options: float) -> None:
        for name, value in options.items():
            if name not in self.options:
                takes = ", ".join(self.options)
                raise ValueError(f"{type(self).__name__} takes {takes}, got {name}={value}")
        given = options if lr is None else {"lr": lr, **options}
        super().__init__(params, {**self.options, **given, "step": 0})

    def add_param_group(self, param_group: Group) -> None:
        for name in self.options:
            _check(name, param_group.get(name, self.defaults[name]))
        super().add_param_group(param_group)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take a step; ``closure``, if given, recomputes the loss and its gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if all(w.grad is None for group in self.param_groups for w in group["params"]):
            return loss  # Keras raises here, torch does not: no step is taken or counted
        for group in self.param_groups:
            self._count(group)
            for w in group["params"]:
                if w.grad is None:
                    continue
                if w.grad.is_sparse:
                    name, shape = type(self).__name__, tuple(w.shape)
                    raise RuntimeError(f"{name} needs dense gradients, got a sparse one of {shape}")
                state = self.state[w]
                if not state:
                    state.update(self._start(w, group))
                self._update(w, w.grad, state, group)
        return loss

    def _count(self, group: Group) -> None:
        group["step"] += 1

    def _start(self, w: Tensor, group: Group) -> State:
        return {name: torch.zeros_like(w) for name in self.buffers}

    def _update(self, w: Tensor, g: Tensor, state: State, group: Group) -> None:
        """Update one parameter in place."""
        raise NotImplementedError


class SGD(KerasOptimizer):
    """Gradient descent with Keras's momentum, whose velocity ``v`` contains the step:

        v = momentum·v − lr·g
        w = w + v, or with ``nesterov`` w + momentum·v − lr·g

    so a new ``lr`` acts on new gradients only, whereas in torch it acts on the whole momentum.

    >>> w = torch.nn.Parameter(torch.ones(1))
    >>> w.grad = torch.tensor([2.0])
    >>> SGD([w]).step()
    >>> round(1 - w.item(), 6)
    0.02
    """

    options = MappingProxyType({"lr": 0.01, "momentum": 0.0, "nesterov": False})

    def _start(self, w: Tensor, group: Group) -> State:
        return {"velocity": torch.zeros_like(w)} if group["momentum"] else {}

    def _update(self, w: Tensor, g: Tensor, state: State, group: Group) -> None:
        lr, momentum = group["lr"], group["momentum"]
        if not momentum:  # one buffer less, and the same step
            w.sub_(g, alpha=lr)
            return
        v = state["velocity"].mul_(momentum).sub_(g, alpha=lr)
        if group["nesterov"]:
            w.add_(v, alpha=momentum).sub_(g, alpha=lr)
        else:
            w.add_(v)


class Adagrad(KerasOptimizer):
    """Steps scaled by the sum of squared gradients; ``a`` starts at 0.1, ``eps`` is in the root:

        a = a + g²
        w = w − lr·g/√(a + eps)

    >>> w = torch.nn.Parameter(torch.ones(1))
    >>> w.grad = torch.tensor([2.0])
    >>> Adagrad([w]).step()
    >>> round(1 - w.item(), 6)  # 0.001·2/√4.1
    0.000988
    """

    options = MappingProxyType({"lr": 0.001, "initial_accumulator_value": 0.1, "eps": 1e-7})

    def _start(self, w: Tensor, group: Group) -> State:
        return {"accumulator": torch.full_like(w, group["initial_accumulator_value"])}

    def _update(self, w: Tensor, g: Tensor, state: State, group: Group) -> None:
        a = state["accumulator"].addcmul_(g, g)
        w.addcdiv_(g, a.add(group["eps"]).sqrt_(), value=-group["lr"])


class RMSprop(KerasOptimizer):
    """Steps scaled by a moving average of squared gradients, with ``eps`` in the root:

        v = rho·v + (1 − rho)·g²
        w = w − lr·g/√(v + eps)

    >>> w = torch.nn.Parameter(torch.ones(1))
    >>> w.grad = torch.tensor([2.0])
    >>> RMSprop([w]).step()
    >>> round(1 - w.item(), 6)  # 0.001·2/√0.4
    0.003162
    """

    options = MappingProxyType({"lr": 0.001, "rho": 0.9, "eps": 1e-7})
    buffers = ("velocity",)

    def _update(self, w: Tensor, g: Tensor, state: State, group: Group) -> None:
        rho = group["rho"]
        v = state["velocity"].mul_(rho).addcmul_(g, g, value=1 - rho)
        w.addcdiv_(g, v.add(group["eps"]).sqrt_(), value=-group["lr"])


class Adam(KerasOptimizer):
    """Adam with ``eps`` added to the root of the raw ``v``, whose bias is corrected in the step:

        m = β1·m + (1 − β1)·g
        v = β2·v + (1 − β2)·g²
        w = w − lr·√(1 − β2ᵗ)/(1 − β1ᵗ) · m/(√v + eps)

    >>> w = torch.nn.Parameter(torch.ones(1))
    >>> w.grad = torch.tensor([2.0])
    >>> Adam([w]).step()
    >>> round(1 - w.item(), 6)
    0.001
    """

    options = MappingProxyType({"lr": 0.001, "beta1": 0.9, "beta2": 0.999, "eps": 1e-7})
    buffers = ("momentum", "velocity")

    def _update(self, w: Tensor, g: Tensor, state: State, group: Group) -> None:
        beta1, beta2, t = group["beta1"], group["beta2"], group["step"]
        m = state["momentum"].lerp_(g, 1 - beta1)
        v = state["velocity"].mul_(beta2).addcmul_(g, g, value=1 - beta2)
        alpha = group["lr"] * math.sqrt(1 - beta2**t) / (1 - beta1**t)
        w.addcdiv_(m, v.sqrt().add_(group["eps"]), value=-alpha)


class Nadam(KerasOptimizer):
    """Adam with Nesterov momentum ``μ_t``, which grows to β1:

        μ_t = β1·(1 − 0.5·0.96ᵗ),  Π_t = μ_1·…·μ_t
        m̂ = μ_{t+1}·m/(1 − Π_{t+1}) + (1 − μ_t)·g/(1 − Π_t)
        w = w − lr·m̂/(√(v/(1 − β2ᵗ)) + eps), with Adam's m and v

    >>> w = torch.nn.Parameter(torch.ones(1))
    >>> w.grad = torch.tensor([2.0])
    >>> Nadam([w]).step()
    >>> round(1 - w.item(), 6)  # 0.001·(0.1·μ_2/(1 − μ_1·μ_2) + 1)
    0.001063
    """

    options = MappingProxyType({"lr": 0.001, "beta1": 0.9, "beta2": 0.999, "eps": 1e-7})
    buffers = ("momentum", "velocity")

    def _count(self, group: Group) -> None:
        super()._count(group)
        group["mu_product"] = group.get("mu_product", 1.0) * _mu(group["beta1"], group["step"])

    def _update(self, w: Tensor, g: Tensor, state: State, group: Group) -> None:
        beta1, beta2, t, product = (
            group["beta1"],
            group["beta2"],
            group["step"],
            group["mu_product"],
        )
        m = state["momentum"].lerp_(g, 1 - beta1)
        v = state["velocity"].mul_(beta2).addcmul_(g, g, value=1 - beta2)
        mu, mu_next = _mu(beta1, t), _mu(beta1, t + 1)
        m_hat = m.mul(mu_next / (1 - product * mu_next)).add_(g, alpha=(1 - mu) / (1 - product))
        v_hat = v.div(1 - beta2**t)
        w.addcdiv_(m_hat, v_hat.sqrt_().add_(group["eps"]), value=-group["lr"])


class Adamax(KerasOptimizer):
    """Adam with a decaying maximum in place of the root, and ``eps`` added to it:

        m = β1·m + (1 − β1)·g
        u = max(β2·u, |g|)
        w = w − lr/(1 − β1ᵗ) · m/(u + eps)

    >>> w = torch.nn.Parameter(torch.ones(1))
    >>> w.grad = torch.tensor([2.0])
    >>> Adamax([w]).step()
    >>> round(1 - w.item(), 6)
    0.001
    """

    options = MappingProxyType({"lr": 0.001, "beta1": 0.9, "beta2": 0.999, "eps": 1e-7})
    buffers = ("momentum", "norm")

    def _update(self, w: Tensor, g: Tensor, state: State, group: Group) -> None:
        beta1, beta2, t = group["beta1"], group["beta2"], group["step"]
        m = state["momentum"].lerp_(g, 1 - beta1)
        u = state["norm"].mul_(beta2)
        torch.maximum(u, g.abs(), out=u)
        w.addcdiv_(m, u.add(group["eps"]), value=-group["lr"] / (1 - beta1**t))


# By name of the method. SGD has no momentum in Keras; the second name means 0.9.
OPTIMIZERS: dict[str, Callable[..., KerasOptimizer]] = {
    "sgd": SGD,
    "sgd-momentum": partial(SGD, momentum=0.9),
    "adagrad": Adagrad,
    "rmsprop": RMSprop,
    "adam": Adam,
    "nadam": Nadam,
    "adamax": Adamax,
}


def _mu(beta1: float, t: int) -> float:
    return beta1 * (1 - 0.5 * 0.96**t)


def _check(name: str, value: Any) -> None:
    """Raise ``ValueError`` that names the argument, what it takes and its value."""
    if name == "nesterov":
        good, takes = isinstance(value, bool), "True or False"
    elif not isinstance(value, int | float) or isinstance(value, bool):
        good, takes = False, "a number"
    elif name == "lr":
        good, takes = 0 < value < math.inf, "a finite number greater than 0"
    elif name in ("eps", "initial_accumulator_value"):
        good, takes = 0 <= value < math.inf, "a finite number of at least 0"
    else:
        good, takes = 0 <= value < 1, "in [0, 1)"
    if not good:
        raise ValueError(f"{name} must be {takes}, got {value}")
