"""Compare all methods, equally tuned, at one part of the suite's budgets, in steps.

The speed protocol finds for each method the smallest part of AdamW's budget that is enough, and
tunes it anew at every part it looks at: too dear for all methods. Here every method is tuned at one
part, three eighths of the budget, with as many learning rates of its own range and more where the
best is at an end of it, and its best runs with fresh seeds. The mean of their last validation
scores is translated into steps with BADM as the ruler: how many BADM needs for that score, at the
setting that is best at the part, over the steps that were taken. A method with 0.80 is worth 0.80
of BADM's steps.

Intervals are from resampling tasks and, for each, seeds; p-values are of a signed-rank test over
tasks, with Holm's correction.

Methods that the results file has already are kept, unless they have another version now.

    python benchmarks/rivals.py                     # all methods; run it again to resume
    python benchmarks/rivals.py --methods muon soap --tasks digits -o one_task.json
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
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
    "normuon",
    "soap",
    "schedule-free",
    "mars",
    "ademamix",
    "adan",
    "lion",
    "prodigy",
    "kl-shampoo",
    "psgd-kron",
    "badm-diagonal",
    "badm-kronecker-spectral",
    "badm-kronecker",
    "shampoo",
)
PART = 3 / 8
LENGTHS = (1 / 16, 1 / 8, 1 / 4, PART, 1 / 2, 3 / 4)  # of the ruler
MOST_BEYOND = 3  # learning rates beyond a range, where the best is at its end
FURTHEST = PART / LENGTHS[0]  # a score below or beyond the ruler counts as no more than this factor
TIMES = Path("results/training_time.json")
# Without those on which BADM's own scores do not rise around the part, so that they say nothing:
# the GAN and the diffusion model have learned nothing yet, and Citeseer's graph is learned.
UNFIT = ("cgan-fashion", "ddim-flowers", "node-citeseer-dnn")
TASKS = tuple(task for task in suite.BUDGETS if task not in UNFIT)


Scores = dict[float, float]  # of the tuning seed, by learning rate


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
    """Return the best setting for each task, with the scores of all that were tried."""
    rates = {task: [setting["lr"] for setting in settings(task, method, trials)] for task in names}
    tried: dict[str, Scores] = {task: {} for task in names}
    _try(pool, method, rates, tried, runs)
    return extend(pool, method, tried, runs)


def extend(pool: Pool, method: str, tried: dict[str, Scores], runs: Path) -> dict[str, Any]:
    """Try learning rates beyond the lowest or highest while that is the best.

    So no method is behind because somebody gave it too short a range.
    """
    for _ in range(MOST_BEYOND):
        beyond = {task: next_beyond(scores, _best(task, scores)) for task, scores in tried.items()}
        wanted = {task: [lr] for task, lr in beyond.items() if lr is not None}
        if not wanted:
            break
        _try(pool, method, wanted, tried, runs)
    return {
        task: {
            "setting": {"lr": _best(task, scores)},
            "tried": [{"lr": lr, "score": scores[lr]} for lr in sorted(scores)],
        }
        for task, scores in tried.items()
    }


def next_beyond(rates: Iterable[float], best: float) -> float | None:
    """Return the learning rate beyond the best if that is at an end of an evenly spread row.

    >>> next_beyond([0.01, 0.1, 1.0], 1.0), next_beyond([0.01, 0.1, 1.0], 0.1)
    (10.0, None)
    """
    ordered = sorted(rates)
    if best == ordered[-1]:
        return float(f"{best * ordered[-1] / ordered[-2]:.3g}")
    if best == ordered[0]:
        return float(f"{best * ordered[0] / ordered[1]:.3g}")
    return None


def _try(
    pool: Pool,
    method: str,
    rates: dict[str, list[float]],
    tried: dict[str, Scores],
    runs: Path,
) -> None:
    jobs = [Job(task, method, (("lr", lr),), TUNING_SEED) for task in rates for lr in rates[task]]
    for job, outcome in train_all(pool, jobs, runs, f"{method}: learning rates").items():
        tried[job.task][dict(job.setting)["lr"]] = outcome.score


def _best(task: str, tried: Scores) -> float:
    """The learning rate of the best score; one that diverged is the worst."""

    def good(lr: float) -> float:
        return -math.inf if math.isnan(tried[lr]) else sign(task) * tried[lr]

    return max(tried, key=good)


def at_edge(tuned: dict[str, Any]) -> bool:
    """Whether the best learning rate is the smallest or largest tried: the range may be short."""
    tried = [one["lr"] for one in tuned["tried"]]
    return tuned["setting"]["lr"] in (min(tried), max(tried))


@dataclass(frozen=True)
class Measured:
    """What the runs of one method gave, as the results file keeps it; all by task."""

    version: str
    tuned: dict[str, dict[str, Any]]
    scores: dict[str, dict[str, list[float | None]]]  # by part of the budget, one a seed
    state_bytes: dict[str, float]


def measure(
    pool: Pool, method: str, names: Sequence[str], trials: int, seeds: int, runs: Path
) -> Measured:
    """Tune a method, then run its best setting with fresh seeds."""
    tuned = tune(pool, method, names, trials, runs)
    parts = LENGTHS if method == RULER else (PART,)
    jobs = {
        (task, part): [
            Job(task, method, tuple(tuned[task]["setting"].items()), seed, part)
            for seed in range(seeds)
        ]
        for task in names
        for part in parts
    }
    every = [job for found in jobs.values() for job in found]
    done = train_all(pool, every, runs, f"{method}: {seeds} seeds")
    return Measured(
        methods.find(method).identity,
        tuned,
        {
            task: {str(part): [done[job].score for job in jobs[task, part]] for part in parts}
            for task in names
        },
        {task: done[jobs[task, PART][0]].state_bytes for task in names},
    )


class Analysis:
    """From scores to steps of the ruler."""

    def __init__(self, measured: dict[str, Measured], names: Sequence[str], seeds: int) -> None:
        self.measured, self.names, self.seeds = measured, names, seeds
        self.times = json.loads(TIMES.read_text())["by_task"] if TIMES.exists() else {}

    def mean(self, task: str, method: str, part: float, seeds: Sequence[int]) -> float:
        scores = self.measured[method].scores[task][str(part)]
        numbers = [math.nan if score is None else score for score in scores]
        return sign(task) * statistics.fmean(numbers[seed] for seed in seeds)

    def gain(self, task: str, method: str, seeds: Sequence[int]) -> float:
        ruler = [self.mean(task, RULER, part, seeds) for part in LENGTHS]
        score = self.mean(task, method, PART, seeds)
        return gain_in_steps(LENGTHS, ruler, score, PART, FURTHEST)

    def row(self, method: str) -> dict[str, Any]:
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
            "seconds": self._seconds(method, gains),
            "p": signed_rank_p(list(gains.values())) if method != RULER else math.nan,
            "state": self._state(method),
            "at_edge": [t for t in self.names if at_edge(self.measured[method].tuned[t])],
            "by_task": {task: math.exp(gain) for task, gain in gains.items()},
        }

    def _seconds(self, method: str, gains: dict[str, float]) -> float:
        """As ``steps``, in seconds; NaN where the time of the method's step is not known."""
        if any(method not in self.times.get(task, {}) for task in gains):
            return math.nan
        times = [math.log(self.times[task][method]["ratio"]) for task in gains]
        return math.exp(statistics.fmean(gains.values()) - statistics.fmean(times))

    def _state(self, method: str) -> float:
        """Bytes of state over the ruler's, geometric mean over tasks."""
        own, ruler = self.measured[method].state_bytes, self.measured[RULER].state_bytes
        return math.exp(statistics.fmean(math.log(own[t] / ruler[t]) for t in self.names))


def markdown(rows: Sequence[dict[str, Any]], content: dict[str, Any]) -> str:
    names = list(content["tasks"])
    entered = " ".join(row["method"] for row in rows if row["method"] != RULER)
    lines = [
        "# All methods, equally tuned, in BADM's steps",
        "",
        f"Made by `python benchmarks/rivals.py --methods {entered}`. {len(names)} tasks, "
        f"{content['part']:g} of each suite budget, "
        f"{content['trials']} learning rates over the range of a method for each task, and more "
        f"where the best was at an end of it, {content['seeds']} fresh seeds. "
        "Steps: those BADM needs for a method's score over those the method took, so that 0.80 is "
        "behind BADM and 1.20 ahead of it. Seconds: the same, with the time of a training step of "
        "`training_time.json` in this folder. State: bytes, relative to BADM's. At the edge: tasks "
        "whose best learning rate is the lowest or highest tried.",
        "",
        "| method | steps | 95 % interval | p (Holm) | seconds | state | at the edge |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        p = "–" if math.isnan(row["p_holm"]) else formatting.p_value(row["p_holm"])
        seconds = "–" if math.isnan(row["seconds"]) else f"{row['seconds']:.2f}"
        lines.append(
            f"| {row['method']} | {row['steps']:.2f} | {row['low']:.2f} – {row['high']:.2f} | {p} "
            f"| {seconds} | {row['state']:.2f} | {len(row['at_edge'])} of {len(names)} |"
        )
    lines += ["", "By task:", "", "| method | " + " | ".join(names) + " |"]
    lines.append("|---" * (len(names) + 1) + "|")
    for row in rows:
        cells = (f"{row['by_task'][task]:.2f}" for task in names)
        lines.append(f"| {row['method']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def known(file: Path, frame: dict[str, Any]) -> dict[str, Measured]:
    """Return the methods of a results file of the same frame, as they are now."""
    if not file.exists():
        return {}
    content = json.loads(file.read_text("utf-8"))
    if {key: content.get(key) for key in frame} != json.loads(json.dumps(frame)):
        raise SystemExit(f"{file} has other tasks or settings: write to another file with -o")
    found = {name: Measured(**one) for name, one in content["methods"].items()}
    return {n: one for n, one in found.items() if one.version == methods.find(n).identity}


def save(file: Path, frame: dict[str, Any], measured: dict[str, Measured]) -> None:
    """Write the JSON file and the page beside it."""
    analysis = Analysis(measured, list(frame["tasks"]), frame["seeds"])
    rows = [analysis.row(method) for method in measured]
    corrected = holm([row["p"] for row in rows[1:]])
    for row, p in zip(rows, [math.nan, *corrected], strict=True):
        row["p_holm"] = p
    rows.sort(key=lambda row: -row["steps"])
    content = {
        **frame,
        "versions": package_versions(),
        "methods": {name: asdict(one) for name, one in measured.items()},
        "rows": rows,
    }
    plain = json.dumps(content, indent=1, ensure_ascii=False).replace("NaN", "null")
    file.write_text(plain + "\n", "utf-8")
    file.with_suffix(".md").write_text(markdown(rows, content), "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="+", default=METHODS, help="names (default: all)")
    parser.add_argument("--tasks", nargs="+", default=TASKS, help="tasks (default: nine)")
    parser.add_argument("--trials", type=int, default=6, help="learning rates (default: 6)")
    parser.add_argument("--seeds", type=int, default=3, help="final runs (default: 3)")
    parser.add_argument("--processes", type=int, default=2, help="at a time (default: 2)")
    parser.add_argument("--runs", type=Path, default=Path("runs/rivals"), help="folder of runs")
    parser.add_argument("-o", "--output", type=Path, default=Path("results/rivals.json"))
    arguments = parser.parse_args()

    names, runs = list(arguments.tasks), arguments.runs
    frame = {
        "tasks": {task: suite.BUDGETS[task] for task in names},
        "part": PART,
        "lengths": LENGTHS,
        "trials": arguments.trials,
        "seeds": arguments.seeds,
        "schedule": SCHEDULE,
        "warmup": WARMUP,
    }
    measured = known(arguments.output, frame)
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
        for method in dict.fromkeys([RULER, *arguments.methods]):
            if method not in measured:
                measured[method] = measure(
                    pool, method, names, arguments.trials, arguments.seeds, runs
                )
            save(arguments.output, frame, {RULER: measured[RULER], **measured})
    print(arguments.output.with_suffix(".md").read_text("utf-8"))


if __name__ == "__main__":
    main()
