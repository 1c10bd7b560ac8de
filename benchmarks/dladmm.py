"""Train dlADMM on MNIST with the settings of its public code; measure accuracy and cost.

A 784–1000–1000–10 perceptron, all training images at once, 200 iterations, float32, one thread.
The cost of an iteration is measured beside an epoch of SGD on the same network and images, in
turns, so that other load on the machine affects both.

    BADM_DATA=../shared/data python benchmarks/dladmm.py -o results/dladmm.json

Run the same command to resume. Beside the JSON it writes a table as Markdown and the curves as an
image.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from badm.bench.data import idx, path
from badm.bench.engine.environment import environment
from badm.bench.method import TrainingSetup
from badm.bench.methods import find

METHODS = ("dladmm", "aa-dladmm")
ITERATIONS, SEED, WIDTH = 200, 0, 1000
BATCH_SIZE, LR = 128, 0.1  # of SGD
REPEATS = 5
SHOWN = (1, 2, 5, 10, 20, 50, 100, 150, 200)
CHECKPOINT_EVERY = 10


def data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    train, train_labels, test, test_labels = idx.load(path("mnist"))
    return _pixels(train), train_labels.long(), _pixels(test), test_labels.long()


def _pixels(images: Tensor) -> Tensor:
    return images.flatten(1).float() / 255


def network() -> nn.Sequential:
    torch.manual_seed(SEED)
    return nn.Sequential(
        nn.Linear(784, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10)
    )


def algorithm(name: str, module: nn.Module, x: Tensor, y: Tensor) -> Any:
    method = find(name)
    problem = TrainingSetup(module, ITERATIONS, supervised=lambda: (x, y))
    return method.build(problem, method.setting({})).algorithm


@torch.no_grad()
def accuracy(module: nn.Module, x: Tensor, y: Tensor) -> float:
    outputs = torch.cat([module(part) for part in x.split(1000)])
    return (outputs.argmax(1) == y).double().mean().item()


def train(name: str, curve: dict[str, Any], checkpoint: Path, save: Callable[[], None]) -> None:
    """Do the remaining iterations, and add the metrics of each to ``curve``."""
    x, y, x_test, y_test = data()
    module = network()
    admm = algorithm(name, module, x, y)
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        module.load_state_dict(saved["module"])
        admm.load_state_dict(saved["admm"])
    plain = getattr(admm, "plain", admm)
    for values in curve.values():
        del values[plain.iterations :]
    while plain.iterations < ITERATIONS:
        began = time.perf_counter()
        with torch.no_grad():
            admm.iterate()
        metrics = {
            "seconds": round(time.perf_counter() - began, 3),
            "loss": round(admm.loss, 5),
            "train": accuracy(module, x, y),
            "test": accuracy(module, x_test, y_test),
            "rho": plain.penalties.rho,
            "lagrangian": round(plain.lagrangian(), 4),
            "residual": float(f"{plain.gap():.4g}"),
            "accepted": getattr(admm, "accepted", 0),
        }
        for key, value in metrics.items():
            curve.setdefault(key, []).append(value)
        save()
        if plain.iterations % CHECKPOINT_EVERY == 0:
            torch.save({"module": module.state_dict(), "admm": admm.state_dict()}, checkpoint)
        print(
            f"\r{name}: {plain.iterations} of {ITERATIONS} iterations, loss {admm.loss:.4f}, "
            f"test accuracy {metrics['test']:.4f}, {metrics['seconds']:.1f} s ",
            end="",
            flush=True,
        )
    print()
    checkpoint.unlink(missing_ok=True)


def costs() -> dict[str, list[float]]:
    """Measure the seconds of an SGD epoch and of an iteration of each method, in turns."""
    x, y, _, _ = data()
    module = network()
    optimizer = torch.optim.SGD(module.parameters(), lr=LR)

    def epoch() -> None:
        for indices in torch.randperm(len(x)).split(BATCH_SIZE):
            optimizer.zero_grad()
            cross_entropy(module(x[indices]), y[indices]).backward()
            optimizer.step()

    work: dict[str, Callable[[], object]] = {"sgd": epoch}
    for name in METHODS:
        work[name] = algorithm(name, network(), x, y).iterate
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for repeat in range(REPEATS + 1):
        for name, once in work.items():
            began = time.perf_counter()
            with torch.set_grad_enabled(name == "sgd"):
                once()
            if repeat:  # the first is a warm-up
                seconds[name].append(round(time.perf_counter() - began, 3))
            print(f"\rcost: {repeat} of {REPEATS} repeats", end="", flush=True)
    print()
    return seconds


def markdown(report: dict[str, Any]) -> str:
    curves = report["curves"]
    lines = [
        f"MNIST, {report['images']:,} training and {report['test_images']:,} test images, "
        f"{report['network']}, seed {report['seed']}, the settings of the public code.",
        "",
        "| iteration | " + " | ".join(f"{name}: test | train | loss | ρ" for name in curves) + " |",
        "|---|" + "---|" * 4 * len(curves),
    ]
    for k in SHOWN:
        cells = [
            f"{100 * c['test'][k - 1]:.1f} % | {100 * c['train'][k - 1]:.1f} % "
            f"| {c['loss'][k - 1]:.3f} | {c['rho'][k - 1]:.0e}"
            for c in curves.values()
        ]
        lines.append(f"| {k} | " + " | ".join(cells) + " |")
    for name, curve in curves.items():
        reached = [first(curve["test"], level) for level in (0.8, 0.9)]
        lines += ["", f"{name} reaches 80 % in iteration {reached[0]} and 90 % in {reached[1]}."]
    median = {name: statistics.median(s) for name, s in report["seconds"].items()}
    lines += ["", "| | seconds, median (range) | SGD epochs |", "|---|---|---|"]
    for name, seconds in report["seconds"].items():
        what = "an epoch of SGD" if name == "sgd" else f"an iteration of {name}"
        lines.append(
            f"| {what} | {median[name]:.2f} ({min(seconds):.2f}–{max(seconds):.2f}) "
            f"| {median[name] / median['sgd']:.2f} |"
        )
    return "\n".join(lines)


def first(values: list[float], level: float) -> int | str:
    """Return the iteration in which a level is reached."""
    return next((k for k, value in enumerate(values, 1) if value >= level), "none")


def draw(report: dict[str, Any], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    for number, (name, curve) in enumerate(report["curves"].items()):
        k = range(1, len(curve["test"]) + 1)
        left.plot(k, curve["test"], color=f"C{number}", label=f"{name}, test")
        left.plot(k, curve["train"], color=f"C{number}", ls=":", label=f"{name}, training")
        right.plot(k, curve["loss"], color=f"C{number}", label=f"{name}, training loss")
    left.axhline(0.8, color="grey", lw=0.8)
    left.set(xlabel="iterations", ylabel="accuracy", ylim=(0, 1))
    right.set(xlabel="iterations", ylabel="mean cross-entropy", yscale="log")
    for axes in (left, right):
        axes.grid(alpha=0.25)
        axes.legend()
    figure.suptitle(
        f"MNIST, {report['images']:,} images, 784–{WIDTH}–{WIDTH}–10, public settings of dlADMM"
    )
    figure.savefig(file, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("dladmm.json"),
        help="JSON file to write (default: %(default)s)",
    )
    output: Path = parser.parse_args().output
    torch.set_num_threads(1)
    report: dict[str, Any] = {
        "environment": environment(),
        "images": len(data()[0]),
        "test_images": len(data()[2]),
        "network": f"784-{WIDTH}-{WIDTH}-10",
        "seed": SEED,
        "settings": {name: find(name).setting({}) for name in METHODS},
        "sgd": {"batch_size": BATCH_SIZE, "lr": LR},
        "curves": {},
        "seconds": {},
    }
    if output.exists():
        before = json.loads(output.read_text())
        report["curves"], report["seconds"] = before["curves"], before["seconds"]

    def save() -> None:
        partial = output.with_suffix(".part")
        partial.write_text(json.dumps(report) + "\n")
        partial.replace(output)

    for name in METHODS:
        curve = report["curves"].setdefault(name, {})
        if len(curve.get("test", ())) < ITERATIONS:
            train(name, curve, output.with_suffix(f".{name}.checkpoint"), save)
    report["seconds"] = report["seconds"] or costs()
    save()
    print(markdown(report))
    output.with_suffix(".md").write_text(markdown(report) + "\n")
    draw(report, output.with_suffix(".png"))


if __name__ == "__main__":
    main()
