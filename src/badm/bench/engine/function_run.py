"""Do one run of a training function: call it with a trial, and write down how it ended.

The files are those of a run of a task. A run that was killed starts again, unless the function uses
``trial.checkpoint``. What the function prints is in a file beside that of the run.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from torch import Tensor

from badm.bench.engine import seeds
from badm.bench.engine.environment import environment, peak_memory, reset_peak_memory
from badm.bench.engine.function_trial import FunctionTrial, Left, TrialState
from badm.bench.engine.journal import BadCheckpoint, RunJournal
from badm.bench.engine.options import Machine, RunOptions
from badm.bench.engine.streams import output_to
from badm.bench.engine.tensors import digest
from badm.bench.engine.training import Interrupted
from badm.bench.errors import MethodError, TaskError, described, error_location
from badm.bench.files import save_tensors
from badm.bench.method import CannotTrain, Method
from badm.bench.records import schema
from badm.bench.records.runs import RunConfig, RunResult, RunStatus, RunStore
from badm.bench.tasks.data_identity import identity
from badm.bench.tasks.error_context import task_errors
from badm.bench.training_function import TrainingFunction
from badm.processes.signals import raised_by_signal

NO_TEST = (
    "The training function has no test split: its scores are those of the validation split, on "
    "which settings were chosen too."
)


class FunctionRun:
    """A run of a training function, with the methods that ``Training`` has."""

    def __init__(
        self,
        config: RunConfig,
        function: TrainingFunction,
        method: Method,
        store: RunStore,
        machine: Machine,
        options: RunOptions,
    ) -> None:
        self.config, self.function, self.method, self.store = config, function, method, store
        self.machine, self.options = machine, options
        self.journal = RunJournal(config, store)
        if config.data and identity(function) != config.data:
            raise TaskError(f"{function.name}: its data files have changed since it was planned")

    def __enter__(self) -> FunctionRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.journal.close()

    def run(self) -> None:
        """Call the function, from its checkpoint or from the beginning, and write the result."""
        with self.options.hold():
            reset_peak_memory(self.machine.device)
            saved: dict[str, Any] = {}
            resumed = self.journal.resume(lambda content: self._take(saved, content))
            if not resumed:
                self.journal.begin(environment(self.machine.device), facts(self.function))
            trial = FunctionTrial(
                self.function,
                self.config,
                self.method,
                self.journal,
                self.machine,
                self.options,
                saved if resumed else None,
            )
            log = self.store.path(self.config).with_suffix(".log")
            with output_to(log, "a" if resumed else "w"):
                self._end(trial, *self._call(trial))

    @staticmethod
    def _take(saved: dict[str, Any], content: Mapping[str, Any]) -> None:
        schema.build(TrialState, content["state"])
        saved.update(content)

    def _call(self, trial: FunctionTrial) -> tuple[RunStatus, str]:
        """Call the function, and return how the run ended."""
        seeds.seed_everything(self.config.seed, seeds.MODEL)
        try:
            self.function.function(trial)
        except Left as left:
            if left.status is None:
                self._leave(left)
            elif left.status != "finished":
                return left.status, left.message
        except (CannotTrain, MethodError) as error:
            return ("cannot" if isinstance(error, CannotTrain) else "failed"), str(error)
        except TaskError:
            raise
        except BaseException as error:  # sys.exit() too: it would end the command without a result
            if raised_by_signal(error):
                raise
            return self._blame(trial, error)
        return self._finished(trial)

    def _leave(self, left: Left) -> None:
        """Raise why the run has not ended: an interruption, or a checkpoint that is of no use."""
        if isinstance(left.__cause__, BadCheckpoint):
            self.journal.discard_checkpoint()
            raise left.__cause__
        raise Interrupted

    def _blame(self, trial: FunctionTrial, error: BaseException) -> tuple[RunStatus, str]:
        """Tell an error of the function from those of the method and of weights that blew up."""
        if _raised_in_step(error, trial):
            return "failed", f"{described(error)} ({error_location(error)})"
        weights = [p for model in trial.models for p in model.parameters()]
        if not all(bool(p.isfinite().all()) for p in weights):
            return "diverged", f"the weights are not finite at step {trial.state.step}"
        with task_errors(self.function, self.function.function.__name__):
            raise error

    def _finished(self, trial: FunctionTrial) -> tuple[RunStatus, str]:
        """Refuse a function that left out what a comparison needs; note one that ended early."""
        function, score = self.function, self.function.score.name
        if not trial.optimizers:
            raise TaskError(f"{function.name}: it must train with trial.optimizer(model)")
        if trial.state.best is None:
            raise TaskError(
                f"{function.name}: it never reported its score: it must call "
                f"trial.report(step, {score}=...) now and then"
            )
        if function.test and trial.measure is None and trial.measured is None:
            raise TaskError(
                f"{function.name}: it never called trial.test: give it a function that measures "
                f"the test split, trial.test(lambda: {{{score!r}: ...}}), before the training "
                "loop; or say test=False in @badm.bench.training to be compared by the "
                "validation score"
            )
        if trial.state.step < self.config.steps:
            return "finished", (
                f"it ended after {trial.state.step} of its {self.config.steps} steps"
            )
        return "finished", ""

    def _end(self, trial: FunctionTrial, status: RunStatus, message: str) -> None:
        """Measure the test split if the run asks for it, and write the result."""
        state, test, state_bytes = trial.state, None, None
        score = self.function.score.name
        step, seconds, gradients = trial.progress()
        last = digest(_together([model.state_dict() for model in trial.models]))
        if status == "finished":
            if self.function.keep == "last":
                trial.kept = trial.evaluated_weights()
            if self.config.test:
                seeds.seed_everything(self.config.seed, seeds.EVALUATE)
                with task_errors(self.function, "the measure of trial.test"):
                    test = trial.measure_test() if self.function.test else state.best
                if test is None or not math.isfinite(test[score]):
                    status, message = "diverged", "no finite score on the test split"
        if status != "failed" and trial.trainers:
            state_bytes = trial.state_bytes()
        kept = _together(trial.kept)
        if status == "finished" and self.options.keep_weights:
            save_tensors(self.store.weights(self.config), kept)
        self.journal.end(
            RunResult(
                status,
                step,
                message,
                score=state.best[score] if state.best else None,
                validation=state.best,
                test=test,
                seconds=seconds,
                gradients=gradients,
                weights=last,
                kept=digest(kept),
                peak_bytes=max(state.peak_bytes, peak_memory(self.machine.device) or 0) or None,
                state_bytes=state_bytes,
            )
        )


def facts(function: TrainingFunction) -> dict[str, Any]:
    """What reports say about the function, so that they need the run files only."""
    return {
        "description": function.description,
        "score": asdict(function.score),
        "keep": function.keep,
        "synthetic": False,
        "notes": [*function.notes, *([] if function.test else [NO_TEST])],
    }


def _together(weights: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The weights of several models, by the number of the model and their names; of one as is."""
    if len(weights) == 1:
        return dict(weights[0])
    return {f"{i}.{name}": t for i, one in enumerate(weights) for name, t in one.items()}


def _raised_in_step(error: BaseException, trial: FunctionTrial) -> bool:
    """Whether an error was raised by an optimizer, called by the function and not calling it."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    own = [i for i, frame in enumerate(frames) if frame.f_code.co_filename == trial.function.file]
    deeper = frames[own[-1] + 1 :] if own else frames
    known = {id(one) for one in trial.optimizers}
    return any(id(frame.f_locals.get("self")) in known for frame in deeper)
