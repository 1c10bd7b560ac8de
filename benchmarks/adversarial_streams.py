"""Step every metric on every path through adversarial streams of gradients, with Adam beside them.

For each of the streams of ``gradient_streams``: no exception, no weight and no state that is not
finite, and foreach and fused where the loop is. Then one gradient of a noisy quadratic is
multiplied by 1e6 or 1e12, and the steps are counted until the loss is back where it is without.

    python benchmarks/adversarial_streams.py -o results/adversarial_streams.json
    python benchmarks/adversarial_streams.py --every 20

Half an hour of one core. With ``-o`` the same command resumes an interrupted run: what is done is
in a file beside the output, named ``.partial.jsonl``. Delete it when the code has changed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from gradient_streams import (
    ALGORITHM1,
    KINDS,
    PATHS,
    TOLERANCE,
    Make,
    Stream,
    Verdict,
    bases_follow_rounding,
    check_stream,
    optimizers,
    streams,
)
from torch import nn

from badm import BADM, metrics
from badm.bench.engine.environment import environment

# The noisy quadratic: ½ tr(WᵀAWB) of 8 × 12 weights, curvatures from 0.1 to 1, gradients with
# noise. The learning rates bring every optimizer to its steady loss before the spike.
ROWS, COLS, NOISE, START = 8, 12, 0.1, 0.3
LR, EUCLIDEAN_LR = 1e-2, 0.1
SPIKE_AT, STEPS_AFTER, WINDOW = 500, 2000, 100
FACTORS = (1e6, 1e12)
RECOVERY_SEEDS = (0, 1, 2)
# Back is where the mean loss of a window is at most this many times that of the undisturbed run.
BACK = 1.5


class Finished:
    """Results by name, each written to a file as a line once it is there."""

    def __init__(self, file: Path | None) -> None:
        self.file = file
        lines = file.read_text("utf-8").splitlines(keepends=True) if file and file.exists() else []
        complete = [line for line in lines if line.endswith("\n")]  # a kill may cut the last one
        self.results: dict[str, Any] = dict(map(json.loads, complete))
        if file:
            file.write_text("".join(complete), "utf-8")

    def get(self, name: str, compute: Callable[[], Any]) -> Any:
        """Return the result of that name; compute it unless it is there."""
        if name not in self.results:
            began = time.process_time()
            result = compute() | {"seconds": time.process_time() - began}
            self.results[name] = result
            if self.file:
                with self.file.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([name, result]) + "\n")
        return {key: value for key, value in self.results[name].items() if key != "seconds"}

    def seconds(self) -> float:
        return sum(result["seconds"] for result in self.results.values())


def quadratic_losses(make: Make, seed: int, factor: float = 1.0) -> list[float]:
    """Return the loss before each step; the gradient of one step is multiplied by ``factor``."""
    generator = torch.Generator().manual_seed(seed)
    left, right = (torch.logspace(-0.5, 0, n) for n in (ROWS, COLS))
    curvature = left[:, None] * right
    w = nn.Parameter(START * torch.randn(ROWS, COLS, generator=generator))
    optimizer = make([w])
    losses = []
    for t in range(SPIKE_AT + STEPS_AFTER):
        with torch.no_grad():
            losses.append(float((0.5 * curvature * w.double().square()).sum()))
            g = curvature * w + NOISE * torch.randn(w.shape, generator=generator)
        w.grad = factor * g if t == SPIKE_AT else g
        optimizer.step()
    return losses


def steps_back(disturbed: list[float], undisturbed: list[float]) -> int | None:
    """Return the steps after the spike from which a window's mean loss is back; None if never."""
    for t in range(SPIKE_AT + 1, len(disturbed) - WINDOW + 1, 10):
        mean, other = (statistics.fmean(x[t : t + WINDOW]) for x in (disturbed, undisturbed))
        if mean <= BACK * other:
            return t - SPIKE_AT
    return None


def recovery(name: str, path: str) -> dict[str, Any]:
    """Measure the steps back for each factor and seed, and the loss at worst and at the end."""
    lr = EUCLIDEAN_LR if name == "euclidean" else LR

    def make(params: list[nn.Parameter]) -> torch.optim.Optimizer:
        if name in metrics.names():
            return BADM(params, lr=lr, metric=name, **PATHS[path])
        return torch.optim.Adam(params, lr=lr, **PATHS[path])

    found: dict[str, Any] = {"lr": lr}
    undisturbed = {seed: quadratic_losses(make, seed) for seed in RECOVERY_SEEDS}
    for factor in FACTORS:
        runs = {seed: quadratic_losses(make, seed, factor) for seed in RECOVERY_SEEDS}
        ends = [
            statistics.fmean(runs[seed][-WINDOW:]) / statistics.fmean(undisturbed[seed][-WINDOW:])
            for seed in RECOVERY_SEEDS
        ]
        worst = [
            max(runs[seed][SPIKE_AT + 1 :]) / statistics.fmean(undisturbed[seed][-WINDOW:])
            for seed in RECOVERY_SEEDS
        ]
        found[f"{factor:g}"] = {
            "steps back": [steps_back(runs[seed], undisturbed[seed]) for seed in RECOVERY_SEEDS],
            "worst loss over undisturbed": [float(f"{x:.3g}") for x in worst],
            "last loss over undisturbed": [float(f"{x:.3g}") for x in ends],
        }
    return found


def summary(found: dict[tuple[str, Stream], Verdict]) -> list[dict[str, Any]]:
    """Count by optimizer, kind and path; a failure's reason is named once, with an example."""
    rows = []
    for name in optimizers():
        for kind in KINDS:
            these = {s: v for (n, s), v in found.items() if n == name and s.kind == kind}
            reasons: Counter[str] = Counter()
            failed: dict[str, list[str]] = defaultdict(list)
            apart, worst = [], 0.0
            for stream, verdict in these.items():
                for path, reason in verdict.failures.items():
                    reasons[reason] += 1
                    failed[reason].append(f"{stream}, {path}")
                of_stream = max(verdict.disagreement.values(), default=0.0)
                worst = max(worst, of_stream)
                if of_stream > TOLERANCE[stream.dtype]:
                    apart.append(str(stream))
            rows.append(
                {
                    "optimizer": name,
                    "kind": kind,
                    "streams": len(these),
                    "weights not finite": sum(
                        any("weights" in r for r in v.failures.values()) for v in these.values()
                    ),
                    "state not finite": sum(
                        any("not finite" in r and "weights" not in r for r in v.failures.values())
                        for v in these.values()
                    ),
                    "of these below overflow": sum(
                        bool(v.failures) and not v.overflow for v in these.values()
                    ),
                    "exceptions": sum(
                        any("not finite" not in r for r in v.failures.values())
                        for v in these.values()
                    ),
                    "failures by path": {
                        path: sum(path in v.failures for v in these.values())
                        for path in (*PATHS, ALGORITHM1)
                    },
                    "paths apart": len(apart),
                    "largest disagreement": float(f"{worst:.2g}"),
                    "failures": {r: {"count": reasons[r], "first": failed[r][0]} for r in reasons},
                    "apart": apart,
                }
            )
    return rows


COUNTS = ("weights not finite", "state not finite", "exceptions", "paths apart")


def table(report: dict[str, Any]) -> str:
    """Return one row for each optimizer, and one for each of its recoveries."""
    lines = [
        f"| optimizer | streams | {' | '.join(COUNTS)} |",
        "|---|" + "---|" * (len(COUNTS) + 1),
    ]
    for name in optimizers():
        rows = [row for row in report["rows"] if row["optimizer"] == name]
        counts = " | ".join(str(sum(row[count] for row in rows)) for count in COUNTS)
        lines.append(f"| {name} | {sum(row['streams'] for row in rows)} | {counts} |")
    lines += ["", "| optimizer | path | spike | steps back | worst loss | last loss |"]
    lines.append("|---|" + "---|" * 5)
    for name, by_path in report["recovery"].items():
        for path, found in by_path.items():
            for factor in (f"{x:g}" for x in FACTORS):
                of_spike = found[factor]
                back = ", ".join("never" if s is None else str(s) for s in of_spike["steps back"])
                worst, last = (
                    ", ".join(f"{x:g}" for x in of_spike[f"{which} loss over undisturbed"])
                    for which in ("worst", "last")
                )
                lines.append(f"| {name} | {path} | {factor} | {back} | {worst} | {last} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--every", type=int, default=1, help="take each so-many-th stream")
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write")
    options = parser.parse_args()
    torch.set_num_threads(1)
    finished = Finished(options.output and options.output.with_suffix(".partial.jsonl"))
    table_of_streams = streams()[:: options.every]
    found = {
        (name, stream): Verdict(
            **finished.get(f"{name}: {stream}", lambda s=stream, n=name: asdict(check_stream(s, n)))
        )
        for stream in table_of_streams
        for name in optimizers()
    }
    recoveries = {
        name: {
            path: finished.get(f"{name}: {path}", lambda n=name, p=path: recovery(n, p))
            for path in PATHS
        }
        for name in optimizers()
    }
    report: dict[str, Any] = {
        "environment": environment(),
        "settings": {
            "streams": len(table_of_streams),
            "paths": [*PATHS, ALGORITHM1],
            "tolerance": {str(dtype): value for dtype, value in TOLERANCE.items()},
            "no tolerance for": [n for n in optimizers() if bases_follow_rounding(n)],
            "quadratic": {
                "shape": [ROWS, COLS],
                "curvatures": [0.1, 1.0],
                "noise": NOISE,
                "size of the first weights": START,
                "spike at": SPIKE_AT,
                "steps after": STEPS_AFTER,
                "window": WINDOW,
                "back at": BACK,
                "seeds": RECOVERY_SEEDS,
            },
        },
        "rows": summary(found),
        "recovery": recoveries,
        "seconds of CPU time": round(finished.seconds()),
    }
    print(table(report))
    if options.output:
        options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        finished.file.unlink()


if __name__ == "__main__":
    main()
