"""BADM as a ``torch.optim.Optimizer``: groups, state and checks; update.py has the arithmetic."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast, overload

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo as not_compiled  # as torch.optim: dynamo comes late
from torch.optim.optimizer import Optimizer, ParamsT, _use_grad_for_differentiable

from badm import faults, metrics, update
from badm.distributed import fsdp
from badm.explanation import summary
from badm.faults import FirstSteps
from badm.groups import parameter_groups
from badm.groups.earlier import split_groups
from badm.groups.roles import Routing, recall
from badm.metrics import Metric, Parameters
from badm.metrics.matrices import Blocks
from badm.metrics.protocol import Later, State, Step, state_dtype
from badm.metrics.raw_memory import PLAIN_TYPES
from badm.update import as_blocks

__all__ = ["BADM", "penalties"]


# Defaults for groups of a checkpoint that was saved before these options existed.
_OPTIONS_ADDED_LATER = {
    "foreach": None,
    "fused": None,
    "differentiable": False,
    "maximize": False,
    "blocks": None,
}


def _refuse_unused(init: Callable[..., None]) -> Callable[..., None]:
    """Refuse arguments that were given and that every parameter group overrides.

    In a group, its own options come before the arguments of the optimizer, as in torch. Equal
    values are no contradiction.
    """
    signature = inspect.signature(init)

    @functools.wraps(init)
    def checked(self: BADM, *args: Any, **options: Any) -> None:
        given = signature.bind(self, *args, **options).arguments
        momentum = given.get("momentum")
        if momentum is not None and given.get("beta", momentum) != momentum:
            raise ValueError(
                "beta and momentum are two names of one number, got "
                f"beta={given['beta']} and momentum={momentum}"
            )
        init(self, *args, **options)
        made_here = isinstance(given["params"], nn.Module)  # with the arguments
        for name in [] if made_here else [n for n in given if n in self.defaults]:
            if name == "momentum" and momentum is None:
                continue
            values = [group[name] for group in self.param_groups]
            if not any(value is given[name] or value == given[name] for value in values):
                own = ", ".join(dict.fromkeys(map(repr, values)))
                raise ValueError(
                    f"{name}={given[name]!r} would not be used: every parameter group has its own "
                    f"{name}, {own}. Leave the argument out, or give it to the groups, for example "
                    "as an argument of parameter_groups"
                )
        faults.check_parameters(self.param_groups, metric_given="metric" in given)

    return checked


class BADM(Optimizer):
    """Train with batch ADMM; replaces Adam or SGD in a training script.

    With the memory ``β``, the step ``lr = 1/σ`` and a metric ``Q``::

        m⁺ = m + (1 − β)(g − m)
        w⁺ = w − lr·Q⁻¹(2m⁺ − m)

    ``m`` is minus the mean of ADMM's dual variables (docs/theory.md derives it). With
    ``metric="euclidean"`` this is Algorithm 1 of the BADM paper exactly, for any number of
    sub-batches; the other metrics scale the step by the geometry of the loss.

    Args:
        params: A model, whose groups :func:`badm.parameter_groups` makes with ``metric`` and
            ``weight_decay``; or parameters, with or without names, or groups of them.
        lr: Learning rate ``1/σ``, at least 0, a float or a tensor; on the scale of Adam's. The
            default is for training from scratch with a warm-up and a decay to 0.
        beta: Memory ``ρ/(ρ+σ)`` of the dual, in [0, 1); like Adam's ``beta1``.
        momentum: Another name of ``beta``, by which schedulers such as ``OneCycleLR`` change it.
        metric: ``"euclidean"``, ``"diagonal"`` (as in Adam), ``"spectral"`` (orthogonal steps for
            matrices and convolution kernels, as in Muon) or ``"kronecker"`` (diagonal in Shampoo's
            eigenbasis, as in SOAP) or ``"kronecker-spectral"`` (the kronecker direction, made
            orthogonal); the last three use diagonal for all other parameters.
        beta2: Memory of the second moment, in [0, 1); not used by euclidean and spectral. Default:
            the metric's own, 0.999 for diagonal and 0.95 for the kronecker metrics.
        eps: Added to the root of the second moment, at least 0.
        weight_decay: Decoupled weight decay as in AdamW, at least 0.
        blocks: Into how many blocks each axis of a parameter is cut to read it as a stack of
            matrices, such as 3 for query, key and value in one; None: it is one matrix.
        maximize: Maximize the objective instead of minimizing it.
        foreach: Update all parameters together, the default; ``False`` loops over them.
        fused: Update in one pass over memory where a kernel exists; foreach elsewhere.
        differentiable: Let autograd differentiate through the step; implies ``foreach=False``.

    Example:

    >>> model = torch.nn.Linear(3, 1)
    >>> optimizer = BADM(model, lr=0.01)
    >>> x, y = torch.randn(8, 3), torch.randn(8, 1)
    >>> for _ in range(2):
    ...     optimizer.zero_grad()
    ...     loss = torch.nn.functional.mse_loss(model(x), y)
    ...     loss.backward()
    ...     optimizer.step()

    References:
        Wang, Zhou, Li 2024, "BADM: Batch ADMM for Deep Learning", arXiv 2407.01640; for the other
        metrics Kingma and Ba 2015 (Adam), Jordan et al. 2024 (Muon), Vyas et al. 2024 (SOAP).
    """

    @_refuse_unused
    def __init__(
        self,
        params: ParamsT | nn.Module,
        lr: float | Tensor = 1e-2,
        beta: float = 0.9,
        *,
        momentum: float | None = None,
        metric: str = "spectral",
        beta2: float | None = None,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        blocks: int | Sequence[int] | None = None,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        differentiable: bool = False,
    ) -> None:
        if isinstance(params, nn.Module):
            params = parameter_groups(params, metric=metric, weight_decay=weight_decay)
        elif not isinstance(params, Tensor):  # torch raises a clear error for a bare tensor
            params = cast(ParamsT, list(params))
            if not params:
                raise ValueError(
                    "params must be parameters or groups of parameters, got an empty list"
                )
        beta = beta if momentum is None else momentum
        defaults = {
            "lr": lr,
            "beta": beta,
            "momentum": beta,
            "metric": metric,
            "beta2": beta2,
            "eps": eps,
            "weight_decay": weight_decay,
            "blocks": blocks,
            "maximize": maximize,
            "foreach": foreach,
            "fused": fused,
            "differentiable": differentiable,
        }
        _check(defaults)
        # By group: metric and blocks that its states belong to.
        self._metrics: dict[int, tuple[str, Blocks]] = {}
        self._betas: dict[int, float] = {}  # by group: beta and momentum when they last agreed
        self._first_steps: FirstSteps | None = FirstSteps()
        super().__init__(params, defaults)
        if not any(group["params"] for group in self.param_groups):
            raise ValueError("params must be parameters or groups of them, got empty groups")

    @classmethod
    def from_penalties(
        cls, params: ParamsT | nn.Module, rho: float = 200.0, sigma: float = 800.0, **options: Any
    ) -> BADM:
        """Create BADM from ADMM's own parameters: ``lr = 1/σ`` and ``β = ρ/(ρ+σ)``.

        Args:
            params: A model, or parameters or groups of them, as in :class:`BADM`.
            rho: Proximal weight ``ρ`` > 0; the default is the paper's for its first task.
            sigma: Penalty ``σ`` > 0; the default is the paper's for its first task.
            **options: Other arguments of :class:`BADM`, except ``lr`` and ``beta``.

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
        if "beta" in param_group or "momentum" in param_group:
            beta = param_group.setdefault("beta", param_group.get("momentum"))
            param_group.setdefault("momentum", beta)
        _check({**self.defaults, **param_group})
        super().add_param_group(param_group)
        self._betas[len(self.param_groups) - 1] = self.param_groups[-1]["beta"]
        faults.check_group(self.param_groups[-1], self.defaults)
        faults.check_blocks(self.param_groups[-1])

    def __repr__(self) -> str:
        rates = ", ".join(dict.fromkeys(f"{float(g['lr']):g}" for g in self.param_groups))
        return f"{type(self).__name__}(lr={rates}): {summary(self)}"

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._metrics = {}
        self._betas = {}
        self.__dict__.setdefault("_first_steps", None)  # a copy has the warnings behind it
        for index, group in enumerate(self.param_groups):
            group.setdefault("momentum", group["beta"])
            self._agree_on_beta(index, group)
            for option, value in _OPTIONS_ADDED_LATER.items():
                group.setdefault(option, value)
            for p in group["params"]:
                if self.state.get(p):
                    _metric_of(group, p).upgrade_state(self.state[p], _as_real(p))

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @_use_grad_for_differentiable
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step; ``closure``, if given, recomputes the loss and its gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not torch.compiler.is_compiling() and self._first_steps is not None:
            self._first_steps = self._first_steps.look(self.param_groups)
        # One break at the end, and not one for each matrix: a compiled step is one graph.
        later: Later | None = [] if torch.compiler.is_compiling() else None
        for index, group in enumerate(self.param_groups):
            self._agree_on_beta(index, group)
            if torch.compiler.is_compiling():
                self._init_group(group)  # which dynamo calls and does not trace
            elif self._metrics.get(index) != (group["metric"], as_blocks(group["blocks"])):
                self._reset_stale_states(index)
            real, pairs, sharded = self._collect(group)
            settings = replace(update.settings_of(group), later=later)
            try:
                if len(real):
                    _step_function(group)(real, settings)
                if len(pairs):
                    fallback = metrics.find(group["metric"]).fallback
                    _step_function(group)(pairs, replace(settings, metric=fallback))
                if len(sharded):
                    # Not fused: kernels need plain memory, which a DTensor does not have.
                    step = update.loop if group["foreach"] is False else update.foreach
                    update.sharded(sharded, settings, step)
            except (KeyError, RuntimeError) as error:
                self._raise_if_mismatched(group, error)
                raise
        if later:
            _do(later)
        return loss

    def _agree_on_beta(self, index: int, group: dict[str, Any]) -> None:
        """Let ``beta`` and ``momentum`` of a group follow the one that was changed last."""
        if group["momentum"] != group["beta"]:
            changed = "beta" if group["momentum"] == self._betas.get(index) else "momentum"
            group["beta"] = group["momentum"] = group[changed]
        if self._betas.get(index) != group["beta"]:
            self._betas[index] = group["beta"]

    def _init_group(self, group: dict[str, Any]) -> None:
        """Create all states before a step is compiled, so that it is one graph.

        The name is torch's: dynamo calls it while it traces, as in all of torch's optimizers, and
        looks at the states once, after the first call. So those of other groups are made too.
        """
        for index, each in enumerate(self.param_groups):
            if self._metrics.get(index) != (each["metric"], as_blocks(each["blocks"])):
                self._reset_stale_states(index)
            self._collect(each)

    def _reset_stale_states(self, index: int) -> None:
        """Reset states that belong to another metric, with a warning if there are any."""
        group = self.param_groups[index]
        now = group["metric"], as_blocks(group["blocks"])
        before, self._metrics[index] = self._metrics.get(index), now
        stale = [p for p in group["params"] if self.state.get(p) and self._state_mismatch(group, p)]
        for p in stale:
            self.state[p] = {}
        if stale:
            warnings.warn(
                f"the metric of parameter group {index} was changed from {_shown(before)} to "
                f"{_shown(now)}: the state of {len(stale)} of its parameters is reset",
                stacklevel=4,
            )

    def _state_mismatch(self, group: dict[str, Any], p: Tensor) -> str | None:
        """Describe how the state of a parameter does not match it; None if it does."""
        return _metric_of(group, p).state_mismatch(_as_real(p), self.state[p])

    def _raise_if_mismatched(self, group: dict[str, Any], error: Exception) -> None:
        """Raise a clear error if a state that does not match its parameter caused ``error``."""
        for i, p in enumerate(group["params"]):
            if self.state.get(p) and (wrong := self._state_mismatch(group, p)):
                raise RuntimeError(f"parameter {i} of the group {wrong}") from error

    def _collect(self, group: dict[str, Any]) -> tuple[Parameters, Parameters, Parameters]:
        """Collect the parameters with a gradient, creating states: real, complex and sharded ones.

        Complex parameters are viewed as pairs of reals, which are not matrices even if the view
        looks like one.
        """
        real, pairs, sharded = (Parameters([], [], []) for _ in range(3))
        if plain := self._collect_plain(group["params"]):
            return plain, pairs, sharded
        for index, p in enumerate(group["params"]):
            g = p.grad
            if g is None:
                continue
            if g.is_sparse:
                raise RuntimeError(
                    "BADM needs dense gradients, got a sparse one for a parameter of shape "
                    f"{tuple(p.shape)}; make the embedding with sparse=False"
                )
            original, state, metric, kind = p, self.state[p], _metric_of(group, p), real
            if p.is_complex():
                p = _as_real(p)
                g, kind = torch.view_as_real(g.resolve_conj()), pairs
            elif type(p) not in PLAIN_TYPES and fsdp.is_sharded(p):
                kind = sharded
            if not state:
                state.update(_new_state(metric, p, index, recall(original)))
            kind.w.append(p)
            kind.g.append(g)
            kind.states.append(state)
        return real, pairs, sharded

    def _collect_plain(self, params: list[Tensor]) -> Parameters | None:
        """Return all parameters at once, if none needs a closer look.

        A comprehension for each question, since two thousand tiny tensors may be collected at every
        step.
        """
        g = cast(list[Tensor], [p.grad for p in params])
        if not all(type(x) in PLAIN_TYPES for x in [*params, *g]):
            return None  # among them a gradient that is None, or a DTensor
        states = [self.state[p] for p in params]
        if not all(states) or any(x.is_sparse for x in g) or any(p.is_complex() for p in params):
            return None
        return Parameters(list(params), g, states)

    def state_dict(self) -> dict[str, Any]:
        for index, group in enumerate(self.param_groups):
            self._agree_on_beta(index, group)
            for p in group["params"]:
                if state := self.state.get(p):
                    _metric_of(group, p).make_portable(state)
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict; the state of half precision parameters stays in float32.

        ``Optimizer.load_state_dict`` casts state to the dtype of the parameters, and the dual of a
        bfloat16 parameter would lose its small changes for good. A state that does not match the
        parameters raises ``ValueError`` before anything is loaded. The metric is loaded with all
        other options of a group, with a warning if it changes.
        """
        state_dict = split_groups(state_dict, self.param_groups)
        seen: dict[str, Any] = {}

        def check(_: Optimizer, loaded: dict[str, Any]) -> None:
            seen.update(loaded)
            self._check_loaded(loaded)

        def keep_precision(_: Optimizer) -> None:
            for group, saved, p in self._loaded_states(seen):
                dtype = state_dtype(p).to_real()
                for key, value in saved.items():
                    if isinstance(value, Tensor) and value.is_floating_point():
                        self.state[p][key] = value.to(p.device, dtype, copy=True)
                    elif isinstance(value, Tensor):  # counts stay where they are
                        self.state[p][key] = value.clone()
                _metric_of(group, p).upgrade_state(self.state[p], _as_real(p))

        # The last hook before loading, to see what other hooks made of the argument; the first one
        # after it, so that others can still change the result.
        before = self.register_load_state_dict_pre_hook(check)
        after = self.register_load_state_dict_post_hook(keep_precision, prepend=True)
        old = [(group["metric"], as_blocks(group["blocks"])) for group in self.param_groups]
        try:
            super().load_state_dict(state_dict)
        finally:
            before.remove()
            after.remove()
        self._metrics = {}
        for index, (was, group) in enumerate(zip(old, self.param_groups, strict=True)):
            now = group["metric"], as_blocks(group["blocks"])
            if was != now:
                warnings.warn(
                    f"the loaded state has metric={_shown(now)}, which replaces "
                    f"metric={_shown(was)} of parameter group {index}",
                    stacklevel=3,
                )

    def _loaded_states(
        self, loaded: dict[str, Any]
    ) -> Iterator[tuple[dict[str, Any], dict[str, Any], Tensor]]:
        """Yield what its group says, state and parameter for each state in a state dict."""
        for saved, group in zip(loaded["param_groups"], self.param_groups, strict=True):
            options = {"metric": group["metric"], "blocks": None, **saved}
            for saved_id, p in zip(saved["params"], group["params"], strict=True):
                if state := loaded["state"].get(saved_id):
                    yield options, state, p

    def _check_loaded(self, loaded: dict[str, Any]) -> None:
        numbers = [len(group["params"]) for group in self.param_groups]
        if [len(group["params"]) for group in loaded["param_groups"]] != numbers:
            return  # torch raises a clear error for that
        index = {p: i for i, p in enumerate(p for g in self.param_groups for p in g["params"])}
        for group, saved, p in self._loaded_states(loaded):
            metric, real, state = _metric_of(group, p), _as_real(p), dict(saved)
            metric.upgrade_state(state, real)
            if wrong := metric.state_mismatch(real, state):
                raise ValueError(f"state_dict does not match: parameter {index[p]} {wrong}")


def penalties(group: dict[str, Any]) -> tuple[float, float]:
    """Return ``(ρ, σ)`` of a parameter group: ``σ = 1/lr``, ``ρ = σβ/(1−β)``.

    Args:
        group: An entry of ``optimizer.param_groups``.

    >>> optimizer = BADM([torch.nn.Parameter(torch.ones(2))], lr=0.00125, beta=0.2)
    >>> penalties(optimizer.param_groups[0])
    (200.0, 800.0)
    """
    lr = float(group["lr"])
    sigma = 1 / lr if lr else float("inf")
    return sigma * group["beta"] / (1 - group["beta"]), sigma


@not_compiled
def _do(later: Later) -> None:
    for function, arguments in later:
        function(*arguments)


def _step_function(group: dict[str, Any]) -> Step:
    if group["differentiable"]:
        return update.loop
    if group["fused"]:
        return update.fused
    return update.loop if group["foreach"] is False else update.foreach


def _new_state(metric: Metric, p: Tensor, index: int, routing: Routing | None) -> State:
    index = metric.place_of(p, index) if routing is None else routing.place[1]
    shape = metric.buffer_shape(p)
    alike = shape == tuple(p.shape) and metric.shards_buffers
    if not alike and fsdp.is_sharded(p):
        p = fsdp.unsharded_like(p)  # a buffer of another shape cannot be sharded like the parameter
    if alike:
        dual = torch.zeros_like(p, dtype=state_dtype(p))
    else:
        dual = torch.zeros(shape, dtype=state_dtype(p), device=p.device)
    return {"dual": dual, **metric.new_state(p, index)}


def _as_real(p: Tensor) -> Tensor:
    """View a complex parameter as pairs of reals."""
    return torch.view_as_real(p) if p.is_complex() else p


def _metric_of(group: dict[str, Any], p: Tensor) -> Metric:
    """Return the metric of a parameter in a group; of a complex one, the fallback."""
    metric = metrics.find(group["metric"])
    name = metric.fallback if p.is_complex() else metric.name
    return metrics.metric_for(name, _as_real(p), as_blocks(group["blocks"]))


def _shown(metric: tuple[str, Blocks] | None) -> str:
    """Write a metric as messages have it, with its blocks if it has any."""
    if metric is None:
        return "None"
    name, blocks = metric
    return f"{name!r} with blocks={blocks}" if blocks else repr(name)


def _check(options: dict[str, Any]) -> None:
    """Raise ``ValueError`` that names the argument, what it takes and what was given."""
    lr = options["lr"]
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError(f"lr must be a number or a tensor with 1 element, got {lr.numel()}")
    if not 0 <= lr < float("inf"):
        raise ValueError(f"lr must be a finite number of at least 0, got {lr}")
    for name in ("beta", "beta2"):
        if not (name == "beta2" and options[name] is None) and not 0 <= options[name] < 1:
            raise ValueError(f"{name} must be in [0, 1), got {options[name]}")
    for name in ("eps", "weight_decay"):
        if not 0 <= options[name] < float("inf"):
            raise ValueError(f"{name} must be a finite number of at least 0, got {options[name]}")
    _check_blocks(options["blocks"])
    metric = metrics.find(options["metric"], as_blocks(options["blocks"]))
    if options["fused"] and options["foreach"]:
        raise ValueError("foreach and fused exclude each other, got foreach=True and fused=True")
    if options["differentiable"] and (options["fused"] or options["foreach"]):
        raise ValueError("differentiable=True excludes foreach=True and fused=True")
    if options["differentiable"] and not metric.differentiable:
        raise ValueError(
            f"differentiable=True excludes metric={metric.name!r}: its bases have no derivative"
        )


def _check_blocks(blocks: object) -> None:
    numbers = blocks if isinstance(blocks, Sequence) else () if blocks is None else (blocks,)
    for number in numbers:
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise ValueError(
                "blocks must be a whole number of at least 1, one for each axis, or None, "
                f"got {blocks!r}"
            )
