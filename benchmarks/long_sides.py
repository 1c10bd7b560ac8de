"""Measure the kronecker metric with long sides split into blocks: step time and training.

A first layer of many inputs has a long side. For blocks of several lengths, and whole sides,
this measures the processor time of a step on such layers, relative to the diagonal metric's on the
same tensors (medians of interleaved turns), and the validation scores of a network with such a
layer, the DNN of Cora with 1,433 inputs, over some seeds. Then the same for the 12,000 words of a
language model's output layer: in blocks, and with the identity on that side.

    BADM_DATA=../shared/data python benchmarks/long_sides.py -o results/long_sides.json
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from badm import BADM
from badm.bench import methods, tasks
from badm.bench.engine.run import run
from badm.bench.records.runs import RunStore
from badm.metrics import eigenbases

LENGTHS = (64, 128, 256, 512, 2048)  # the last splits only the longest side here
SHAPES = ((32, 1433), (32, 3703), (4096, 7))
TURNS, STEPS_OF_A_TURN = 7, 20  # two periods of refreshing
TASK, SEEDS, LR = "node-cora-dnn", (0, 1, 2), 1e-3
WORDS, STEPS_OF_WORDS = "mlm-pretrain", 350
LIMITS = {"blocks": 12_000, "identity": eigenbases.LIMIT}


@contextmanager
def blocks_of(length: int) -> Iterator[None]:
    """Split sides longer than this into blocks."""
    before = eigenbases.SHORTEST, eigenbases.LONGEST
    eigenbases.SHORTEST, eigenbases.LONGEST = length, length
    try:
        yield
    finally:
        eigenbases.SHORTEST, eigenbases.LONGEST = before


def step_times(shape: tuple[int, int]) -> dict[str, float]:
    """Measure a kronecker step by length of the blocks, relative to diagonal steps."""
    cases = {"diagonal": 256, **{str(length): length for length in LENGTHS}}
    optimizers = {
        name: BADM(
            [torch.nn.Parameter(torch.randn(shape))],
            metric="diagonal" if name == "diagonal" else "kronecker",
        )
        for name in cases
    }
    gradients = [torch.randn(shape) for _ in range(3)]
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(TURNS + 1):
        for name, length in cases.items():
            with blocks_of(length):
                seconds[name].append(_seconds(optimizers[name], gradients))
    medians = {name: statistics.median(those[1:]) for name, those in seconds.items()}
    return {name: median / medians["diagonal"] for name, median in medians.items()}


def _seconds(optimizer: BADM, gradients: list[Tensor]) -> float:
    (w,) = optimizer.param_groups[0]["params"]
    start = time.process_time()
    for step in range(STEPS_OF_A_TURN):
        w.grad = gradients[step % len(gradients)]
        optimizer.step()
    return time.process_time() - start


@contextmanager
def identity_above(limit: int) -> Iterator[None]:
    before, eigenbases.LIMIT = eigenbases.LIMIT, limit
    try:
        yield
    finally:
        eigenbases.LIMIT = before


def learned(name: str, steps: int) -> dict[str, list[float]]:
    """Return the best validation accuracy and lowest validation loss of each seed."""
    method, task = methods.find("badm-kronecker"), tasks.find(name)
    found: dict[str, list[float]] = {"accuracy": [], "loss": []}
    with TemporaryDirectory() as folder:
        for seed in SEEDS:
            setting = method.setting({"lr": LR})
            config = task.config(method, setting, seed, steps=steps)
            done = run(config, task.task, method, RunStore(folder))
            found["accuracy"].append(max(done.validation_curve("accuracy")[1]))
            found["loss"].append(min(done.validation_curve("loss")[1]))
    return found


def means(found: dict[str, list[float]]) -> dict[str, float]:
    return {name: round(statistics.mean(those), 4) for name, those in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=1000, help="training steps (default: 1000)")
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    result: dict[str, Any] = {
        "environment": {
            "python": platform.python_version(),
            "torch": version("torch"),
            "machine": platform.machine(),
            "threads": torch.get_num_threads(),
        },
        "turns": TURNS,
        "steps of a turn": STEPS_OF_A_TURN,
        "step time over the diagonal metric's": {},
        "training": {"task": TASK, "steps": options.steps, "lr": LR, "seeds": SEEDS},
        "learned": {},
        "words": {"task": WORDS, "steps": STEPS_OF_WORDS, "lr": LR, "seeds": SEEDS},
        "learned of words": {},
    }
    for shape in SHAPES:
        ratios = step_times(shape)
        result["step time over the diagonal metric's"][str(shape)] = ratios
        print(shape, *(f"{name}: {ratio:.1f}" for name, ratio in ratios.items()), flush=True)
    for length in LENGTHS:
        with blocks_of(length):
            result["learned"][length] = found = learned(TASK, options.steps)
        print(f"blocks of {length}: {means(found)}", flush=True)
    for name, limit in LIMITS.items():
        with identity_above(limit):
            result["learned of words"][name] = found = learned(WORDS, STEPS_OF_WORDS)
        print(f"words, {name}: {means(found)}", flush=True)
    if options.output:
        options.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
