"""What replicas send and how long they take over slow links, step by step and every K steps.

Two ranks in network namespaces of their own, each a machine to the other, joined by a link whose
rate is set with ``tc``. Needs root and iproute2, on Linux. In three parts:

1. Every method trains at each of a few learning rates over an unhindered link; the best by the
   validation loss at the end counts. What it does is the same over every link, to the last bit.
2. Bytes are those that the network interface of the first rank sent, headers and all.
3. Over each link every method makes some more steps against the clock. Seconds to the target are
   these seconds per step times the steps of part 1.

    BADM_DATA=... python benchmarks/communication.py
    BADM_DATA=... python benchmarks/communication.py --steps 200 --rates 1e-3 --links 100
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from reporting import write
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import badm
from badm.bench.data import idx, path
from badm.bench.methods.replicas import DiLoCo

RANKS = 2
HOSTS = tuple(f"badm-{rank}" for rank in range(RANKS))
ADDRESSES = tuple(f"10.77.0.{rank + 1}" for rank in range(RANKS))
BATCH = 64  # of a rank
HELD_OUT = 4_000
EVERY = (1, 10, 50, 200)
LOOK_EVERY = 20  # steps between two readings of the validation loss
TARGET = 0.42  # validation loss; about what Adam has after two thirds of the steps
TIMED_STEPS, WARM_UP = 40, 2  # for K above it, one meeting and its steps


@dataclass(frozen=True)
class Way:
    """A method: an inner optimizer, and how the ranks meet; ``every`` 0 is DDP."""

    inner: str
    kind: type[badm.Consensus] | None = None
    every: int = 0

    @property
    def name(self) -> str:
        if self.kind is None:
            return f"DDP, {self.inner}"
        return f"{self.kind.__name__}, {self.inner}, K = {self.every}"

    @property
    def outer(self) -> dict[str, float]:
        return {"lr": 0.7, "beta": 0.9} if self.kind is DiLoCo else {}


WAYS = (
    Way("AdamW"),
    Way("BADM"),
    *(Way("AdamW", DiLoCo, every) for every in EVERY),
    *(Way(inner, badm.Consensus, every) for inner in ("AdamW", "BADM") for every in EVERY),
)


def optimizer(name: str, model: nn.Module, lr: float) -> torch.optim.Optimizer:
    if name == "AdamW":
        return torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    return badm.BADM(badm.parameter_groups(model), lr=lr)


class Replica:
    """One rank at work in one way."""

    def __init__(self, way: Way, lr: float, data: tuple[Tensor, ...]) -> None:
        self.x, self.y, self.held_x, self.held_y = data
        torch.manual_seed(0)
        self.model: nn.Module = nn.Sequential(
            nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
        )
        self.inner = optimizer(way.inner, self.model, lr)
        self.consensus = None
        self.forward: Callable[[Tensor], Tensor] = self.model
        if way.kind is None:
            self.forward = DistributedDataParallel(self.model)
        else:
            params = list(self.model.parameters())
            self.consensus = way.kind(params, self.inner, every=way.every, **way.outer)
        self.shards = badm.Shards(len(self.y), BATCH)
        self.batches = self._endless()

    def _endless(self) -> Iterator[list[int]]:
        epoch = 0
        while True:
            self.shards.set_epoch(epoch)
            yield from self.shards
            epoch += 1

    def step(self) -> None:
        batch = next(self.batches)
        self.inner.zero_grad()
        cross_entropy(self.forward(self.x[batch]), self.y[batch]).backward()
        self.inner.step()

    @torch.no_grad()
    def loss(self) -> float:
        """On the held-out images, of the weights that all ranks agree on."""
        if self.consensus is None:
            return cross_entropy(self.model(self.held_x), self.held_y).item()
        with self.consensus.at_global_point():
            return cross_entropy(self.model(self.held_x), self.held_y).item()

    def end(self) -> None:
        if self.consensus is not None:
            self.consensus.meet()
            self.consensus.detach()


def train(way: Way, lr: float, steps: int, data: tuple[Tensor, ...]) -> dict[str, Any]:
    replica = Replica(way, lr, data)
    sent, losses = _sent(), [replica.loss()]
    for step in range(1, steps + 1):
        replica.step()
        if step == steps:
            replica.end()
        if step % LOOK_EVERY == 0 or step == steps:
            losses.append(replica.loss())
    bytes_per_step = (_sent() - sent) / steps
    reached = [i for i, loss in enumerate(losses) if loss <= TARGET]
    return {
        "method": way.name,
        "lr": lr,
        "bytes per step": bytes_per_step,
        "loss": losses[-1] if math.isfinite(losses[-1]) else None,
        "steps to target": min(steps, reached[0] * LOOK_EVERY) if reached else None,
    }


def clock(way: Way, lr: float, data: tuple[Tensor, ...]) -> dict[str, Any]:
    """Seconds of a step, over whole rounds of steps and a meeting."""
    replica = Replica(way, lr, data)
    for _ in range(max(WARM_UP, way.every)):
        replica.step()
    dist.barrier()
    steps = max(TIMED_STEPS, way.every)
    began = time.perf_counter()
    for _ in range(steps):
        replica.step()
    seconds = torch.tensor((time.perf_counter() - began) / steps)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    replica.end()
    return {"method": way.name, "seconds per step": seconds.item()}


def _sent() -> int:
    """Bytes that have left this host."""
    return int(Path("/sys/class/net/cable/statistics/tx_bytes").read_text())


def load() -> tuple[Tensor, ...]:
    images, labels, _, _ = idx.load(path("fashion-mnist"))
    x, y = images.flatten(1).float() / 255, labels.long()
    return x[:-HELD_OUT], y[:-HELD_OUT], x[-HELD_OUT:], y[-HELD_OUT:]


def rank(orders: dict[str, Any]) -> None:
    """What a rank does: train or go by the clock, as it is told."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    data, rows = load(), []
    for way in WAYS:
        if orders["timed"]:
            rows.append(clock(way, orders["rates"][0], data))
            continue
        tried = [train(way, lr, orders["steps"], data) for lr in orders["rates"]]
        best = min(tried, key=lambda row: math.inf if row["loss"] is None else row["loss"])
        rows.append(best | {"tried": {row["lr"]: row["loss"] for row in tried}})
        if dist.get_rank() == 0:
            print(rows[-1], flush=True)
    if dist.get_rank() == 0:
        Path(orders["output"]).write_text(json.dumps(rows))
    dist.destroy_process_group()


def run(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True)


@contextmanager
def hosts() -> Iterator[None]:
    """A network namespace for each rank, and a cable between them."""
    for host in HOSTS:
        run("ip", "netns", "add", host)
    try:
        run("ip", "link", "add", "badm0", "type", "veth", "peer", "name", "badm1")
        for number, (host, address) in enumerate(zip(HOSTS, ADDRESSES, strict=True)):
            run("ip", "link", "set", f"badm{number}", "netns", host)
            inside = ("ip", "-n", host)
            run(*inside, "link", "set", f"badm{number}", "name", "cable")
            run(*inside, "addr", "add", f"{address}/24", "dev", "cable")
            run(*inside, "link", "set", "cable", "up")
            run(*inside, "link", "set", "lo", "up")
        yield
    finally:
        for host in HOSTS:
            run("ip", "netns", "del", host)


def shape(megabits: float | None) -> None:
    """Set the rate of the cable in both directions; ``None`` takes the limit away."""
    for host in HOSTS:
        inside = ("ip", "netns", "exec", host, "tc", "qdisc")
        subprocess.run([*inside, "del", "dev", "cable", "root"], stderr=subprocess.DEVNULL)
        if megabits is not None:
            limits = ("rate", f"{megabits}mbit", "burst", "256kb", "latency", "200ms")
            run(*inside, "add", "dev", "cable", "root", "tbf", *limits)


def on_hosts(orders: dict[str, Any]) -> list[dict[str, Any]]:
    """Start a rank on every host, wait for them, and take the rows of the first."""
    with tempfile.TemporaryDirectory() as scratch:
        orders = {**orders, "output": f"{scratch}/rows.json"}
        processes = []
        for number, host in enumerate(HOSTS):
            variables = {
                "MASTER_ADDR": ADDRESSES[0],
                "MASTER_PORT": "29571",
                "RANK": str(number),
                "WORLD_SIZE": str(RANKS),
                "GLOO_SOCKET_IFNAME": "cable",
                "OMP_NUM_THREADS": "1",
            }
            command = ["ip", "netns", "exec", host, sys.executable, __file__]
            command += ["--as-rank", json.dumps(orders)]
            processes.append(subprocess.Popen(command, env={**os.environ, **variables}))
        codes = [process.wait() for process in processes]
        if any(codes):
            raise RuntimeError(f"the ranks ended with {codes}")
        rows: list[dict[str, Any]] = json.loads(Path(orders["output"]).read_text())
        return rows


def tabulate(rows: list[dict[str, Any]], links: list[float]) -> str:
    heads = [f"s to target at {link:g} Mbit/s" for link in links]
    names = ["method", "lr", "kB per step", "loss at the end", "against DDP", "steps to target"]
    lines = ["| " + " | ".join([*names, *heads]) + " |", "|" + " --- |" * (len(names) + len(heads))]
    ddp = {row["method"].partition(", ")[2]: row["loss"] for row in rows[:2]}
    for row in rows:
        own = ddp[row["method"].split(", ")[1]]
        change = f"{100 * (row['loss'] / own - 1):+.1f} %" if row["loss"] and own else "–"
        steps = row["steps to target"]
        times = [
            "never" if steps is None else f"{steps * row['seconds per step'][f'{link:g}']:.1f}"
            for link in links
        ]
        cells = [row["method"], f"{row['lr']:g}", f"{row['bytes per step'] / 1000:.1f}"]
        loss = "diverged" if row["loss"] is None else f"{row['loss']:.4f}"
        cells += [loss, change, "never" if steps is None else str(steps)]
        lines.append("| " + " | ".join([*cells, *times]) + " |")
    return "\n".join(lines) + "\n"


def draw(rows: list[dict[str, Any]], links: list[float], file: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for row in rows:
        if row["steps to target"] is None:
            continue
        times = [row["steps to target"] * row["seconds per step"][f"{link:g}"] for link in links]
        ours = row["method"].startswith("Consensus")
        axes.plot(links, times, "o-" if ours else "s--", label=row["method"], linewidth=1.5)
    axes.set(xscale="log", yscale="log", xlabel="link, Mbit/s", ylabel=f"seconds to loss {TARGET}")
    axes.set_xticks(links, [f"{link:g}" for link in links])
    axes.grid(visible=True, alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small")
    figure.savefig(file, dpi=160)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-3, 3e-3, 1e-2])
    parser.add_argument("--links", type=float, nargs="+", default=[1000.0, 100.0, 10.0])
    parser.add_argument("--output", type=Path, default=Path("results/communication.json"))
    parser.add_argument("--as-rank", type=json.loads, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.as_rank is not None:
        return rank(asked.as_rank)
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        sys.exit("needs root, and ip and tc of iproute2, to make hosts and shape their link")
    path("fashion-mnist")  # says what to do if it is not there, before any rank does
    orders = {"timed": False, "steps": asked.steps, "rates": asked.rates}
    with hosts():
        rows = on_hosts(orders)
        for row in rows:
            row["seconds per step"] = {}
        for link in asked.links:
            shape(link)
            for row, timed in zip(rows, on_hosts({**orders, "timed": True}), strict=True):
                row["seconds per step"][f"{link:g}"] = timed["seconds per step"]
            shape(None)
    settings = {
        "ranks": RANKS,
        "batch of a rank": BATCH,
        "steps": asked.steps,
        "learning rates tried": asked.rates,
        "target": TARGET,
        "links, Mbit/s": asked.links,
        "timed steps": TIMED_STEPS,
    }
    table = tabulate(rows, asked.links)
    write(asked.output, settings, rows, table)
    draw(rows, asked.links, asked.output.with_suffix(".png"))
    print(table)


if __name__ == "__main__":
    main()
