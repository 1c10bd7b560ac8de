"""Find the best learning rate of each metric beside Adam's: for the tasks of the suite, by width.

Each method trains each task for half of its budget in the suite at learning rates a factor of two
apart, with the schedule of the speed protocol and the same seed; the width study trains a
perceptron on scikit-learn's digits, 64–width–width–10. The best learning rate is the one whose last
validation score (of the width study: loss) is best; where neighbours come within a hundredth of it
relative to the range of scores, their geometric mean.

    python benchmarks/learning_rates.py             # a table and a figure; run it again to resume
    python benchmarks/learning_rates.py --tasks digits --widths 64 128
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from rich.progress import track
from suite_runs import WARMUP, train
from torch import nn
from torch.nn.functional import cross_entropy

from badm.bench import methods, tasks
from badm.bench.engine.schedules import lr_factor
from badm.bench.method import TrainingSetup, package_versions
from badm.bench.tasks import suite

ADAM = "torch-adam"
METHODS = (ADAM, "badm-diagonal", "badm-spectral", "badm-kronecker", "badm-kronecker-spectral")
LEARNING_RATES = tuple(0.08 / 2**k for k in range(9))[::-1]  # 3.1e-4 to 8e-2
WIDTHS = (64, 128, 256, 512, 1024)
WIDTH_STEPS, BATCH = 100, 64
PART = 1 / 2
EQUAL = 0.01  # of the range of scores


@dataclass(frozen=True)
class Job:
    place: str | int  # a task or a width
    method: str
    lr: float


def measure(job: Job, runs: Path) -> float:
    """Return a score of which more is better; minus infinity if the run diverged."""
    if isinstance(job.place, int):
        return _with_width(job.place, job.method, job.lr)
    outcome = train(job.place, methods.find(job.method), {"lr": job.lr}, PART, 0, runs)
    if math.isnan(outcome.score):
        return -math.inf
    best = tasks.find(job.place).task.score.best
    return outcome.score if best == "high" else -outcome.score


def _with_width(width: int, name: str, lr: float) -> float:
    """Train a perceptron of that width; return minus its validation loss."""
    torch.set_num_threads(1)
    splits = tasks.find("digits").task.data()
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )
    method = methods.find(name)
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


def best_lr(scores: Sequence[float]) -> float:
    """The learning rate of the best score, or the middle of those around it that are as good."""
    finite = [score for score in scores if math.isfinite(score)]
    good = max(finite) - EQUAL * (max(finite) - min(finite))
    top = max(range(len(scores)), key=lambda i: scores[i])
    low = high = top
    while low > 0 and scores[low - 1] >= good:
        low -= 1
    while high + 1 < len(scores) and scores[high + 1] >= good:
        high += 1
    return math.sqrt(LEARNING_RATES[low] * LEARNING_RATES[high])


def draw(rows: Sequence[dict[str, object]], path: Path) -> None:
    """Best learning rates over Adam's, by task and by width, with the band of a factor of two."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.5), width_ratios=(2.2, 1), sharey=True)
    by_place = {row["place"]: row["best"] for row in rows}
    kinds = [[p for p in by_place if isinstance(p, kind)] for kind in (str, int)]
    for axis, places in zip(axes, kinds, strict=True):
        axis.axhspan(0.5, 2, color="0.92")
        axis.axhline(1, color="0.6", linewidth=1)
        for offset, name in enumerate(METHODS[1:]):
            values = [by_place[p][name] / by_place[p][ADAM] for p in places]  # type: ignore[index]
            at = [i + 0.15 * (offset - 1.5) for i in range(len(places))]
            axis.plot(at, values, "o", label=name.removeprefix("badm-"))
        axis.set_xticks(range(len(places)), [str(p) for p in places], rotation=40, ha="right")
        axis.set_yscale("log", base=2)
    axes[0].set_ylabel("best learning rate over Adam's best")
    axes[1].set_xlabel("width of a perceptron")
    axes[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="*", default=list(suite.BUDGETS), help="default: suite")
    parser.add_argument("--widths", nargs="*", type=int, default=list(WIDTHS))
    parser.add_argument("--processes", type=int, default=2, help="at a time (default: 2)")
    parser.add_argument("--runs", type=Path, default=Path("runs/learning_rates"))
    parser.add_argument("--output", type=Path, default=Path("results/learning_rates.json"))
    arguments = parser.parse_args()

    places: list[str | int] = [*arguments.widths, *arguments.tasks]
    wanted = [Job(p, name, lr) for p in places for name in METHODS for lr in LEARNING_RATES]
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
        found = pool.imap(partial(measure, runs=arguments.runs), wanted)
        scores = dict(zip(wanted, track(found, "Training", total=len(wanted)), strict=True))

    rows: list[dict[str, object]] = []
    for place in places:
        of = {n: [scores[Job(place, n, lr)] for lr in LEARNING_RATES] for n in METHODS}
        best = {name: best_lr(values) for name, values in of.items()}
        rows.append({"place": place, "best": best, "scores": of})
        ratios = ", ".join(f"{n} {best[n] / best[ADAM]:.2g}" for n in METHODS[1:])
        print(f"{place}: Adam {best[ADAM]:.2g}; over it: {ratios}")
    content = {
        "learning_rates": LEARNING_RATES,
        "part": PART,
        "width_steps": WIDTH_STEPS,
        "warmup": WARMUP,
        "seeds": 1,
        "versions": package_versions(),
        "rows": rows,
    }
    text = json.dumps(content, indent=1).replace("-Infinity", "null")
    arguments.output.write_text(text + "\n")
    draw(rows, arguments.output.with_suffix(".png"))


if __name__ == "__main__":
    main()
