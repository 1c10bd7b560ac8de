"""Today's rivals, each in its strongest fair form, at the settings its authors recommend.

What their packages lack is made up for here: kernels that are shown as matrices, checkpoints that
hold plain data only, evaluation that leaves the training weights as they were. The packages are
imported where they are used, because every worker process imports this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from badm.bench.method import (
    Method,
    Problem,
    Range,
    Setting,
    StepsLikeAnOptimizer,
    Trainer,
    Work,
    optimizer_method,
    trainable,
)
from badm.bench.methods.badm_methods import groups
from badm.metric import kind_for


class AsMatrix:
    """A parameter as a matrix (out, rest) that shares its memory, whatever its memory format.

    Columns are in the order of memory. To orthogonal steps and to Shampoo's it is all the same.

    >>> kernel = nn.Conv2d(2, 4, 3).weight
    >>> kernel.grad = torch.ones_like(kernel)
    >>> flat = AsMatrix(kernel)
    >>> with gradients_of([flat]):
    ...     torch.optim.SGD([flat.matrix], lr=1.0).step()
    >>> flat.matrix.shape, torch.equal(kernel.flatten(1), flat.matrix)
    (torch.Size([4, 18]), True)
    """

    def __init__(self, parameter: nn.Parameter) -> None:
        self.parameter = parameter
        inner = sorted(range(1, parameter.ndim), key=parameter.stride, reverse=True)
        self.order = (0, *inner)
        view = parameter.detach().permute(self.order).view(parameter.shape[0], -1)
        self.matrix = nn.Parameter(view)


@contextmanager
def gradients_of(matrices: list[AsMatrix]) -> Iterator[None]:
    """A context in which the matrices have the gradients of their parameters."""
    for flat in matrices:
        g = flat.parameter.grad
        flat.matrix.grad = None if g is None else g.permute(flat.order).reshape_as(flat.matrix)
    yield
    for flat in matrices:  # no gradient is kept in memory any longer than without us
        flat.matrix.grad = None


class Muon:
    """Muon for hidden matrices and kernels, AdamW for the rest, in one optimizer.

    The division and the weight decay are those of BADM in the spectral metric, parameter by
    parameter, and ``match_rms_adamw`` makes one learning rate mean the same to both parts.

    >>> model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(16, 8), nn.Linear(8, 2))
    >>> muon = Muon(model, lr=1e-3)
    >>> [[tuple(p.shape) for p in group["params"]] for group in muon.param_groups]
    [[(4, 9), (8, 16)], [(2, 8)], [(4,), (8,), (2,)]]
    """

    def __init__(
        self,
        module: nn.Module,
        lr: float,
        momentum: float = 0.95,
        nesterov: bool = True,
        beta1: float = 0.9,
        beta2: float = 0.999,
        weight_decay: float = 0.0,
    ) -> None:
        hidden: list[nn.Parameter] = []
        rest: list[dict[str, Any]] = []
        for group in groups(module, "spectral", weight_decay):
            kinds = [kind_for(group["metric"], p) for p in group["params"]]
            both = list(zip(group["params"], kinds, strict=True))
            hidden += [p for p, kind in both if kind == "spectral"]
            others = [p for p, kind in both if kind != "spectral"]
            if others:
                rest.append({"params": others, "weight_decay": group["weight_decay"]})
        self.kernels = [AsMatrix(p) for p in hidden]
        self.parts: list[torch.optim.Optimizer] = []
        if hidden:
            self.parts.append(
                torch.optim.Muon(
                    [kernel.matrix for kernel in self.kernels],
                    lr=lr,
                    momentum=momentum,
                    nesterov=nesterov,
                    weight_decay=weight_decay,
                    adjust_lr_fn="match_rms_adamw",
                )
            )
        if rest or not hidden:  # with nothing at all to train AdamW says so
            self.parts.append(torch.optim.AdamW(rest, lr=lr, betas=(beta1, beta2)))
        self._collect_groups()

    def step(self) -> None:
        with gradients_of(self.kernels):
            for part in self.parts:
                part.step()

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self._collect_groups()  # loading makes new ones

    def _collect_groups(self) -> None:
        self.param_groups = [group for part in self.parts for group in part.param_groups]


class Shampoo:
    """Shampoo with the step lengths of RMSprop, for matrices and flattened kernels.

    Of the package's two forms this is the one that trains well: step lengths of their own
    ("grafting") are what its authors use, the other form's shrink as sums of squares grow. Three
    things are done differently from the package's defaults. Kernels are flattened and shapes are
    not reinterpreted, because the package melts a matrix of up to ``block_size`` elements into a
    vector and then leaves it alone. Roots are taken every 10 steps, not 1,000. And the random
    numbers that it draws for them come from a generator of its own, so that they neither
    depend on anybody else's nor change them.

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

        self.kernels = [AsMatrix(p) for p in trainable(module) if p.ndim > 2]
        matrices = {id(kernel.parameter): kernel.matrix for kernel in self.kernels}
        self.optimizer = ScalableShampoo(
            [matrices.get(id(p), p) for p in trainable(module)],
            lr=lr,
            betas=(beta1, beta2),
            moving_average_for_momentum=True,
            weight_decay=weight_decay,
            decoupled_weight_decay=True,
            # Before the first roots there is nothing to precondition with.
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
        """The state with plain data in place of the package's objects."""
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
        """Have the package make its objects anew, and put what was saved into them."""
        loaded, gradient = self.optimizer.state.pop(p), p.grad
        p.grad = torch.zeros_like(p)  # it makes none for parameters without a gradient
        self.optimizer.init_group({**group, "params": [p]})
        p.grad = gradient
        state = self.optimizer.state[p]
        state.update(loaded)
        for name, parts in _PARTS.items():
            for part in parts:
                setattr(state[name], part, _copy(saved[name][part]))


# What of the objects in Shampoo's state changes in the course of training.
_PARTS = {
    "pre_conditioner": ("statistics", "pre_conditioners"),
    "graft": ("momentum", "statistics"),
}


def _copy(value: Tensor | list[Tensor]) -> Tensor | list[Tensor]:
    return value.clone() if isinstance(value, Tensor) else [x.clone() for x in value]


@dataclass
class ScheduleFreeTrainer:
    """Schedule-Free AdamW: trained at one point, judged at the average of all of them.

    It has no schedule, so ``lr_factor`` is nothing to it.

    >>> from schedulefree import AdamWScheduleFree
    >>> weight = nn.Parameter(torch.zeros(1))
    >>> trainer = ScheduleFreeTrainer(AdamWScheduleFree([weight], lr=1.0))
    >>> for g in (1.0, 1.0):
    ...     weight.grad = torch.tensor([g])
    ...     trainer.optimizer.step()
    >>> with trainer.evaluating():
    ...     print(round(weight.item(), 3))  # the mean of -1 and -2
    -1.5
    >>> round(weight.item(), 3)
    -1.55
    """

    optimizer: Any

    def __post_init__(self) -> None:
        self.optimizer.train()

    def step(self, work: Work) -> float:
        loss = work.gradient()
        self.optimizer.step()
        return loss

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        # Its own way back to the training weights is arithmetic, and rounds.
        groups = self.optimizer.param_groups
        params = [p for group in groups for p in group["params"]]
        training = [p.detach().clone() for p in params]
        self.optimizer.eval()
        try:
            yield
        finally:
            with torch.no_grad():
                for p, weights in zip(params, training, strict=True):
                    p.copy_(weights)
            for group in groups:
                group["train_mode"] = True

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self.optimizer.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state)


def _schedule_free(problem: Problem, setting: Setting) -> Trainer:
    from schedulefree import AdamWScheduleFree

    return ScheduleFreeTrainer(
        AdamWScheduleFree(
            trainable(problem.module),
            lr=setting["lr"],
            betas=(setting["beta1"], setting["beta2"]),
            eps=setting["eps"],
            weight_decay=setting["weight_decay"],
            warmup_steps=round(setting["warmup"] * problem.steps),
        )
    )


def _from_package(name: str) -> Callable[..., StepsLikeAnOptimizer]:
    """An optimizer of ``pytorch_optimizer``, which takes its betas together."""

    def make(module: nn.Module, **setting: Any) -> StepsLikeAnOptimizer:
        import pytorch_optimizer

        betas = tuple(setting.pop(option) for option in sorted(setting) if "beta" in option)
        if betas:
            setting["betas"] = betas
        optimizer: StepsLikeAnOptimizer = getattr(pytorch_optimizer, name)(
            trainable(module), **setting
        )
        return optimizer

    return make


def _adamw(module: nn.Module, beta1: float, beta2: float, **setting: Any) -> torch.optim.AdamW:
    return torch.optim.AdamW(trainable(module), betas=(beta1, beta2), **setting)


_ADAM = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
_LIKE_ADAM = {"lr": Range(1e-4, 0.1)}

METHODS = (
    optimizer_method(
        "adamw",
        "Adam with decoupled weight decay, of torch.optim",
        _adamw,
        defaults={"lr": 1e-3, **_ADAM, "weight_decay": 0.01},
        space=_LIKE_ADAM,
    ),
    optimizer_method(
        "qhm",
        "quasi-hyperbolic momentum at the advice of its authors",
        _from_package("QHM"),
        # They advise to divide the learning rate of SGD with momentum 0.9 by 1 - 0.9: so range and
        # default are ten times those of sgd-momentum.
        defaults={"lr": 0.1, "momentum": 0.999, "nu": 0.7, "weight_decay": 0.0},
        space={"lr": Range(3e-3, 3.0)},
    ),
    optimizer_method(
        "muon",
        "orthogonal steps for hidden matrices and kernels, AdamW for the rest",
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
    ),
    optimizer_method(
        "soap",
        "Adam in the eigenbasis of Shampoo",
        _from_package("SOAP"),
        # Kernels stay as they are: preconditioned on all four sides SOAP did a little better on
        # Fashion-MNIST than flattened to matrices.
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
    ),
    Method(
        "schedule-free",
        "AdamW that averages its weights in place of a schedule",
        "peer",
        _schedule_free,
        # Its authors recommend a warmup and took 2 % of the steps for AlgoPerf; runs as short as
        # ours do no worse with 5 %. They find 1 to 10 times the learning rates of AdamW to work.
        defaults={"lr": 2.5e-3, **_ADAM, "weight_decay": 0.0, "warmup": 0.05},
        space={"lr": Range(3e-4, 0.3)},
    ),
    optimizer_method(
        "lion",
        "steps of the sign of the momentum",
        _from_package("Lion"),
        # Its authors: 3 to 10 times lower learning rates and higher weight decay than AdamW's.
        defaults={"lr": 1e-4, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1},
        space={"lr": Range(3e-5, 3e-2)},
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
    ),
)
