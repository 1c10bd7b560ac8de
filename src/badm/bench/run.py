"""One run: a method trains the model of a task. The only place where the two meet.

The result depends on the configuration alone. The trajectory is written while it is measured, a
checkpoint every so often; after a kill at any moment the same call goes on from the checkpoint and
ends with the same trajectory, weights and score, bit for bit.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from typing import IO, Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from badm.bench import seeds, store
from badm.bench.environment import environment, forget_peak_memory, peak_memory
from badm.bench.faults import TaskError, blame, place
from badm.bench.method import CannotTrain, Method, Problem, Trainer
from badm.bench.store import Config, Point, Result, Run, Store, StoreError
from badm.bench.task import Player, Splits, Task
from badm.bench.work import BatchWork

SCHEDULES: dict[str, Callable[[float], float]] = {  # of the part of all steps that is done
    "constant": lambda done: 1.0,
    "linear": lambda done: 1 - done,
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
}
LOSS_POINTS = 200  # of the training loss, in a trajectory
CALIBRATION_BATCHES = 50


class Interrupted(Exception):
    """The run was asked to stop and has written a checkpoint."""


class _MethodFailed(Exception):
    """The code of a method raised."""


class _BadCheckpoint(Exception):
    """There was a checkpoint that cannot be used; it is set aside."""


@dataclass(frozen=True)
class Options:
    """How a run is carried out; nothing here changes its result."""

    checkpoint_seconds: float = 20.0
    keep_weights: bool = False
    watch: Callable[[int, float], None] = lambda step, loss: None
    stop: Callable[[], bool] = lambda: False


def run(
    config: Config, task: Task, method: Method, folder: Store, options: Options | None = None
) -> Run:
    """Do the run, or what is left of it, or read it if it has been done.

    If another process is at it, wait for that one. A run whose method raised is tried again.
    """
    options = options or Options()
    try:
        with _held(config, folder, options):
            folder.clear(config)
            done = _done(config, folder, options)
            if done is not None:
                return done
            try:
                _train(config, task, method, folder, options)
            except _BadCheckpoint:
                _train(config, task, method, folder, options)
            ended = folder.read(config)
            assert ended is not None
            return ended
    except OSError as error:
        where = error.filename or folder.path(config)
        raise StoreError(f"cannot write {where}: {store.reason(error)}") from None


def _train(config: Config, task: Task, method: Method, folder: Store, options: Options) -> None:
    with _Training(config, task, method, folder, options) as training:
        training.go()


@contextmanager
def _held(config: Config, folder: Store, options: Options) -> Iterator[None]:
    """The run for this process alone, however long another one may be at it."""
    while True:
        with folder.lock(config, patience=0.2) as held:
            if held:
                yield
                return
        if options.stop():
            raise Interrupted


def _done(config: Config, folder: Store, options: Options) -> Run | None:
    """The run if there is nothing left to do."""
    try:
        found = folder.read(config)
    except StoreError:
        folder.set_aside(folder.path(config))
        return None
    if found is None or found.result is None or found.result.status == "failed":
        return None
    if options.keep_weights and not folder.weights(config).exists():
        return None if found.result.status == "finished" else found
    folder.checkpoint(config).unlink(missing_ok=True)
    return found


@dataclass
class _State:
    """What a checkpoint holds beside the weights of model and trainers."""

    step: int = 0
    seconds: float = 0.0
    written: int = 0  # bytes of the run file that belong to this state
    gradients: list[float] = field(default_factory=list)  # by player
    loss_sums: list[float] = field(default_factory=list)  # since the last point
    loss_steps: int = 0
    best: dict[str, float] | None = None  # figures of the weights that are kept
    peak_bytes: int = 0


class _Training:
    """Everything a run holds while it is at work."""

    def __init__(
        self, config: Config, task: Task, method: Method, folder: Store, options: Options
    ) -> None:
        self.config, self.task, self.folder, self.options = config, task, folder, options
        self.path, self.checkpoint_path = folder.path(config), folder.checkpoint(config)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.file: IO[bytes] | None = None
        forget_peak_memory()

        self.splits = splits_of(task)
        seeds.seed_everything(config.seed, seeds.MODEL)
        with blame(task, "model"):
            self.model = task.model(self.splits)
        with blame(task, "players"):
            players = task.players(self.model)
        with blame(task, "samples"):
            self.samples = task.samples(self.splits.train)
        if self.samples < 1:
            raise TaskError(f"task {task.name}: the training split has no samples")
        self.refused: tuple[store.Outcome, str] | None = None
        self._take_over()
        self.works = [BatchWork(task, self.model, player) for player in players]
        problems = [
            Problem(
                player.module,
                config.steps,
                math.ceil(self.samples / task.batch_size),
                self._supervised,
                partial(self._calibrate, player),
            )
            for player in players
        ]
        self.trainers: list[Trainer] = []
        try:
            with _method_at_work():
                self.trainers = [method.build(p, dict(config.setting)) for p in problems]
        except CannotTrain as error:
            self.refused = "cannot", str(error)
        except _MethodFailed as error:
            self.refused = "failed", str(error)
        self.state = _State(gradients=[0.0] * len(players), loss_sums=[0.0] * len(players))
        self.kept: dict[str, Tensor] = {}
        self.epoch, self.order = -1, torch.empty(0, dtype=torch.long)

        self.log_every = max(1, config.steps // LOSS_POINTS)
        self.exhibit_at = {max(1, round(part * config.steps)) for part in task.exhibit_at}

    def __enter__(self) -> _Training:
        return self

    def __exit__(self, *_: object) -> None:
        if self.file is not None:
            self.file.close()

    def go(self) -> None:
        """From the checkpoint, or the beginning, to the result."""
        resumed = self._resume()
        if not resumed:
            self._begin()
        if self.refused:
            return self._end(*self.refused)
        try:
            self._train(resumed)
        except _MethodFailed as error:  # the comparison goes on without it
            self._end("failed", str(error))

    def _train(self, resumed: bool) -> None:
        if not resumed and not self._evaluate():
            return self._end("diverged", "the score is not a number before the first step")
        saved = time.monotonic()
        while self.state.step < self.config.steps:
            if self.options.stop():
                self._checkpoint()
                raise Interrupted
            try:
                losses = self._step()
            except TaskError:
                if self._finite():
                    raise
                return self._end(
                    "diverged", f"weights that are no numbers at step {self.state.step}"
                )
            wrong = [loss for loss in losses if not math.isfinite(loss)]
            if wrong:
                return self._end("diverged", f"the loss is {wrong[0]} at step {self.state.step}")
            if not self._record():
                return self._end("diverged", f"no finite score at step {self.state.step}")
            self.options.watch(self.state.step, losses[0])
            if time.monotonic() - saved >= self.options.checkpoint_seconds:
                self._checkpoint()
                saved = time.monotonic()
        self._end("finished")

    def _step(self) -> list[float]:
        """One step of every player."""
        k = self.state.step = self.state.step + 1
        factor = SCHEDULES[self.config.schedule]((k - 1) / self.config.steps)
        began = time.perf_counter()
        indices = self._indices(k)
        self.model.train()
        losses = []
        for number, (trainer, work) in enumerate(zip(self.trainers, self.works, strict=True)):
            seeds.seed_everything(self.config.seed, seeds.STEP, k, number)
            with blame(self.task, "batch"):
                batch = self.task.batch(self.splits.train, indices)
            work.begin(batch, len(indices), factor)
            with _method_at_work():
                losses.append(trainer.step(work))
            self.state.gradients[number] = work.gradients
        with blame(self.task, "after_step"), torch.no_grad():
            self.task.after_step(self.model)
        self.state.seconds += time.perf_counter() - began
        for number, loss in enumerate(losses):
            self.state.loss_sums[number] += loss
        self.state.loss_steps += 1
        return losses

    def _indices(self, k: int) -> Tensor:
        """The samples of step k: the last batch of an epoch is what is left."""
        size = self.task.batch_size
        epoch, number = divmod(k - 1, math.ceil(self.samples / size))
        if epoch != self.epoch:
            self.epoch = epoch
            self.order = (
                seeds.order(self.samples, self.config.seed, epoch)
                if self.task.order == "shuffled"
                else torch.arange(self.samples)
            )
        return self.order[number * size : (number + 1) * size]

    def _record(self) -> bool:
        """Write what is due after a step; false if there is no finite score."""
        state = self.state
        if self._due(self.log_every):
            names = [work.player.name for work in self.works]
            means = [total / state.loss_steps for total in state.loss_sums]
            self._write(Point(*self._now(), losses=dict(zip(names, means, strict=True))))
            state.loss_sums, state.loss_steps = [0.0] * len(means), 0
        if self._due(self.task.evaluate_every) and not self._evaluate():
            return False
        if state.step in self.exhibit_at:
            self._exhibit()
        return True

    def _due(self, every: int) -> bool:
        return self.state.step % every == 0 or self.state.step == self.config.steps

    def _now(self) -> tuple[int, float, float]:
        # Sixths and tenths of gradients do not add up to whole ones exactly.
        gradients = round(sum(self.state.gradients), 6)
        return self.state.step, round(self.state.seconds, 6), gradients

    def _evaluate(self) -> bool:
        """Read the validation split and keep the weights if they are the best so far."""
        if not self._finite():
            return False
        score = self.task.score
        with self._judged():
            figures = self._figures(self.splits.validation)
            value = figures[score.name]
            if not math.isfinite(value):
                return False
            best = self.state.best
            if best is None or self.task.keep == "last" or score.better(value, best[score.name]):
                self.state.best = figures
                self.kept = {name: t.clone() for name, t in self.model.state_dict().items()}
        self._write(Point(*self._now(), validation=figures))
        return True

    def _finite(self) -> bool:
        return all(bool(p.isfinite().all()) for p in self.model.parameters())

    def _figures(self, split: Any) -> dict[str, float]:
        """What the task reports of a split, checked."""
        seeds.seed_everything(self.config.seed, seeds.EVALUATE)
        with blame(self.task, "evaluate"):
            figures = {name: float(x) for name, x in self.task.evaluate(self.model, split).items()}
        if self.task.score.name not in figures:
            raise TaskError(
                f"task {self.task.name}: evaluate must report its score "
                f"{self.task.score.name!r}, got {', '.join(figures) or 'nothing'}"
            )
        return figures

    def _supervised(self) -> tuple[Tensor, Tensor] | None:
        with blame(self.task, "supervised"):
            return self.task.supervised(self.splits.train)

    def _calibrate(self, player: Player) -> None:
        """Pass training batches through the model, always the same ones.

        Only BatchNorm of the player is to change: what else the model counts or averages as data
        pass through it, and what the other players do, stays as it is.
        """
        norms = [m for m in player.module.modules() if isinstance(m, _BatchNorm)]
        meant = {id(buffer) for norm in norms for buffer in norm.buffers()}
        others = [(b, b.clone()) for b in self.model.buffers() if id(b) not in meant]
        seeds.seed_everything(self.config.seed, seeds.EVALUATE)
        self.model.train()
        order = seeds.order(self.samples, self.config.seed, 0)
        size = self.task.batch_size
        with torch.no_grad(), blame(self.task, "loss"):
            for first in range(0, min(self.samples, CALIBRATION_BATCHES * size), size):
                batch = self.task.batch(self.splits.train, order[first : first + size])
                player.loss(self.model, batch)
            for buffer, before in others:
                buffer.copy_(before)

    @contextmanager
    def _judged(self) -> Iterator[None]:
        """The model as it is to be judged: evaluation mode, the weights the trainers stand by."""
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            for trainer in self.trainers:
                with _method_at_work():
                    stack.enter_context(trainer.evaluating())
            self.model.eval()
            yield
            self.model.train()

    def _exhibit(self) -> None:
        """Let the task show something, and keep it beside the run file."""
        with self._judged(), blame(self.task, "exhibits"):
            seeds.seed_everything(self.config.seed, seeds.EXHIBIT)
            shown = self.task.exhibits(self.model, self.splits)
        if not shown:
            return
        folder, files = self.folder.exhibits(self.config), {}
        folder.mkdir(exist_ok=True)
        for number, (title, content) in enumerate(shown.items()):
            text = isinstance(content, str)
            files[title] = f"{self.state.step}-{number}.{'txt' if text else 'png'}"
            store.write_atomically(
                folder / files[title], content.encode() if isinstance(content, str) else content
            )
        self._write(Point(*self._now(), exhibits=files))

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

    def _begin(self) -> None:
        # One that is still there belongs to a file that is not.
        self.checkpoint_path.unlink(missing_ok=True)
        first = store.header(self.config, environment(), facts(self.task, self.config, self.splits))
        store.write_atomically(self.path, first)
        self.file = self.path.open("r+b")
        self.file.seek(len(first))

    def _write(self, point: Point) -> None:
        assert self.file is not None
        self.file.write(store.line(asdict(point)))
        self.file.flush()

    def _sync(self) -> None:
        assert self.file is not None
        self.file.flush()
        os.fsync(self.file.fileno())

    def _checkpoint(self) -> None:
        self._sync()
        assert self.file is not None
        self.state.written = self.file.tell()
        self.state.peak_bytes = max(self.state.peak_bytes, peak_memory() or 0)
        with _method_at_work():
            trainers = [trainer.state_dict() for trainer in self.trainers]
        content = {
            "state": asdict(self.state),
            "model": self.model.state_dict(),
            "trainers": trainers,
            "kept": self.kept,
        }
        store.save_tensors(self.checkpoint_path, content)

    def _resume(self) -> bool:
        """Go back to the checkpoint, if there is a good one, and forget what came after it."""
        if self.refused or not self.checkpoint_path.exists() or not self.path.exists():
            return False
        try:
            saved = store.load_tensors(self.checkpoint_path)
            self.state, self.kept = _State(**saved["state"]), saved["kept"]
            if self.path.stat().st_size < self.state.written:
                raise ValueError("the run file is shorter than at the time of its checkpoint")
            self.model.load_state_dict(saved["model"])
            for trainer, trainer_state in zip(self.trainers, saved["trainers"], strict=True):
                trainer.load_state_dict(trainer_state)
            for work, gradients in zip(self.works, self.state.gradients, strict=True):
                work.gradients = gradients
        except Exception as error:  # whatever a damaged file makes torch.load raise
            self.folder.set_aside(self.checkpoint_path)
            raise _BadCheckpoint from error
        state = self.state
        self.file = self.path.open("r+b")
        self.file.truncate(state.written)
        self.file.seek(state.written)
        return True

    def _end(self, status: store.Outcome, message: str = "") -> None:
        """Read the test split if that is due, and write the result."""
        state, figures = self.state, None
        weights = digest(self.model.state_dict())
        if status == "finished":
            self.model.load_state_dict(self.kept)
            if self.config.test:
                with torch.no_grad():
                    self.model.eval()
                    figures = self._figures(self.splits.test)
            if self.options.keep_weights:
                store.save_tensors(self.folder.weights(self.config), self.kept)
        held = None
        if status != "failed":  # a method that has may do so again
            with _method_at_work():
                held = sum(tensor_bytes(trainer.state_dict()) for trainer in self.trainers)
        step, seconds, gradients = self._now()
        result = Result(
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
        assert self.file is not None
        self.file.write(store.line({"result": asdict(result)}))
        self._sync()
        self.checkpoint_path.unlink(missing_ok=True)


@lru_cache(maxsize=2)  # a stage and the one before
def splits_of(task: Task) -> Splits:
    """The data of a task, loaded once in a process."""
    seeds.seed_everything(0, seeds.DATA)
    with blame(task, "data"):
        splits = task.data()
    if not isinstance(splits, Splits):
        raise TaskError(f"task {task.name}: data must return Splits, got {type(splits).__name__}")
    return splits


def facts(task: Task, config: Config, splits: Splits) -> dict[str, Any]:
    """What a report says of the task, so that it needs the run files only."""
    return {
        "description": task.description,
        "score": asdict(task.score),
        "batch_size": task.batch_size,
        "sub_batch_size": task.sub_batch_size,
        "gradients": task.gradients,
        "reduction": task.reduction,
        "keep": task.keep,
        "synthetic": splits.synthetic,
        "notes": list(splits.notes),
    }


@contextmanager
def _method_at_work() -> Iterator[None]:
    """Tell what a method raises from the errors of a task, which it may call, and of the store."""
    try:
        yield
    except (TaskError, CannotTrain):
        raise
    except Exception as error:
        raise _MethodFailed(f"{type(error).__name__}: {error} ({place(error)})") from error


def digest(weights: Mapping[str, Tensor]) -> str:
    """Equal for weights that are equal bit for bit, and for no others.

    >>> digest({"w": torch.zeros(2)}) == digest({"w": torch.zeros(2)})
    True
    >>> digest({"w": torch.zeros(2)}) == digest({"w": -torch.zeros(2)})
    False
    """
    hashed = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        hashed.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        flat = tensor.detach().cpu().contiguous().flatten()
        hashed.update(flat.view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()


def tensor_bytes(nest: Any) -> int:
    """What the tensors in a nest take."""
    if isinstance(nest, Tensor):
        return nest.numel() * nest.element_size()
    if isinstance(nest, Mapping):
        return sum(map(tensor_bytes, nest.values()))
    if isinstance(nest, (list, tuple)):
        return sum(map(tensor_bytes, nest))
    return 0
