"""Measure bytes and time of replicas over slow links, communicating every step or every K steps.

Two ranks on separate hosts (hosts.py), connected by a link of a given rate. In three parts:

1. Over an unlimited link every method trains at each of a few learning rates; the one with the best
   final validation loss is run on fresh seeds. The arithmetic is bitwise the same over every link.
   Learning rates decay to 0, so that the final loss is not dominated by the noise of the last
   steps, of which averages over ranks have less.
2. Bytes are those that the network interface of the first rank sent, including headers.
3. Over each link the methods do some more steps to be timed, in turns. Seconds to the
   target are the median of these seconds per step times the steps of part 1.

    BADM_DATA=... python benchmarks/communication.py
    BADM_DATA=... python benchmarks/communication.py --steps 200 --rates 1e-3 --links 100
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from hosts import RANKS, hosts, on_hosts, require, sent, shape
from reporting import write
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LinearLR

import badm
from badm.bench.data import idx, path
from badm.bench.methods.replicas import DiLoCo

BATCH = 64  # per rank
HELD_OUT = 4_000
EVERY = (1, 10, 50, 200)
LOOK_EVERY = 20  # steps between evaluations of the validation loss
TARGET = 0.42  # validation loss; about Adam's after two thirds of the steps
CLOSE = 0.01  # largest relative excess over DDP's loss that counts as equal
TIMED_STEPS, WARM_UP, TURNS = 20, 2, 3  # a larger K takes one meeting and its steps
TUNING_SEED = 1000


@dataclass(frozen=True)
class Way:
    """A method: an inner optimizer, and how and how often the ranks communicate."""

    inner: str
    meeting: str = "DDP"
    every: int = 0
    wire: torch.dtype | None = None

    @property
    def name(self) -> str:
        if not self.every:
            return f"{self.meeting}, {self.inner}"
        wire = ", bfloat16 on the wire" if self.wire is torch.bfloat16 else ""
        return f"{self.meeting}, {self.inner}, K = {self.every}{wire}"

    def consensus(self, params: list[Tensor], inner: torch.optim.Optimizer) -> badm.Consensus:
        kind, outer = MEETINGS[self.meeting]
        return kind(params, inner, every=self.every, reduce_dtype=self.wire, **outer)


MEETINGS: dict[str, tuple[type[badm.Consensus], dict[str, float]]] = {
    "DiLoCo": (DiLoCo, {"lr": 0.7, "beta": 0.9}),
    "Consensus": (badm.Consensus, {}),
    "Consensus with memory": (badm.Consensus, {"lr": 2.0, "beta": 0.8}),
}
WAYS = (
    Way("AdamW"),
    Way("BADM"),
    *(Way("AdamW", "DiLoCo", every) for every in EVERY),
    *(Way(inner, "Consensus", every) for inner in ("AdamW", "BADM") for every in EVERY),
    *(
        Way(inner, "Consensus with memory", every)
        for inner in ("AdamW", "BADM")
        for every in (10, 50)
    ),
    Way("BADM", "Consensus", 50, torch.bfloat16),
)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )


def optimizer(name: str, model: nn.Module, lr: float) -> torch.optim.Optimizer:
    if name == "AdamW":
        return torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    return badm.BADM(badm.parameter_groups(model), lr=lr)


class Replica:
    """One rank that trains with one method."""

    def __init__(
        self, way: Way, lr: float, steps: int, data: tuple[Tensor, ...], seed: int = TUNING_SEED
    ) -> None:
        self.x, self.y, self.held_x, self.held_y = data
        torch.manual_seed(seed)
        self.model = network()
        self.inner = optimizer(way.inner, self.model, lr)
        self.schedule = LinearLR(self.inner, 1.0, 0.0, total_iters=steps)
        self.consensus = None
        self.forward: Callable[[Tensor], Tensor] = self.model
        if way.every:
            self.consensus = way.consensus(list(self.model.parameters()), self.inner)
        else:
            self.forward = DistributedDataParallel(self.model)
        self.sampler = badm.DistributedBatchSampler(len(self.y), BATCH, seed=seed)
        self.batches = self._endless()

    def _endless(self) -> Iterator[list[int]]:
        epoch = 0
        while True:
            self.sampler.set_epoch(epoch)
            yield from self.sampler
            epoch += 1

    def step(self) -> None:
        batch = next(self.batches)
        self.inner.zero_grad()
        cross_entropy(self.forward(self.x[batch]), self.y[batch]).backward()
        self.inner.step()
        self.schedule.step()

    @torch.no_grad()
    def loss(self) -> float:
        """Compute the loss on the validation images, of the weights that all ranks share."""
        if self.consensus is None:
            return cross_entropy(self.model(self.held_x), self.held_y).item()
        with self.consensus.at_global_point():
            return cross_entropy(self.model(self.held_x), self.held_y).item()

    def end(self) -> None:
        if self.consensus is not None:
            self.consensus.meet()
            self.consensus.detach()


def train(way: Way, lr: float, steps: int, data: tuple[Tensor, ...], seed: int) -> dict[str, Any]:
    replica = Replica(way, lr, steps, data, seed)
    before, losses = sent(), [replica.loss()]
    for step in range(1, steps + 1):
        replica.step()
        if step == steps:
            replica.end()
        if step % LOOK_EVERY == 0 or step == steps:
            losses.append(replica.loss())
    bytes_per_step = (sent() - before) / steps
    reached = [i for i, loss in enumerate(losses) if loss <= TARGET]
    return {
        "seed": seed,
        "bytes per step": bytes_per_step,
        "loss": losses[-1] if math.isfinite(losses[-1]) else None,
        "steps to target": min(steps, reached[0] * LOOK_EVERY) if reached else None,
    }


def study(way: Way, orders: dict[str, Any], data: tuple[Tensor, ...]) -> dict[str, Any]:
    """Try the learning rates on one seed, and run the best of them on fresh seeds."""
    rates, steps = orders["rates"], orders["steps"]
    tried = {lr: train(way, lr, steps, data, TUNING_SEED)["loss"] for lr in rates}
    lr = min(rates, key=lambda rate: math.inf if tried[rate] is None else tried[rate])
    runs = [train(way, lr, steps, data, seed) for seed in range(orders["seeds"])]
    return {"method": way.name, "every": way.every, "lr": lr, "tried": tried, "runs": runs}


def clock(way: Way, data: tuple[Tensor, ...]) -> float:
    """Measure the seconds per step, over whole rounds of steps and a meeting."""
    steps = max(TIMED_STEPS, way.every)
    replica = Replica(way, 1e-3, 2 * steps, data)
    for _ in range(max(WARM_UP, way.every)):
        replica.step()
    dist.barrier()
    began = time.perf_counter()
    for _ in range(steps):
        replica.step()
    seconds = torch.tensor((time.perf_counter() - began) / steps)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    replica.end()
    return seconds.item()


def load() -> tuple[Tensor, ...]:
    images, labels, _, _ = idx.load(path("fashion-mnist"))
    x, y = images.flatten(1).float() / 255, labels.long()
    return x[:-HELD_OUT], y[:-HELD_OUT], x[-HELD_OUT:], y[-HELD_OUT:]


def rank(orders: dict[str, Any]) -> None:
    """Run as one rank: train, or measure times, as its arguments say."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    data, rows = load(), []
    if orders["timed"]:
        turns = [[clock(way, data) for way in WAYS] for _ in range(TURNS)]
        rows = [statistics.median(times) for times in zip(*turns, strict=True)]
    else:
        for way in WAYS:
            rows.append(study(way, orders, data))
            if dist.get_rank() == 0:
                print(rows[-1], flush=True)
    if dist.get_rank() == 0:
        Path(orders["output"]).write_text(json.dumps(rows))
    dist.destroy_process_group()


def summarise(rows: list[dict[str, Any]]) -> None:
    """Add to every row the summary of its runs, and its loss relative to DDP's, seed by seed."""
    for row in rows:
        ends = [run["loss"] for run in row["runs"]]
        steps = [run["steps to target"] for run in row["runs"]]
        row["bytes per step"] = statistics.mean(run["bytes per step"] for run in row["runs"])
        row["loss"] = None if None in ends else statistics.mean(ends)
        # A miss is never dropped: it sorts after all others.
        middle = sorted(steps, key=lambda s: math.inf if s is None else s)[len(steps) // 2]
        row["steps to target"] = middle
        ddp = next(other for other in rows if not other["every"] and inner(other) == inner(row))
        row["against DDP"] = None
        if row["loss"] is not None and ddp["loss"] is not None:
            pairs = zip(ends, (run["loss"] for run in ddp["runs"]), strict=True)
            row["against DDP"] = [own / other - 1 for own, other in pairs]


def inner(row: dict[str, Any]) -> str:
    name: str = row["method"].split(", ")[1]
    return name


def seconds_to_target(row: dict[str, Any], link: float) -> float | None:
    steps = row["steps to target"]
    return None if steps is None else steps * row["seconds per step"][f"{link:g}"]


def tabulate(rows: list[dict[str, Any]], links: list[float]) -> str:
    heads = [f"s to target at {link:g} Mbit/s" for link in links]
    names = ["method", "lr", "kB per step", "loss at the end", "against DDP", "steps to target"]
    lines = ["| " + " | ".join([*names, *heads]) + " |", "|" + " --- |" * (len(names) + len(heads))]
    for row in rows:
        cells = [row["method"], f"{row['lr']:g}", f"{row['bytes per step'] / 1000:.1f}"]
        cells.append("diverged" if row["loss"] is None else f"{row['loss']:.4f}")
        change = row["against DDP"]
        cells.append(
            f"{100 * statistics.mean(change):+.1f} % "
            f"({100 * min(change):+.1f} to {100 * max(change):+.1f})"
            if change
            else "–"
        )
        cells.append("never" if row["steps to target"] is None else str(row["steps to target"]))
        times = [seconds_to_target(row, link) for link in links]
        cells += ["never" if time is None else f"{time:.1f}" for time in times]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n\n" + "".join(map("- {}\n".format, verdicts(rows)))


def verdicts(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Say for each family of methods for which ``K`` the loss is that of DDP."""
    families: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        name, periodic, _ = row["method"].partition(", K = ")
        if periodic and "wire" not in row["method"]:
            families.setdefault(name, []).append(row)
    for name, family in families.items():
        close = [
            row["every"]
            for row in family
            if row["against DDP"] and statistics.mean(row["against DDP"]) <= CLOSE
        ]
        far = [row["every"] for row in family if row["every"] not in close]
        yield (
            f"{name}: at most {CLOSE:.0%} above DDP for K = {_listed(close)}; "
            f"more than that for K = {_listed(far)}"
        )


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"


def draw(rows: list[dict[str, Any]], links: list[float], file: Path) -> None:
    """Draw seconds to the target over the rate of the link; a panel per family, a line per K.

    DDP is in all of them, for comparison.
    """
    import matplotlib.pyplot as plt

    families = tuple(
        dict.fromkeys(row["method"].partition(", K")[0] for row in rows if row["every"])
    )
    figure, panels = plt.subplots(
        1, len(families), figsize=(3.4 * len(families), 4), sharey=True, layout="constrained"
    )
    shades = plt.get_cmap("viridis")
    for axes, family in zip(panels, families, strict=True):
        for row in rows:
            alone = row["every"] == 0
            times = [seconds_to_target(row, link) for link in links]
            apart = "wire" in row["method"]
            if None in times or apart or not (alone or row["method"].startswith(family)):
                continue
            if alone:
                colour = "black" if inner(row) == "AdamW" else "grey"
                axes.plot(links, times, "--", color=colour, label=row["method"])
            else:
                colour = shades(EVERY.index(row["every"]) / len(EVERY))
                axes.plot(links, times, "o-", color=colour, label=f"K = {row['every']}")
        axes.set(xscale="log", yscale="log", xlabel="link, Mbit/s", title=family)
        axes.set_xticks(links, [f"{link:g}" for link in links])
        axes.minorticks_off()
        axes.grid(visible=True, alpha=0.3)
        if axes.has_data():
            axes.legend(fontsize="small")
    panels[0].set_ylabel(f"seconds to a validation loss of {TARGET}")
    figure.savefig(file, dpi=160)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--steps", type=int, default=1000, help="training steps (default: %(default)s)"
    )
    parser.add_argument(
        "--rates",
        type=float,
        nargs="+",
        default=[3e-4, 1e-3, 3e-3, 1e-2, 3e-2],
        help="learning rates to try (default: %(default)s)",
    )
    parser.add_argument(
        "--seeds", type=int, default=3, help="seeds of the final runs (default: %(default)s)"
    )
    parser.add_argument(
        "--links",
        type=float,
        nargs="+",
        default=[1000.0, 100.0, 10.0],
        help="rates of the link, in Mbit/s (default: %(default)s)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("results/communication.json"),
        help="JSON file to write (default: %(default)s)",
    )
    parser.add_argument("--as-rank", type=json.loads, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.as_rank is not None:
        return rank(asked.as_rank)
    require()
    path("fashion-mnist")  # if it is missing, say so before any rank starts
    orders = {"steps": asked.steps, "rates": asked.rates, "seeds": asked.seeds}
    with hosts():
        rows = on_hosts({"timed": False, **orders})
        for row in rows:
            row["seconds per step"] = {}
        for link in asked.links:
            shape(link)
            for row, seconds in zip(rows, on_hosts({"timed": True}), strict=True):
                row["seconds per step"][f"{link:g}"] = seconds
            shape(None)
    summarise(rows)
    settings = {
        "ranks": RANKS,
        "batch of a rank": BATCH,
        "steps": asked.steps,
        "learning rates tried, falling to 0": asked.rates,
        "seeds": asked.seeds,
        "weights": sum(p.numel() for p in network().parameters()),
        "target": TARGET,
        "links, Mbit/s": asked.links,
        "timed": f"{TURNS} turns of at least {TIMED_STEPS} steps",
    }
    table = tabulate(rows, asked.links)
    write(asked.output, settings, rows, table)
    draw(rows, asked.links, asked.output.with_suffix(".png"))
    print(table)


if __name__ == "__main__":
    main()
