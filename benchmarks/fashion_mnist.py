"""Steps to 86 % test accuracy and lowest test loss on 10,000 Fashion-MNIST images.

A small CNN, batches of 64, 1,000 steps, a test on all 5,000 test images every 25 steps. Every
optimizer runs at the same three learning rates and five seeds, from the same initialisation and in
the same order of data for a seed, with the settings its library recommends otherwise and without
weight decay. Reported is the learning rate with the fewest steps to the target (median over the
seeds, a miss counts as infinite; ties go to the lower test loss).

    BADM_DATA=../shared/data python benchmarks/fashion_mnist.py -o results/fashion_mnist.json

Runs already in the output file are not repeated, so an interrupted benchmark goes on.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import platform
import statistics
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytorch_optimizer
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import badm

TRAIN_IMAGES, BATCH_SIZE, STEPS, TEST_EVERY, TARGET = 10_000, 64, 1000, 25, 0.86
LEARNING_RATES = (1e-3, 3e-3, 1e-2)
SEEDS = (0, 1, 2, 3, 4)


class FlatMuon:
    """Muon in its strongest fair form: kernels flattened, AdamW for the head and the vectors.

    ``match_rms_adamw`` makes one learning rate mean the same to both.
    """

    def __init__(self, model: nn.Module, lr: float) -> None:
        *hidden, _head = [p for p in model.parameters() if p.ndim >= 2]
        rest = [p for p in model.parameters() if all(p is not q for q in hidden)]
        self.pairs = [(p, nn.Parameter(p.detach().view(p.shape[0], -1))) for p in hidden]
        flat = [matrix for _, matrix in self.pairs]
        self.muon = torch.optim.Muon(
            flat, lr=lr, momentum=0.95, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"
        )
        self.adamw = torch.optim.AdamW(rest, lr=lr, weight_decay=0.0)

    def step(self) -> None:
        for p, matrix in self.pairs:
            matrix.grad = p.grad.reshape(matrix.shape)
        self.muon.step()
        self.adamw.step()


def _badm(metric: str, **options: Any) -> Callable[[nn.Module, float], badm.BADM]:
    return lambda model, lr: badm.BADM(
        badm.parameter_groups(model, metric=metric), lr=lr, metric=metric, **options
    )


METHODS: dict[str, Callable[[nn.Module, float], Any]] = {
    "Adam": lambda model, lr: torch.optim.Adam(model.parameters(), lr=lr),
    "NAdam": lambda model, lr: torch.optim.NAdam(model.parameters(), lr=lr),
    "RMSProp": lambda model, lr: torch.optim.RMSprop(model.parameters(), lr=lr),
    "Muon": FlatMuon,
    "SOAP": lambda model, lr: pytorch_optimizer.SOAP(
        model.parameters(), lr=lr, betas=(0.95, 0.95), weight_decay=0.0
    ),
    "BADM euclidean": _badm("euclidean"),
    "BADM diagonal": _badm("diagonal"),
    "BADM spectral": _badm("spectral"),
    "BADM kronecker": _badm("kronecker"),
    "BADM kronecker, beta2=0.95": _badm("kronecker", beta2=0.95),
}


def read_idx(path: Path) -> Tensor:
    """An idx file of bytes: two zeros, the type, the number of dimensions, the dimensions."""
    raw = gzip.decompress(path.read_bytes())
    dimensions = raw[3]
    shape = [int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(dimensions)]
    return torch.frombuffer(bytearray(raw[4 + 4 * dimensions :]), dtype=torch.uint8).reshape(shape)


@cache
def data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if "BADM_DATA" not in os.environ:
        sys.exit("set BADM_DATA to the folder that holds fashion_mnist/")
    folder = Path(os.environ["BADM_DATA"]) / "fashion_mnist"
    arrays: list[Tensor] = []
    for part, count in (("train", TRAIN_IMAGES), ("t10k", None)):
        images = read_idx(folder / f"{part}-images-idx3-ubyte.gz")[:count, None].float() / 255
        images = (images - 0.286) / 0.353  # mean and deviation of the training images
        # Channels last: twice as fast on a CPU.
        arrays.append(images.to(memory_format=torch.channels_last))
        arrays.append(read_idx(folder / f"{part}-labels-idx1-ubyte.gz")[:count].long())
    return tuple(arrays)  # type: ignore[return-value]


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 5 * 5, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def batches(seed: int) -> Iterable[Tensor]:
    generator = torch.Generator().manual_seed(1000 + seed)
    while True:
        order = torch.randperm(TRAIN_IMAGES, generator=generator)
        yield from order[: len(order) // BATCH_SIZE * BATCH_SIZE].split(BATCH_SIZE)


@torch.no_grad()
def test(model: nn.Module) -> tuple[float, float]:
    """Mean loss and accuracy over the whole test set."""
    _, _, images, labels = data()
    logits = torch.cat([model(part) for part in images.split(250)])
    accuracy = (logits.argmax(1) == labels).double().mean().item()
    return cross_entropy(logits, labels).item(), accuracy


def run(method: str, lr: float, seed: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    images, labels, _, _ = data()
    model = network(seed)
    optimizer = METHODS[method](model, lr)
    losses, accuracies = [], []
    for step, indices in zip(range(1, STEPS + 1), batches(seed), strict=False):
        model.zero_grad()
        cross_entropy(model(images[indices]), labels[indices]).backward()
        optimizer.step()
        if step % TEST_EVERY == 0:
            loss, accuracy = test(model)
            losses.append(round(loss, 5))
            accuracies.append(accuracy)
    return {
        "method": method,
        "lr": lr,
        "seed": seed,
        "test_loss": losses,
        "test_accuracy": accuracies,
    }


def steps_to_target(one_run: dict[str, Any]) -> float:
    reached = (i for i, accuracy in enumerate(one_run["test_accuracy"]) if accuracy >= TARGET)
    return TEST_EVERY * (1 + next(reached, math.inf))


def lowest_loss(one_run: dict[str, Any]) -> float:
    return min((x for x in one_run["test_loss"] if math.isfinite(x)), default=math.inf)


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each method its best learning rate, with medians and ranges over the seeds."""
    rows = []
    for method in METHODS:
        candidates = []
        for lr in LEARNING_RATES:
            chosen = [r for r in runs if r["method"] == method and r["lr"] == lr]
            if len(chosen) < len(SEEDS):
                continue
            steps = sorted(steps_to_target(r) for r in chosen)
            losses = sorted(lowest_loss(r) for r in chosen)
            candidates.append(
                {
                    "method": method,
                    "lr": lr,
                    "steps": statistics.median(steps),
                    "steps_range": [steps[0], steps[-1]],
                    "loss": statistics.median(losses),
                    "loss_range": [losses[0], losses[-1]],
                }
            )
        if candidates:
            rows.append(min(candidates, key=lambda row: (row["steps"], row["loss"])))
    return rows


def markdown(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| optimizer | best lr | steps to 86 % (range) | lowest test loss (range) |",
        "|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda row: (row["steps"], row["loss"])):
        low, high = row["steps_range"]
        best, worst = row["loss_range"]
        lines.append(
            f"| {row['method']} | {row['lr']:g} | {row['steps']:g} ({low:g}–{high:g}) "
            f"| {row['loss']:.4f} ({best:.4f}–{worst:.4f}) |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("fashion_mnist.json"))
    parser.add_argument("--jobs", type=int, default=2, help="processes, one thread each")
    arguments = parser.parse_args()

    report = {
        "torch": torch.__version__,
        "pytorch_optimizer": version("pytorch_optimizer"),
        "python": platform.python_version(),
        "images": TRAIN_IMAGES,
        "batch_size": BATCH_SIZE,
        "steps": STEPS,
        "test_every": TEST_EVERY,
        "target": TARGET,
        "summary": [],
        "runs": [],
    }
    if arguments.output.exists():
        report["runs"] = json.loads(arguments.output.read_text())["runs"]
    runs = report["runs"]
    done = {(r["method"], r["lr"], r["seed"]) for r in runs}
    todo = [
        (method, lr, seed)
        for seed in SEEDS
        for method in METHODS
        for lr in LEARNING_RATES
        if (method, lr, seed) not in done
    ]
    data()
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        for finished in as_completed([pool.submit(run, *job) for job in todo]):
            runs.append(finished.result())
            runs.sort(key=lambda r: (list(METHODS).index(r["method"]), r["lr"], r["seed"]))
            report["summary"] = summary(runs)
            partial = arguments.output.with_suffix(".part")
            partial.write_text(json.dumps(report) + "\n")
            partial.replace(arguments.output)
            print(f"\r{len(runs)} of {len(done) + len(todo)} runs", end="", flush=True)
    print()
    print(markdown(summary(runs)))


if __name__ == "__main__":
    main()
