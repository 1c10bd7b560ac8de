"""Measure BADM at its defaults against tuned AdamW, and against Adam at its own defaults.

The targets, the scores of AdamW tuned for each task with six learning rates, are those that ``badm
compare suite --protocol speed`` found (results/speed/untouched.json); AdamW's runs are not made
again. BADM, with no setting but its defaults, is measured at parts of AdamW's budget by bisection,
as in that protocol: warm-up and decay fitted to the part, three seeds, the mean of the last
validation scores. Adam at its defaults trains for half of each budget, beside BADM.

    python benchmarks/untouched.py                  # all tasks; run it again to resume
    python benchmarks/untouched.py --tasks digits
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import statistics
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.progress import track
from suite_runs import Outcome, sign, train

from badm.bench import methods, tasks
from badm.bench.analysis.speed import reaches
from badm.bench.analysis.speed_over_tasks import over_tasks
from badm.bench.compare.parts import next_part
from badm.bench.method import package_versions
from badm.bench.records.speeds import PARTS, MeasuredPart, TaskSpeed

TARGETS = Path("results/speed/untouched.json")
BADM, ADAM, BASELINE = "badm", "torch-adam", "adamw"
HALF = PARTS // 2
SEEDS = 3


@dataclass(frozen=True)
class Measured:
    """One task: BADM's outcomes by eighths of the budget, and Adam's at half of it."""

    task: str
    badm: dict[int, list[Outcome]]
    adam: list[Outcome]


def measure(task: str, target: float, runs: Path) -> Measured:
    """Find the smallest part that is enough."""
    score = tasks.find(task).task.score
    found: dict[int, list[Outcome]] = {}
    reached: dict[int, bool] = {}
    while (part := next_part(reached)) is not None:
        found[part] = _runs(task, BADM, part, runs)
        scores = [None if math.isnan(one.score) else one.score for one in found[part]]
        reached[part] = reaches(scores, target, score)
    return Measured(task, found, _runs(task, ADAM, HALF, runs))


def _runs(task: str, method: str, part: int, runs: Path) -> list[Outcome]:
    return [
        train(task, methods.find(method), {}, part / PARTS, seed, runs) for seed in range(SEEDS)
    ]


def _measure(runs: Path, target: dict[str, Any]) -> Measured:
    return measure(target["task"], target["score"], runs)


def speed(measured: Measured, target: dict[str, Any]) -> TaskSpeed:
    """As the speed protocol records it; seconds and state beside the baseline's are not known."""
    score = tasks.find(measured.task).task.score
    parts = []
    for eighths, outcomes in sorted(measured.badm.items()):
        scores = [one.score for one in outcomes]
        steps = round(eighths / PARTS * target["steps"])
        known = [None if math.isnan(one) else one for one in scores]
        is_enough = reaches(known, target["score"], score)
        mean = statistics.fmean(scores)
        seconds = statistics.median(one.step_ms for one in outcomes) * steps / 1e3
        parts.append(MeasuredPart(eighths / PARTS, steps, {}, [], scores, mean, is_enough, seconds))
    enough = [one for one in parts if one.reached]
    part = min((one.part for one in enough), default=math.inf)
    steps = min((float(one.steps) for one in enough), default=math.inf)
    status = "reached" if enough else "never"
    ratio = math.nan
    return TaskSpeed(measured.task, BADM, status, part, steps, ratio, ratio, ratio, parts)


def baselines(recorded: dict[str, Any]) -> dict[str, TaskSpeed]:
    """AdamW's rows of the comparison that found the targets."""
    found = {}
    for row in recorded["rows"]:
        if row["method"] == BASELINE:
            parts = [MeasuredPart(**part) for part in row["parts"]]
            found[row["task"]] = TaskSpeed(**{**row, "parts": parts})
    return found


def content(measured: list[Measured], recorded: dict[str, Any]) -> dict[str, Any]:
    targets = {one["task"]: one for one in recorded["targets"]}
    base = baselines(recorded)
    rows = [speed(one, targets[one.task]) for one in measured]
    both = [base[row.task] for row in rows] + rows
    (_, over) = over_tasks(both, BASELINE, BASELINE)
    by_task = []
    for one, row in zip(measured, rows, strict=True):
        half = {
            name: [outcome.score for outcome in outcomes]
            for name, outcomes in ((BADM, one.badm[HALF]), (ADAM, one.adam))
        }
        means = {name: sign(one.task) * statistics.fmean(half[name]) for name in half}
        by_task.append(
            {
                "task": one.task,
                "target": targets[one.task]["score"],
                "part": None if math.isinf(row.part) else row.part,
                "parts": [
                    {"part": p.part, "scores": p.scores, "reached": p.reached} for p in row.parts
                ],
                "at_half": half,
                "ahead_of_adam": means[BADM] > means[ADAM],
            }
        )
    return {
        "baseline": BASELINE,
        "defaults": {name: dict(methods.find(name).defaults) for name in (BADM, ADAM)},
        "seeds": SEEDS,
        "versions": package_versions(),
        "over_tasks": {key: value for key, value in asdict(over).items() if key in _KEPT},
        "tasks": by_task,
    }


_KEPT = ("tasks", "never", "part", "counted", "won", "tied", "lost", "p_value")


def markdown(made: dict[str, Any]) -> str:
    over, counted = made["over_tasks"], made["over_tasks"]["counted"]
    ahead = sum(one["ahead_of_adam"] for one in made["tasks"])
    lines = [
        "# BADM at its defaults",
        "",
        "Made by `python benchmarks/untouched.py`. The part of AdamW's steps in which BADM at its "
        "defaults reaches the validation score of AdamW, tuned for each task with six learning "
        f"rates: {counted['value']:.2f} in the geometric mean over {over['tasks']} tasks (95 % "
        f"interval {counted['low']:.2f}–{counted['high']:.2f}; never counts as 2), "
        f"{over['won']} won, {over['lost']} lost. At half of the budget BADM is ahead of Adam at "
        f"its own defaults on {ahead} of {over['tasks']} tasks.",
        "",
        "| task | part | AdamW's score | BADM's by part | half: BADM | half: Adam's defaults |",
        "|---|---|---|---|---|---|",
    ]
    for one in made["tasks"]:
        show = tasks.find(one["task"]).task.score.format
        part = "never" if one["part"] is None else f"{round(PARTS * one['part'])}/8"
        parts = ", ".join(
            f"{round(PARTS * p['part'])}/8: {show(statistics.fmean(p['scores']))}"
            for p in one["parts"]
        )
        half = [show(statistics.fmean(one["at_half"][name])) for name in (BADM, ADAM)]
        lines.append(
            f"| {one['task']} | {part} | {show(one['target'])} | {parts} | {half[0]} | {half[1]} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", help="tasks (default: all of the suite)")
    parser.add_argument("--processes", type=int, default=2, help="at a time (default: 2)")
    parser.add_argument("--runs", type=Path, default=Path("runs/untouched"), help="folder of runs")
    parser.add_argument("--output", type=Path, default=Path("results/speed/defaults.json"))
    arguments = parser.parse_args()

    recorded = json.loads(TARGETS.read_text())["speed"]
    wanted = [
        one for one in recorded["targets"] if not arguments.tasks or one["task"] in arguments.tasks
    ]
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
        found = pool.imap(partial(_measure, arguments.runs), wanted)
        measured = list(track(found, "Tasks", total=len(wanted)))
    made = content(measured, recorded)
    plain = json.dumps(made, indent=1, ensure_ascii=False).replace("NaN", "null")
    arguments.output.write_text(plain + "\n")
    arguments.output.with_suffix(".md").write_text(markdown(made))
    print(markdown(made))


if __name__ == "__main__":
    main()
