"""Methods of several replicas: an optimizer on each rank, and a mode of communication.

``adam+outer`` is Adam on every rank and :class:`badm.Consensus` between them; ``MODES`` lists what
may follow the plus. Such a run has one process per rank.
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
    """What happens between replicas, from the step hooks of the optimizer."""

    def begin(self, loss_weight: float) -> None:
        """Set the weight of this rank's mean loss; called before every step."""

    def finish(self) -> None:
        """Give all ranks the same weights; called after the last step."""

    def evaluation_weights(self) -> AbstractContextManager[None]:
        """A context in which this rank has the weights that all ranks share."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class EveryStep:
    """Average the gradients at every step, as DDP does: the same as one process, up to rounding.

    If ``last`` is given, only in the first ``last`` steps.
    """

    def __init__(self, inner: Optimizer, setup: TrainingSetup, last: int | None = None) -> None:
        self.params, self.last, self.steps = trainable_parameters(setup.module), last, 0
        self.share = 1.0
        self._company = RankGroup()
        inner.register_step_pre_hook(lambda *_: self._before_inner_step())

    @torch.no_grad()
    def _before_inner_step(self) -> None:
        self.steps += 1
        if self.last is not None and self.steps > self.last:
            return
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.params]
        # After the gradients, flags whether there are any: no gradient is not the same as zero.
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
    """Meetings of a :class:`badm.Consensus`, evaluated at the global point of the last one."""

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
    """Post-local SGD (Lin et al. 2018): synchronous steps at first, then local SGD."""

    def __init__(self, inner: Optimizer, setup: TrainingSetup, every: int, warm_up: float) -> None:
        self.before = EveryStep(inner, setup, last=round(warm_up * setup.steps))
        self.after = _consensus_meeting(Consensus)(inner, setup, every)

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
    """Make meetings of a class; with the defaults, their result is the mean of the local points."""

    def meet(
        inner: Optimizer,
        setup: TrainingSetup,
        every: int,
        outer_lr: float = 1.0,
        memory: float = 0.5,  # at which BADM has no memory
        **more: Any,
    ) -> ConsensusMeeting:
        consensus = kind(
            trainable_parameters(setup.module),
            inner,
            every=every,
            lr=outer_lr,
            beta=memory,
            weight=setup.weight,
            buffers=setup.module.buffers(),
            **options,
            **more,
        )
        return ConsensusMeeting(consensus)

    return meet


@dataclass(frozen=True)
class Mode:
    """A mode of communication: ``meet(optimizer, setup, **setting)`` with its own settings."""

    description: str
    meet: Callable[..., Meeting]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    space: Space = field(default_factory=dict)
    version: int = 1  # raise it with anything that changes the results of this mode


_EVERY = {"every": 20}
_OUTER: Mapping[str, Any] = {**_EVERY, "outer_lr": 2.0, "memory": 0.8}
# A decade each; DiLoCo's step is 1/(1 − memory) times as long.
_OUTER_SPACE: Space = {"outer_lr": Range(0.5, 5.0)}

MODES: dict[str, Mode] = {
    "step": Mode("gradients averaged at every step, as DDP does", EveryStep),
    "average": Mode(
        "local points averaged at every meeting", _consensus_meeting(Consensus), _EVERY
    ),
    "post-local": Mode(
        "as step at first, then as average", PostLocalSGD, {**_EVERY, "warm_up": 0.1}
    ),
    "diloco": Mode(
        "a Nesterov step with the mean displacement of the ranks",
        _consensus_meeting(DiLoCo),
        {**_EVERY, "outer_lr": 0.7, "memory": 0.9},
        {"outer_lr": Range(0.1, 1.0)},
    ),
    "outer": Mode(
        "a BADM step with the mean displacement of the ranks",
        _consensus_meeting(Consensus),
        _OUTER,
        _OUTER_SPACE,
    ),
    "dual": Mode(
        "as outer, with gradients corrected for differences between the ranks' data",
        _consensus_meeting(Consensus, mode="dual"),
        {**_OUTER, "eta": 0.2},
        _OUTER_SPACE,
    ),
}

# Of every mode. "even": each rank gets a part of each batch; "labels": the samples of some labels.
_RANKS: Mapping[str, Any] = {"ranks": 4, "shards": "even"}
_LIMITS: Space = {
    "ranks": Range(1, 1024),  # processes, on one machine
    "shards": Choice(("even", "labels")),
    "outer_lr": LEARNING_RATE,
    "warm_up": Range(0.0, 1.0),
}


def replicated(inner: Method, mode: str) -> Method:
    """Make a method of replicas that train with ``inner`` and communicate in one of the ``MODES``.

    >>> from badm.bench.methods import find
    >>> method = find("adam+average")
    >>> method.setting({"lr": 0.01})["every"], list(method.space)
    (20, ['lr'])
    """
    how = MODES[mode]

    def build(setup: TrainingSetup, setting: Setting) -> Trainer:
        own = {name: setting[name] for name in inner.defaults}
        trainer = inner.build(setup, own)
        optimizer = trainer.optimizer if isinstance(trainer, OptimizerTrainer) else None
        if not isinstance(optimizer, Optimizer):
            raise CannotTrain(
                f"{inner.name} cannot train replicas: it is not one optimizer with step hooks"
            )
        meeting = how.meet(optimizer, setup, **{name: setting[name] for name in how.defaults})
        return ReplicaTrainer(trainer, meeting, setup.steps)

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
        wide_space=None if inner.wide_space is None else {**inner.wide_space, **how.space},
    )


@dataclass
class ReplicaTrainer:
    """The trainer of one rank."""

    inner: Trainer
    meeting: Meeting
    last: int  # the last step, after which all ranks meet in any case
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
