"""How often a comparison calls a difference that is none, and how often it sees one that is there.

    python benchmarks/calibration.py                 # trains what is missing, then compares
    python benchmarks/calibration.py --only-train --tasks digits

One method is trained with many seeds on each task: the pool. A comparison draws seeds from the pool
and is made by the functions of ``badm compare``, from run files to p-values, for one method under
two names.

- With seeds of its own each name has other seeds: the runs have nothing in common.
- With the same seeds, as in a comparison, one of the two has a learning rate 0.1 % larger, by the
  toss of a coin for each seed: runs start alike and end apart by chance alone.

For the power the names have seeds of their own, and the second has the steps of its runs multiplied
by a factor, so that the true difference is known. Trained runs are kept and not repeated.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import track
from scipy import stats

from badm.bench import methods, tasks
from badm.bench.analysis.differences import SIGNIFICANT
from badm.bench.analysis.intervals import mean_interval
from badm.bench.analysis.summaries import summarise
from badm.bench.engine.environment import environment
from badm.bench.engine.run import run
from badm.bench.records.comparisons import MethodInfo, PairedTest, ResultRow, TaskInfo
from badm.bench.records.plans import ComparisonRecord, MethodRecord, Plan
from badm.bench.records.runs import Run, RunConfig, RunStore

METHOD, AGAIN = "badm", "badm-again"
NUDGE = 1.001  # of the learning rate: rounding would do
SEEDS = (3, 5, 10)
COMPARISONS = 100
RESAMPLES = 4000
FACTORS = (0.9, 0.8, 0.5)


@dataclass(frozen=True)
class Studied:
    """A task at a small budget, and the target that its runs reach about half-way."""

    task: str
    steps: int
    evaluate_every: int
    target: float
    seeds: int


TASKS = (
    Studied("digits", 60, 5, 0.95, 50),
    Studied("node-cora-mlp", 60, 5, 0.71, 40),
    Studied("node-cora-gnn", 40, 5, 0.3, 20),
)


def configs(studied: Studied, nudge: float) -> list[RunConfig]:
    """The runs of the pool of one name, by seed."""
    found, method = tasks.find(studied.task), methods.find(METHOD)
    setting = method.setting({})
    setting["lr"] *= nudge
    return [
        found.config(
            method,
            setting,
            seed,
            steps=studied.steps,
            schedule="constant",
            test=True,
            evaluate_every=studied.evaluate_every,
        )
        for seed in range(studied.seeds)
    ]


def train(studied: Studied, store: RunStore) -> None:
    """Do the runs of the pool that are missing."""
    found, method = tasks.find(studied.task), methods.find(METHOD)
    pairs = zip(configs(studied, 1.0), configs(studied, NUDGE), strict=True)
    for pair in track(list(pairs), studied.task):
        for config in pair:
            run(config, found.task, method, store)


class Pool(RunStore):
    """The runs of a folder, read once; those of the second name may have their steps scaled."""

    def __init__(self, folder: Path, factor: float = 1.0) -> None:
        super().__init__(folder)
        self.factor = factor
        self.known: dict[str, Run] = {}

    def read(self, config: RunConfig) -> Run | None:
        if config.key not in self.known:
            own = replace(config, method=METHOD)
            found = super().read(own)
            assert found is not None, f"{own} has not been trained"
            scaled = self.factor if config.method == AGAIN else 1.0
            self.known[config.key] = replace(found, config=config, points=_scaled(found, scaled))
        return self.known[config.key]


def _scaled(found: Run, factor: float) -> list[Any]:
    """The points of a run as if it took a factor of its steps."""
    return [replace(point, step=point.step * factor) for point in found.points]  # type: ignore[arg-type]


def comparison(
    studied: Studied, store: RunStore, own: Sequence[RunConfig], again: Sequence[RunConfig]
) -> ResultRow:
    """The row of the second name in a comparison of the two, made as ``badm compare`` does."""
    found = tasks.find(studied.task)
    names = (METHOD, AGAIN)
    plan = Plan((studied.task,), names, "paper", 0, len(own), reference=METHOD)
    score = found.task.score
    info = TaskInfo(
        found.task.name,
        "",
        "cpu",
        score.name,
        score.best,
        score.percent,
        studied.steps,
        found.task.batch_size,
        studied.target,
        synthetic=False,
    )
    entries = [
        MethodRecord(
            info.name,
            name,
            dict(chosen[0].setting),
            finals={place: replace(one, method=name) for place, one in enumerate(chosen)},
        )
        for name, chosen in zip(names, (own, again), strict=True)
    ]
    infos = [MethodInfo(name, "", "badm") for name in names]
    made = summarise(ComparisonRecord(plan, "", [info], infos, entries), store)
    (row,) = (row for row in made.rows if row.method == AGAIN)
    assert row.status == "finished", row.message
    return row


def drawn(
    studied: Studied, store: RunStore, seeds: int, count: int, *, same: bool, label: str
) -> Iterator[ResultRow]:
    """So many comparisons with seeds drawn from the pool, none twice in a comparison."""
    random = np.random.default_rng([zlib.crc32(f"{studied.task} {label}".encode()), seeds])
    own, nudged = configs(studied, 1.0), configs(studied, NUDGE)
    for _ in range(count):
        chosen = random.permutation(studied.seeds)[: seeds if same else 2 * seeds]
        if same:
            pairs = [
                (own[place], nudged[place]) if coin else (nudged[place], own[place])
                for place, coin in zip(chosen, random.random(seeds) < 0.5, strict=True)
            ]
        else:
            pairs = [
                (own[one], own[two])
                for one, two in zip(chosen[:seeds], chosen[seeds:], strict=True)
            ]
        first, second = zip(*pairs, strict=True)
        yield comparison(studied, store, first, second)


def calls(test: PairedTest | None) -> bool:
    return test is not None and test.p_value < SIGNIFICANT


def share(rows: Sequence[ResultRow], is_so: Callable[[ResultRow], bool]) -> float:
    return sum(map(is_so, rows)) / len(rows)


def null_rates(
    studied: Studied, runs: Path, seeds: int, count: int, *, same: bool
) -> dict[str, Any]:
    """How often a difference is called between a method and itself, and intervals hold."""
    label = "same seeds" if same else "own seeds"
    rows = list(drawn(studied, Pool(runs), seeds, count, same=same, label=label))
    return {
        "task": studied.task,
        "arm": label,
        "seeds": seeds,
        "count": count,
        "score": share(rows, lambda row: calls(row.compared)),
        "steps": share(rows, lambda row: calls(row.steps_compared)),
        "either": share(rows, lambda row: calls(row.compared) or calls(row.steps_compared)),
    }


def _test_scores(studied: Studied, runs: Path, nudge: float) -> list[float]:
    store, score = RunStore(runs), tasks.find(studied.task).task.score.name
    found = []
    for config in configs(studied, nudge):
        done = store.read(config)
        assert done is not None
        assert done.result is not None
        assert done.result.test is not None
        found.append(done.result.test[score])
    return [value for value in found if value is not None]


def power_rates(studied: Studied, runs: Path, seeds: int, count: int) -> Iterator[dict[str, Any]]:
    """How often a true difference in steps is seen, with seeds of its own for each name.

    With the same seeds two runs of one method differ by a factor exactly, as those of two methods
    never do.
    """
    for factor in FACTORS:
        label = f"power {factor:g}"
        rows = list(drawn(studied, Pool(runs, factor), seeds, count, same=False, label=label))
        yield {
            "task": studied.task,
            "factor": factor,
            "seeds": seeds,
            "count": count,
            "seen": share(rows, lambda row: calls(row.steps_compared)),
        }


def interval_holds(scores: Sequence[float], seeds: int) -> float:
    """How often the interval of so many seeds, drawn from the pool, holds the mean of the pool."""
    random = np.random.default_rng(seeds)
    middle, held = statistics.fmean(scores), 0
    for _ in range(RESAMPLES):
        interval = mean_interval(random.choice(scores, seeds).tolist())
        held += interval.low <= middle <= interval.high
    return held / RESAMPLES


def pool_facts(studied: Studied, runs: Path) -> dict[str, Any]:
    """What the pool of a task looks like."""
    info = tasks.find(studied.task).task
    scores = _test_scores(studied, runs, 1.0)
    rows = list(drawn(studied, Pool(runs), studied.seeds, 1, same=True, label="pool"))
    assert rows[0].steps_to_target is not None
    steps = [value for value in rows[0].steps_to_target.values if math.isfinite(value)]
    return {
        "task": studied.task,
        "steps": studied.steps,
        "evaluate_every": studied.evaluate_every,
        "target": studied.target,
        "seeds": studied.seeds,
        "score": info.score.name,
        "mean_score": statistics.fmean(scores),
        "deviation_of_score": statistics.stdev(scores),
        "skewness_of_score": float(stats.skew(scores)),
        "interval_holds": {str(seeds): interval_holds(scores, seeds) for seeds in SEEDS},
        "median_steps": rows[0].steps_to_target.value,
        "deviation_of_log_steps": float(np.std(np.log(steps), ddof=1)),
        "missed": studied.seeds - len(steps),
    }


def total(rows: Sequence[dict[str, Any]], what: str, **where: Any) -> float:
    """A rate over all tasks."""
    chosen = [row for row in rows if all(row[name] == value for name, value in where.items())]
    return statistics.fmean(row[what] for row in chosen)


def markdown(made: dict[str, Any]) -> str:
    null, power = made["null"], made["power"]
    sizes = ", ".join(f"{pool['seeds']} on {pool['task']}" for pool in made["pools"])
    heads = " | ".join(f"{seeds} seeds" for seeds in SEEDS)
    rule = "---:|" * len(SEEDS)
    lines = [
        "# One method under two names",
        "",
        f"Made by `python benchmarks/calibration.py`. {made['count']} comparisons for each "
        f"task and number of seeds, drawn from pools of seeds ({sizes}): they share seeds, so that "
        "rates are less certain than their number suggests. A difference is called at p < 0.05.",
        "",
        "| called | arm | task | " + heads + " |",
        "|---|---|---|" + rule,
    ]
    for what in ("score", "steps", "either"):
        for arm in ("own seeds", "same seeds"):
            for task in [p["task"] for p in made["pools"]] + [""]:
                where = {"arm": arm} | ({"task": task} if task else {})
                cells = [f"{100 * total(null, what, seeds=n, **where):.1f} %" for n in SEEDS]
                lines.append(f"| {what} | {arm} | {task or '**all**'} | {' | '.join(cells)} |")
    lines += ["", "| true steps | task | " + heads + " |", "|---|---|" + rule]
    for factor in FACTORS:
        for task in [p["task"] for p in made["pools"]] + [""]:
            where = {"factor": factor} | ({"task": task} if task else {})
            cells = [f"{100 * total(power, 'seen', seeds=n, **where):.0f} %" for n in SEEDS]
            lines.append(f"| {factor:g} times | {task or '**all**'} | {' | '.join(cells)} |")
    lines += [
        "",
        "| the interval of a mean score holds that of the pool | skewness | " + heads + " |",
    ]
    lines.append("|---|---:|" + rule)
    for pool in made["pools"]:
        cells = [f"{100 * pool['interval_holds'][str(n)]:.1f} %" for n in SEEDS]
        lines.append(f"| {pool['task']} | {pool['skewness_of_score']:.1f} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", help="tasks (default: three)")
    parser.add_argument("--pool", type=int, help="seeds of a pool, where fewer are enough")
    parser.add_argument("--comparisons", type=int, default=COMPARISONS, help="default: %(default)s")
    parser.add_argument("--only-train", action="store_true", help="train, and compare nothing")
    parser.add_argument(
        "--runs", type=Path, default=Path("runs/calibration"), help="folder of runs"
    )
    parser.add_argument("--output", type=Path, default=Path("results/calibration.json"))
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    chosen = [one for one in TASKS if not arguments.tasks or one.task in arguments.tasks]
    if arguments.pool:
        chosen = [replace(one, seeds=min(one.seeds, arguments.pool)) for one in chosen]
    store, count = RunStore(arguments.runs), arguments.comparisons
    for studied in chosen:
        train(studied, store)
    if arguments.only_train:
        return
    where = [(studied, seeds) for studied in chosen for seeds in SEEDS]
    made: dict[str, Any] = {
        "method": METHOD,
        "nudge": NUDGE,
        "count": count,
        "environment": environment(),
        "pools": [pool_facts(studied, arguments.runs) for studied in chosen],
        "null": [
            null_rates(studied, arguments.runs, seeds, count, same=same)
            for studied, seeds in track(where, "Differences that are none")
            for same in (False, True)
        ],
        "power": [
            row
            for studied, seeds in track(where, "Differences that are there")
            for row in power_rates(studied, arguments.runs, seeds, count)
        ],
    }
    arguments.output.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")
    arguments.output.with_suffix(".md").write_text(markdown(made))
    print(markdown(made))


if __name__ == "__main__":
    main()
