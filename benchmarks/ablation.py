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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
from prototype import Prototype, Variant
from rich.progress import track
from suite_runs import SCHEDULE, WARMUP, Outcome, gain_in_steps, resampled_interval, sign, train
from torch import Tensor, nn

from badm.bench import formatting
from badm.bench.analysis.differences import holm, signed_rank_p
from badm.bench.method import (
    Method,
    OptimizerTrainer,
    Setting,
    StepBatch,
    Trainer,
    TrainingSetup,
    package_versions,
)
from badm.bench.tasks import suite

PART = 3 / 8
LENGTHS = (1 / 4, PART, 1 / 2, 3 / 4)  # of the base variant
# Without those whose scores hardly depend on the method at this length: a plateau or chance.
TASKS = (
    "digits",
    "node-cora-gnn",
    "bbbp",
    "image-cifar10",
    "image-svhn",
    "text-imdb",
    "mlm-pretrain",
    "char-imdb",
)
TURNS, STEPS_OF_A_TURN = 9, 10  # of the time of a step; two periods of refreshing

BASE = Variant()


@dataclass(frozen=True)
class Idea:
    group: str
    text: str
    variant: Variant
    warmup: float = WARMUP
    averaged: float = 0.0  # weight, in what is evaluated, of an average over a tenth of the run


def _idea(group: str, text: str, **parts: object) -> Idea:
    return Idea(group, text, replace(BASE, **parts))  # type: ignore[arg-type]


# In the kronecker metrics the library has the output layer in the diagonal metric.
KRONECKER = {"metric": "kronecker", "output_layer": False}
BOTH = {"metric": "kronecker-spectral", "output_layer": False}
IDEAS = {
    "base": Idea("", "the defaults: spectral, β 0.9, scale 0.4, lr 1e-2", BASE),
    "nesterov": _idea("control", "Nesterov's u instead of ADMM's", form="nesterov"),
    "momentum": _idea("control", "u = m⁺, no extrapolation", form="average"),
    "muon": _idea("control", "Nesterov's u and β 0.95: Muon's", form="nesterov", beta=0.95),
    "kronecker-nesterov": _idea("control", "kronecker, Nesterov's u", form="nesterov", **KRONECKER),
    "both-nesterov": _idea("control", "kronecker-spectral, Nesterov's u", form="nesterov", **BOTH),
    "kronecker": _idea("metric", "kronecker", **KRONECKER),
    "both": _idea("metric", "kronecker-spectral", **BOTH),
    "scale-0.2": _idea("scale", "orthogonal steps half as long", scale=0.2),
    "scale-0.8": _idea("scale", "orthogonal steps twice as long", scale=0.8),
    "fan-in-128": _idea("scale", "times √(128/columns) above 128 columns", by_fan_in_from=128.0),
    "fan-in-256": _idea("scale", "times √(256/columns) above 256 columns", by_fan_in_from=256.0),
    "fan-in-512": _idea("scale", "times √(512/columns) above 512 columns", by_fan_in_from=512.0),
    "distance": _idea(
        "scale", "lr from the distance so far, 1e-3 at first", lr=1.0, distance_first=1e-3
    ),
    "distance-half": _idea(
        "scale", "half of the lr from the distance so far", lr=0.5, distance_first=1e-3
    ),
    "lr-5e-3": _idea("scale", "half the learning rate", lr=5e-3),
    "lr-2e-2": _idea("scale", "twice the learning rate", lr=2e-2),
    "length": _idea("scale", "steps as long as Adam's would be", length="of u", scale=1.0),
    "beta-0.85": _idea("memory", "β 0.85", beta=0.85),
    "beta-0.95": _idea("memory", "β 0.95", beta=0.95),
    "rest-0.99": _idea("memory", "β₂ 0.99 for vectors and embeddings", beta2_rest=0.99),
    "bias": _idea("memory", "bias correction of the dual", bias_correction=True),
    "row-moments": _idea("orthogonal", "row moments after it, as in NorMuon", row_moments=0.95),
    "memory-warmup": _idea("memory", "β rises as (1 + t)/(10 + t)", memory_warmup=True),
    "no-warmup": Idea("schedule", "no warm-up", BASE, warmup=0.0),
    "average": Idea(
        "points", "evaluated: half the weights, half their average", BASE, averaged=0.5
    ),
    "look-ahead": _idea("points", "gradient half an average displacement ahead", look_ahead=0.5),
    "look-ahead-2": _idea("points", "gradient two average displacements ahead", look_ahead=2.0),
    "rest-0.5": _idea("scale", "vectors and embeddings half as far", rest_scale=0.5),
    "rest-0.25": _idea("scale", "vectors and embeddings a quarter as far", rest_scale=0.25),
    "output-diagonal": _idea(
        "grouping", "the output layer in the diagonal metric", output_layer=False
    ),
    "decay": _idea("decay", "weight decay 0.1", weight_decay=0.1),
    "cautious": _idea("decay", "cautious weight decay 0.1", weight_decay=0.1, cautious=True),
    "both-beta2-0.9": _idea("bases", "kronecker-spectral, β₂ 0.9", beta2=0.9, **BOTH),
    "both-beta2-0.99": _idea("bases", "kronecker-spectral, β₂ 0.99", beta2=0.99, **BOTH),
    "both-whitened": _idea(
        "bases", "kronecker-spectral, sides whitened by each other", whitened=True, **BOTH
    ),
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


@dataclass
class AveragedTrainer(OptimizerTrainer):
    """Evaluates a mixture of the weights and their average over the last tenth of the run."""

    weight: float = 0.0
    memory: float = 0.0
    average: dict[Tensor, Tensor] = field(default_factory=dict)

    def step(self, batch: StepBatch) -> float:
        loss = super().step(batch)
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                mean = self.average.setdefault(p, p.detach().clone())
                mean.lerp_(p.detach(), 1 - self.memory)
        return loss

    @contextmanager
    def evaluation_weights(self) -> Iterator[None]:
        training = {p: p.detach().clone() for p in self.average}
        with torch.no_grad():
            for p, mean in self.average.items():
                p.lerp_(mean, self.weight)
        yield
        with torch.no_grad():
            for p, weights in training.items():
                p.copy_(weights)


def _method(idea: Idea) -> Method:
    def build(setup: TrainingSetup, setting: Setting) -> Trainer:
        optimizer = Prototype(setup.module, idea.variant)
        if not idea.averaged:
            return OptimizerTrainer(optimizer)
        return AveragedTrainer(optimizer, idea.averaged, 1 - 1 / max(1.0, setup.steps / 10))

    version = json.dumps([asdict(idea.variant), idea.averaged])
    return Method("prototype", idea.text, "badm", build, {}, {}, version=version)


def _measure(arguments: tuple[Job, Path]) -> Outcome:
    (job, runs), idea = arguments, IDEAS[arguments[0].idea]
    return train(job.task, _method(idea), {}, job.part, job.seed, runs, idea.warmup)


def jobs(ideas: Sequence[str], names: Sequence[str], seeds: int) -> list[Job]:
    """All runs, one seed after the other."""
    kinds = [("base", part) for part in LENGTHS] + [(i, PART) for i in ideas if i != "base"]
    return [Job(t, idea, part, s) for s in range(seeds) for idea, part in kinds for t in names]


class Analysis:
    """From scores to gains in steps."""

    def __init__(self, outcomes: dict[Job, Outcome], names: Sequence[str], seeds: int) -> None:
        self.outcomes, self.names, self.seeds = outcomes, names, seeds
        self.sign = {task: sign(task) for task in names}

    def mean(self, task: str, idea: str, part: float, seeds: Sequence[int]) -> float:
        values = [self.outcomes[Job(task, idea, part, seed)].score for seed in seeds]
        return self.sign[task] * statistics.fmean(values)

    def gain(self, task: str, idea: str, seeds: Sequence[int]) -> float:
        """Logarithm of the steps the base variant needs for the score, over those taken."""
        base = [self.mean(task, "base", part, seeds) for part in LENGTHS]
        return gain_in_steps(LENGTHS, base, self.mean(task, idea, PART, seeds), PART)

    def row(self, idea: str) -> dict[str, object]:
        everyone = list(range(self.seeds))
        gains = {task: self.gain(task, idea, everyone) for task in self.names}
        low, high = resampled_interval(
            lambda task, seeds: self.gain(task, idea, seeds), self.names, self.seeds
        )
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


def markdown(
    rows: Sequence[dict[str, object]], names: Sequence[str], seeds: int, command: str
) -> str:
    count = "one seed" if seeds == 1 else f"{seeds} seeds"
    lines = [
        "# What each part of BADM is worth",
        "",
        f"Made by `{command}`. A gain of 1.10 is worth 10 % "
        f"more steps. {len(names)} tasks, {count}, one learning rate for all ideas (1e-2 where the "
        "idea is not another one). Leave-one-out: the smallest and largest gain with one task left "
        "out. The CPU time of a step and the bytes of state are those of the prototype, relative "
        "to the base.",
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
    parser.add_argument("--tasks", nargs="+", default=TASKS, help="tasks (default: eight)")
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
    only = f" --only {' '.join(arguments.only)}" if arguments.only else ""
    command = f"python benchmarks/ablation.py --seeds {seeds}{only}"
    text = markdown(rows, names, seeds, command)
    arguments.output.with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
