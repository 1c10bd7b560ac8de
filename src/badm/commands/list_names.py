"""``badm list``: the names people type."""

import json

import typer
from rich.table import Table

from badm.bench.method import Range
from badm.bench.methods import METHODS
from badm.bench.methods.replicas import MODE_SEPARATOR, MODES
from badm.bench.report.terminal import console
from badm.bench.tasks import TASKS
from badm.commands.options import AsJson

app = typer.Typer(help="List tasks and methods.", no_args_is_help=True)


@app.command("tasks")
def list_tasks(as_json: AsJson = False) -> None:
    """List the tasks that come with badm; your own are files such as `my_task.py`.

    **Examples**

    - `badm list tasks`
    - `badm list tasks --json`
    """
    tasks = [make("cpu") for make in TASKS.values()]
    if as_json:
        plain = [
            {
                "name": task.name,
                "description": task.description,
                "score": task.score.name,
                "best": task.score.best,
                "target": task.target,
                "steps": task.steps,
                "batch_size": task.batch_size,
                "after": task.after,
            }
            for task in tasks
        ]
        print(json.dumps(plain, indent=2))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("task", "what it is", "score", "steps", "target"):
        table.add_column(heading, overflow="fold")
    for task in tasks:
        target = "" if task.target is None else task.score.format(task.target)
        table.add_row(task.name, task.description, task.score.name, str(task.steps), target)
    console().print(table)


@app.command("methods")
def list_methods(as_json: AsJson = False) -> None:
    """List the methods, their defaults and the ranges searched in the tuned protocol.

    **Examples**

    - `badm list methods`
    - `badm list methods --json`
    """
    if as_json:
        plain = [
            {
                "name": method.name,
                "family": method.family,
                "description": method.description,
                "defaults": dict(method.defaults),
                "searched": {name: str(part) for name, part in method.space.items()},
            }
            for method in METHODS.values()
        ]
        print(json.dumps(plain, indent=2))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("method", "family", "what it is", "default", "searched in"):
        table.add_column(heading, overflow="fold")
    for method in METHODS.values():
        ranges = [(name, part) for name, part in method.space.items() if isinstance(part, Range)]
        table.add_row(
            method.name,
            method.family,
            method.description,
            ", ".join(f"{name} {method.defaults[name]:g}" for name, _ in ranges),
            ", ".join(f"{part.low:g} – {part.high:g}" for _, part in ranges),
        )
    modes = ", ".join(f"{MODE_SEPARATOR}{mode}" for mode in MODES)
    console().print(table)
    console().print(
        f"\nTo train on several ranks, add a mode to a name, as in adam+outer: {modes}."
    )
