"""Steps to 86 % test accuracy and lowest test loss on 10,000 Fashion-MNIST images.

A small CNN, batches of 64, 1,000 steps, a test on all 5,000 test images every 25 steps. Every
optimizer runs at the same three learning rates and five seeds, from the same initialisation and in
the same order of data for a seed, with the settings its library recommends otherwise and without
weight decay. Both figures are reported at the learning rate where their median over the seeds is
least; a target that was missed counts as infinitely far.

    BADM_DATA=../shared/data python benchmarks/fashion_mnist.py -o results/fashion_mnist.json

Runs already in the output file are not repeated, so an interrupted benchmark goes on. Beside the
JSON it writes the table as Markdown and the curves as a picture.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
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
from badm.bench.data import idx, path
from badm.bench.methods.muon import Muon

TRAIN_IMAGES, BATCH_SIZE, STEPS, TEST_EVERY, TARGET = 10_000, 64, 1000, 25, 0.86
LEARNING_RATES = (1e-3, 3e-3, 1e-2)
SEEDS = (0, 1, 2, 3, 4)


def _badm(metric: str, **options: Any) -> Callable[[nn.Module, float], badm.BADM]:
    return lambda model, lr: badm.BADM(
        badm.parameter_groups(model, metric=metric), lr=lr, metric=metric, **options
    )


METHODS: dict[str, Callable[[nn.Module, float], Any]] = {
    "Adam": lambda model, lr: torch.optim.Adam(model.parameters(), lr=lr),
    "NAdam": lambda model, lr: torch.optim.NAdam(model.parameters(), lr=lr),
    "RMSProp": lambda model, lr: torch.optim.RMSprop(model.parameters(), lr=lr),
    "Muon": Muon,  # kernels flattened, AdamW for the head and the vectors
    "SOAP": lambda model, lr: pytorch_optimizer.SOAP(
        model.parameters(), lr=lr, betas=(0.95, 0.95), weight_decay=0.0
    ),
    "BADM euclidean": _badm("euclidean"),
    "BADM diagonal": _badm("diagonal"),
    "BADM spectral": _badm("spectral"),
    "BADM kronecker": _badm("kronecker"),
    "BADM kronecker, beta2=0.95": _badm("kronecker", beta2=0.95),
}


@cache
def data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    train, train_labels, test, test_labels = idx.load(path("fashion-mnist"))
    train, train_labels = train[:TRAIN_IMAGES], train_labels[:TRAIN_IMAGES]
    return _pixels(train), train_labels.long(), _pixels(test), test_labels.long()


def _pixels(images: Tensor) -> Tensor:
    scaled = (images[:, None].float() / 255 - 0.286) / 0.353  # of the training images
    return scaled.to(memory_format=torch.channels_last)  # twice as fast on a CPU


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


def over_seeds(
    runs: list[dict[str, Any]], method: str, figure: Callable[[dict[str, Any]], float]
) -> tuple[float, list[float]]:
    """The learning rate with the least median of a figure, and the figure for each seed.

    Of learning rates that all miss the target, the one with the lowest loss.
    """

    def at(lr: float, figure: Callable[[dict[str, Any]], float]) -> list[float]:
        return sorted(figure(r) for r in runs if r["method"] == method and r["lr"] == lr)

    def median(lr: float, figure: Callable[[dict[str, Any]], float]) -> float:
        return statistics.median(at(lr, figure))

    best = min(LEARNING_RATES, key=lambda lr: (median(lr, figure), median(lr, lowest_loss)))
    return best, at(best, figure)


def markdown(runs: list[dict[str, Any]]) -> str:
    rows = []
    for method in METHODS:
        steps_lr, steps = over_seeds(runs, method, steps_to_target)
        loss_lr, losses = over_seeds(runs, method, lowest_loss)
        middle, middle_loss = statistics.median(steps), statistics.median(losses)
        text = (
            f"| {method} | {middle:g} ({steps[0]:g}–{steps[-1]:g}) | {steps_lr:g} "
            f"| {middle_loss:.4f} ({losses[0]:.4f}–{losses[-1]:.4f}) | {loss_lr:g} |"
        )
        rows.append((middle, middle_loss, text))
    head = (
        "| optimizer | steps to 86 % (range) | at lr | lowest test loss (range) | at lr |\n"
        "|---|---|---|---|---|\n"
    )
    return head + "\n".join(text for _, _, text in sorted(rows))


def draw(runs: list[dict[str, Any]], path: Path) -> None:
    """Median curves over the seeds, each method at the learning rate that is fastest to 86 %."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    colours = plt.get_cmap("tab10")
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5), layout="constrained")
    for number, method in enumerate(METHODS):
        lr, _ = over_seeds(runs, method, steps_to_target)
        chosen = [r for r in runs if r["method"] == method and r["lr"] == lr]
        steps = [TEST_EVERY * (i + 1) for i in range(STEPS // TEST_EVERY)]
        ours = method.startswith("BADM")
        look = {"color": colours(number), "lw": 2.2 if ours else 1.3, "ls": "-" if ours else "--"}
        label = f"{method} (lr {lr:g})"
        for axes, key in ((left, "test_accuracy"), (right, "test_loss")):
            median = torch.tensor([r[key] for r in chosen]).median(0).values
            axes.plot(steps, median, label=label, **look)
    left.axhline(TARGET, color="grey", lw=0.8)
    left.annotate("86 %", (0, TARGET), va="bottom", color="grey")
    left.set(ylim=(0.7, 0.9), xlabel="steps", ylabel="test accuracy")
    right.set(ylim=(0.34, 0.7), xlabel="steps", ylabel="test loss")
    for axes in (left, right):
        axes.grid(alpha=0.25)
    right.legend(fontsize=8)
    figure.suptitle(
        f"Fashion-MNIST, {TRAIN_IMAGES:,} images, small CNN, batch {BATCH_SIZE}: "
        f"median of {len(SEEDS)} seeds, each at its best of {len(LEARNING_RATES)} learning rates"
    )
    figure.savefig(path, dpi=110)


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
        "learning_rates": LEARNING_RATES,
        "seeds": SEEDS,
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
            partial = arguments.output.with_suffix(".part")
            partial.write_text(json.dumps(report) + "\n")
            partial.replace(arguments.output)
            print(f"\r{len(runs)} of {len(done) + len(todo)} runs", end="", flush=True)
    print()
    print(markdown(runs))
    arguments.output.with_suffix(".md").write_text(markdown(runs) + "\n")
    draw(runs, arguments.output.with_suffix(".png"))


if __name__ == "__main__":
    main()
