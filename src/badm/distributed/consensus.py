"""Train replicas independently and average them every ``K`` steps, over ``torch.distributed``.

Each rank takes ``K`` steps of an inner optimizer from the global point ``w`` and ends at its local
point ``w_s``. Its displacement ``d_s = w_s − w`` crosses the network, all parameters as one vector:

    d̄ = Σ_s α_s d_s                         one all-reduce
    m⁺ = m − (1 − β)(d̄ + m)                 BADM on the pseudo-gradient −d̄
    w⁺ = w − lr·(2m⁺ − m)

With ``K = 1`` and SGD inside this is Algorithm 1 of the paper with one sub-batch per rank: for SGD
with learning rate ``γ``, ``lr = 1/(σγ)`` and ``β = ρ/(ρ+σ)``. DiLoCo has the same structure with
Nesterov momentum as the outer step.

With ``β = 1/2`` the outer step has no memory, and ``lr = 1`` is the plain average of the local
points. This is the default: it measured best with tuned learning rates that decay to 0
(``benchmarks/communication.py``), since a memory is slow to stop, the more so with few meetings.

**Duals.** Where ranks have different data, each is drawn to an optimum of its own. In mode
``"dual"`` every rank keeps ADMM's dual ``π_s``, minus the mean over ranks, and adds it to its
gradients before the inner optimizer sees them:

    g ← g + u_s                             u_s = π_s − Σ_s α_s π_s
    u_s⁺ = u_s + η(ḡ − ḡ_s − u_s)           at the meeting

``ḡ_s`` is the mean of the rank's own gradients since the last meeting and ``ḡ`` the mean over all
ranks, which crosses the network with ``d_s``: the duals are averages of gradients, as in Algorithm
1, where ``η = 1 − β`` and ``K = 1``. Since gradients are corrected, not displacements, this works
with Adam inside as well, which rescales its input. The ``u_s`` sum to 0, so with ``K = 1`` and SGD
inside ``w`` is the same in both modes.

This is the form of SCAFFOLD's control variates (Karimireddy et al. 2020): the correction is
``u_s = c − c_s``, and with ``η = 1``, averaging and SGD inside it is SCAFFOLD (option II, every
client in every round). It differs in that the averages have a memory, ``1 − η``, and that they come
from the augmented Lagrangian, as duals: at ``K = 1`` they are those of Algorithm 1.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from badm.distributed.fsdp import to_local
from badm.distributed.ranks import RankGroup, RankMismatchError, require_same

__all__ = ["MODES", "Consensus"]

MODES = ("outer", "dual")


@dataclass
class _PendingMeeting:
    """A meeting whose all-reduce is pending: applied after ``steps_left`` more inner steps."""

    work: dist.Work | None
    total: Tensor
    displacement: Tensor
    gradient: Tensor  # ḡ_s; empty without duals
    steps_left: int


class Consensus:
    """Average the replicas every ``every`` steps of an inner optimizer.

    With the displacements ``d_s = w_s − w`` since the last meeting and weights ``α_s``, a meeting
    is one BADM step on the pseudo-gradient ``−d̄``::

        d̄ = Σ_s α_s d_s
        m⁺ = m − (1 − β)(d̄ + m)
        w⁺ = w − lr·(2m⁺ − m)

    It attaches to the inner optimizer's step hooks, so the training loop does not change. Every
    rank creates one, with its own model and data, after ``init_process_group``; all start from the
    weights of the first rank.

    Args:
        params: Parameters to average, in the same order on every rank.
        inner_optimizer: Any optimizer of these parameters; it may have others too.
        every: Inner steps between two meetings, at least 1; 50 sends a fiftieth of DDP's bytes.
        lr: Outer learning rate, > 0; 1 with ``beta=0.5`` is plain averaging. DiLoCo's 0.7 with
            momentum 0.9 is 7 in these units.
        beta: Memory of the outer step, in [0, 1); the default 0.5 has none and measured best.
        mode: ``"outer"``, or ``"dual"`` to correct gradients where ranks have different data.
        process_group: The ranks to average over; all of them by default.
        eta: Step of the duals, in [0, 1], ``1 − beta`` by default; 1 keeps the last gradients only.
        weight: Weight of this rank in the averages, at least 0, such as its number of samples.
        buffers: Also averaged at every meeting, such as the running statistics of BatchNorm.
        reduce_dtype: Dtype of the all-reduce, such as ``torch.bfloat16``; that of ``w`` by default.
        overlap: Inner steps to take while the all-reduce is pending, less than ``every``.
        timeout: Seconds to wait for late ranks at a meeting.

    Raises:
        RankLostError: Within seconds at the next meeting if a rank was lost; names the rank.
        RankMismatchError: At the first meeting if models or settings differ between ranks.

    Example, on every rank of a torchrun job::

        badm.init_process_group("gloo")
        model = Net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        consensus = badm.Consensus(model.parameters(), optimizer, every=50)
        for x, y in loader:
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()        # every fiftieth step is followed by a meeting
        consensus.meet()            # average the last steps

    The same with one rank in one process, for a quick try:

    >>> from tempfile import mkdtemp
    >>> dist.init_process_group("gloo", init_method=f"file://{mkdtemp()}/s", rank=0, world_size=1)
    >>> model = torch.nn.Linear(3, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> consensus = Consensus(model.parameters(), optimizer, every=2)
    >>> for _ in range(4):
    ...     optimizer.zero_grad()
    ...     model(torch.ones(1, 3)).sum().backward()
    ...     optimizer.step()
    >>> consensus.meetings
    2
    >>> consensus.detach()
    >>> dist.destroy_process_group()

    References:
        Wang, Zhou, Li 2024, "BADM: Batch ADMM for Deep Learning"; Douillard et al. 2023, "DiLoCo";
        Karimireddy et al. 2020, "SCAFFOLD".
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        inner_optimizer: Optimizer,
        *,
        every: int = 50,
        lr: float = 1.0,
        beta: float = 0.5,
        mode: Literal["outer", "dual"] = "outer",
        process_group: dist.ProcessGroup | None = None,
        eta: float | None = None,
        weight: float = 1.0,
        buffers: Iterable[Tensor] = (),
        reduce_dtype: torch.dtype | None = None,
        overlap: int = 0,
        timeout: float = 300.0,
    ) -> None:
        args = list(params)
        self.params = [p for p in args if p.requires_grad]
        self.buffers = [b for b in buffers if b.is_floating_point()]
        self.every, self.lr, self.beta, self.mode = every, lr, beta, mode
        self.eta = 1 - beta if eta is None else eta
        self.weight, self.reduce_dtype = weight, reduce_dtype
        self.overlap, self.timeout = overlap, timeout
        _check(self)
        _check_inner(args, inner_optimizer)
        if not dist.is_initialized():
            raise RuntimeError(
                "Consensus needs a process group: start the program with torchrun and call "
                "badm.init_process_group first"
            )
        self._ranks = RankGroup(process_group, timeout)
        self.rank, self.world_size = self._ranks.rank, self._ranks.size
        self.steps = 0  # since the last meeting
        self.meetings = 0
        self._alpha: float | None = self._check_agreement()
        w = _flatten(self.params)
        self._wait(self._ranks.broadcast(w))
        self.w = w  # the global point, the same on every rank
        self.m = torch.zeros_like(w)  # the memory of the outer step, the same on every rank
        self.u = torch.zeros_like(w) if mode == "dual" else None  # the dual of this rank
        # The sum of its gradients since the last meeting.
        self._gradient_sum = torch.zeros(
            len(w) if mode == "dual" else 0, dtype=w.dtype, device=w.device
        )
        self._pending: _PendingMeeting | None = None
        _copy_into(w, self.params)
        self._hooks = [
            inner_optimizer.register_step_pre_hook(self._before_inner_step),
            inner_optimizer.register_step_post_hook(lambda *_: self._after_inner_step()),
        ]

    @torch.no_grad()
    def meet(self) -> None:
        """Average now, unless no step was taken since the last meeting; call it on every rank."""
        self._finish_meeting()
        if self.steps:
            self._start_meeting(overlap=0)
            self._finish_meeting()

    @contextmanager
    def at_global_point(self) -> Iterator[None]:
        """Give the model the weights of the last meeting, equal on all ranks, inside a block.

        Example::

            with consensus.at_global_point():
                evaluate(model)
        """
        own = _flatten(self.params)
        _copy_into(self.w, self.params)
        try:
            yield
        finally:
            _copy_into(own, self.params)

    def detach(self) -> None:
        """Remove the hooks from the inner optimizer and stop sending heartbeats."""
        for hook in self._hooks:
            hook.remove()
        self._ranks.close()

    def state_dict(self) -> dict[str, Any]:
        """Return what a restart of this rank needs beside model and inner optimizer."""
        pending = None
        if self._pending is not None:
            self._wait_for_sum(self._pending)
            pending = {
                "total": self._pending.total.clone(),
                "went": self._pending.displacement.clone(),
                "gradient": self._pending.gradient.clone(),
                "steps_left": self._pending.steps_left,
            }
        return {
            "w": self.w.clone(),
            "m": self.m.clone(),
            "u": None if self.u is None else self.u.clone(),
            "sum": self._gradient_sum.clone(),
            "underway": pending,
            "steps": self.steps,
            "meetings": self.meetings,
            "rank": self.rank,
            "world_size": self.world_size,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; the next meeting checks that all ranks loaded the same one.

        Without duals a state may come from another rank or number of ranks. With them each rank
        needs its own; the duals of another one are reset to 0, with a warning.
        """
        if state_dict["w"].shape != self.w.shape:
            raise ValueError(
                f"state_dict has {state_dict['w'].numel()} parameters, the model has {len(self.w)}"
            )
        self.w.copy_(state_dict["w"])
        self.m.copy_(state_dict["m"])
        self.steps, self.meetings = state_dict["steps"], state_dict["meetings"]
        pending = state_dict["underway"]
        self._pending = None
        if pending is not None:
            total, displacement, gradient = (
                pending[key].to(self.w) for key in ("total", "went", "gradient")
            )
            self._pending = _PendingMeeting(
                None, total, displacement, gradient, pending["steps_left"]
            )
        if self.u is not None:
            self.u.zero_()
            self._gradient_sum.zero_()
            own = (state_dict["rank"], state_dict["world_size"]) == (self.rank, self.world_size)
            if state_dict["u"] is not None and own:
                self.u.copy_(state_dict["u"])
                self._gradient_sum.copy_(state_dict["sum"])
            else:
                warnings.warn(
                    f"the duals of rank {state_dict['rank']} of {state_dict['world_size']} are not "
                    f"those of rank {self.rank} of {self.world_size} and are reset to 0",
                    stacklevel=2,
                )
        self._alpha = None

    @torch.no_grad()
    def _before_inner_step(self, _: Optimizer, args: tuple[Any, ...], kwargs: Any) -> None:
        if self.u is None:
            return
        closures = (*args[1:], *kwargs.values())  # the first is the optimizer itself
        if any(closure is not None for closure in closures):
            raise ValueError(
                "mode='dual' corrects gradients before the step, but a closure computes them in "
                "it: call backward first, then step() without a closure"
            )
        duals, sums = (_unflatten(vector, self.params) for vector in (self.u, self._gradient_sum))
        for p, dual, total in zip(self.params, duals, sums, strict=True):
            if p.grad is not None:
                total.add_(to_local(p.grad))
            elif dual.any():  # without a gradient of its own it still follows the others
                p.grad = torch.zeros_like(p)
            if p.grad is not None:
                to_local(p.grad).add_(dual)  # g ← g + u_s

    @torch.no_grad()
    def _after_inner_step(self) -> None:
        self.steps += 1
        if self._pending is not None:
            self._pending.steps_left -= 1
            if self._pending.steps_left == 0:
                self._finish_meeting()
        if self.steps == self.every:
            self._start_meeting(self.overlap)
            if self.overlap == 0:
                self._finish_meeting()

    def _start_meeting(self, overlap: int) -> None:
        """Start the all-reduce of the displacement ``α_s d_s``."""
        if self._alpha is None:
            self._alpha = self._check_agreement()
        displacement = _flatten(self.params) - self.w
        gradient = self._gradient_sum / self.steps  # ḡ_s
        sent = torch.cat([displacement, gradient, _flatten(self.buffers, like=displacement)]).mul_(
            self._alpha
        )
        if self.reduce_dtype is not None:
            sent = sent.to(self.reduce_dtype)
        work = self._ranks.all_reduce(sent)
        self._pending = _PendingMeeting(work, sent, displacement, gradient, overlap)
        self.steps = 0
        self._gradient_sum.zero_()

    def _finish_meeting(self) -> None:
        """Wait for the all-reduce and take the outer step."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        self._wait_for_sum(pending)
        total = pending.total.to(self.w.dtype)
        sizes = len(self.w), len(self._gradient_sum)
        mean, gradient, buffers = torch.split(total, [*sizes, len(total) - sum(sizes)])
        if self.u is not None:
            self.u.lerp_(gradient - pending.gradient, self.eta)  # u_s⁺ = u_s + η(ḡ − ḡ_s − u_s)
        since = self._displacement_since(pending.displacement)
        self.outer_step(-mean)
        _copy_into(self.w if since is None else self.w + since, self.params)
        _copy_into(buffers, self.buffers)
        self.meetings += 1

    def outer_step(self, g: Tensor) -> None:
        """Move the global point with the pseudo-gradient ``ḡ = −d̄``."""
        step = (1 - self.beta) * (g - self.m)  # θ(ḡ − m)
        self.m.add_(step)  # m⁺
        self.w.sub_(self.m + step, alpha=self.lr)  # w⁺ = w − lr(2m⁺ − m)

    def _displacement_since(self, d: Tensor) -> Tensor | None:
        """Return how far this rank has moved since it sent its ``d``."""
        return _flatten(self.params) - self.w - d if self.overlap else None

    def _wait_for_sum(self, pending: _PendingMeeting) -> None:
        if pending.work is not None:
            self._wait(pending.work)
            pending.work = None

    def _wait(self, work: dist.Work) -> None:
        self._ranks.wait(work, f"meeting {self.meetings + 1}")

    def _check_agreement(self) -> float:
        """Check that all ranks have the same settings; return the weight ``α_s`` of this rank."""
        own = {
            "every": self.every,
            "lr": self.lr,
            "beta": self.beta,
            "eta": self.eta,
            "mode": self.mode,
            "reduce_dtype": str(self.reduce_dtype),
            "overlap": self.overlap,
            "parameters": [(tuple(p.shape), str(p.dtype)) for p in self.params],
            "buffers": [(tuple(b.shape), str(b.dtype)) for b in self.buffers],
            "meetings": self.meetings,
            "steps": self.steps,
        }
        every_rank = self._ranks.all_gather((own, self.weight), f"meeting {self.meetings + 1}")
        require_same([settings for settings, _ in every_rank])
        total = float(sum(weight for _, weight in every_rank))
        if total <= 0:
            raise RankMismatchError("weight must be greater than 0 on some rank, got 0 on all")
        return self.weight / total


def _flatten(tensors: Sequence[Tensor], like: Tensor | None = None) -> Tensor:
    """Concatenate tensors to one vector, in float32 where they are of half precision."""
    dtype = like.dtype if like is not None else _dtype(tensors)
    flat = [to_local(x).detach().reshape(-1).to(dtype) for x in tensors]
    if not flat:
        return torch.empty(0, dtype=dtype, device=None if like is None else like.device)
    return torch.cat(flat)


def _dtype(tensors: Sequence[Tensor]) -> torch.dtype:
    return torch.float64 if any(x.dtype == torch.float64 for x in tensors) else torch.float32


def _unflatten(vector: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Split a vector into views with the shapes of the tensors."""
    own = [to_local(x) for x in tensors]
    parts = torch.split(vector, [x.numel() for x in own]) if own else ()
    return [part.view(x.shape) for part, x in zip(parts, own, strict=True)]


def _copy_into(vector: Tensor, tensors: Sequence[Tensor]) -> None:
    if tensors:
        torch._foreach_copy_([to_local(x).detach() for x in tensors], _unflatten(vector, tensors))


def _check(c: Consensus) -> None:
    """Raise ``ValueError`` that names the argument, what it takes and what was given."""
    if not c.params:
        raise ValueError(
            "params must contain at least one tensor that requires a gradient, got none"
        )
    if any(x.is_complex() for x in c.params):
        raise ValueError("params must be real, got a complex one; pass torch.view_as_real of it")
    if len({x.device for x in (*c.params, *c.buffers)}) > 1:
        raise ValueError("params and buffers must be on one device, got several")
    if c.mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, got {c.mode!r}")
    for name, least in (("every", 1), ("overlap", 0)):
        value = getattr(c, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
    if c.overlap >= c.every:
        raise ValueError(f"overlap must be less than every={c.every}, got {c.overlap}")
    for name in ("lr", "timeout"):
        if not 0 < getattr(c, name) < float("inf"):
            raise ValueError(
                f"{name} must be a finite number greater than 0, got {getattr(c, name)}"
            )
    if not 0 <= c.beta < 1:
        raise ValueError(f"beta must be in [0, 1), got {c.beta}")
    if not 0 <= c.eta <= 1:
        raise ValueError(f"eta must be in [0, 1], got {c.eta}")
    if not 0 <= c.weight < float("inf"):
        raise ValueError(f"weight must be a finite number of at least 0, got {c.weight}")
    if c.reduce_dtype is not None and not c.reduce_dtype.is_floating_point:
        raise ValueError(f"reduce_dtype must be a floating point type, got {c.reduce_dtype}")


def _check_inner(args: Sequence[Tensor], inner: Optimizer) -> None:
    """Refuse parameters that the optimizer does not have: they would be sent but never trained."""
    held = [p for group in inner.param_groups for p in group["params"]]
    ids, places = {id(p) for p in held}, [_byte_range(p) for p in held]
    missing = [
        f"params[{i}] of shape {tuple(p.shape)}"
        for i, p in enumerate(args)
        if p.requires_grad and id(p) not in ids and not _within(_byte_range(p), places)
    ]
    if missing:
        some = " and ".join(missing[:3]) + f" and {len(missing) - 3} more" * (len(missing) > 3)
        raise ValueError(
            f"{some} {'is' if len(missing) == 1 else 'are'} not in the inner optimizer "
            f"({type(inner).__name__}): leave them out, or add them with add_param_group"
        )


def _byte_range(x: Tensor) -> range:
    """Return the addresses from the first element to the last."""
    own = to_local(x)
    steps = zip(own.shape, own.stride(), strict=True)
    last = sum((length - 1) * stride for length, stride in steps) if own.numel() else -1
    return range(own.data_ptr(), own.data_ptr() + (last + 1) * own.element_size())


def _within(part: range, places: Sequence[range]) -> bool:
    """Return whether it lies in one of the others: a view of a flat buffer of the optimizer."""
    return len(part) > 0 and any(x.start <= part.start and part.stop <= x.stop for x in places)
