"""Time a whole training step, forward and backward included, of every method on the suite's tasks.

Methods take turns on each task, a short run each, without evaluation, one thread and nothing beside
it; the first steps of a run do not count. Of each method the ratio to BADM in the same turn, median
over turns: seconds themselves depend on the machine.

    python benchmarks/training_time.py              # results/training_time.json; more are added
    python benchmarks/training_time.py --methods muon adamw --tasks digits
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.progress import track
from rivals import METHODS, RULER, TASKS
from suite_runs import SCHEDULE, WARMUP
from turns import ratios

from badm.bench import methods, tasks
from badm.bench.engine.run import run
from badm.bench.method import package_versions
from badm.bench.records.runs import RunStore

FIRST, COUNTED = 5, 20  # steps that do not count, and that do: two refreshes of any basis
TURNS = 5


def seconds_of_a_step(task: str, method: str) -> float:
    """Mean over the counted steps of one run at the method's defaults."""
    found, entered = tasks.find(task), methods.find(method)
    score = {found.task.score.name: 0.0}
    found.task.evaluate = lambda model, split: score  # type: ignore[method-assign]
    config = found.config(
        entered,
        entered.setting({}),
        0,
        steps=FIRST + COUNTED,
        schedule=SCHEDULE,
        warmup=WARMUP,
        test=False,
        evaluate_every=FIRST + COUNTED,
    )
    with tempfile.TemporaryDirectory() as folder:
        done = run(config, found.task, entered, RunStore(Path(folder)))
    at = {point.step: point.seconds for point in done.points}
    return (at[FIRST + COUNTED] - at[FIRST]) / COUNTED


def measure(task: str, names: Sequence[str], turns: int) -> dict[str, dict[str, float]]:
    """Ratios to the ruler's time by method, after a turn that does not count."""
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(turns + 1):
        for name in names:
            times[name].append(seconds_of_a_step(task, name))
    return {name: ratios(times[name][1:], times[RULER][1:]) for name in names}


def known(file: Path) -> dict[str, dict[str, dict[str, float]]]:
    """Return what a results file has; the ratios of other methods stay as they are."""
    if not file.exists():
        return {}
    found: dict[str, dict[str, dict[str, float]]] = json.loads(file.read_text("utf-8"))["by_task"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="+", default=METHODS, help="names (default: all)")
    parser.add_argument("--tasks", nargs="+", default=TASKS, help="tasks (default: nine)")
    parser.add_argument("--turns", type=int, default=TURNS, help="default: %(default)s")
    parser.add_argument("--output", type=Path, default=Path("results/training_time.json"))
    arguments = parser.parse_args()

    names = list(dict.fromkeys([RULER, *arguments.methods]))
    by_task = known(arguments.output)
    for task in track(arguments.tasks, "Taking turns"):
        by_task[task] = by_task.get(task, {}) | measure(task, names, arguments.turns)
    complete = [name for name in METHODS if all(name in one for one in by_task.values())]
    over_tasks = {
        name: math.exp(statistics.fmean(math.log(one[name]["ratio"]) for one in by_task.values()))
        for name in complete
    }
    content = {
        "threads": 1,
        "turns": arguments.turns,
        "steps": COUNTED,
        "versions": package_versions(),
        "over_tasks": over_tasks,
        "by_task": by_task,
    }
    arguments.output.write_text(json.dumps(content, indent=1) + "\n")
    for name, ratio in over_tasks.items():
        print(f"{name}: {ratio:.2f} x the time of {RULER}'s step")


if __name__ == "__main__":
    main()
