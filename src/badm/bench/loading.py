"""The data of a task, and what of the task is written into the files of its runs."""

from __future__ import annotations

from dataclasses import asdict
from functools import lru_cache
from typing import Any

from badm.bench import seeds
from badm.bench.faults import TaskError, blame
from badm.bench.task import Splits, Task


@lru_cache(maxsize=2)  # a stage and the one before
def splits_of(task: Task) -> Splits:
    """The data of a task, loaded once in a process."""
    seeds.seed_everything(0, seeds.DATA)
    with blame(task, "data"):
        splits = task.data()
    if not isinstance(splits, Splits):
        raise TaskError(f"task {task.name}: data must return Splits, got {type(splits).__name__}")
    return splits


def facts(task: Task, splits: Splits) -> dict[str, Any]:
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
