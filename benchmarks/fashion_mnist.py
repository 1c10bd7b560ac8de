"""Steps to 86 % and loss at the stopping point on 10,000 Fashion-MNIST images.

A small CNN, batches of 64, 1,000 steps. Everything is chosen on a validation split, the last 10,000
of the 60,000 training images, evaluated every 50 steps and in the search every 100; the test split
is evaluated once per final run, with the weights that had the lowest validation loss.

Every method is tried with five learning rates, half a decade apart, and a seed that is used for
nothing else. The one with the lowest validation loss at the stopping point then runs with three
fresh seeds, and is that of all columns. A seed fixes the initialisation and the order of the data
for all methods; other settings are those each library recommends, without weight decay but that of
AdamW.

    BADM_DATA=../shared/data python benchmarks/fashion_mnist.py -o results/fashion_mnist.json

72 runs, 20 minutes of CPU time. Those already in the output file are not repeated: run the same
command to resume. Beside the JSON it writes the table as Markdown and the curves as an image.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from copy import deepcopy
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import pytorch_optimizer
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import badm
from badm.bench.data import idx, path
from badm.bench.engine.environment import environment
from badm.bench.methods.muon import Muon
from badm.bench.methods.normuon import NorMuon
from badm.bench.report.figures import with_few_colours

TRAIN_IMAGES, VALIDATION_IMAGES, TEST_IMAGES = 10_000, 10_000, 10_000
BATCH_SIZE, STEPS, TARGET = 64, 1000, 0.86
READ_EVERY, READ_EVERY_IN_SEARCH = 50, 100  # reading takes as long as 50 steps
LEARNING_RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
LONGER = {"BADM euclidean": 100}  # as long as SGD's, whose steps shrink with the gradient
TUNING_SEED = 100
FINAL_SEEDS = (0, 1, 2)

Run = dict[str, Any]
Job = tuple[str, float, int]  # method, learning rate, seed


METHODS: dict[str, Callable[[nn.Module, float], Any]] = {
    "Adam": lambda model, lr: torch.optim.Adam(model.parameters(), lr=lr),
    "AdamW": lambda model, lr: torch.optim.AdamW(model.parameters(), lr=lr),
    "NAdam": lambda model, lr: torch.optim.NAdam(model.parameters(), lr=lr),
    "RMSProp": lambda model, lr: torch.optim.RMSprop(model.parameters(), lr=lr),
    "Muon": Muon,  # flattened kernels, AdamW for the head and vectors
    "NorMuon": NorMuon,
    "SOAP": lambda model, lr: pytorch_optimizer.SOAP(
        model.parameters(), lr=lr, betas=(0.95, 0.95), weight_decay=0.0
    ),
    "BADM": badm.BADM,
    "BADM euclidean": partial(badm.BADM, metric="euclidean"),
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
    choose = slice(len(images) - VALIDATION_IMAGES, None)
    return Splits(
        Split(images[fit], labels[fit]),
        Split(images[choose], labels[choose]),
        Split(_pixels(test), test_labels.long()),
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
    every = READ_EVERY if seed in FINAL_SEEDS else READ_EVERY_IN_SEARCH
    losses, accuracies = [], []
    best, kept, stop = math.inf, deepcopy(model.state_dict()), 0
    for step, indices in zip(range(1, STEPS + 1), batches(seed), strict=False):
        model.zero_grad()
        cross_entropy(model(splits.train.images[indices]), splits.train.labels[indices]).backward()
        optimizer.step()
        if step % every == 0:
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


def timed_run(*job: Any) -> Run:
    """Train once and add what it cost."""
    start = time.process_time()
    return run(*job) | {"cpu_seconds": round(time.process_time() - start, 1)}


def steps_to_target(one_run: Run) -> float:
    reached = (i for i, value in enumerate(one_run["validation_accuracy"]) if value >= TARGET)
    return READ_EVERY * (1 + next(reached, math.inf))


def lowest_loss(one_run: Run) -> float:
    """Return the validation loss at the stopping point."""
    return min((loss for loss in one_run["validation_loss"] if loss is not None), default=math.inf)


def learning_rates(method: str) -> tuple[float, ...]:
    return tuple(float(f"{LONGER.get(method, 1) * lr:g}") for lr in LEARNING_RATES)


def tried(runs: list[Run], method: str) -> dict[float, float]:
    """Map each learning rate tried to its lowest loss."""
    tuning = [r for r in runs if (r["method"], r["seed"]) == (method, TUNING_SEED)]
    return {r["lr"]: lowest_loss(r) for r in sorted(tuning, key=lambda r: r["lr"])}


def chosen(runs: list[Run], method: str) -> float:
    losses = tried(runs, method)
    return min(losses, key=lambda lr: losses[lr])


def jobs(runs: list[Run], method: str) -> list[Job]:
    """List the runs a method still needs: first its learning rates, then the final seeds."""
    search = _missing(runs, [(method, lr, TUNING_SEED) for lr in learning_rates(method)])
    if search:
        return search
    lr = chosen(runs, method)
    return _missing(runs, [(method, lr, seed) for seed in FINAL_SEEDS])


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
    path.write_bytes(with_few_colours(path.read_bytes()))


def settings() -> dict[str, Any]:
    return {
        "train_images": TRAIN_IMAGES,
        "validation_images": VALIDATION_IMAGES,
        "test_images": TEST_IMAGES,
        "batch_size": BATCH_SIZE,
        "steps": STEPS,
        "read_every": READ_EVERY,
        "read_every_in_search": READ_EVERY_IN_SEARCH,
        "target": TARGET,
        "tuning_seed": TUNING_SEED,
        "final_seeds": list(FINAL_SEEDS),
    }


def load(file: Path) -> dict[str, Any]:
    """Load the runs so far; refuse a file with other settings."""
    if not file.exists():
        return settings() | {"environment": environment(), "runs": []}
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
            for finished in as_completed([pool.submit(timed_run, *job) for job in todo]):
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
