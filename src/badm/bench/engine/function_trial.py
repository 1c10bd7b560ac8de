"""The trial that a training function is given: see ``badm.bench.Trial``.

It counts the steps of its optimizers, writes what is reported and ends the function where the run
ends. Nothing here calls the function; ``function_run.py`` does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from reprlib import repr as short
from typing import Any

import torch
from torch import Tensor, nn

from badm.bench.engine import callbacks, random_state
from badm.bench.engine.environment import peak_memory, synchronize
from badm.bench.engine.journal import BadCheckpoint, RunJournal
from badm.bench.engine.method_optimizer import as_optimizer
from badm.bench.engine.options import Machine, RunOptions
from badm.bench.engine.schedules import lr_factor
from badm.bench.engine.tensors import tensor_bytes
from badm.bench.engine.training import Interrupted
from badm.bench.errors import TaskError
from badm.bench.formatting import type_name
from badm.bench.method import CannotTrain, Method, Trainer, TrainingSetup, trainable_parameters
from badm.bench.records.runs import NAN, RunConfig, RunStatus, TrajectoryPoint
from badm.bench.records.schema import Amount, Count, Measured
from badm.bench.tasks.error_context import method_errors
from badm.bench.training_function import TrainingFunction

TRAIN_LOSS = "train_loss"  # the metric that is shown as the training loss


class Left(BaseException):
    """Raised through a training function to end it; no ``except Exception`` of its catches it.

    Attributes:
        status: How the run ended, or ``None`` if it did not.
        message: Why.
    """

    def __init__(self, status: RunStatus | None, message: str = "") -> None:
        super().__init__(message)
        self.status, self.message = status, message


def _no_calibration() -> None:
    raise CannotTrain(
        "it needs training batches to recompute BatchNorm's statistics, which a training function "
        "has and badm has not: write a badm.bench.Task for it"
    )


@dataclass
class TrialState:
    """What a checkpoint holds beside the objects of the function."""

    step: Count = 0
    seconds: Amount = 0.0
    reported: Count = 0  # at which step the score was last reported
    best: dict[str, Measured] | None = None  # metrics of the weights that are kept
    last: dict[str, Measured] | None = None
    peak_bytes: Count = 0


class FunctionTrial:
    """One call of a training function."""

    def __init__(
        self,
        function: TrainingFunction,
        config: RunConfig,
        method: Method,
        journal: RunJournal,
        machine: Machine,
        options: RunOptions,
        saved: Mapping[str, Any] | None,
    ) -> None:
        self.function, self.config, self.under_test = function, config, method
        self.journal, self.machine, self.options, self.saved = journal, machine, options, saved
        self.seed, self.steps, self.device = config.seed, config.steps, machine.device
        self.scale, self.method = function.scale, config.method
        self.setting: Mapping[str, Any] = dict(config.setting)
        self.state = TrialState()
        self.kept: list[dict[str, Tensor]] = []  # by model
        self.models: list[nn.Module] = []
        self.trainers: list[Trainer] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self.taken: list[int] = []  # steps, by optimizer
        self.schedulers: list[torch.optim.lr_scheduler.LambdaLR] = []
        self.objects: dict[str, Any] | None = None  # to be saved in checkpoints
        self.measure: Callable[[], Mapping[str, Any]] | None = None
        self.measured: dict[str, float] | None = None
        self.is_over = False  # whether the function goes on after the last step of the run
        self.swaps: bool | None = None  # whether the method evaluates other weights than it trains
        self.evaluated = False  # whether ``evaluation`` was entered since the last report
        self.began = time.perf_counter()
        self.not_training = 0.0  # seconds that this class took itself
        self.paused: float | None = None  # since when it is this class that takes time
        self.saved_at = time.monotonic()

    # What the function calls.

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        with self._own_time():
            if not self.optimizers:  # what came before was not training
                self._restart_clock()
            if not isinstance(model, nn.Module) or not trainable_parameters(model):
                raise self._error(
                    "trial.optimizer must be given a torch.nn.Module with parameters that require "
                    f"gradients, got {type_name(model)}"
                )
            setup = TrainingSetup(model, self.steps, calibrate=_no_calibration)
            with method_errors():
                trainer = self.under_test.build(setup, dict(self.setting))
            lr = self.setting.get("lr", 1.0)
            optimizer = as_optimizer(trainer, model, float(lr))
            number = len(self.optimizers)
            self.models.append(model)
            self.trainers.append(trainer)
            self.optimizers.append(optimizer)
            self.taken.append(0)
            optimizer.register_step_pre_hook(lambda *_: self._before_step(number))
            optimizer.register_step_post_hook(lambda *_: self._after_step(number))
            return optimizer

    def scheduler(self, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LambdaLR:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise self._error(
                "trial.scheduler must be given what trial.optimizer returned, "
                f"got {type_name(optimizer)}"
            )
        made = torch.optim.lr_scheduler.LambdaLR(optimizer, self._factor)
        self.schedulers.append(made)
        return made

    def report(self, step: int, **metrics: Any) -> None:
        with self._own_time():
            self._report(metrics)

    def test(self, measure: Callable[[], Mapping[str, Any]] | None = None, **metrics: Any) -> None:
        if (measure is None) == (not metrics) or not (measure is None or callable(measure)):
            raise self._error(
                "trial.test must be given a function that returns metrics, or metrics by name, "
                f"got {short(measure)} and {len(metrics)} metrics"
            )
        self.measure = measure
        self.measured = self._numbers("trial.test", metrics) if metrics else None
        if self.measured is not None:
            self._require_score("trial.test", self.measured)

    def checkpoint(self, **objects: Any) -> int:
        with self._own_time():
            for name, one in objects.items():
                if not (hasattr(one, "state_dict") and hasattr(one, "load_state_dict")):
                    raise self._error(
                        "trial.checkpoint must be given objects with state_dict and "
                        f"load_state_dict, got {type_name(one)} for {name}"
                    )
            self.objects = objects
            if self.saved is not None:
                self._restore(self.saved)
            return self.state.step

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        self.evaluated = True
        with ExitStack() as stack:
            for trainer in self.trainers:
                with method_errors():
                    stack.enter_context(trainer.evaluation_weights())
            yield
            with method_errors():
                stack.close()

    def trainer_callback(self) -> Any:
        return self._callback(callbacks.trainer_callback)

    def lightning_callback(self) -> Any:
        return self._callback(callbacks.lightning_callback)

    def _callback(self, make: Callable[[FunctionTrial], Any]) -> Any:
        try:
            return make(self)
        except ModuleNotFoundError as error:
            raise self._error(f"its callback needs the package {error.name}") from None

    # What happens at every step of the optimizer.

    def _before_step(self, number: int) -> None:
        if self.taken[number] >= self.steps:
            # The function goes on: what it does until its next report changes no weights.
            self.is_over = True
            for group in self.optimizers[number].param_groups:
                group["lr"] = 0.0
        elif self.config.clip_norm:
            parameters = trainable_parameters(self.models[number])
            nn.utils.clip_grad_norm_(parameters, self.config.clip_norm)

    def _after_step(self, number: int) -> None:
        if self.is_over:
            return
        self.taken[number] += 1
        self.state.step = max(self.taken)
        last = self.state.last or {}
        self.options.on_step(self.state.step, last.get("loss", NAN))
        if self.options.should_stop():
            raise Left(None, "interrupted") from Interrupted()

    def _factor(self, done: int) -> float:
        """The factor of the learning rate after so many steps of the scheduler."""
        if done >= self.steps:
            return 0.0
        return lr_factor(self.config.schedule, self.config.warmup, done + 1, self.steps)

    # What a report does.

    def _report(self, metrics: Mapping[str, Any]) -> None:
        if not self.optimizers:
            raise self._error("trial.report came before trial.optimizer(model) was called")
        numbers = self._numbers("trial.report", metrics)
        if not numbers:
            raise self._error("trial.report must be given metrics by name, got none")
        if numbers.keys() != {TRAIN_LOSS}:
            self._require_score("trial.report", numbers)
        if self.is_over and self.state.reported == self.steps:
            raise Left("finished")
        self._check_schedule()
        if not all(bool(p.isfinite().all()) for m in self.models for p in m.parameters()):
            raise Left("diverged", f"the weights are not finite at step {self.state.step}")
        for name in (self.function.score.name, "loss", TRAIN_LOSS):
            if not math.isfinite(numbers.get(name, 0.0)):
                raise Left("diverged", f"the {name} is {numbers[name]} at step {self.state.step}")
        self._write(numbers)
        if self.is_over:
            raise Left("finished")
        self._checkpoint_if_due()

    def _write(self, numbers: dict[str, float]) -> None:
        losses = {"model": numbers.pop(TRAIN_LOSS)} if TRAIN_LOSS in numbers else None
        if losses is not None:
            self.journal.write(TrajectoryPoint(*self.progress(), losses=losses))
        if not numbers:
            return
        if self.function.score.name in numbers:
            self._keep(numbers)
        self.journal.write(TrajectoryPoint(*self.progress(), validation=numbers))

    def _keep(self, metrics: dict[str, float]) -> None:
        """Keep the metrics, and the weights if they are to be measured on the test split."""
        score, best = self.function.score, self.state.best
        self._check_evaluation()
        self.state.reported, self.state.last = self.state.step, metrics
        if (
            best is None
            or self.function.keep == "last"
            or score.is_better(metrics[score.name], best[score.name])
        ):
            self.state.best = metrics
            if self.function.keep == "best":
                self.kept = self.evaluated_weights()
        self.evaluated = False

    def evaluated_weights(self) -> list[dict[str, Tensor]]:
        """The weights that the method evaluates, by model."""
        with self._swapped_in():
            return [
                {name: t.detach().clone() for name, t in model.state_dict().items()}
                for model in self.models
            ]

    @contextmanager
    def _swapped_in(self) -> Iterator[None]:
        was = self.evaluated
        with torch.no_grad(), self.evaluation():
            yield
        self.evaluated = was

    def _check_evaluation(self) -> None:
        """Refuse a score of weights that are not those that the method evaluates."""
        if self.swaps is None:
            before = [p.detach().clone() for m in self.models for p in m.parameters()]
            with self._swapped_in():
                after = [p.detach() for m in self.models for p in m.parameters()]
                self.swaps = any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
        if self.swaps and not self.evaluated:
            raise Left(
                "cannot",
                "it evaluates other weights than it trains: the function must evaluate "
                "within `with trial.evaluation():`",
            )

    def _check_schedule(self) -> None:
        """Refuse a function that does not follow the schedule that the comparison asks for."""
        if self.config.schedule == "constant" and not self.config.warmup:
            return
        asked = f"the comparison has the schedule {self.config.schedule}"
        if self.config.warmup:
            asked += f" with a warm-up of {self.config.warmup:g}"
        if not self.schedulers:
            raise self._error(f"{asked}: it must call trial.scheduler(optimizer)")
        stepped = max(scheduler.last_epoch for scheduler in self.schedulers)
        if 2 * stepped < self.state.step - 1:
            raise self._error(
                f"{asked}: scheduler.step() must follow every step of the optimizer, "
                f"and did {stepped} times in {self.state.step} steps"
            )

    def _numbers(self, where: str, metrics: Mapping[str, Any]) -> dict[str, float]:
        numbers = {}
        for name, value in metrics.items():
            try:
                if not isinstance(name, str) or isinstance(value, (str, bytes)):
                    raise TypeError
                numbers[name] = float(value)
            except (TypeError, ValueError, RuntimeError, OverflowError):
                raise self._error(
                    f"{where} must be given numbers by name, got {short(value)} for {short(name)}"
                ) from None
        return numbers

    def _require_score(self, where: str, numbers: Mapping[str, float]) -> None:
        name = self.function.score.name
        if name not in numbers:
            raise self._error(
                f"{where} must be given the score {name!r}, got {', '.join(numbers) or 'nothing'}"
            )

    def measure_test(self) -> dict[str, float] | None:
        """Measure the test split, with the weights that are kept; ``None`` if there is none."""
        if self.measure is None:
            return self.measured
        with torch.no_grad(), ExitStack() as stack:
            if self.function.keep == "best":
                for model, weights in zip(self.models, self.kept, strict=True):
                    model.load_state_dict(weights)
            else:
                stack.enter_context(self.evaluation())
            for model in self.models:
                model.eval()
            found = self.measure()
        if not isinstance(found, Mapping):
            raise self._error(
                "the function that trial.test was given must return metrics by name, "
                f"got {type_name(found)}"
            )
        # Trainers of others name them test_accuracy, beside what is no metric.
        known = {**found, **callbacks.without_prefix(found, "test_")}
        numbers = self._numbers("trial.test", known)
        self._require_score("trial.test", numbers)
        return numbers

    # Checkpoints.

    def _checkpoint_if_due(self) -> None:
        if self.objects is None:
            return
        if time.monotonic() - self.saved_at < self.options.checkpoint_seconds:
            return
        self.state.peak_bytes = max(self.state.peak_bytes, peak_memory(self.device) or 0)
        self.state.seconds = self.progress()[1]
        self.journal.checkpoint(
            {
                "state": asdict(self.state),
                "objects": {name: one.state_dict() for name, one in self.objects.items()},
                "random": random_state.state(self.device),
                "kept": self.kept,
            }
        )
        self._restart_clock()
        self.saved_at = time.monotonic()

    def _restore(self, saved: Mapping[str, Any]) -> None:
        assert self.objects is not None
        try:
            for name, one in self.objects.items():
                one.load_state_dict(saved["objects"][name])
            self.kept = list(saved["kept"])
            random_state.restore(saved["random"], self.device)
        except Exception as error:  # whatever a function that was called otherwise makes of it
            raise Left(None, "bad checkpoint") from BadCheckpoint(str(error))
        self.state = TrialState(**saved["state"])
        self.taken = [self.state.step] * len(self.taken)
        self._restart_clock()

    # Time.

    @contextmanager
    def _own_time(self) -> Iterator[None]:
        """Do not count what happens inside as training."""
        synchronize(self.device)
        self.paused = time.perf_counter()
        try:
            yield
        finally:
            self.not_training += time.perf_counter() - self.paused
            self.paused = None

    def _restart_clock(self) -> None:
        """Count seconds from now on, those before being in the state; the clock is paused."""
        self.began = self.paused = time.perf_counter()
        self.not_training = 0.0

    def progress(self) -> tuple[int, float, float]:
        """Steps, seconds and gradients so far; seconds include the function's own evaluations."""
        until = time.perf_counter() if self.paused is None else self.paused
        seconds = self.state.seconds + until - self.began - self.not_training
        return self.state.step, round(max(seconds, 0.0), 6), float(sum(self.taken))

    def state_bytes(self) -> int:
        """The memory that the method keeps between steps."""
        with method_errors():
            return sum(tensor_bytes(trainer.state_dict()) for trainer in self.trainers)

    def _error(self, message: str) -> TaskError:
        return TaskError(f"{self.function.name}: {message}")
