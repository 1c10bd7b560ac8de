"""A run at work: a method trains the model of a task. The only place where the two meet.

The trajectory is written while it is measured, a checkpoint every so often.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from badm.bench import schema, seeds, store
from badm.bench.data_files import identity
from badm.bench.dealing import Dealer
from badm.bench.environment import environment, forget_peak_memory, peak_memory
from badm.bench.faults import MethodFailed, TaskError, blame, method_at_work
from badm.bench.journal import BadCheckpoint, Journal, Shadow
from badm.bench.judge import Judge
from badm.bench.loading import facts, kind, model_of, players_of, samples_of, splits_of
from badm.bench.method import CannotTrain, Method, Problem, Trainer
from badm.bench.schema import Amount, Count, Measured
from badm.bench.store import Config, Outcome, Point, Result, Store, StoreError
from badm.bench.task import Player, Task
from badm.bench.team import ALONE, Team
from badm.bench.tensors import digest, tensor_bytes
from badm.bench.work import BatchWork

SCHEDULES: dict[str, Callable[[float], float]] = {  # of the part of all steps that is done
    "constant": lambda done: 1.0,
    "linear": lambda done: 1 - done,
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
}
LOSS_POINTS = 200  # of the training loss, in a trajectory


class Interrupted(Exception):
    """The run was asked to stop and has written a checkpoint."""


@dataclass(frozen=True)
class Options:
    """How a run is carried out; nothing here changes its result."""

    checkpoint_seconds: float = 20.0
    keep_weights: bool = False
    watch: Callable[[int, float], None] = lambda step, loss: None
    stop: Callable[[], bool] = lambda: False
    # Around all of a run that looks at `stop`: what would end it at once waits until it has.
    hold: Callable[[], AbstractContextManager[None]] = nullcontext


@dataclass
class State:
    """What a checkpoint holds beside the weights of model and trainers."""

    step: Count = 0
    seconds: Amount = 0.0
    gradients: list[Amount] = field(default_factory=list)  # by player
    loss_sums: list[Measured] = field(default_factory=list)  # since the last point
    loss_steps: Count = 0
    best: dict[str, Measured] | None = None  # figures of the weights that are kept
    last: dict[str, Measured] | None = None  # of the last reading
    peak_bytes: Count = 0


class Training:
    """Everything a run holds while it is at work.

    Each rank of a team has its own, with its own part of the data. The first judges the model and
    writes things down; whatever decides how the run goes on, all ranks decide together.
    """

    def __init__(
        self,
        config: Config,
        task: Task,
        method: Method,
        folder: Store,
        options: Options,
        team: Team = ALONE,
    ) -> None:
        self.config, self.task, self.folder, self.options = config, task, folder, options
        self.team = team
        self.journal = Journal(config, folder) if team.leads else Shadow(config, folder, team.rank)
        forget_peak_memory()

        self.splits = splits_of(task)
        if config.data and identity(task) != config.data:
            raise TaskError(f"task {task.name}: its data files have been changed meanwhile")
        seeds.seed_everything(config.seed, seeds.MODEL)
        self.model = model_of(task, self.splits)
        players = players_of(task, self.model)
        self.samples = samples_of(task, self.splits)
        self.dealer = self._dealer()
        self.judge = Judge(task, self.model, self.splits, config.seed)
        self.works = [BatchWork(task, self.model, player) for player in players]
        self.trainers: list[Trainer] = []
        self.refused: tuple[Outcome, str] | None = None
        self._take_over()
        try:
            with method_at_work():
                self.trainers = [
                    method.build(self._problem(player), dict(config.setting)) for player in players
                ]
        except CannotTrain as error:
            self.refused = "cannot", str(error)
        except MethodFailed as error:
            self.refused = "failed", str(error)
        self.refused = next(filter(None, team.every(self.refused)), None)
        self.state = State(gradients=[0.0] * len(players), loss_sums=[0.0] * len(players))
        self.kept: dict[str, Tensor] = {}
        # Ranks stop for each other no more often than they have to, and write nothing in between.
        self.together_every = 1 if team.size == 1 else task.evaluate_every
        self.log_every = (
            max(1, config.steps // LOSS_POINTS) if team.size == 1 else task.evaluate_every
        )
        self.exhibit_at = {max(1, round(part * config.steps)) for part in task.exhibit_at}

    def _problem(self, player: Player) -> Problem:
        def supervised() -> tuple[Tensor, Tensor] | None:
            with blame(self.task, "supervised"):
                return self.task.supervised(self.splits.train)

        return Problem(
            player.module,
            self.config.steps,
            self.dealer.batches,
            supervised,
            partial(self.judge.calibrate, player),
            self.dealer.own_samples,
        )

    def _dealer(self) -> Dealer:
        labels = None
        if self.config.setting.get("shards") == "labels":
            with blame(self.task, "labels_of"):
                labels = self.task.labels_of(self.splits.train)
            if labels is None:
                raise TaskError(f"task {self.task.name} has no labels to part its samples by")
        return Dealer(
            self.samples,
            self.task.batch_size,
            self.task.order,
            self.config.seed,
            self.team,
            labels,
        )

    def _take_over(self) -> None:
        """Start from the weights of the stage before."""
        before = self.config.after
        if before is None:
            return
        path, earlier = self.folder.weights(before), self.folder.read(before)
        if not path.exists():
            result = earlier.result if earlier else None
            how = f"{result.status}: {result.message}" if result else "left no weights"
            self.refused = "failed", f"{before.task}, the stage before, {how}"
            return
        try:
            weights = store.load_tensors(path)
        except Exception as error:  # whatever a damaged file makes torch.load raise
            aside = self.folder.set_aside(path)
            raise StoreError(
                f"{path}: damaged, now {aside.name}; the same command makes it anew"
            ) from error
        with blame(self.task, "start"), torch.no_grad():
            self.task.start(self.model, weights)

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *_: object) -> None:
        self.journal.close()

    def go(self) -> None:
        """From the checkpoint, or the beginning, to the result."""
        with self.options.hold():
            self._go()

    def _go(self) -> None:
        resumed = not self.refused and self._resume()
        if not resumed:
            self.journal.begin(environment(), facts(self.task, self.splits))
        try:
            self._end(*(self.refused or self._train(resumed)))
        except MethodFailed as error:  # the comparison goes on without it
            self._end("failed", str(error))

    def _train(self, resumed: bool) -> tuple[Outcome, str]:
        """All steps that are left; how it ended."""
        if not resumed and not self.team.all(self._evaluate()):
            return "diverged", "the score is not a number before the first step"
        saved, trouble = time.monotonic(), ""
        while self.state.step < self.config.steps:
            if self._together and self.team.any(self.options.stop()):
                self._checkpoint()
                raise Interrupted
            found = self._try_step()
            trouble = trouble or found
            if not self._together:
                continue
            trouble = next(filter(None, self.team.every(trouble)), "")
            if trouble:
                return "diverged", trouble
            if not self.team.all(self._record()):
                return "diverged", f"no finite score at step {self.state.step}"
            if self.team.first(time.monotonic() - saved >= self.options.checkpoint_seconds):
                self._checkpoint()
                saved = time.monotonic()
        return "finished", self._remark()

    @property
    def _together(self) -> bool:
        """Whether this is a step at which the ranks stop for each other; alone every step is."""
        return self._due(self.together_every)

    def _try_step(self) -> str:
        """A step; what is wrong after it, if anything is."""
        try:
            losses = self._step()
        except TaskError:
            if self.judge.finite():
                raise
            return f"weights that are no numbers at step {self.state.step}"
        self.options.watch(self.state.step, losses[0])
        wrong = [loss for loss in losses if not math.isfinite(loss)]
        return f"the loss is {wrong[0]} at step {self.state.step}" if wrong else ""

    def _remark(self) -> str:
        if self.state.last is None:  # a rank that judges nothing
            return ""
        with blame(self.task, "remark"):
            remark = self.task.remark(self.state.last)
        if not isinstance(remark, str):
            raise TaskError(f"task {self.task.name}: remark must return a text, got {kind(remark)}")
        return remark

    def _step(self) -> list[float]:
        """One step of every player; their losses."""
        k = self.state.step = self.state.step + 1
        factor = SCHEDULES[self.config.schedule]((k - 1) / self.config.steps)
        began = time.perf_counter()
        indices, share = self.dealer.at(k)
        if self.task.reduction == "sum" and share:  # of sums the ranks want the sum
            share = float(self.team.size)
        self.model.train()
        losses = []
        for number, (trainer, work) in enumerate(zip(self.trainers, self.works, strict=True)):
            seeds.seed_everything(self.config.seed, seeds.STEP, k, number, self.team.rank)
            with blame(self.task, "batch"):
                batch = self.task.batch(self.splits.train, indices)
            work.begin(batch, len(indices), factor, share)
            with method_at_work():
                losses.append(trainer.step(work))
            self.state.gradients[number] = work.gradients
        with blame(self.task, "after_step"), torch.no_grad():
            self.task.after_step(self.model)
        self.state.seconds += time.perf_counter() - began
        for number, loss in enumerate(losses):
            self.state.loss_sums[number] += loss
        self.state.loss_steps += 1
        return losses

    def _record(self) -> bool:
        """Write what is due after a step; false if there is no finite score."""
        state = self.state
        if self._due(self.log_every):
            names = [work.player.name for work in self.works]
            means = self.team.mean([total / state.loss_steps for total in state.loss_sums])
            self.journal.write(Point(*self._now(), losses=dict(zip(names, means, strict=True))))
            state.loss_sums, state.loss_steps = [0.0] * len(means), 0
        if self._due(self.task.evaluate_every) and not self._evaluate():
            return False
        if state.step in self.exhibit_at and self.team.leads:
            with self.judge.at(self.trainers):
                shown = self.judge.exhibits()
            if shown:
                files = self.journal.exhibit(state.step, shown)
                self.journal.write(Point(*self._now(), exhibits=files))
        return True

    def _due(self, every: int) -> bool:
        return self.state.step % every == 0 or self.state.step == self.config.steps

    def _now(self) -> tuple[int, float, float]:
        # Sixths and tenths of gradients do not add up to whole ones exactly.
        gradients = round(sum(self.state.gradients), 6)
        return self.state.step, round(self.state.seconds, 6), gradients

    def _evaluate(self) -> bool:
        """Read the validation split and keep the weights if they are the best so far."""
        if not self.team.leads:
            return True
        if not self.judge.finite():
            return False
        score = self.task.score
        with self.judge.at(self.trainers):
            figures = self.judge.figures(self.splits.validation)
            value = figures[score.name]
            if not math.isfinite(value):
                return False
            self.state.last = figures
            best = self.state.best
            if best is None or self.task.keep == "last" or score.better(value, best[score.name]):
                self.state.best = figures
                self.kept = {name: t.clone() for name, t in self.model.state_dict().items()}
        self.journal.write(Point(*self._now(), validation=figures))
        return True

    def _checkpoint(self) -> None:
        self.state.peak_bytes = max(self.state.peak_bytes, peak_memory() or 0)
        with method_at_work():
            trainers = [trainer.state_dict() for trainer in self.trainers]
        content = {
            "state": asdict(self.state),
            "model": self.model.state_dict(),
            "trainers": trainers,
            "kept": self.kept,
        }
        # That of the first rank makes it valid: it is written when those of all others are there,
        # and theirs from before are kept until it is.
        if not self.team.leads:
            self.journal.checkpoint(content)
        self.team.together()
        if self.team.leads:
            self.journal.checkpoint(content)
        self.team.together()
        self.journal.tidy(self.state.step)

    def _resume(self) -> bool:
        """Go back to the checkpoint, if there is one: all ranks to the same, or none to any."""
        resumed, bad = False, None
        try:
            resumed = self.team.leads and self.journal.resume(self._restore)
        except BadCheckpoint as error:
            bad = error
        step = self.team.first(self.state.step if resumed else 0)
        try:
            if step and not self.team.leads:
                resumed = self.journal.resume(self._restore, step)
        except BadCheckpoint as error:
            bad = error
        if self.team.any(bad is not None):
            self.journal.forget()
            raise BadCheckpoint from bad
        return resumed

    def _restore(self, saved: Mapping[str, Any]) -> None:
        self.state, self.kept = schema.build(State, saved["state"]), saved["kept"]
        if self.state.step > self.config.steps:
            raise ValueError(f"step {self.state.step} of {self.config.steps}")
        if len(self.state.loss_sums) != len(self.works):
            raise ValueError("the state is of other players")
        if self.team.leads:  # whatever the run ends with has to fit as well
            self.model.load_state_dict(self.kept)
        self.model.load_state_dict(saved["model"])
        for trainer, trainer_state in zip(self.trainers, saved["trainers"], strict=True):
            with method_at_work():
                trainer.load_state_dict(trainer_state)
        for work, gradients in zip(self.works, self.state.gradients, strict=True):
            work.gradients = gradients

    def _end(self, status: Outcome, message: str = "") -> None:
        """Read the test split if that is due, and write the result."""
        if not self.team.leads:
            return self.journal.tidy(None)
        state, figures, held = self.state, None, None
        weights = digest(self.model.state_dict())
        if status == "finished":
            self.model.load_state_dict(self.kept)
            if self.config.test:
                with self.judge.at([]):
                    figures = self.judge.figures(self.splits.test)
                if not math.isfinite(figures[self.task.score.name]):
                    status, message = "diverged", "no finite score on the test split"
            if self.options.keep_weights:
                store.save_tensors(self.folder.weights(self.config), self.kept)
        if status != "failed":  # a method that has may do so again
            with method_at_work():
                held = sum(tensor_bytes(trainer.state_dict()) for trainer in self.trainers)
        step, seconds, gradients = self._now()
        self.journal.end(
            Result(
                status,
                step,
                message,
                score=state.best[self.task.score.name] if state.best else None,
                validation=state.best,
                test=figures,
                seconds=seconds,
                gradients=gradients,
                weights=weights,
                kept=digest(self.kept),
                peak_bytes=max(state.peak_bytes, peak_memory() or 0) or None,
                state_bytes=held,
            )
        )
