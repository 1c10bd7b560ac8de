"""BADM in its four metrics beside Adam, on the handwritten digits that come with scikit-learn.

Every method starts from the same weights and sees the same batches. Each gets the best of three
learning rates, by the mean validation accuracy over a run (being fast counts, and so does ending
well), and then trains from fresh seeds; the test images are read once, at the end of those runs.

    python examples/digits.py
    python examples/digits.py --seeds 3 --steps 150 -o small.png
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from badm import BADM, parameter_groups

EXTRA = ("matplotlib", "rich", "sklearn")

try:
    from matplotlib.figure import Figure
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table
    from sklearn.datasets import load_digits
except ModuleNotFoundError as missing:
    if missing.name is None or missing.name.partition(".")[0] not in EXTRA:
        raise
    print(
        f'This example needs {missing.name}: pip install "badm[bench]" brings it.', file=sys.stderr
    )
    sys.exit(2)

BATCH_SIZE = 64
EVALUATE_EVERY = 5
TARGET = 0.95
TUNING_SEEDS = (1001, 1002)  # the final runs count theirs from 0
FORMATS = (".pdf", ".png", ".svg")


@dataclass(frozen=True)
class Method:
    name: str
    make: Callable[[nn.Module, float], torch.optim.Optimizer]
    lrs: tuple[float, float, float]
    colour: str
    line: str = "-"


def badm_in(metric: str) -> Callable[[nn.Module, float], torch.optim.Optimizer]:
    return lambda model, lr: BADM(parameter_groups(model, metric=metric), lr=lr)


# An Adam-like step has the size of lr; a euclidean one shrinks with the gradient, so that its
# learning rates are on another scale. All grids have the same size and spacing.
LRS = (3e-3, 1e-2, 3e-2)
EUCLIDEAN_LRS = (0.3, 1.0, 3.0)

# Okabe and Ito's colours, which colour-blind readers can tell apart.
METHODS = (
    Method(
        "Adam", lambda model, lr: torch.optim.Adam(model.parameters(), lr), LRS, "#000000", "--"
    ),
    Method("BADM euclidean", badm_in("euclidean"), EUCLIDEAN_LRS, "#CC79A7"),
    Method("BADM diagonal", badm_in("diagonal"), LRS, "#E69F00"),
    Method("BADM spectral", badm_in("spectral"), LRS, "#0072B2"),
    Method("BADM kronecker", badm_in("kronecker"), LRS, "#009E73"),
)


@dataclass(frozen=True)
class Split:
    x: Tensor
    y: Tensor

    def loss(self, model: nn.Module) -> float:
        with torch.no_grad():
            return cross_entropy(model(self.x), self.y).item()

    def accuracy(self, model: nn.Module) -> float:
        with torch.no_grad():
            return (model(self.x).argmax(1) == self.y).double().mean().item()


@dataclass(frozen=True)
class Digits:
    train: Split
    validation: Split
    test: Split

    @classmethod
    def load(cls) -> Digits:
        """1,000 images to train on, 397 to choose by and 400 to test on; the same every time."""
        digits = load_digits()
        x = torch.tensor(digits.data / 16, dtype=torch.float32)
        y = torch.tensor(digits.target)
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
        return cls(*(Split(x[part], y[part]) for part in order.split([1000, 397, 400])))


@dataclass
class Run:
    """What one training has shown so far."""

    steps: list[int] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    """On the validation images."""
    loss: list[float] = field(default_factory=list)
    """Over all training images."""
    test_accuracy: float = math.nan

    @property
    def steps_to_target(self) -> float:
        """A miss is infinite, not left out."""
        reached = (k for k, a in zip(self.steps, self.accuracy, strict=True) if a >= TARGET)
        return next(reached, math.inf)


def train(
    method: Method, lr: float, seed: int, steps: int, data: Digits, show: Callable[[Run], None]
) -> tuple[Run, nn.Module]:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )
    optimizer = method.make(model, lr)
    run = Run()
    for k, batch in enumerate(batches(seed, steps, len(data.train.x))):
        if k % EVALUATE_EVERY == 0:
            evaluate(run, k, model, data, show)
        optimizer.zero_grad()
        cross_entropy(model(data.train.x[batch]), data.train.y[batch]).backward()
        optimizer.step()
    evaluate(run, steps, model, data, show)
    return run, model


def batches(seed: int, steps: int, samples: int) -> Iterable[Tensor]:
    """Indices of as many full batches, epoch after epoch, in an order that the seed decides."""
    generator = torch.Generator().manual_seed(seed)
    per_epoch = samples // BATCH_SIZE
    for k in range(steps):
        if k % per_epoch == 0:
            order = torch.randperm(samples, generator=generator)
        yield order[k % per_epoch * BATCH_SIZE :][:BATCH_SIZE]


def evaluate(run: Run, k: int, model: nn.Module, data: Digits, show: Callable[[Run], None]) -> None:
    run.steps.append(k)
    run.accuracy.append(data.validation.accuracy(model))
    run.loss.append(data.train.loss(model))
    show(run)


@dataclass
class Row:
    """A line of the table: a method and what is known of it."""

    method: Method
    lr: float | None = None
    runs: list[Run] = field(default_factory=list)


@dataclass
class Board:
    """Everything the table shows, at any time."""

    seeds: int
    steps: int
    rows: list[Row] = field(default_factory=lambda: [Row(method) for method in METHODS])
    now: str = ""

    def train(
        self, row: Row, lr: float, seed: int, data: Digits, what: str, *, test: bool = False
    ) -> Run:
        def show(run: Run) -> None:
            self.now = f"{row.method.name}, {what}, step {run.steps[-1]}: {run.accuracy[-1]:.1%}"

        run, model = train(row.method, lr, seed, self.steps, data, show)
        if test:
            run.test_accuracy = data.test.accuracy(model)
        return run


def compare(board: Board, data: Digits) -> None:
    """Choose the learning rates, then train from fresh seeds."""
    for row in board.rows:
        scores = {}
        for lr in row.method.lrs:
            tuning = [board.train(row, lr, s, data, f"trying lr {lr:g}") for s in TUNING_SEEDS]
            scores[lr] = statistics.mean(statistics.mean(run.accuracy) for run in tuning)
        row.lr = max(scores, key=scores.__getitem__)

    # Seed by seed and not method by method, so that the lines of the table grow together.
    for seed in range(board.seeds):
        for row in board.rows:
            assert row.lr is not None
            what = f"seed {seed + 1} of {board.seeds}"
            row.runs.append(board.train(row, row.lr, seed, data, what, test=True))
    board.now = ""


def table(board: Board) -> Table:
    made = Table(
        title=f"scikit-learn's digits: {board.steps} steps of {BATCH_SIZE} images",
        caption=board.now
        or (
            f"Seeds: {board.seeds}; mean ± standard deviation, for steps median (range). "
            "lr: the best of three on the validation images; the euclidean metric has larger ones "
            f"to choose from, as its step is not normalised. Steps to {TARGET:.0%}: of the "
            "validation images."
        ),
    )
    made.add_column("")
    for heading in ("lr", "test accuracy", "train loss", f"steps to {TARGET:.0%}"):
        made.add_column(heading, justify="right")
    for row in board.rows:
        cells = [row.method.name, "" if row.lr is None else f"{row.lr:g}"]
        if row.runs:
            cells += [
                spread([100 * run.test_accuracy for run in row.runs], "{:.1f}", " %"),
                spread([run.loss[-1] for run in row.runs], "{:.4f}"),
                median_and_range([run.steps_to_target for run in row.runs]),
            ]
        made.add_row(*cells)
    return made


def spread(values: list[float], form: str, unit: str = "") -> str:
    mean = form.format(statistics.mean(values))
    if len(values) == 1:
        return mean + unit
    return f"{mean} ± {form.format(statistics.stdev(values))}{unit}"


def median_and_range(steps: list[float]) -> str:
    def number(x: float) -> str:
        return "never" if math.isinf(x) else f"{x:.0f}"

    # The upper of two middle values: half a miss is a miss.
    middle = number(statistics.median_high(steps))
    low, high = number(min(steps)), number(max(steps))
    return middle if low == high else f"{middle} ({low}–{high})"


def draw(rows: list[Row], path: Path) -> None:
    seeds = len(rows[0].runs)
    figure = Figure(figsize=(11, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    for row in rows:
        style = {"color": row.method.colour, "linestyle": row.method.line}
        label = f"{row.method.name} (lr {row.lr:g})"
        for axes, curves in (
            (left, [run.accuracy for run in row.runs]),
            (right, [run.loss for run in row.runs]),
        ):
            steps = row.runs[0].steps
            points = list(zip(*curves, strict=True))
            mean = [statistics.mean(p) for p in points]
            low, high = [min(p) for p in points], [max(p) for p in points]
            axes.plot(steps, mean, label=label, linewidth=1.8, **style)
            axes.fill_between(steps, low, high, color=row.method.colour, alpha=0.12, linewidth=0)
    left.axhline(TARGET, color="#777777", linewidth=0.9, linestyle=":")
    left.set_ylim(0.7, 1.0)
    left.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    left.set_title("Validation accuracy", loc="left")
    right.set_yscale("log")
    right.set_title("Loss over all training images", loc="left")
    for axes in (left, right):
        axes.set_xlabel("step")
        axes.set_xlim(0, rows[0].runs[0].steps[-1])
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(rows), frameon=False)
    band = f"mean of {seeds} seeds, band from lowest to highest" if seeds > 1 else "one seed"
    figure.suptitle(f"Handwritten digits of scikit-learn, 64–128–128–10 network: {band}")
    figure.savefig(path, dpi=150)


def at_least_1(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return value


def picture_path(text: str) -> Path:
    path = Path(text)
    if path.suffix not in FORMATS:
        raise argparse.ArgumentTypeError(f"must end in one of {', '.join(FORMATS)}, got {text!r}")
    if not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"must be in a folder that exists, got {text!r}")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=at_least_1, default=5, help="final runs (default: 5)")
    parser.add_argument("--steps", type=at_least_1, default=200, help="of a run (default: 200)")
    parser.add_argument(
        "-o", "--output", type=picture_path, default="demo.png", help="(default: demo.png)"
    )
    parser.add_argument("--quiet", action="store_true", help="print the picture's path only")
    arguments = parser.parse_args()

    torch.set_num_threads(1)  # the matrices are too small for more
    board = Board(arguments.seeds, arguments.steps)
    data = Digits.load()
    console = Console()
    if console.is_terminal and not arguments.quiet:
        with Live(
            get_renderable=lambda: table(board),
            console=console,
            refresh_per_second=8,
            transient=True,
        ):
            compare(board, data)
    else:
        compare(board, data)
    if not arguments.quiet:
        console.print(table(board))
    draw(board.rows, arguments.output)
    print(f"Picture: {arguments.output.resolve()}")


if __name__ == "__main__":
    main()
