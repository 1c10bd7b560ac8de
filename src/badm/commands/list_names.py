"""``badm list``: the names people type."""

import json

import typer

from badm.bench.report.terminal import console
from badm.bench.task import Score
from badm.commands import data, listing
from badm.commands.help_pages import Command, Group
from badm.commands.names import Column, Word, matching, print_names
from badm.commands.options import AsJson

HELP = """List tasks, methods and datasets: the names that other commands take.

**Examples**

- `badm list tasks`
- `badm list methods shampoo`
- `badm list datasets --json`
"""

app = typer.Typer(help=HELP, cls=Group, no_args_is_help=True, rich_markup_mode="markdown")

TASK_COLUMNS = (
    Column("task"),
    Column("what it is", wrap=True),
    Column("score", extra=True),
    Column("steps", extra=True, justify="right"),
    Column("target", extra=True, justify="right"),
)
METHOD_COLUMNS = (
    Column("method"),
    Column("what it is", wrap=True),
    Column("family", extra=True),
    Column("default", extra=True),
    Column("searched in", extra=True),
)


@app.command("tasks", cls=Command)
def list_tasks(word: Word = "", as_json: AsJson = False) -> None:
    """List the tasks that come with badm; your own are files such as `my_task.py`.

    A wide terminal, a pipe and JSON have score, steps and target of each at scale cpu, too.

    **Exit codes**

    - 0: done
    - 2: no task matches the word

    **Examples**

    - `badm list tasks`
    - `badm list tasks image`
    - `badm list tasks --json`
    """
    tasks = matching(listing.read().tasks, word, what="task")
    if as_json:
        print(json.dumps(tasks, indent=2))
        return
    rows = []
    for task in tasks:
        score = Score(task["score"], task["best"], task["percent"])
        target = "" if task["target"] is None else score.format(task["target"])
        rows.append((task["name"], task["description"], score.name, f"{task['steps']:,}", target))
    print_names(TASK_COLUMNS, rows)


@app.command("methods", cls=Command)
def list_methods(word: Word = "", as_json: AsJson = False) -> None:
    """List the methods; `badm compare digits --methods badm,adam` takes their names.

    A wide terminal, a pipe and JSON have the default of each and the range that the tuned protocol
    searches, too.

    **Exit codes**

    - 0: done
    - 2: no method matches the word

    **Examples**

    - `badm list methods`
    - `badm list methods shampoo`
    - `badm list methods 'badm*' --json`
    """
    methods = matching(listing.read().methods, word, what="method")
    if as_json:
        print(json.dumps(methods, indent=2))
        return
    rows = []
    for method in methods:
        ranges = {name: part for name, part in method["searched"].items() if "low" in part}
        defaults = ", ".join(f"{name} {method['defaults'][name]:g}" for name in ranges)
        searched = ", ".join(f"{part['low']:g} – {part['high']:g}" for part in ranges.values())
        rows.append((method["name"], method["description"], method["family"], defaults, searched))
    print_names(METHOD_COLUMNS, rows)
    if not word:
        modes = ", ".join(f"+{mode}" for mode in listing.read().modes)
        out = console()
        out.print(f"\nTo train on several ranks, add a mode to a name, as in adam+outer: {modes}.")


app.command("datasets", cls=Command)(data.list_datasets)
