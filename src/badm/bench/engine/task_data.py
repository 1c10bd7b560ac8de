"""Get data, model and players from a task, checked, and the facts that run files state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import lru_cache
from reprlib import repr as short
from typing import Any

from torch import Tensor, nn

from badm.bench.engine import seeds
from badm.bench.errors import TaskError
from badm.bench.formatting import type_name
from badm.bench.method import trainable_parameters
from badm.bench.task import Player, Splits, Task, to_device
from badm.bench.tasks.error_context import task_errors


@lru_cache(maxsize=2)  # a stage and the one before
def load_splits(task: Task) -> Splits:
    """Load the data of a task, once in a process."""
    seeds.seed_everything(0, seeds.DATA)
    with task_errors(task, "data"):
        splits = task.data()
    if not isinstance(splits, Splits):
        raise TaskError(f"task {task.name}: data must return Splits, got {type_name(splits)}")
    if not isinstance(splits.synthetic, bool):
        raise TaskError(
            f"task {task.name}: synthetic of its data must be True or False, "
            f"got {short(splits.synthetic)}"
        )
    notes = splits.notes
    if not isinstance(notes, (tuple, list)) or not all(isinstance(n, str) for n in notes):
        raise TaskError(f"task {task.name}: notes of its data must be strings, got {short(notes)}")
    return splits


def move_splits(splits: Splits, device: str) -> Splits:
    """Move the splits that are tensors, tuples, lists or dicts to a device.

    Those of a class of the task's own stay where they are: they may be larger than the device, or
    read their samples from files. Their batches are moved.
    """
    if device == "cpu":
        return splits

    def moved(split: Any) -> Any:
        is_nest = isinstance(split, (Tensor, Mapping, tuple, list))
        return to_device(split, device) if is_nest else split

    return replace(
        splits,
        train=moved(splits.train),
        validation=moved(splits.validation),
        test=moved(splits.test),
    )


def samples_of(task: Task, splits: Splits) -> int:
    """Return how many samples there are to train on; no split may be empty."""
    with task_errors(task, "samples"):
        samples = task.samples(splits.train)
    if isinstance(samples, bool) or not isinstance(samples, int):
        raise TaskError(f"task {task.name}: samples must return a whole number, got {samples!r}")
    empty = {
        "training": samples < 1,
        "validation": _is_empty(task, splits.validation),
        "test": _is_empty(task, splits.test),
    }
    for name in filter(empty.get, empty):
        raise TaskError(f"task {task.name}: the {name} split has no samples")
    return samples


def _is_empty(task: Task, split: Any) -> bool:
    """Whether a split has tensors but no samples; one that is not used may be anything."""
    if type(task).samples is not Task.samples:
        return False
    try:
        return task.samples(split) == 0
    except TypeError:
        return False


def model_of(task: Task, splits: Splits) -> nn.Module:
    """Make a new model, which must have something to train."""
    with task_errors(task, "model"):
        model = task.model(splits)
    if not isinstance(model, nn.Module):
        raise TaskError(
            f"task {task.name}: model must return a torch.nn.Module, got {type_name(model)}"
        )
    if not trainable_parameters(model):
        raise TaskError(f"task {task.name}: its model must have parameters that require gradients")
    return model


def players_of(task: Task, model: nn.Module) -> list[Player]:
    """Return the players, of which each must have something to train."""
    with task_errors(task, "players"):
        players = task.players(model)
    if not isinstance(players, (list, tuple)) or not players:
        raise TaskError(f"task {task.name}: players must return a list of Player, got {players!r}")
    for player in players:
        if not isinstance(player, Player):
            raise TaskError(
                f"task {task.name}: players must return a list of Player, "
                f"got {type_name(player)} in it"
            )
        if not isinstance(player.module, nn.Module) or not trainable_parameters(player.module):
            raise TaskError(
                f"task {task.name}: player {player.name!r} must have a module with parameters that "
                f"require gradients, got {type_name(player.module)}"
            )
    names = [player.name for player in players]
    if len(set(names)) < len(names) or not all(isinstance(name, str) for name in names):
        raise TaskError(f"task {task.name}: its players must have different names, got {names}")
    return list(players)


def _test_samples(task: Task, splits: Splits) -> int | None:
    """Count the test samples that the score is the mean of; ``None`` if it is no such mean."""
    with task_errors(task, "scored_samples"):
        try:
            samples = task.scored_samples(splits.test)
        except TypeError:  # a split without tensors, of a task that does not count its samples
            return None
    return samples if isinstance(samples, int) and samples > 0 else None


def task_facts(task: Task, splits: Splits) -> dict[str, Any]:
    """Return what reports say about the task, so that they need the run files only."""
    return {
        "description": task.description,
        "score": asdict(task.score),
        "batch_size": task.batch_size,
        "sub_batch_size": task.sub_batch_size,
        "gradients": task.gradients,
        "reduction": task.reduction,
        "keep": task.keep,
        "test_samples": _test_samples(task, splits),
        "synthetic": splits.synthetic,
        "notes": list(splits.notes),
    }
