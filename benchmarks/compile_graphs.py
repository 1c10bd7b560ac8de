"""Count what torch.compile makes of a step: graphs, breaks and compilations anew, beside AdamW's.

A fresh optimizer's step is compiled and called over a small network of matrices, a kernel, an
embedding and vectors: first what the first step compiles, then what later steps add while the
learning rate changes at every step, as a float and as a tensor. The backend runs the graphs as they
are: what is counted depends on the code and not on the machine.

    python benchmarks/compile_graphs.py -o results/compile_graphs.json
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

from badm import BADM, metrics
from badm.bench.method import package_versions

STEPS = 8
BREAK_OF_TORCH = "Call to `torch._dynamo.graph_break()`"  # at the door of every optimizer's step
LRS: dict[str, Callable[[], float | Tensor]] = {
    "float": lambda: 1e-2,
    "tensor": lambda: torch.tensor(1e-2),
}

Make = Callable[[nn.Module, Any], torch.optim.Optimizer]


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 16), nn.Linear(16, 4)]
    return nn.ModuleList([nn.Embedding(20, 8), nn.Conv2d(3, 8, 3), nn.LayerNorm(8), *layers])


def optimizers() -> dict[str, Make]:
    made: dict[str, Make] = {
        "AdamW": lambda model, lr: torch.optim.AdamW(model.parameters(), lr=lr),
    }
    for metric in metrics.names():
        made[f"BADM, {metric}"] = lambda model, lr, metric=metric: BADM(model, lr, metric=metric)
    return made


def count(make: Make, make_lr: Callable[[], float | Tensor]) -> dict[str, int]:
    """Return the graphs of the first step, its breaks, and the graphs that later steps add."""
    torch._dynamo.reset()
    counters.clear()
    model, lr = network(), make_lr()
    optimizer = make(model, lr)
    backend = CompileCounterWithBackend("eager")
    step = torch.compile(optimizer.step, backend=backend)
    graphs = []
    for k in range(STEPS):
        if isinstance(lr, Tensor):
            lr.fill_(1e-2 / (k + 1))
        else:
            for group in optimizer.param_groups:
                group["lr"] = 1e-2 / (k + 1)
        for i, p in enumerate(model.parameters()):
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(100 * k + i))
        step()
        if k == 0:
            breaks = sum(n for why, n in counters["graph_break"].items() if not is_torchs(why))
        graphs.append(backend.frame_count)
    return {
        "graphs": graphs[0],
        "breaks": breaks,
        "recompiles": graphs[-1] - graphs[0],
        "last_recompile": max((k for k in range(1, STEPS) if graphs[k] > graphs[k - 1]), default=0),
    }


def is_torchs(reason: str) -> bool:
    return reason.startswith(BREAK_OF_TORCH)


def measure(only: str, output: Path | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, make in optimizers().items():
        if only in name:
            found[name] = {kind: count(make, lr) for kind, lr in LRS.items()}
            print(name, found[name], flush=True)
            if output:
                report = {
                    **package_versions(),
                    "steps": STEPS,
                    "optimizers": found,
                }
                output.write_text(json.dumps(report, indent=1) + "\n")
    return found


def rows(found: Mapping[str, Any]) -> list[str]:
    """Return the rows of the table on the docs page."""
    lines = []
    for name, row in found.items():
        cells = [name, row["float"]["graphs"], row["float"]["breaks"]]
        cells += [row[kind]["recompiles"] for kind in LRS]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="part of a name")
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    found = measure(options.only, options.output)
    print("\n".join(rows(found)))


if __name__ == "__main__":
    main()
