"""Compare all methods, equally tuned, at one part of the suite's budgets, in steps.

The speed protocol finds for each method the smallest part of AdamW's budget that is enough, and
tunes it anew at every part it looks at: too dear for all methods. Here every method is tuned at one
part, three eighths of the budget, with as many learning rates of its own range, and its best runs
with fresh seeds. The mean of their last validation scores is translated into steps with BADM as the
ruler: how many BADM needs for that score, at the setting that is best at the part, over the steps
that were taken. A method with 0.80 is worth 0.80 of BADM's steps.

Intervals are from resampling tasks and, for each, seeds; p-values are of a signed-rank test over
tasks, with Holm's correction.

    python benchmarks/rivals.py                     # all methods; run it again to resume
    python benchmarks/rivals.py --methods muon soap --tasks digits
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any

from rich.progress import track
from suite_runs import SCHEDULE, WARMUP, Outcome, gain_in_steps, resampled_interval, sign, train

from badm.bench import formatting, methods, tasks
from badm.bench.analysis.differences import holm, signed_rank_p
from badm.bench.compare.trial_settings import for_sum, searched_space, trial_settings
from badm.bench.method import Setting, package_versions
from badm.bench.records.plans import TUNING_SEED
from badm.bench.tasks import suite

RULER = "badm"
METHODS = (
    RULER,
    "adamw",
    "muon",
    "soap",
    "kl-shampoo",
    "normuon",
    "psgd-kron",
    "schedule-free",
    "shampoo",
    "adan",
    "mars",
    "ademamix",
    "prodigy",
    "lion",
)
PART = 3 / 8
LENGTHS = (1 / 8, 1 / 4, PART, 1 / 2, 3 / 4)  # of the ruler
# Without those on which BADM's own scores do not rise around the part, so that they say nothing:
# the GAN and the diffusion model have learned nothing yet, and Citeseer's graph is learned.
UNFIT = ("cgan-fashion", "ddim-flowers", "node-citeseer-dnn")
TASKS = tuple(task for task in suite.BUDGETS if task not in UNFIT)


@dataclass(frozen=True)
class Job:
    task: str
    method: str
    setting: tuple[tuple[str, Any], ...]
    seed: int
    part: float = PART


def _measure(arguments: tuple[Job, Path]) -> Outcome:
    job, runs = arguments
    method = methods.find(job.method)
    return train(job.task, method, dict(job.setting), job.part, job.seed, runs)


def train_all(pool: Pool, jobs: Sequence[Job], runs: Path, title: str) -> dict[Job, Outcome]:
    found = pool.imap(_measure, [(job, runs) for job in jobs])
    return dict(zip(jobs, track(found, title, total=len(jobs)), strict=True))


def settings(task: str, method: str, trials: int) -> list[Setting]:
    space = for_sum(searched_space(methods.find(method), "lr"), tasks.find(task).task.terms)
    return trial_settings(space, trials)


def tune(pool: Pool, method: str, names: Sequence[str], trials: int, runs: Path) -> dict[str, Any]:
    """Return the best setting for each task, with the scores of all that were tried.

    First learning rates spread over the method's range, then two more: around the best of them,
    half way to its neighbours, or beyond it where it is the first or last. So no method is ahead
    because its best happens to be on the grid, or in the range that somebody gave it.
    """
    tried: dict[str, dict[float, float]] = {task: {} for task in names}
    spread = {task: [setting["lr"] for setting in settings(task, method, trials)] for task in names}
    _try(pool, method, spread, tried, runs)
    more = {task: _two_more(spread[task], _best(task, tried[task])) for task in names}
    _try(pool, method, more, tried, runs)
    return {
        task: {
            "setting": {"lr": _best(task, tried[task])},
            "tried": [{"lr": lr, "score": tried[task][lr]} for lr in sorted(tried[task])],
        }
        for task in names
    }


def _two_more(spread: Sequence[float], best: float) -> list[float]:
    """Two more learning rates to try, when ``best`` is that of an evenly spread row."""
    half = math.sqrt(spread[1] / spread[0])
    if best == spread[0]:
        factors = (half**-1, half**-2)
    elif best == spread[-1]:
        factors = (half, half**2)
    else:
        factors = (1 / half, half)
    return [float(f"{best * factor:.3g}") for factor in factors]


def _try(
    pool: Pool,
    method: str,
    rates: dict[str, list[float]],
    tried: dict[str, dict[float, float]],
    runs: Path,
) -> None:
    jobs = [Job(task, method, (("lr", lr),), TUNING_SEED) for task in rates for lr in rates[task]]
    for job, outcome in train_all(pool, jobs, runs, f"{method}: learning rates").items():
        tried[job.task][dict(job.setting)["lr"]] = outcome.score


def _best(task: str, tried: dict[float, float]) -> float:
    """The learning rate of the best score; one that diverged is the worst."""

    def good(lr: float) -> float:
        return -math.inf if math.isnan(tried[lr]) else sign(task) * tried[lr]

    return max(tried, key=good)


def at_edge(tuned: dict[str, Any]) -> bool:
    """Whether the best learning rate is the smallest or largest tried: the range may be short."""
    tried = [one["lr"] for one in tuned["tried"]]
    return tuned["setting"]["lr"] in (min(tried), max(tried))


class Analysis:
    """From scores to steps of the ruler."""

    def __init__(self, finals: dict[Job, Outcome], names: Sequence[str], seeds: int) -> None:
        self.names, self.seeds = names, seeds
        self.finals = {(job.task, job.method, job.part, job.seed): finals[job] for job in finals}

    def mean(self, task: str, method: str, part: float, seeds: Sequence[int]) -> float:
        scores = [self.finals[task, method, part, seed].score for seed in seeds]
        return sign(task) * statistics.fmean(scores)

    def gain(self, task: str, method: str, seeds: Sequence[int]) -> float:
        ruler = [self.mean(task, RULER, part, seeds) for part in LENGTHS]
        return gain_in_steps(LENGTHS, ruler, self.mean(task, method, PART, seeds), PART)

    def row(self, method: str, tuned: dict[str, Any]) -> dict[str, Any]:
        everyone = list(range(self.seeds))
        gains = {task: self.gain(task, method, everyone) for task in self.names}
        low, high = resampled_interval(
            lambda task, seeds: self.gain(task, method, seeds), self.names, self.seeds
        )
        return {
            "method": method,
            "steps": math.exp(statistics.fmean(gains.values())),
            "low": math.exp(low),
            "high": math.exp(high),
            "p": signed_rank_p(list(gains.values())) if method != RULER else math.nan,
            "state": self._state(method),
            "at_edge": [task for task in self.names if at_edge(tuned[task])],
            "by_task": {task: math.exp(gain) for task, gain in gains.items()},
            "settings": {task: tuned[task] for task in self.names},
            "scores": {
                task: [self.finals[task, method, PART, seed].score for seed in everyone]
                for task in self.names
            },
        }

    def _state(self, method: str) -> float:
        """Bytes of state over the ruler's, geometric mean over tasks."""
        logs = [
            math.log(self.finals[task, method, PART, 0].state_bytes)
            - math.log(self.finals[task, RULER, PART, 0].state_bytes)
            for task in self.names
        ]
        return math.exp(statistics.fmean(logs))


def markdown(rows: Sequence[dict[str, Any]], content: dict[str, Any]) -> str:
    names = list(content["tasks"])
    entered = [row["method"] for row in rows if row["method"] != RULER]
    lines = [
        "# All methods, equally tuned, in BADM's steps",
        "",
        f"Made by `python benchmarks/rivals.py --methods {' '.join(entered)}`. {len(names)} tasks, "
        f"{content['part']:g} of each suite budget, "
        f"{content['trials']} learning rates over the range of a method and two around or beyond the best "
        f"of them for each task, {content['seeds']} fresh seeds. "
        "Steps: those BADM needs for a method's score over those the method took, so that 0.80 is "
        "behind BADM and 1.20 ahead of it. State: bytes, relative to BADM's. At the edge: tasks "
        "whose best learning rate is the lowest or highest tried.",
        "",
        "| method | steps | 95 % interval | p (Holm) | state | at the edge |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        p = "–" if math.isnan(row["p_holm"]) else formatting.p_value(row["p_holm"])
        lines.append(
            f"| {row['method']} | {row['steps']:.2f} | {row['low']:.2f} – {row['high']:.2f} | {p} "
            f"| {row['state']:.2f} | {len(row['at_edge'])} of {len(names)} |"
        )
    lines += ["", "By task:", "", "| method | " + " | ".join(names) + " |"]
    lines.append("|---" * (len(names) + 1) + "|")
    for row in rows:
        cells = (f"{row['by_task'][task]:.2f}" for task in names)
        lines.append(f"| {row['method']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="+", default=METHODS, help="names (default: all)")
    parser.add_argument("--tasks", nargs="+", default=TASKS, help="tasks (default: nine)")
    parser.add_argument("--trials", type=int, default=6, help="learning rates (default: 6)")
    parser.add_argument("--seeds", type=int, default=3, help="final runs (default: 3)")
    parser.add_argument("--processes", type=int, default=2, help="at a time (default: 2)")
    parser.add_argument("--runs", type=Path, default=Path("runs/rivals"), help="folder of runs")
    parser.add_argument("--output", type=Path, default=Path("results/rivals.json"))
    arguments = parser.parse_args()

    names, seeds, runs = list(arguments.tasks), arguments.seeds, arguments.runs
    entered = list(dict.fromkeys([RULER, *arguments.methods]))
    tuned: dict[str, dict[str, Any]] = {}
    finals: dict[Job, Outcome] = {}
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
        for method in entered:
            tuned[method] = tune(pool, method, names, arguments.trials, runs)
            best = {task: tuple(tuned[method][task]["setting"].items()) for task in names}
            parts = LENGTHS if method == RULER else (PART,)
            jobs = [
                Job(task, method, best[task], seed, part)
                for task in names
                for part in parts
                for seed in range(seeds)
            ]
            finals |= train_all(pool, jobs, runs, f"{method}: {seeds} seeds")

    analysis = Analysis(finals, names, seeds)
    rows = [analysis.row(method, tuned[method]) for method in entered]
    corrected = holm([row["p"] for row in rows[1:]])
    for row, p in zip(rows, [math.nan, *corrected], strict=True):
        row["p_holm"] = p
    rows.sort(key=lambda row: -row["steps"])
    content = {
        "tasks": {task: suite.BUDGETS[task] for task in names},
        "part": PART,
        "lengths": LENGTHS,
        "trials": arguments.trials,
        "seeds": seeds,
        "schedule": SCHEDULE,
        "warmup": WARMUP,
        "versions": package_versions(),
        "ruler": {
            task: [
                [analysis.finals[task, RULER, part, s].score for s in range(seeds)]
                for part in LENGTHS
            ]
            for task in names
        },
        "rows": rows,
    }
    plain = json.dumps(content, indent=1, ensure_ascii=False).replace("NaN", "null")
    arguments.output.write_text(plain + "\n")
    text = markdown(rows, content)
    arguments.output.with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
