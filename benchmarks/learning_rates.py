"""Find the best learning rate of each metric beside AdamW's: on the suite's tasks, by width.

On the tasks they are those that rivals.py tried, six or more for each method and task at three
eighths of the budget. The width study trains a perceptron on scikit-learn's digits,
64–width–width–10, at learning rates a factor of two apart, with the schedule of the speed protocol
and one seed. The best learning rate is the one with the best last validation score (of the width
study: loss); where neighbours come within a hundredth of it, relative to the range of scores, their
geometric mean.

    python benchmarks/learning_rates.py             # a table and a figure
    python benchmarks/learning_rates.py --widths 64 128
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from rich.progress import track
from suite_runs import WARMUP, sign
from torch import nn
from torch.nn.functional import cross_entropy

from badm.bench import methods, tasks
from badm.bench.engine.schedules import lr_factor
from badm.bench.method import TrainingSetup, package_versions

ADAM = "adamw"
METHODS = {
    "badm": "spectral",
    "badm-diagonal": "diagonal",
    "badm-kronecker": "kronecker",
    "badm-kronecker-spectral": "kronecker-spectral",
}
TASKS = Path("results/rivals.json")
LEARNING_RATES = tuple(0.16 / 2**k for k in range(10))[::-1]  # 3.1e-4 to 0.16
WIDTHS = (64, 128, 256, 512, 1024)
WIDTH_STEPS, BATCH = 100, 64
EQUAL = 0.01  # of the range of scores

Scores = dict[float, float]  # by learning rate; more is better, minus infinity if it diverged


def on_tasks(file: Path) -> dict[str, dict[str, Scores]]:
    """Return the scores of the learning rates that were tried, by task and method."""
    methods_of = json.loads(file.read_text("utf-8"))["methods"]
    return {
        task: {
            name: {
                one["lr"]: -math.inf if one["score"] is None else sign(task) * one["score"]
                for one in methods_of[name]["tuned"][task]["tried"]
            }
            for name in (ADAM, *METHODS)
        }
        for task in methods_of[ADAM]["tuned"]
    }


@dataclass(frozen=True)
class Job:
    width: int
    method: str
    lr: float


def with_width(job: Job) -> float:
    """Train a perceptron of that width; return minus its validation loss."""
    width, lr = job.width, job.lr
    torch.set_num_threads(1)
    splits = tasks.find("digits").task.data()
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )
    method = methods.find(job.method)
    trainer = method.build(TrainingSetup(model, WIDTH_STEPS), method.setting({"lr": lr}))
    optimizer = trainer.optimizer  # type: ignore[attr-defined]
    (x, y), generator = splits.train, torch.Generator().manual_seed(0)
    for step in range(1, WIDTH_STEPS + 1):
        rows = torch.randint(len(x), (BATCH,), generator=generator)
        for group in optimizer.param_groups:
            group["lr"] = lr * lr_factor("linear", WARMUP, step, WIDTH_STEPS)
        optimizer.zero_grad()
        cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
    with torch.no_grad():
        loss = cross_entropy(model(splits.validation[0]), splits.validation[1]).item()
    return -loss if math.isfinite(loss) else -math.inf


def best_lr(scores: Scores) -> float:
    """The learning rate of the best score, or the middle of those around it that are as good."""
    rates = sorted(scores)
    finite = [score for score in scores.values() if math.isfinite(score)]
    good = max(finite) - EQUAL * (max(finite) - min(finite))
    low = high = rates.index(max(rates, key=lambda lr: scores[lr]))
    while low > 0 and scores[rates[low - 1]] >= good:
        low -= 1
    while high + 1 < len(rates) and scores[rates[high + 1]] >= good:
        high += 1
    return math.sqrt(rates[low] * rates[high])


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Best learning rates over AdamW's, by task and by width, with the band of a factor of two."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.5), width_ratios=(2, 1), sharey=True)
    kinds = [[row for row in rows if isinstance(row["place"], kind)] for kind in (str, int)]
    for axis, shown in zip(axes, kinds, strict=True):
        axis.axhspan(0.5, 2, color="0.92")
        axis.axhline(1, color="0.6", linewidth=1)
        for offset, (name, label) in enumerate(METHODS.items()):
            values = [row["best"][name] / row["best"][ADAM] for row in shown]
            at = [i + 0.15 * (offset - 1.5) for i in range(len(shown))]
            axis.plot(at, values, "o", label=label)
        axis.set_xticks(
            range(len(shown)), [str(row["place"]) for row in shown], rotation=40, ha="right"
        )
        axis.set_yscale("log", base=2)
    axes[0].set_ylabel("best learning rate over AdamW's best")
    axes[1].set_xlabel("width of a perceptron")
    axes[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--widths", nargs="*", type=int, default=list(WIDTHS))
    parser.add_argument("--processes", type=int, default=2, help="at a time (default: 2)")
    parser.add_argument("--tasks", type=Path, default=TASKS, help="file of rivals.py")
    parser.add_argument("-o", "--output", type=Path, default=Path("results/learning_rates.json"))
    arguments = parser.parse_args()

    names = (ADAM, *METHODS)
    wanted = [Job(w, name, lr) for w in arguments.widths for name in names for lr in LEARNING_RATES]
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
        found = pool.imap(with_width, wanted)
        losses = dict(zip(wanted, track(found, "Training", total=len(wanted)), strict=True))
    places: dict[str | int, dict[str, Scores]] = {**on_tasks(arguments.tasks)}
    for width in arguments.widths:
        places[width] = {n: {r: losses[Job(width, n, r)] for r in LEARNING_RATES} for n in names}

    rows: list[dict[str, Any]] = []
    for place, scores in places.items():
        best = {name: best_lr(tried) for name, tried in scores.items()}
        rows.append({"place": place, "best": best, "scores": scores})
        ratios = ", ".join(f"{METHODS[n]} {best[n] / best[ADAM]:.2g}" for n in METHODS)
        print(f"{place}: AdamW {best[ADAM]:.2g}; over it: {ratios}")
    content = {
        "width_steps": WIDTH_STEPS,
        "warmup": WARMUP,
        "seeds": 1,
        "versions": package_versions(),
        "rows": rows,
    }
    text = json.dumps(content, indent=1).replace("-Infinity", "null")
    arguments.output.write_text(text + "\n", "utf-8")
    draw(rows, arguments.output.with_suffix(".png"))


if __name__ == "__main__":
    main()
