"""Measure what each part of BADM is worth, one exchanged at a time (prototype.py).

Every variant trains every task for three eighths of its budget in the suite, with a warm-up of 5 %
and a linear decay to 0, at one learning rate and with the same seeds. Its last validation score is
translated into steps: how many the base variant needs for that score, read off the base variant's
scores at several lengths, between which it is interpolated. A gain of 1.10 is worth 10 % more
steps. Intervals are from resampling tasks and, for each, seeds; p-values are of a signed-rank test
over tasks, with Holm's correction. The time of a step is that of the prototype on the matrices of a
small transformer, in turns with the base variant's.

    python benchmarks/ablation.py                   # all ideas; run it again to resume
    python benchmarks/ablation.py --only nesterov --seeds 1
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from prototype import Prototype, Variant
from rich.progress import track
from suite_runs import SCHEDULE, WARMUP, Outcome, train
from torch import nn

from badm.bench import formatting, tasks
from badm.bench.analysis.statistics import holm, signed_rank_p
from badm.bench.method import Method, optimizer_method, package_versions
from badm.bench.tasks import suite

PART = 3 / 8
LENGTHS = (1 / 4, PART, 1 / 2, 3 / 4)  # of the base variant
# Without those whose scores hardly depend on the method at this length: a plateau or chance.
TASKS = (
    "digits",
    "node-cora-gnn",
    "node-citeseer-dnn",
    "bbbp",
    "image-cifar10",
    "image-svhn",
    "text-imdb",
    "mlm-pretrain",
    "char-imdb",
)
RESAMPLES = 2000
TURNS, STEPS_OF_A_TURN = 9, 10  # of the time of a step; two periods of refreshing
FURTHEST = 3.0  # a score beyond those of the base variant counts as no more than this factor

BASE = Variant()


@dataclass(frozen=True)
class Idea:
    group: str
    text: str
    variant: Variant


def _idea(group: str, text: str, **parts: object) -> Idea:
    return Idea(group, text, replace(BASE, **parts))  # type: ignore[arg-type]


KRONECKER = {"metric": "kronecker"}
BOTH = {"metric": "kronecker-spectral"}
IDEAS = {
    "base": Idea("", "the defaults: spectral, β 0.9, scale 0.4, lr 1e-2", BASE),
    "nesterov": _idea("control", "Nesterov's u instead of ADMM's", form="nesterov"),
    "average": _idea("control", "u = m⁺, no extrapolation", form="average"),
    "muon": _idea("control", "Nesterov's u and β 0.95: Muon's", form="nesterov", beta=0.95),
    "kronecker-nesterov": _idea("control", "kronecker, Nesterov's u", form="nesterov", **KRONECKER),
    "both-nesterov": _idea("control", "kronecker-spectral, Nesterov's u", form="nesterov", **BOTH),
    "kronecker": _idea("metric", "kronecker", **KRONECKER),
    "both": _idea("metric", "kronecker-spectral", **BOTH),
    "scale-0.2": _idea("scale", "orthogonal steps half as long", scale=0.2),
    "scale-0.8": _idea("scale", "orthogonal steps twice as long", scale=0.8),
    "lr-5e-3": _idea("scale", "half the learning rate", lr=5e-3),
    "lr-2e-2": _idea("scale", "twice the learning rate", lr=2e-2),
    "length": _idea("scale", "steps as long as Adam's would be", length="of u", scale=1.0),
    "beta-0.85": _idea("memory", "β 0.85", beta=0.85),
    "beta-0.95": _idea("memory", "β 0.95", beta=0.95),
    "rest-0.99": _idea("memory", "β₂ 0.99 for vectors, embeddings, output", beta2_rest=0.99),
    "bias": _idea("memory", "bias correction of the dual", bias_correction=True),
    "row-moments": _idea("orthogonal", "row moments after it, as in NorMuon", row_moments=0.95),
    "output": _idea("grouping", "the output layer as a matrix", output_layer=True),
    "decay": _idea("decay", "weight decay 0.1", weight_decay=0.1),
    "cautious": _idea("decay", "cautious weight decay 0.1", weight_decay=0.1, cautious=True),
    "both-beta2-0.9": _idea("bases", "kronecker-spectral, β₂ 0.9", beta2=0.9, **BOTH),
    "both-beta2-0.99": _idea("bases", "kronecker-spectral, β₂ 0.99", beta2=0.99, **BOTH),
    "both-refresh-1": _idea("bases", "kronecker-spectral, bases at every step", refresh=1, **BOTH),
    "both-refresh-10": _idea("bases", "kronecker-spectral, bases every 10", refresh=10, **BOTH),
    "both-one-sided": _idea(
        "bases", "kronecker-spectral, no basis for the longer side", one_sided_from=1.5, **BOTH
    ),
    "both-steps-2": _idea("bases", "kronecker-spectral, two quintic steps", steps=2, **BOTH),
    "both-steps-4": _idea("bases", "kronecker-spectral, four quintic steps", steps=4, **BOTH),
    "both-length": _idea(
        "bases",
        "kronecker-spectral, as long as the kronecker direction",
        length="of the kronecker direction",
        scale=1.0,
        **BOTH,
    ),
}


@dataclass(frozen=True)
class Job:
    task: str
    idea: str
    part: float
    seed: int


def _method(idea: Idea) -> Method:
    return optimizer_method(
        "prototype",
        idea.text,
        lambda module: Prototype(module, idea.variant),
        defaults={},
        space={},
        version=json.dumps(asdict(idea.variant)),
    )


def _measure(arguments: tuple[Job, Path]) -> Outcome:
    job, runs = arguments
    return train(job.task, _method(IDEAS[job.idea]), {}, job.part, job.seed, runs)


def jobs(ideas: Sequence[str], names: Sequence[str], seeds: int) -> list[Job]:
    """All runs, one seed after the other."""
    kinds = [("base", part) for part in LENGTHS] + [(i, PART) for i in ideas if i != "base"]
    return [Job(t, idea, part, s) for s in range(seeds) for idea, part in kinds for t in names]


class Analysis:
    """From scores to gains in steps."""

    def __init__(self, outcomes: dict[Job, Outcome], names: Sequence[str], seeds: int) -> None:
        self.outcomes, self.names, self.seeds = outcomes, names, seeds
        self.sign = {t: 1.0 if tasks.find(t).task.score.best == "high" else -1.0 for t in names}

    def mean(self, task: str, idea: str, part: float, seeds: Sequence[int]) -> float:
        values = [self.outcomes[Job(task, idea, part, seed)].score for seed in seeds]
        return self.sign[task] * statistics.fmean(values)

    def gain(self, task: str, idea: str, seeds: Sequence[int]) -> float:
        """Logarithm of the steps the base variant needs for the score, over those that were taken.

        The base variant's scores are made to rise with the length.
        """
        base = np.maximum.accumulate([self.mean(task, "base", p, seeds) for p in LENGTHS])
        base = base + 1e-9 * np.arange(len(base))
        score = self.mean(task, idea, PART, seeds)
        if math.isnan(score):
            return -math.log(FURTHEST)
        logs = np.log(LENGTHS)
        i = int(np.clip(np.searchsorted(base, score) - 1, 0, len(base) - 2))
        slope = (logs[i + 1] - logs[i]) / (base[i + 1] - base[i])
        found = logs[i] + slope * (score - base[i]) - math.log(PART)
        return float(np.clip(found, -math.log(FURTHEST), math.log(FURTHEST)))

    def row(self, idea: str) -> dict[str, object]:
        everyone = list(range(self.seeds))
        gains = {task: self.gain(task, idea, everyone) for task in self.names}
        random = np.random.default_rng(0)
        means = []
        for _ in range(RESAMPLES if idea != "base" else 1):
            drawn = random.choice(self.names, len(self.names))
            seeds = random.integers(self.seeds, size=self.seeds).tolist()
            means.append(statistics.fmean(self.gain(str(t), idea, seeds) for t in drawn))
        low, high = np.quantile(means, [0.025, 0.975])
        total = sum(gains.values())
        without = [(total - gain) / max(1, len(gains) - 1) for gain in gains.values()]
        return {
            "idea": idea,
            "group": IDEAS[idea].group,
            "text": IDEAS[idea].text,
            "variant": asdict(IDEAS[idea].variant),
            "gain": math.exp(statistics.fmean(gains.values())),
            "low": math.exp(low),
            "high": math.exp(high),
            "leave_one_out": [math.exp(min(without)), math.exp(max(without))],
            "p": signed_rank_p(list(gains.values())) if idea != "base" else math.nan,
            "step_time": step_time(IDEAS[idea].variant),
            "state": self._state(idea),
            "by_task": {task: math.exp(gain) for task, gain in gains.items()},
            "scores": {
                task: [self.outcomes[Job(task, idea, PART, s)].score for s in everyone]
                for task in self.names
            },
        }

    def _state(self, idea: str) -> float:
        """Bytes of state over the base variant's, geometric mean over tasks."""
        logs = [
            math.log(self.outcomes[Job(task, idea, PART, 0)].state_bytes)
            - math.log(self.outcomes[Job(task, "base", PART, 0)].state_bytes)
            for task in self.names
        ]
        return math.exp(statistics.fmean(logs))


class Layer(nn.Module):
    """The parameters of a small transformer's layer, and an output layer."""

    def __init__(self) -> None:
        super().__init__()
        shapes = [(128, 128)] * 4 + [(512, 128), (128, 512), (10, 128)]
        self.layers = nn.ModuleList(nn.Linear(columns, rows) for rows, columns in shapes)
        for p in self.parameters():
            p.grad = torch.randn_like(p)


def step_time(variant: Variant) -> float:
    """CPU time of a step over the base variant's: median over turns of the ratio."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    both = [Prototype(Layer(), one) for one in (variant, BASE)]
    ratios = []
    for _ in range(TURNS + 1):
        times = []
        for optimizer in both:
            start = time.process_time()
            for _ in range(STEPS_OF_A_TURN):
                optimizer.step()
            times.append(time.process_time() - start)
        ratios.append(times[0] / times[1])
    return statistics.median(ratios[1:])


def markdown(rows: Sequence[dict[str, object]], names: Sequence[str], seeds: int) -> str:
    count = "one seed" if seeds == 1 else f"{seeds} seeds"
    lines = [
        "# What each part of BADM is worth",
        "",
        f"Made by `python benchmarks/ablation.py --seeds {seeds}`. A gain of 1.10 is worth 10 % "
        f"more steps. {len(names)} tasks, {count}, one learning rate for all ideas (1e-2 where the "
        "idea is not another one). Leave-one-out: the smallest and largest gain with one task left "
        "out. The CPU time of a step and the bytes of state are those of the prototype, relative "
        "to the base. node-citeseer-dnn is on a plateau at these lengths: its gains are noise.",
        "",
        "| part | idea | gain | 95 % interval | leave-one-out | p (Holm) | step time | state |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        low, high = row["leave_one_out"]  # type: ignore[misc]
        p_holm: float = row["p_holm"]  # type: ignore[assignment]
        p = "–" if math.isnan(p_holm) else formatting.p_value(p_holm)
        lines.append(
            f"| {row['group'] or 'base'} | {row['text']} | {row['gain']:.2f} | "
            f"{row['low']:.2f} – {row['high']:.2f} | {low:.2f} – {high:.2f} | {p} | "
            f"{row['step_time']:.2f} | {row['state']:.2f} |"
        )
    lines += ["", f"Gain by task ({', '.join(names)}):", ""]
    lines += ["| idea | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for row in rows:
        by_task = row["by_task"]
        cells = (f"{by_task[task]:.2f}" for task in names)  # type: ignore[index]
        lines.append(f"| {row['text']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=2, help="seeds (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=list(IDEAS), help="ideas (default: all)")
    parser.add_argument("--tasks", nargs="+", default=TASKS, help="tasks (default: nine)")
    parser.add_argument("--processes", type=int, default=2, help="at a time (default: 2)")
    parser.add_argument("--runs", type=Path, default=Path("runs/ablation"), help="folder of runs")
    parser.add_argument("--output", type=Path, default=Path("results/ablation.json"))
    arguments = parser.parse_args()

    names, seeds = list(arguments.tasks), arguments.seeds
    ideas = list(dict.fromkeys(["base", *(arguments.only or IDEAS)]))
    wanted = jobs(ideas, names, seeds)
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
        found = pool.imap(_measure, [(job, arguments.runs) for job in wanted])
        outcomes = dict(zip(wanted, track(found, "Training", total=len(wanted)), strict=True))

    analysis = Analysis(outcomes, names, seeds)
    rows = [analysis.row(idea) for idea in ideas]
    corrected = holm([float(row["p"]) for row in rows[1:]])  # type: ignore[arg-type]
    for row, p in zip(rows, [math.nan, *corrected], strict=True):
        row["p_holm"] = p
    content = {
        "tasks": {task: suite.BUDGETS[task] for task in names},
        "part": PART,
        "seeds": seeds,
        "schedule": SCHEDULE,
        "warmup": WARMUP,
        "versions": package_versions(),
        "rows": rows,
    }
    plain = json.dumps(content, indent=1, ensure_ascii=False).replace("NaN", "null")
    arguments.output.write_text(plain + "\n")
    text = markdown(rows, names, seeds)
    arguments.output.with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
