"""BADM as a ``torch.optim.Optimizer``: groups, state, checks. The arithmetic is in update.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast, overload

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT, _use_grad_for_differentiable

from badm import metric as _metric
from badm import sharded
from badm.fused import PLAIN_TYPES, fused
from badm.update import Batch, Settings, foreach, loop, plain_duals

# What a group of a checkpoint from before an option existed is given.
_LATER_OPTIONS = {"foreach": None, "fused": None, "differentiable": False, "maximize": False}


class BADM(Optimizer):
    """Batch ADMM in one buffer: change the line that makes the optimizer, nothing else.

    With the memory ``β``, the step ``lr = 1/σ`` and a metric ``Q``:

        m⁺ = m + (1 − β)(g − m)
        w⁺ = w − lr·Q⁻¹(2m⁺ − m)

    ``m`` is minus the mean of ADMM's dual variables (docs/theory.md derives it). With
    ``metric="euclidean"`` this is Algorithm 1 of the BADM paper exactly, for any number of
    sub-batches; the other metrics scale the step by the geometry of the loss.

    Args:
        params: parameters, or groups of them; :func:`badm.parameter_groups` makes good groups
        lr: the step 1/σ, a float or a tensor; means what it means in Adam
        beta: the memory ρ/(ρ+σ), in [0, 1)
        metric: ``"euclidean"``, ``"diagonal"`` (Adam's), ``"spectral"`` (orthogonal steps for
            matrices and convolution kernels) or ``"kronecker"`` (Adam's in the eigenbasis of
            Shampoo). In the last two, parameters that are no matrices use the diagonal metric
        beta2: memory of the second moment, in [0, 1); not used by the euclidean metric
        eps: added to the root of the second moment
        weight_decay: decoupled, as in AdamW
        maximize: ascend instead of descend
        foreach: all parameters at once; the default. ``False``: one by one
        fused: one pass over memory where a kernel can do it, foreach elsewhere
        differentiable: let autograd see through the step; implies ``foreach=False``

    >>> model = torch.nn.Linear(3, 1)
    >>> optimizer = BADM(model.parameters(), lr=0.01)
    >>> x, y = torch.randn(8, 3), torch.randn(8, 1)
    >>> for _ in range(2):
    ...     optimizer.zero_grad()
    ...     loss = torch.nn.functional.mse_loss(model(x), y)
    ...     loss.backward()
    ...     optimizer.step()
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        beta: float = 0.9,
        *,
        metric: str = "spectral",
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        differentiable: bool = False,
    ) -> None:
        if not isinstance(params, Tensor):  # which torch refuses with a message of its own
            params = cast(ParamsT, list(params))
            if not params:
                raise ValueError(
                    "params must be parameters or groups of parameters, got an empty list"
                )
        defaults = {
            "lr": lr,
            "beta": beta,
            "metric": metric,
            "beta2": beta2,
            "eps": eps,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "foreach": foreach,
            "fused": fused,
            "differentiable": differentiable,
        }
        _check(defaults)
        super().__init__(params, defaults)
        if not any(group["params"] for group in self.param_groups):
            raise ValueError("params must be parameters or groups of them, got empty groups")

    @classmethod
    def from_penalties(
        cls, params: ParamsT, rho: float = 200.0, sigma: float = 800.0, **options: Any
    ) -> BADM:
        """BADM from ADMM's own parameters: ``lr = 1/σ`` and ``β = ρ/(ρ+σ)``.

        >>> weight = torch.nn.Parameter(torch.ones(2))
        >>> optimizer = BADM.from_penalties([weight], rho=200.0, sigma=800.0)
        >>> optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["beta"]
        (0.00125, 0.2)
        """
        for name, value in (("rho", rho), ("sigma", sigma)):
            if not 0 < value < float("inf"):
                raise ValueError(f"{name} must be a finite number greater than 0, got {value}")
        for name in ("lr", "beta"):
            if name in options:
                raise ValueError(f"{name} follows from rho and sigma, got {name}={options[name]}")
        return cls(params, lr=1 / sigma, beta=rho / (rho + sigma), **options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        _check({**self.defaults, **param_group})
        super().add_param_group(param_group)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            for option, value in _LATER_OPTIONS.items():
                group.setdefault(option, value)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @_use_grad_for_differentiable
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One step; ``closure``, if given, computes the loss and its gradients anew."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            real, pairs, cut = self._collect(group)
            if len(real):
                _path(group)(real, _settings(group))
            if len(pairs):
                _path(group)(pairs, replace(_settings(group), metric=_metric_of_pairs(group)))
            if len(cut):
                # Not fused, which keeps the scale of a dual in states of its own.
                sharded.step(cut, _settings(group), loop if group["foreach"] is False else foreach)
        return loss

    def _collect(self, group: dict[str, Any]) -> tuple[Batch, Batch, Batch]:
        """The parameters that have a gradient, with their states, new ones included.

        Complex ones apart, as pairs of reals: no matrix, though their view may look like one. And
        apart those that are sharded over ranks.
        """
        real, pairs, cut = Batch([], [], []), Batch([], [], []), Batch([], [], [])
        all_states, w, grads, states = self.state, real.w, real.g, real.states
        for index, p in enumerate(group["params"]):
            g = p.grad
            if g is None:
                continue
            if g.is_sparse:
                raise RuntimeError(
                    "BADM needs dense gradients, got a sparse one for a parameter of shape "
                    f"{tuple(p.shape)}; make the embedding with sparse=False"
                )
            state = all_states[p]
            if p.is_complex():
                p, g = torch.view_as_real(p), torch.view_as_real(g)
                if not state:
                    state.update(_new_state(_metric_of_pairs(group), p, index))
                pairs.w.append(p)
                pairs.g.append(g)
                pairs.states.append(state)
                continue
            if not state:
                state.update(_new_state(group["metric"], p, index))
            if type(p) not in PLAIN_TYPES and sharded.is_sharded(p):
                cut.w.append(p)
                cut.g.append(g)
                cut.states.append(state)
                continue
            w.append(p)
            grads.append(g)
            states.append(state)
        return real, pairs, cut

    def state_dict(self) -> dict[str, Any]:
        for state in self.state.values():
            plain_duals([state])
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As in any optimizer, but the state of half precision parameters stays in float32.

        ``Optimizer.load_state_dict`` casts state to the type of the parameters, and the dual of a
        bfloat16 parameter would lose its small changes for good.
        """
        seen: dict[str, Any] = {}

        def keep_precision(_: Optimizer) -> None:
            saved_ids = [i for group in seen["param_groups"] for i in group["params"]]
            params = [p for group in self.param_groups for p in group["params"]]
            for saved_id, p in zip(saved_ids, params, strict=True):
                dtype = _metric.state_dtype(p).to_real()
                for key, value in seen["state"].get(saved_id, {}).items():
                    if isinstance(value, Tensor):
                        self.state[p][key] = value.to(p.device, dtype, copy=True)

        # Last before loading, to see what the hooks of others have made of the argument; first
        # after it, to leave them the last word.
        before = self.register_load_state_dict_pre_hook(lambda _, loaded: seen.update(loaded))
        after = self.register_load_state_dict_post_hook(keep_precision, prepend=True)
        try:
            super().load_state_dict(state_dict)
        finally:
            before.remove()
            after.remove()


def penalties(group: dict[str, Any]) -> tuple[float, float]:
    """``(ρ, σ)`` of a parameter group: ``σ = 1/lr``, ``ρ = σβ/(1−β)``.

    >>> optimizer = BADM([torch.nn.Parameter(torch.ones(2))], lr=0.00125, beta=0.2)
    >>> penalties(optimizer.param_groups[0])
    (200.0, 800.0)
    """
    lr = float(group["lr"])
    sigma = 1 / lr if lr else float("inf")
    return sigma * group["beta"] / (1 - group["beta"]), sigma


def _path(group: dict[str, Any]) -> Callable[[Batch, Settings], None]:
    if group["differentiable"]:
        return loop
    if group["fused"]:
        return fused
    return loop if group["foreach"] is False else foreach


def _new_state(metric: str, p: Tensor, index: int) -> dict[str, Any]:
    kind = _metric.kind_for(metric, p)
    if kind == "kronecker" and sharded.is_sharded(p):
        p = sharded.whole_like(p)
    return {"dual": _metric.zeros(kind, p), **_metric.new_state(kind, p, index)}


def _metric_of_pairs(group: dict[str, Any]) -> str:
    return "euclidean" if group["metric"] == "euclidean" else "diagonal"


def _settings(group: dict[str, Any]) -> Settings:
    lr = group["lr"]
    return Settings(
        lr=lr.reshape(()) if isinstance(lr, Tensor) else lr,
        beta=group["beta"],
        metric=group["metric"],
        beta2=group["beta2"],
        eps=group["eps"],
        weight_decay=group["weight_decay"],
        maximize=group["maximize"],
    )


def _check(options: dict[str, Any]) -> None:
    """Every message names the argument, what it takes and what it was given."""
    lr = options["lr"]
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError(f"lr must be a number or a tensor with 1 element, got {lr.numel()}")
    if not 0 < lr < float("inf"):
        raise ValueError(f"lr must be a finite number greater than 0, got {lr}")
    for name in ("beta", "beta2"):
        if not 0 <= options[name] < 1:
            raise ValueError(f"{name} must be in [0, 1), got {options[name]}")
    for name in ("eps", "weight_decay"):
        if not 0 <= options[name] < float("inf"):
            raise ValueError(f"{name} must be a finite number of at least 0, got {options[name]}")
    _metric.check_name(options["metric"])
    if options["fused"] and options["foreach"]:
        raise ValueError("foreach and fused exclude each other, got foreach=True and fused=True")
    if options["differentiable"] and (options["fused"] or options["foreach"]):
        raise ValueError("differentiable=True excludes foreach=True and fused=True")
    if options["differentiable"] and options["metric"] == "kronecker":
        raise ValueError(
            "differentiable=True excludes metric='kronecker': its bases have no derivative"
        )
