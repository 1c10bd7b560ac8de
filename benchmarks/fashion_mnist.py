"""Steps to 86 % and loss at the stopping point on 10,000 Fashion-MNIST images.

A small CNN, batches of 64, 1,000 steps. Everything is chosen on a validation split of 5,000 other
training images, evaluated every 25 steps; the test split is evaluated once per final run, with the
weights that had the lowest validation loss.

Every optimizer has one learning rate for all its columns: the one with the lowest validation loss
at the stopping point, for a seed that is used for nothing else. All start with the same three, half
a decade apart, and if the best one is the smallest or largest tried, the next one beyond is tried
too, until the best lies between two that are worse. Five fresh seeds then run at that learning
rate. A seed fixes the initialisation and the order of the data for all methods; other settings are
those each library recommends, without weight decay. A missed target counts as infinite.

    BADM_DATA=../shared/data python benchmarks/fashion_mnist.py -o results/fashion_mnist.json

About 90 runs of 16 seconds. Those already in the output file are not repeated: run the same command
to resume. Beside the JSON it writes the table as Markdown and the curves as an image.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from copy import deepcopy
from functools import cache
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import pytorch_optimizer
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import badm
from badm.bench.data import idx, path
from badm.bench.methods.muon import Muon

TRAIN_IMAGES, VALIDATION_IMAGES, TEST_IMAGES = 10_000, 5_000, 5_000
BATCH_SIZE, STEPS, READ_EVERY, TARGET = 64, 1000, 25, 0.86
FIRST_EXPONENTS = (-6, -5, -4)  # in half-decades: 1e-3, 3e-3, 1e-2
TUNING_SEEDS = (100,)
FINAL_SEEDS = (0, 1, 2, 3, 4)

Run = dict[str, Any]
Job = tuple[str, float, int]  # method, learning rate, seed


def _badm(metric: str, **options: Any) -> Callable[[nn.Module, float], badm.BADM]:
    return lambda model, lr: badm.BADM(
        badm.parameter_groups(model, metric=metric), lr=lr, metric=metric, **options
    )


METHODS: dict[str, Callable[[nn.Module, float], Any]] = {
    "Adam": lambda model, lr: torch.optim.Adam(model.parameters(), lr=lr),
    "NAdam": lambda model, lr: torch.optim.NAdam(model.parameters(), lr=lr),
    "RMSProp": lambda model, lr: torch.optim.RMSprop(model.parameters(), lr=lr),
    "Muon": Muon,  # flattened kernels, AdamW for the head and vectors
    "SOAP": lambda model, lr: pytorch_optimizer.SOAP(
        model.parameters(), lr=lr, betas=(0.95, 0.95), weight_decay=0.0
    ),
    "BADM euclidean": _badm("euclidean"),
    "BADM diagonal": _badm("diagonal"),
    "BADM spectral": _badm("spectral"),
    "BADM kronecker": _badm("kronecker"),
    "BADM kronecker, beta2=0.95": _badm("kronecker", beta2=0.95),
}


class Split(NamedTuple):
    images: Tensor
    labels: Tensor


class Splits(NamedTuple):
    train: Split
    validation: Split
    test: Split


@cache
def data() -> Splits:
    train, train_labels, test, test_labels = idx.load(path("fashion-mnist"))
    images, labels = _pixels(train), train_labels.long()
    fit = slice(TRAIN_IMAGES)
    choose = slice(TRAIN_IMAGES, TRAIN_IMAGES + VALIDATION_IMAGES)
    score = slice(TEST_IMAGES)  # of the published 10,000
    return Splits(
        Split(images[fit], labels[fit]),
        Split(images[choose], labels[choose]),
        Split(_pixels(test[score]), test_labels[score].long()),
    )


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
def read(model: nn.Module, split: Split) -> tuple[float, float]:
    """Compute mean loss and accuracy over a whole split."""
    logits = torch.cat([model(part) for part in split.images.split(250)])
    accuracy = (logits.argmax(1) == split.labels).double().mean().item()
    return cross_entropy(logits, split.labels).item(), accuracy


def run(method: str, lr: float, seed: int) -> Run:
    """Train once; final seeds are also evaluated on the test split, at the stopping point."""
    torch.set_num_threads(1)
    splits = data()
    model = network(seed)
    optimizer = METHODS[method](model, lr)
    losses, accuracies = [], []
    best, kept, stop = math.inf, deepcopy(model.state_dict()), 0
    for step, indices in zip(range(1, STEPS + 1), batches(seed), strict=False):
        model.zero_grad()
        cross_entropy(model(splits.train.images[indices]), splits.train.labels[indices]).backward()
        optimizer.step()
        if step % READ_EVERY == 0:
            loss, accuracy = read(model, splits.validation)
            losses.append(round(loss, 5) if math.isfinite(loss) else None)
            accuracies.append(accuracy)
            if loss < best:
                best, kept, stop = loss, deepcopy(model.state_dict()), step
    result = {
        "method": method,
        "lr": lr,
        "seed": seed,
        "validation_loss": losses,
        "validation_accuracy": accuracies,
        "stop": stop,
    }
    if seed in FINAL_SEEDS:
        model.load_state_dict(kept)
        loss, accuracy = read(model, splits.test)
        result |= {"test_loss": round(loss, 5), "test_accuracy": accuracy}
    return result


def steps_to_target(one_run: Run) -> float:
    reached = (i for i, value in enumerate(one_run["validation_accuracy"]) if value >= TARGET)
    return READ_EVERY * (1 + next(reached, math.inf))


def lowest_loss(one_run: Run) -> float:
    """Return the validation loss at the stopping point."""
    return min((loss for loss in one_run["validation_loss"] if loss is not None), default=math.inf)


def learning_rate(exponent: int) -> float:
    """Return 1 or 3 times a power of ten: ``learning_rate(-6)`` is 1e-3, of -5 it is 3e-3."""
    return float(f"{(1, 3)[exponent % 2]}e{exponent // 2}")


def tried(runs: list[Run], method: str) -> dict[float, float]:
    """Map each learning rate tried to the median over tuning seeds of the lowest loss."""
    losses: dict[float, list[float]] = {}
    for r in runs:
        if r["method"] == method and r["seed"] in TUNING_SEEDS:
            losses.setdefault(r["lr"], []).append(lowest_loss(r))
    return {
        lr: statistics.median(of_seeds)
        for lr, of_seeds in sorted(losses.items())
        if len(of_seeds) == len(TUNING_SEEDS)
    }


def chosen(runs: list[Run], method: str) -> float:
    losses = tried(runs, method)
    return min(losses, key=lambda lr: losses[lr])


def jobs(runs: list[Run], method: str) -> list[Job]:
    """List the runs a method still needs: its grid, beyond its edge, then the final seeds."""
    exponents = list(FIRST_EXPONENTS)
    losses = tried(runs, method)
    while all(learning_rate(e) in losses for e in exponents):
        best = min(exponents, key=lambda e: losses[learning_rate(e)])
        if best == exponents[0]:
            exponents.insert(0, best - 1)
        elif best == exponents[-1]:
            exponents.append(best + 1)
        else:
            return _missing(runs, [(method, learning_rate(best), seed) for seed in FINAL_SEEDS])
    grid = [(method, learning_rate(e), seed) for e in exponents for seed in TUNING_SEEDS]
    return _missing(runs, grid)


def _missing(runs: list[Run], wanted: list[Job]) -> list[Job]:
    done = {(r["method"], r["lr"], r["seed"]) for r in runs}
    return [job for job in wanted if job not in done]


def final(runs: list[Run], method: str) -> list[Run]:
    lr = chosen(runs, method)
    return [r for r in runs if (r["method"], r["lr"]) == (method, lr) and r["seed"] in FINAL_SEEDS]


def summary(runs: list[Run]) -> list[dict[str, Any]]:
    """Summarise each method's final runs, in the order of the seeds."""
    return [
        {
            "method": method,
            "lr": chosen(runs, method),
            "tried": {f"{lr:g}": loss for lr, loss in tried(runs, method).items()},
            "steps_to_target": [
                steps if math.isfinite(steps) else None
                for steps in map(steps_to_target, final(runs, method))
            ],
            "stop": [r["stop"] for r in final(runs, method)],
            "test_loss": [r["test_loss"] for r in final(runs, method)],
            "test_accuracy": [r["test_accuracy"] for r in final(runs, method)],
        }
        for method in METHODS
    ]


def with_range(values: list[float | None], show: str, unit: float = 1, sign: str = "") -> str:
    """Format the median and range over the seeds; None is a missed target."""

    def shown(value: float) -> str:
        return format(unit * value, show) if math.isfinite(value) else "never"

    ordered = sorted(math.inf if value is None else value for value in values)
    first, middle, last = shown(ordered[0]), shown(statistics.median(ordered)), shown(ordered[-1])
    return f"{middle}{sign}" if first == last else f"{middle}{sign} ({first}–{last})"


def markdown(rows: list[dict[str, Any]]) -> str:
    head = (
        "| optimizer | lr | steps to 86 % validation accuracy | stopped after "
        "| test loss there | test accuracy there |\n"
        "|---|---|---|---|---|---|\n"
    )
    return head + "\n".join(
        f"| {row['method']} | {row['lr']:g} | {with_range(row['steps_to_target'], 'g')} "
        f"| {with_range(row['stop'], 'g')} | {with_range(row['test_loss'], '.4f')} "
        f"| {with_range(row['test_accuracy'], '.1f', unit=100, sign=' %')} |"
        for row in sorted(rows, key=lambda row: statistics.median(row["test_loss"]))
    )


def draw(runs: list[Run], path: Path) -> None:
    """Draw median curves over the final seeds, each method at its learning rate."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    colours = plt.get_cmap("tab10")
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5), layout="constrained")
    for number, method in enumerate(METHODS):
        steps = [READ_EVERY * (i + 1) for i in range(STEPS // READ_EVERY)]
        ours = method.startswith("BADM")
        look = {"color": colours(number), "lw": 2.2 if ours else 1.3, "ls": "-" if ours else "--"}
        label = f"{method} (lr {chosen(runs, method):g})"
        for axes, key in ((left, "validation_accuracy"), (right, "validation_loss")):
            median = torch.tensor([r[key] for r in final(runs, method)]).median(0).values
            axes.plot(steps, median, label=label, **look)
    left.axhline(TARGET, color="grey", lw=0.8)
    left.annotate("86 %", (0, TARGET), va="bottom", color="grey")
    left.set(ylim=(0.7, 0.9), xlabel="steps", ylabel="validation accuracy")
    right.set(ylim=(0.3, 0.7), xlabel="steps", ylabel="validation loss")
    for axes in (left, right):
        axes.grid(alpha=0.25)
    right.legend(fontsize=8)
    figure.suptitle(
        f"Fashion-MNIST, {TRAIN_IMAGES:,} images, small CNN, batch {BATCH_SIZE}: median of "
        f"{len(FINAL_SEEDS)} seeds, each at the learning rate chosen on the validation split"
    )
    figure.savefig(path, dpi=110)


def settings() -> dict[str, Any]:
    return {
        "torch": torch.__version__,
        "pytorch_optimizer": version("pytorch_optimizer"),
        "badm": badm.__version__,
        "python": platform.python_version(),
        "train_images": TRAIN_IMAGES,
        "validation_images": VALIDATION_IMAGES,
        "test_images": TEST_IMAGES,
        "batch_size": BATCH_SIZE,
        "steps": STEPS,
        "read_every": READ_EVERY,
        "target": TARGET,
        "tuning_seeds": list(TUNING_SEEDS),
        "final_seeds": list(FINAL_SEEDS),
    }


def load(file: Path) -> dict[str, Any]:
    """Load the runs so far; refuse a file with other settings."""
    if not file.exists():
        return settings() | {"runs": []}
    report = json.loads(file.read_text(encoding="utf-8"))
    for name, value in settings().items():
        if report.get(name) != value:
            raise SystemExit(
                f"{file} was made with {name} = {report.get(name)}, not {value}: "
                "name another file with -o."
            )
    return report


def _write(report: dict[str, Any], file: Path) -> None:
    partial = file.with_suffix(".part")
    partial.write_text(json.dumps(report) + "\n", encoding="utf-8")
    partial.replace(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("fashion_mnist.json"),
        help="JSON file to write (default: %(default)s)",
    )
    parser.add_argument("--jobs", type=int, default=2, help="number of processes, one thread each")
    arguments = parser.parse_args()

    report = load(arguments.output)
    runs = report["runs"]
    data()
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        while todo := [job for method in METHODS for job in jobs(runs, method)]:
            for finished in as_completed([pool.submit(run, *job) for job in todo]):
                runs.append(finished.result())
                runs.sort(key=lambda r: (list(METHODS).index(r["method"]), r["lr"], r["seed"]))
                _write(report, arguments.output)
                print(f"\r{len(runs)} runs", end="", flush=True)
    report["rows"] = summary(runs)
    _write(report, arguments.output)
    table = markdown(report["rows"])
    print(f"\n{table}")
    arguments.output.with_suffix(".md").write_text(table + "\n", encoding="utf-8")
    draw(runs, arguments.output.with_suffix(".png"))


if __name__ == "__main__":
    main()
