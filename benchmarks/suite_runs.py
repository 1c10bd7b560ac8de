"""Runs of the suite's tasks, for the benchmarks that train many of them, and scores as steps."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from badm.bench import tasks
from badm.bench.analysis.speed import last_value
from badm.bench.engine.run import run
from badm.bench.method import Method
from badm.bench.records.runs import RunStore
from badm.bench.tasks import suite

SCHEDULE, WARMUP = "linear", 0.05  # those of the speed protocol
RESAMPLES = 2000
FURTHEST = 3.0  # the largest factor that a score counts as, unless another is given


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    score: float  # last on the validation split; NaN if the run diverged
    step_ms: float  # of the clock on the wall
    state_bytes: float


def train(
    task: str,
    method: Method,
    setting: Mapping[str, Any],
    part: float,
    seed: int,
    runs: Path,
    warmup: float = WARMUP,
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
        warmup=warmup,
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


def sign(task: str) -> float:
    """1 where more of a task's score is better, else −1."""
    return 1.0 if tasks.find(task).task.score.best == "high" else -1.0


def gain_in_steps(
    lengths: Sequence[float],
    ruler: Sequence[float],
    score: float,
    taken: float,
    furthest: float = FURTHEST,
) -> float:
    """Logarithm of the steps after which a ruler has a score, over those that were taken for it.

    The ruler is the scores of one method in runs of several lengths, more being better. It is made
    to rise with the length, and interpolated in the logarithm of the length. A score far below or
    beyond it counts as the factor ``furthest``.
    """
    if math.isnan(score):
        return -math.log(furthest)
    rising = np.maximum.accumulate(ruler) + 1e-9 * np.arange(len(ruler))
    logs = np.log(lengths)
    i = int(np.clip(np.searchsorted(rising, score) - 1, 0, len(rising) - 2))
    slope = (logs[i + 1] - logs[i]) / (rising[i + 1] - rising[i])
    found = logs[i] + slope * (score - rising[i]) - math.log(taken)
    return float(np.clip(found, -math.log(furthest), math.log(furthest)))


def resampled_interval(
    gain: Callable[[str, Sequence[int]], float], names: Sequence[str], seeds: int
) -> tuple[float, float]:
    """95 % interval of the mean gain, from resampling tasks and seeds."""
    random = np.random.default_rng(0)
    means = []
    for _ in range(RESAMPLES):
        drawn = random.choice(names, len(names))
        chosen = random.integers(seeds, size=seeds).tolist()
        means.append(statistics.fmean(gain(str(task), chosen) for task in drawn))
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)
