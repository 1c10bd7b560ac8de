"""What ``badm list`` shows of tasks and methods: kept in ``listing.json``, read without torch.

Each task and method is described in its own file, which imports torch; ``listing.json`` is a copy.
``python -m badm.commands.listing`` makes it anew; a test fails when it is out of date.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("listing.json")


@dataclass(frozen=True)
class Listing:
    """Plain data, as ``badm list ... --json`` prints it.

    Attributes:
        tasks: At scale ``cpu``, in the order of ``TASKS``.
        methods: In the order of ``METHODS``.
        modes: What may follow the plus in the name of a method of replicas.
    """

    tasks: list[dict[str, Any]]
    methods: list[dict[str, Any]]
    modes: list[str]


@cache
def read() -> Listing:
    """Read the file.

    >>> read().tasks[0]["name"], read().methods[0]["name"]
    ('digits', 'badm')
    """
    return Listing(**json.loads(FILE.read_text(encoding="utf-8")))


def tasks_by_dataset() -> dict[str, list[str]]:
    """Map the name of each dataset to the names of the tasks that read it.

    >>> tasks_by_dataset()["cora"][:2]
    ['node-cora-dnn', 'node-cora-gnn']
    """
    found: dict[str, list[str]] = {}
    for task in read().tasks:
        found.setdefault(task["dataset"], []).append(task["name"])
    return found


def current() -> Listing:
    """Make the listing from the tasks and methods as they are now."""
    from badm.bench.methods import METHODS
    from badm.bench.methods.replicas import MODES
    from badm.bench.tasks import TASKS

    tasks = [
        {
            "name": task.name,
            "description": task.description,
            "score": task.score.name,
            "best": task.score.best,
            "percent": task.score.percent,
            "target": task.target,
            "steps": task.steps,
            "batch_size": task.batch_size,
            "after": task.after,
            "dataset": task.dataset_name,
        }
        for task in (make("cpu") for make in TASKS.values())
    ]
    methods = [
        {
            "name": method.name,
            "family": method.family,
            "description": method.description,
            "defaults": dict(method.defaults),
            "searched": {name: asdict(part) for name, part in method.space.items()},
        }
        for method in METHODS.values()
    ]
    return Listing(tasks, methods, list(MODES))


def as_text(listing: Listing) -> str:
    """Write a listing as JSON with a line for each entry, so that a change is seen as one."""
    parts = [
        f'"{name}": [\n'
        + ",\n".join(json.dumps(one, ensure_ascii=False) for one in entries)
        + "\n]"
        for name, entries in vars(listing).items()
    ]
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    FILE.write_text(as_text(current()), encoding="utf-8")
