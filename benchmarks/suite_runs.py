"""One run of a task of the suite, for the benchmarks that train many of them; runs are kept."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from badm.bench import tasks
from badm.bench.analysis.speed import last_value
from badm.bench.engine.run import run
from badm.bench.method import Method
from badm.bench.records.runs import RunStore
from badm.bench.tasks import suite

SCHEDULE, WARMUP = "linear", 0.05  # those of the speed protocol


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    score: float  # last on the validation split; NaN if the run diverged
    step_ms: float  # of the clock on the wall
    state_bytes: float


def train(
    task: str, method: Method, setting: Mapping[str, Any], part: float, seed: int, runs: Path
) -> Outcome:
    """Train for a part of the suite's budget, with one thread, and evaluate at the end."""
    torch.set_num_threads(1)
    found = tasks.find(task)
    steps = round(part * suite.BUDGETS[task])
    config = found.config(
        method,
        method.setting(setting),
        seed,
        steps=steps,
        schedule=SCHEDULE,
        warmup=WARMUP,
        test=False,
        evaluate_every=steps,
    )
    done = run(config, found.task, method, RunStore(runs))
    assert done.result is not None
    score = last_value(done, found.task.score.name) if done.result.status == "finished" else None
    return Outcome(
        math.nan if score is None else score,
        1e3 * done.result.seconds / max(1, done.result.step),
        float(done.result.state_bytes or 0),
    )
