"""Measure what it is worth to read the matrices inside of a parameter each for itself.

Small models, one for each kind of parameter that keeps several matrices: experts, fused query, key
and value, gates of an LSTM and of a GRU, groups of a convolution and depthwise kernels. Each is
trained with the parameter read as one matrix and as a stack, at several learning rates and seeds,
with a warm-up of 5 % and a decay to 0. Compared is the validation loss at the learning rate that is
best on average over the seeds, chosen for each reading by itself.

    python benchmarks/inside.py -o results/inside.json
    python benchmarks/inside.py --only experts --seeds 1
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention, silu, softmax

from badm import BADM, parameter_groups
from badm.bench.method import package_versions
from badm.bench.tasks import find

WIDTH, HEADS, LENGTH, LAYERS = 48, 4, 24, 1
EXPERTS, CHOSEN, INNER = 4, 2, 48
SYMBOLS = 96
HELD_OUT = 600  # samples of the validation split
WARMUP = 0.05
RATES = (1e-2, 2e-2)
METRICS = ("spectral",)
DIGITS = 4


class Experts(nn.Module):
    """Batched experts: gate and up in one tensor, as transformers has them."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.gate_up_proj = nn.Parameter(torch.randn(EXPERTS, 2 * INNER, WIDTH) / WIDTH**0.5)
        self.down_proj = nn.Parameter(torch.randn(EXPERTS, WIDTH, INNER) / INNER**0.5)

    def forward(self, x: Tensor) -> Tensor:
        weights = softmax(self.router(x), -1)
        weakest = weights.topk(CHOSEN).values[..., -1:]
        weights = torch.where(weights >= weakest, weights, 0.0)
        # All experts see all tokens, and the weights leave out those that were not chosen.
        gate, up = torch.einsum("nti,eoi->neto", x, self.gate_up_proj).chunk(2, -1)
        outputs = torch.einsum("neti,eoi->neto", silu(gate) * up, self.down_proj)
        return torch.einsum("neto,nte->nto", outputs, weights / weights.sum(-1, keepdim=True))


class Attention(nn.Module):
    """Causal attention whose query, key and value are one projection."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.merge = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(2, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)
        )
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.merge(mixed.transpose(1, 2).flatten(2))


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.project = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.project(gelu(self.hidden(x)))


class Transformer(nn.Module):
    """Pre-norm layers over learned positions, with experts or a perceptron."""

    def __init__(self, inner: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "first_norm": nn.LayerNorm(WIDTH),
                    "attention": Attention(),
                    "second_norm": nn.LayerNorm(WIDTH),
                    "inner": inner(),
                }
            )
            for _ in range(LAYERS)
        )
        self.norm = nn.LayerNorm(WIDTH)
        self.output = nn.Linear(WIDTH, SYMBOLS)

    def forward(self, numbers: Tensor) -> Tensor:
        x = self.embedding(numbers) + self.positions.weight[: numbers.shape[1]]
        for layer in self.layers:
            x = x + layer["attention"](layer["first_norm"](x))
            x = x + layer["inner"](layer["second_norm"](x))
        logits: Tensor = self.output(self.norm(x))
        return logits


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, WIDTH)
        self.recurrent = kind(WIDTH, 2 * WIDTH, batch_first=True)
        self.output = nn.Linear(2 * WIDTH, SYMBOLS)

    def forward(self, numbers: Tensor) -> Tensor:
        logits: Tensor = self.output(self.recurrent(self.embedding(numbers))[0])
        return logits


class Block(nn.Module):
    """A residual block whose middle kernel has groups, as in ResNeXt, or one for each channel."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 1, bias=False)
        self.grouped = nn.Conv2d(channels, channels, 3, padding=1, groups=groups, bias=False)
        self.last = nn.Conv2d(channels, channels, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[0](self.first(x)).relu()
        y = self.norms[1](self.grouped(y)).relu()
        return (x + self.norms[2](self.last(y))).relu()


def convolutional(groups: int) -> nn.Module:
    channels = 24
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),
        nn.Conv2d(1, channels, 4, stride=4),
        Block(channels, groups),
        Block(channels, groups),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, 10),
    )


@dataclass(frozen=True)
class Case:
    """A model, its task, and how its parameters can be read.

    Attributes:
        task: The task whose data it is trained on.
        model: Builds it.
        readings: Arguments of parameter_groups, by the name of a reading; the first one is a single
            matrix.
    """

    task: str
    model: Callable[[], nn.Module]
    readings: Mapping[str, Mapping[str, Any]]
    batch: int = 16
    steps: int = 120


FUSED = {"one matrix": {"split": False}, "a matrix each": {"split": True}}
WHOLE: dict[str, Any] = {"blocks": None}

CASES = {
    "experts": Case(
        "char-imdb",
        lambda: Transformer(Experts),
        {
            "one matrix": {
                "split": False,
                "overrides": {"*gate_up_proj": WHOLE, "*down_proj": WHOLE},
            },
            "a matrix each": {"split": False},
            "gate and up apart too": {
                "split": False,
                "overrides": {"*gate_up_proj": {"blocks": (EXPERTS, 2)}},
            },
        },
    ),
    "query, key and value": Case("char-imdb", lambda: Transformer(Perceptron), FUSED),
    "gates of an LSTM": Case("char-imdb", lambda: Recurrent(nn.LSTM), FUSED),
    "groups of a convolution": Case(
        "fashion-mlp",
        lambda: convolutional(4),
        {"one matrix": {"overrides": {"*grouped.weight": WHOLE}}, "a matrix each": {}},
    ),
    "depthwise kernels": Case(
        "fashion-mlp",
        lambda: convolutional(24),
        {"one matrix": {}, "vectors": {"overrides": {"*grouped.weight": "diagonal"}}},
    ),
    "gates of a GRU": Case("char-imdb", lambda: Recurrent(nn.GRU), FUSED),
}


@cache
def data(task: str) -> Any:
    return find(task).task.data()


def loss_of(model: nn.Module, batch: Any) -> Tensor:
    if isinstance(batch, Tensor):
        return cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    x, y = batch
    return cross_entropy(model(x), y)


def rows(split: Any, indices: Tensor) -> Any:
    """Return samples of a split; of text the first characters of each window."""
    if isinstance(split, Tensor):
        return split[indices, : LENGTH + 1]
    return tuple(part[indices] for part in split)


def size(split: Any) -> int:
    return len(split) if isinstance(split, Tensor) else len(split[0])


def factor(step: int, steps: int) -> float:
    """Rise over the warm-up, then fall to 0."""
    warmup = max(1, round(WARMUP * steps))
    return (step + 1) / warmup if step < warmup else (steps - step) / (steps - warmup)


def train(case: Case, splits: Any, metric: str, reading: str, lr: float, seed: int) -> float:
    """Return the validation loss at the end."""
    torch.manual_seed(seed)
    model = case.model()
    options = case.readings[reading]
    optimizer = BADM(parameter_groups(model, metric=metric, **options), lr=lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: factor(k, case.steps))
    generator = torch.Generator().manual_seed(1000 + seed)
    for _ in range(case.steps):
        indices = torch.randint(size(splits.train), (case.batch,), generator=generator)
        optimizer.zero_grad()
        loss_of(model, rows(splits.train, indices)).backward()
        optimizer.step()
        schedule.step()
    model.eval()
    with torch.no_grad():
        held_out = torch.arange(min(HELD_OUT, size(splits.validation))).split(200)
        losses = [(len(part), loss_of(model, rows(splits.validation, part))) for part in held_out]
    total = sum(count * float(loss) for count, loss in losses)
    return total / sum(count for count, _ in losses)


def measure(name: str, metric: str, seeds: int, rates: Sequence[float]) -> dict[str, Any]:
    case = CASES[name]
    splits = data(case.task)
    found: dict[str, Any] = {}
    for reading in case.readings:
        losses = {
            f"{lr:g}": [
                round(train(case, splits, metric, reading, lr, seed), DIGITS)
                for seed in range(seeds)
            ]
            for lr in rates
        }
        best = min(losses, key=lambda lr: mean(losses[lr]))
        found[reading] = {
            "losses": losses,
            "best_lr": best,
            "mean": round(mean(losses[best]), DIGITS),
        }
        print(f"{name}, {metric}, {reading}: {found[reading]['mean']} at {best}", flush=True)
    whole, *others = found
    base = found[whole]["losses"][found[whole]["best_lr"]]
    for reading in others:
        own = found[reading]["losses"][found[reading]["best_lr"]]
        differences = [round(b - a, DIGITS) for a, b in zip(base, own, strict=True)]
        found[reading]["differences"] = differences
        found[reading]["difference"] = round(mean(differences), DIGITS)
    return found


def mean(losses: Sequence[float]) -> float:
    return statistics.fmean(losses) if all(map(math.isfinite, losses)) else math.inf


def as_markdown(report: Mapping[str, Any]) -> str:
    lines = [
        "# Matrices inside of parameters",
        "",
        "Validation loss of small models whose parameter is read as one matrix or as several, at",
        f"the best of the learning rates {', '.join(f'{lr:g}' for lr in report['rates'])} for each "
        f"reading, {report['seeds']} seeds.",
        "Differences are to one matrix, seed by seed: negative is better. Made by",
        "`benchmarks/inside.py`; inside.json has every loss.",
        "",
        "| parameter | metric | read as | learning rate | loss | difference | of each seed |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, by_metric in report["cases"].items():
        for metric, readings in by_metric.items():
            for reading, row in readings.items():
                cells = [name, metric, reading, row["best_lr"], f"{row['mean']:.4f}"]
                if "difference" in row:
                    each = ", ".join(f"{d:+.4f}" for d in row["differences"])
                    cells += [f"{row['difference']:+.4f}", each]
                else:
                    cells += ["", ""]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3, help="seeds (default: %(default)s)")
    parser.add_argument("--only", help="names of parameters, separated by semicolons")
    parser.add_argument("--metrics", default=",".join(METRICS), help="default: %(default)s")
    parser.add_argument(
        "-o", "--output", type=Path, help="JSON file to write, and a page beside it"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = options.only.split(";") if options.only else list(CASES)
    metrics = options.metrics.split(",")
    report: dict[str, Any] = {
        **package_versions(),
        "rates": RATES,
        "seeds": options.seeds,
        "steps": {name: CASES[name].steps for name in names},
        "cases": {},
    }
    for name in names:
        report["cases"][name] = {
            metric: measure(name, metric, options.seeds, RATES) for metric in metrics
        }
        if options.output:
            options.output.write_text(json.dumps(report, indent=1) + "\n")
            options.output.with_suffix(".md").write_text(as_markdown(report))


if __name__ == "__main__":
    main()
