"""Train the model of a task with a method: the only place where the two meet.

The trajectory is written as it is measured, with a checkpoint from time to time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from badm.bench.engine import seeds
from badm.bench.engine.batches import BatchSampler
from badm.bench.engine.environment import (
    environment,
    peak_memory,
    reset_peak_memory,
    synchronize,
)
from badm.bench.engine.evaluation import Evaluator
from badm.bench.engine.journal import BadCheckpoint, RankJournal, RunJournal
from badm.bench.engine.options import Machine, RunOptions
from badm.bench.engine.ranks import SINGLE_PROCESS, Ranks
from badm.bench.engine.schedules import lr_factor
from badm.bench.engine.step_batch import TaskStepBatch
from badm.bench.engine.task_data import (
    load_splits,
    model_of,
    move_splits,
    players_of,
    samples_of,
    task_facts,
)
from badm.bench.engine.tensors import digest, tensor_bytes
from badm.bench.errors import MethodError, StoreError, TaskError
from badm.bench.files import load_tensors, save_tensors
from badm.bench.formatting import type_name
from badm.bench.method import CannotTrain, Method, Trainer, TrainingSetup
from badm.bench.records import schema
from badm.bench.records.runs import RunConfig, RunResult, RunStatus, RunStore, TrajectoryPoint
from badm.bench.records.schema import Amount, Count, Measured
from badm.bench.task import Player, Task, to_device
from badm.bench.tasks.data_identity import identity
from badm.bench.tasks.error_context import method_errors, task_errors

LOSS_POINTS = 200  # about how many points of the training loss a trajectory has


class Interrupted(Exception):
    """The run was asked to stop and has written a checkpoint."""


@dataclass
class TrainingState:
    """What a checkpoint holds beside the weights of model and trainers."""

    step: Count = 0
    seconds: Amount = 0.0
    gradients: list[Amount] = field(default_factory=list)  # by player
    loss_sums: list[Measured] = field(default_factory=list)  # since the last point
    loss_steps: Count = 0
    best: dict[str, Measured] | None = None  # metrics of the weights that are kept
    last: dict[str, Measured] | None = None  # of the last evaluation
    peak_bytes: Count = 0


class Training:
    """Everything that a run holds while it trains.

    Each rank has its own, with its own part of the data. The first rank evaluates the model and
    writes the files; all ranks agree on whatever decides how the run continues.
    """

    def __init__(
        self,
        config: RunConfig,
        task: Task,
        method: Method,
        store: RunStore,
        machine: Machine,
        options: RunOptions,
        ranks: Ranks = SINGLE_PROCESS,
    ) -> None:
        self.config, self.task, self.store = config, task, store
        self.machine, self.options, self.ranks = machine, options, ranks
        self.journal = (
            RunJournal(config, store) if ranks.is_first else RankJournal(config, store, ranks.rank)
        )
        device = machine.device
        reset_peak_memory(device)

        splits = load_splits(task)
        if config.data and identity(task) != config.data:
            raise TaskError(f"task {task.name}: its data files have changed since it was planned")
        seeds.seed_everything(config.seed, seeds.MODEL)
        # Made on the CPU, so that the first weights are the same on every device.
        self.model = model_of(task, splits).to(device)
        self.splits = move_splits(splits, device)
        players = players_of(task, self.model)
        self.samples = samples_of(task, self.splits)
        self.sampler = self._make_sampler()
        self.evaluator = Evaluator(task, self.model, self.splits, config.seed)
        self.step_batches = [
            TaskStepBatch(task, self.model, player, config.clip_norm) for player in players
        ]
        self.trainers: list[Trainer] = []
        self.cannot_start: tuple[RunStatus, str] | None = None
        self._load_pretrained()
        try:
            with method_errors():
                self.trainers = [
                    method.build(self._setup(player), dict(config.setting)) for player in players
                ]
        except CannotTrain as error:
            self.cannot_start = "cannot", str(error)
        except MethodError as error:
            self.cannot_start = "failed", str(error)
        self.cannot_start = next(filter(None, ranks.all_gather(self.cannot_start)), None)
        self.state = TrainingState(gradients=[0.0] * len(players), loss_sums=[0.0] * len(players))
        self.kept: dict[str, Tensor] = {}
        self.evaluate_every = config.evaluate_every or task.evaluate_every
        # Ranks wait for each other no more often than they must, and write nothing in between.
        self.sync_every = 1 if ranks.size == 1 else self.evaluate_every
        self.log_every = (
            max(1, config.steps // LOSS_POINTS) if ranks.size == 1 else self.evaluate_every
        )
        self.artifacts_at = {max(1, round(part * config.steps)) for part in task.artifacts_at}

    def _setup(self, player: Player) -> TrainingSetup:
        def supervised() -> tuple[Tensor, Tensor] | None:
            with task_errors(self.task, "supervised"):
                pair = self.task.supervised(self.splits.train)
            moved: tuple[Tensor, Tensor] | None = to_device(pair, self.machine.device)
            return moved

        return TrainingSetup(
            player.module,
            self.config.steps,
            self.sampler.num_batches,
            supervised,
            partial(self.evaluator.calibrate, player),
            self.sampler.rank_samples,
        )

    def _make_sampler(self) -> BatchSampler:
        labels = None
        if self.config.setting.get("shards") == "labels":
            with task_errors(self.task, "sample_labels"):
                labels = self.task.sample_labels(self.splits.train)
            if labels is None:
                raise TaskError(f"task {self.task.name} has no labels to divide its samples by")
        return BatchSampler(
            self.samples,
            self.task.batch_size,
            self.task.order,
            self.config.seed,
            self.ranks,
            to_device(labels, "cpu"),
        )

    def _load_pretrained(self) -> None:
        """Start from the weights of the previous stage."""
        previous = self.config.after
        if previous is None:
            return
        path, earlier = self.store.weights(previous), self.store.read(previous)
        if not path.exists():
            result = earlier.result if earlier else None
            how = f"{result.status}: {result.message}" if result else "left no weights"
            self.cannot_start = "failed", f"{previous.task}, the previous stage, {how}"
            return
        try:
            weights = load_tensors(path, self.machine.device)
        except Exception as error:  # whatever a damaged file makes torch.load raise
            renamed = self.store.quarantine(path)
            raise StoreError(
                f"{path} is damaged and was renamed to {renamed.name}; "
                "run the same command to make it again"
            ) from error
        with task_errors(self.task, "load_pretrained"), torch.no_grad():
            self.task.load_pretrained(self.model, weights)

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *_: object) -> None:
        self.journal.close()

    def run(self) -> None:
        """Train from the checkpoint, or from the beginning, to the result."""
        with self.options.hold():
            self._run()

    def _run(self) -> None:
        resumed = not self.cannot_start and self._resume()
        if not resumed:
            facts = task_facts(self.task, self.splits)
            self.journal.begin(environment(self.machine.device), facts)
        try:
            self._end(*(self.cannot_start or self._train(resumed)))
        except MethodError as error:  # a comparison continues without it
            self._end("failed", str(error))

    def _train(self, resumed: bool) -> tuple[RunStatus, str]:
        """Take the steps that are left, and return how the run ended."""
        if not resumed and not self.ranks.all(self._evaluate()):
            return "diverged", "the score is not finite before the first step"
        saved, problem = time.monotonic(), ""
        while self.state.step < self.config.steps:
            if self._is_sync_step and self.ranks.any(self.options.should_stop()):
                self._checkpoint()
                raise Interrupted
            found = self._try_step()
            problem = problem or found
            if not self._is_sync_step:
                continue
            problem = next(filter(None, self.ranks.all_gather(problem)), "")
            if problem:
                return "diverged", problem
            if not self.ranks.all(self._record()):
                return "diverged", f"no finite score at step {self.state.step}"
            if self.ranks.from_first(time.monotonic() - saved >= self.options.checkpoint_seconds):
                self._checkpoint()
                saved = time.monotonic()
        return "finished", self._warning()

    @property
    def _is_sync_step(self) -> bool:
        """Whether ranks wait for each other at this step; every step of a single process is."""
        return self._is_due(self.sync_every)

    def _try_step(self) -> str:
        """Take a step, and return what is wrong after it, or nothing."""
        try:
            losses = self._step()
        except TaskError:
            if self.evaluator.weights_are_finite():
                raise
            return f"the weights are not finite at step {self.state.step}"
        self.options.on_step(self.state.step, losses[0])
        wrong = [loss for loss in losses if not math.isfinite(loss)]
        return f"the loss is {wrong[0]} at step {self.state.step}" if wrong else ""

    def _warning(self) -> str:
        if self.state.last is None:  # a rank that evaluates nothing
            return ""
        with task_errors(self.task, "warning"):
            warning = self.task.warning(self.state.last)
        if not isinstance(warning, str):
            raise TaskError(
                f"task {self.task.name}: warning must return a string, got {type_name(warning)}"
            )
        return warning

    def _step(self) -> list[float]:
        """Let every player take a step, and return their losses."""
        k = self.state.step = self.state.step + 1
        config = self.config
        factor = lr_factor(config.schedule, config.warmup, k, config.steps)
        device = self.machine.device
        synchronize(device)
        began = time.perf_counter()
        indices, loss_weight = self.sampler.at_step(k)
        if self.task.reduction == "sum" and loss_weight:  # the mean over ranks is then the sum
            loss_weight = float(self.ranks.size)
        self.model.train()
        losses = []
        for number, (trainer, step_batch) in enumerate(
            zip(self.trainers, self.step_batches, strict=True)
        ):
            seeds.seed_everything(self.config.seed, seeds.STEP, k, number, self.ranks.rank)
            with task_errors(self.task, "batch"):
                batch = self.task.batch(self.splits.train, indices)
            if device != "cpu":
                batch = to_device(batch, device)
            step_batch.begin(batch, len(indices), factor, loss_weight)
            with method_errors():
                losses.append(trainer.step(step_batch))
            self.state.gradients[number] = step_batch.gradients
        with task_errors(self.task, "after_step"), torch.no_grad():
            self.task.after_step(self.model)
        synchronize(device)
        self.state.seconds += time.perf_counter() - began
        for number, loss in enumerate(losses):
            self.state.loss_sums[number] += loss
        self.state.loss_steps += 1
        return losses

    def _record(self) -> bool:
        """Write what is due after a step; false if there is no finite score."""
        state = self.state
        if self._is_due(self.log_every):
            names = [step_batch.player.name for step_batch in self.step_batches]
            means = self.ranks.mean([total / state.loss_steps for total in state.loss_sums])
            self.journal.write(
                TrajectoryPoint(*self._progress(), losses=dict(zip(names, means, strict=True)))
            )
            state.loss_sums, state.loss_steps = [0.0] * len(means), 0
        if self._is_due(self.evaluate_every) and not self._evaluate():
            return False
        if state.step in self.artifacts_at and self.ranks.is_first:
            with self.evaluator.evaluation_mode(self.trainers):
                artifacts = self.evaluator.artifacts()
            if artifacts:
                files = self.journal.save_artifacts(state.step, artifacts)
                self.journal.write(TrajectoryPoint(*self._progress(), exhibits=files))
        return True

    def _is_due(self, every: int) -> bool:
        return self.state.step % every == 0 or self.state.step == self.config.steps

    def _progress(self) -> tuple[int, float, float]:
        # Fractions of gradients, such as sixths, do not add up to whole ones exactly.
        gradients = round(sum(self.state.gradients), 6)
        return self.state.step, round(self.state.seconds, 6), gradients

    def _evaluate(self) -> bool:
        """Evaluate on the validation split, and keep the weights if they are the best so far.

        False if the score is not finite.
        """
        if not self.ranks.is_first:
            return True
        if not self.evaluator.weights_are_finite():
            return False
        score = self.task.score
        with self.evaluator.evaluation_mode(self.trainers):
            metrics = self.evaluator.metrics(self.splits.validation)
            value = metrics[score.name]
            if not math.isfinite(value):
                return False
            self.state.last = metrics
            best = self.state.best
            if best is None or self.task.keep == "last" or score.is_better(value, best[score.name]):
                self.state.best = metrics
                self.kept = {name: t.clone() for name, t in self.model.state_dict().items()}
        self.journal.write(TrajectoryPoint(*self._progress(), validation=metrics))
        return True

    def _peak_memory(self) -> int:
        return peak_memory(self.machine.device) or 0

    def _checkpoint(self) -> None:
        self.state.peak_bytes = max(self.state.peak_bytes, self._peak_memory())
        with method_errors():
            trainers = [trainer.state_dict() for trainer in self.trainers]
        content = {
            "state": asdict(self.state),
            "model": self.model.state_dict(),
            "trainers": trainers,
            "kept": self.kept,
        }
        # The first rank's file makes a checkpoint valid: it is written after those of all others,
        # and their previous ones are kept until it is.
        if not self.ranks.is_first:
            self.journal.checkpoint(content)
        self.ranks.barrier()
        if self.ranks.is_first:
            self.journal.checkpoint(content)
        self.ranks.barrier()
        self.journal.prune(self.state.step)

    def _resume(self) -> bool:
        """Load the checkpoint, if there is one: all ranks the same one, or none of them any."""
        resumed, bad = False, None
        try:
            resumed = self.ranks.is_first and self.journal.resume(self._restore)
        except BadCheckpoint as error:
            bad = error
        step = self.ranks.from_first(self.state.step if resumed else 0)
        try:
            if step and not self.ranks.is_first:
                resumed = self.journal.resume(self._restore, step)
        except BadCheckpoint as error:
            bad = error
        if self.ranks.any(bad is not None):
            self.journal.discard_checkpoint()
            raise BadCheckpoint from bad
        return resumed

    def _restore(self, saved: Mapping[str, Any]) -> None:
        self.state, self.kept = schema.build(TrainingState, saved["state"]), saved["kept"]
        if self.state.step > self.config.steps:
            raise ValueError(f"step {self.state.step} of {self.config.steps}")
        if len(self.state.loss_sums) != len(self.step_batches):
            raise ValueError("the state is of other players")
        if self.ranks.is_first:  # the weights that the run may end with must fit as well
            self.model.load_state_dict(self.kept)
        self.model.load_state_dict(saved["model"])
        for trainer, trainer_state in zip(self.trainers, saved["trainers"], strict=True):
            with method_errors():
                trainer.load_state_dict(trainer_state)
        for step_batch, gradients in zip(self.step_batches, self.state.gradients, strict=True):
            step_batch.gradients = gradients

    def _end(self, status: RunStatus, message: str = "") -> None:
        """Evaluate on the test split if the run asks for it, and write the result."""
        if not self.ranks.is_first:
            return self.journal.prune(None)
        state, metrics, state_bytes = self.state, None, None
        weights = digest(self.model.state_dict())
        if status == "finished":
            self.model.load_state_dict(self.kept)
            if self.config.test:
                with self.evaluator.evaluation_mode([]):
                    metrics = self.evaluator.metrics(self.splits.test)
                if not math.isfinite(metrics[self.task.score.name]):
                    status, message = "diverged", "no finite score on the test split"
            if self.options.keep_weights:
                save_tensors(self.store.weights(self.config), self.kept)
        if status != "failed":  # a method that failed may fail again
            with method_errors():
                state_bytes = sum(tensor_bytes(trainer.state_dict()) for trainer in self.trainers)
        step, seconds, gradients = self._progress()
        self.journal.end(
            RunResult(
                status,
                step,
                message,
                score=state.best[self.task.score.name] if state.best else None,
                validation=state.best,
                test=metrics,
                seconds=seconds,
                gradients=gradients,
                weights=weights,
                kept=digest(self.kept),
                peak_bytes=max(state.peak_bytes, self._peak_memory()) or None,
                state_bytes=state_bytes,
            )
        )
