"""Methods of several replicas: an optimizer on each rank, and a way to meet.

``adam+outer`` is Adam on every rank and :class:`badm.Consensus` between them; what may stand after
the plus is in ``MODES``. Such a run takes as many processes as it has ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from badm.bench.method import (
    LEARNING_RATE,
    CannotTrain,
    Choice,
    Method,
    OptimizerTrainer,
    Range,
    Setting,
    Space,
    StepBatch,
    Trainer,
    TrainingSetup,
    trainable_parameters,
)
from badm.distributed.consensus import Consensus
from badm.distributed.ranks import RankGroup

MODE_SEPARATOR = "+"


class Meeting(Protocol):
    """What happens between replicas, out of the hooks of the optimizer's step."""

    def begin(self, loss_weight: float) -> None:
        """Before every step: what the mean loss of the batch of this rank counts for."""

    def finish(self) -> None:
        """After the last step: let all ranks have the same weights."""

    def evaluation_weights(self) -> AbstractContextManager[None]:
        """A context in which this rank has the weights on which all agree."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class EveryStep:
    """The mean of the gradients at every step, as under DDP: one process, to rounding.

    Until ``last`` steps are done, if given; then the ranks are left alone.
    """

    def __init__(self, inner: Optimizer, problem: TrainingSetup, last: int | None = None) -> None:
        self.params, self.last, self.steps = trainable_parameters(problem.module), last, 0
        self.share = 1.0
        self._company = RankGroup()
        inner.register_step_pre_hook(lambda *_: self._before_inner_step())

    @torch.no_grad()
    def _before_inner_step(self) -> None:
        self.steps += 1
        if self.last is not None and self.steps > self.last:
            return
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.params]
        # Behind the gradients, whether there is one: none at all is not the same as zero.
        there = torch.tensor([float(p.grad is not None) for p in self.params]).to(grads[0])
        flat = torch.cat([*(g.reshape(-1) for g in grads), there])
        flat[: -len(there)] *= self.share / self._company.size
        self._company.wait(self._company.all_reduce(flat), f"step {self.steps}")
        *means, there = torch.split(flat, [*(p.numel() for p in self.params), len(there)])
        for p, mean, ranks in zip(self.params, means, there.tolist(), strict=True):
            p.grad = mean.view_as(p) if ranks else None

    def begin(self, loss_weight: float) -> None:
        self.share = loss_weight

    def finish(self) -> None: ...

    def evaluation_weights(self) -> AbstractContextManager[None]:
        return nullcontext()

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]


@dataclass
class ConsensusMeeting:
    """Meetings of a :class:`badm.Consensus`; judged by the global point of the last of them."""

    consensus: Consensus

    def begin(self, loss_weight: float) -> None: ...

    def finish(self) -> None:
        self.consensus.meet()

    def evaluation_weights(self) -> AbstractContextManager[None]:
        return self.consensus.at_global_point()

    def state_dict(self) -> dict[str, Any]:
        return self.consensus.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.consensus.load_state_dict(state)


class DiLoCo(Consensus):
    """Consensus with the outer step of DiLoCo: SGD with Nesterov momentum ``beta``.

    ``m`` is the mean of its momentum buffer ``b``, that is ``b = m/(1 − β)``.
    """

    def outer_step(self, g: Tensor) -> None:
        self.m.lerp_(g, 1 - self.beta)  # b⁺ = βb + ḡ
        nesterov = g + self.beta / (1 - self.beta) * self.m
        self.w.sub_(nesterov, alpha=self.lr)  # w⁺ = w − lr(ḡ + βb⁺)


class PostLocalSGD:
    """Post-local SGD (Lin et al. 2018): step by step at first, then means of the local points."""

    def __init__(
        self, inner: Optimizer, problem: TrainingSetup, every: int, warm_up: float
    ) -> None:
        self.before = EveryStep(inner, problem, last=round(warm_up * problem.steps))
        self.after = _consensus_meeting(Consensus)(inner, problem, every)

    def begin(self, loss_weight: float) -> None:
        self.before.begin(loss_weight)

    def finish(self) -> None:
        self.after.finish()

    def evaluation_weights(self) -> AbstractContextManager[None]:
        return self.after.evaluation_weights()

    def state_dict(self) -> dict[str, Any]:
        return {"before": self.before.state_dict(), "after": self.after.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.before.load_state_dict(state["before"])
        self.after.load_state_dict(state["after"])


def _consensus_meeting(kind: type[Consensus], **options: Any) -> Callable[..., ConsensusMeeting]:
    """Meetings of a kind; unless told otherwise their outcome is the mean of the local points."""

    def meet(
        inner: Optimizer,
        problem: TrainingSetup,
        every: int,
        outer_lr: float = 1.0,
        memory: float = 0.5,  # BADM has none then
        **more: Any,
    ) -> ConsensusMeeting:
        consensus = kind(
            trainable_parameters(problem.module),
            inner,
            every=every,
            lr=outer_lr,
            beta=memory,
            weight=problem.weight,
            buffers=problem.module.buffers(),
            **options,
            **more,
        )
        return ConsensusMeeting(consensus)

    return meet


@dataclass(frozen=True)
class Mode:
    """A way to meet: ``meet(optimizer, problem, **setting)`` with settings of its own."""

    description: str
    meet: Callable[..., Meeting]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    space: Space = field(default_factory=dict)
    version: int = 1  # to be raised by whatever changes the results of this mode


_EVERY = {"every": 20}
_OUTER: Mapping[str, Any] = {**_EVERY, "outer_lr": 2.0, "memory": 0.8}
# A decade each: that of DiLoCo is of a step which is 1/(1 − memory) times as long.
_OUTER_SPACE: Space = {"outer_lr": Range(0.5, 5.0)}

MODES: dict[str, Mode] = {
    "step": Mode("the mean of the gradients at every step, as DDP", EveryStep),
    "average": Mode("the mean of the local points", _consensus_meeting(Consensus), _EVERY),
    "post-local": Mode(
        "step by step at first, then as average", PostLocalSGD, {**_EVERY, "warm_up": 0.1}
    ),
    "diloco": Mode(
        "a Nesterov step with the mean of their displacements",
        _consensus_meeting(DiLoCo),
        {**_EVERY, "outer_lr": 0.7, "memory": 0.9},
        {"outer_lr": Range(0.1, 1.0)},
    ),
    "outer": Mode(
        "a BADM step with the mean of their displacements",
        _consensus_meeting(Consensus),
        _OUTER,
        _OUTER_SPACE,
    ),
    "dual": Mode(
        "as outer, with gradients corrected for what is particular to a rank's data",
        _consensus_meeting(Consensus, mode="dual"),
        {**_OUTER, "eta": 0.2},
        _OUTER_SPACE,
    ),
}

# Of every mode. "even": each rank has a part of each batch; "labels": the samples of some labels.
_RANKS: Mapping[str, Any] = {"ranks": 4, "shards": "even"}
_LIMITS: Space = {
    "ranks": Range(1, 1024),  # processes, on one machine
    "shards": Choice(("even", "labels")),
    "outer_lr": LEARNING_RATE,
    "warm_up": Range(0.0, 1.0),
}


def replicated(inner: Method, mode: str) -> Method:
    """The method of replicas that train with ``inner`` and meet in one of the ``MODES``.

    >>> from badm.bench.methods import find
    >>> method = find("adam+average")
    >>> method.setting({"lr": 0.01})["every"], list(method.space)
    (20, ['lr'])
    """
    how = MODES[mode]

    def build(problem: TrainingSetup, setting: Setting) -> Trainer:
        own = {name: setting[name] for name in inner.defaults}
        trainer = inner.build(problem, own)
        optimizer = trainer.optimizer if isinstance(trainer, OptimizerTrainer) else None
        if not isinstance(optimizer, Optimizer):
            raise CannotTrain(f"{inner.name} is not one optimizer whose steps replicas could count")
        meeting = how.meet(optimizer, problem, **{name: setting[name] for name in how.defaults})
        return ReplicaTrainer(trainer, meeting, problem.steps)

    return Method(
        f"{inner.name}{MODE_SEPARATOR}{mode}",
        f"{inner.name} on several ranks; {how.description}",
        "replicas",
        build,
        {**inner.defaults, **_RANKS, **how.defaults},
        {**inner.space, **how.space},
        inner.paper,
        {**inner.limits, **_LIMITS},
        version=f"{inner.version}{MODE_SEPARATOR}{how.version}",
        package=inner.package,
    )


@dataclass
class ReplicaTrainer:
    """The trainer of one rank."""

    inner: Trainer
    meeting: Meeting
    last: int  # the step after which all ranks meet whatever the number
    steps: int = 0

    def step(self, batch: StepBatch) -> float:
        self.meeting.begin(batch.loss_weight)
        loss = self.inner.step(batch)
        self.steps += 1
        if self.steps == self.last:
            self.meeting.finish()
        return loss

    def evaluation_weights(self) -> AbstractContextManager[None]:
        return self.meeting.evaluation_weights()

    def state_dict(self) -> dict[str, Any]:
        inner, meeting = self.inner.state_dict(), self.meeting.state_dict()
        return {"inner": inner, "meeting": meeting, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state["inner"])
        self.meeting.load_state_dict(state["meeting"])
        self.steps = state["steps"]
