"""Results of the scripts in benchmarks/."""

from __future__ import annotations

import math
from statistics import mean, median
from typing import Any

from sources.comparisons import PRETRAINED, row
from sources.files import results


def fashion_setting(name: str) -> Any:
    return results("fashion_mnist")[name]


def fashion(method: str) -> dict[str, Any]:
    return dict(next(r for r in results("fashion_mnist")["rows"] if r["method"] == method))


def fashion_cell(method: str, metric: str, show: str = "g", unit: float = 1, sign: str = "") -> str:
    """Format the median over the seeds with their range."""
    ordered = sorted(math.inf if v is None else v for v in fashion(method)[metric])
    first, middle, last = (
        format(unit * v, show) if math.isfinite(v) else "never"
        for v in (ordered[0], median(ordered), ordered[-1])
    )
    return f"{middle}{sign}" if first == last else f"{middle}{sign} ({first}–{last})"


def fashion_tuning(method: str, lr: float) -> float:
    """Return the steps to the target with the tuning seed."""
    report = results("fashion_mnist")
    (run,) = (
        r
        for r in report["runs"]
        if (r["method"], r["lr"], r["seed"]) == (method, lr, *report["tuning_seeds"])
    )
    reached = [accuracy >= report["target"] for accuracy in run["validation_accuracy"]]
    return report["read_every"] * (1 + reached.index(True)) if any(reached) else math.inf


def fashion_median(method: str, metric: str) -> float:
    return median(math.inf if v is None else v for v in fashion(method)[metric])


def links(setting: str) -> Any:
    return results("communication")["settings"][setting]


def labels(setting: str) -> Any:
    return results("heterogeneous")["settings"][setting]


def meeting(method: str) -> dict[str, Any]:
    found = next(r for r in results("communication")["rows"] if r["method"] == method)
    return dict(found)


def seconds_to_target(method: str, link: int) -> float:
    found = meeting(method)
    if found["steps to target"] is None:
        return math.inf
    return float(found["steps to target"] * found["seconds per step"][str(link)])


def seconds_cell(method: str, link: int) -> str:
    value = seconds_to_target(method, link)
    return f"{value:.1f}" if math.isfinite(value) else "never"


def against_ddp(method: str) -> float:
    """Return the final loss relative to DDP's with the same optimizer, in per cent."""
    return 100 * mean(meeting(method)["against DDP"])


def against_ddp_range(method: str) -> str:
    """
    >>> against_ddp_range("Consensus, AdamW, K = 10")
    '−0.6 to +1.9'
    """
    ends = sorted(100 * value for value in meeting(method)["against DDP"])
    return " to ".join(f"{end:+.1f}".replace("-", "−") for end in (ends[0], ends[-1]))


def against_ddp_cell(method: str) -> str:
    if method.startswith("DDP"):
        return "–"
    value = against_ddp(method)
    return f"{'+' if value > 0 else '−'}{abs(value):.1f} %"


def different_data(method: str) -> list[float]:
    """Return the test accuracy of each seed in per cent, ascending."""
    found = next(r for r in results("heterogeneous")["rows"] if r["method"] == method)
    return sorted(100 * value for value in found["test"])


def by_label(way: str) -> str:
    """Format the mean over the seeds with their range."""
    values = different_data(f"adam+{way}")
    return f"{mean(values):.1f} % ({values[0]:.1f}–{values[-1]:.1f})"


def close_to_ddp(way: str, per_cent: float = 1.0) -> int:
    """Return the largest K up to which the loss stays within ``per_cent`` of DDP's."""
    every = 0
    for found in sorted(results("communication")["rows"], key=lambda r: r["every"]):
        if found["method"] == f"{way}, K = {found['every']}":
            if against_ddp(found["method"]) > per_cent:
                break
            every = found["every"]
    return every


def cora(case: str) -> str:
    """Format the test accuracy of the DNN, mean over the seeds with their range."""
    values = sorted(results("cora")["test accuracy"]["node-cora-dnn"][case])
    return f"{mean(values):.3f} ({values[0]:.3f}–{values[-1]:.3f})"


def timed(parameters: str, metric: str, threads: int = 1) -> dict[str, Any]:
    """Return the row of a metric; of spectral the one that may use bfloat16."""
    rows = results("step_time")["rows"]
    key = (parameters, metric, threads)
    return dict(next(r for r in rows if (r["set"], r["metric"], r["threads"]) == key))


# How the page names the rows: ours and theirs.
STEP_TIMES = {
    "euclidean": ("BADM(metric='euclidean', fused=True)", "SGD"),
    "diagonal": ("BADM(metric='diagonal', fused=True)", "Adam"),
    "spectral, both in float32": ("BADM(metric='spectral', fused=True)", "FullPrecisionMuon"),
    "spectral, both in bfloat16": (
        "BADM(metric='spectral', fused=True), bfloat16 allowed",
        "optim.Muon",
    ),
    "spectral as it is": ("BADM(metric='spectral', fused=True)", "optim.Muon"),
    "kronecker": ("BADM(metric='kronecker', fused=True)", "SOAP"),
    "kronecker-spectral": ("BADM(metric='kronecker-spectral', fused=True)", "SOAP"),
}


def _step_times(name: str, parameters: str) -> list[dict[str, Any]]:
    ours, theirs = STEP_TIMES[name]
    return [
        row
        for row in results("step_time")["rows"]
        if (row["set"], row["ours"]) == (parameters, ours) and theirs in row["theirs"]
    ]


def step_times(name: str, parameters: str) -> str:
    """Format the ratios with one and with two threads."""
    ratios = {row["threads"]: row["ratio"] for row in _step_times(name, parameters)}
    return f"{ratios[1]:.2f}, {ratios[2]:.2f}"


def step_time_rival(name: str) -> str:
    return str(_step_times(name, "tiny")[0]["theirs"])


def memory(name: str, ratio: str = "state_ratio") -> float:
    optimizer = {"soap": "pytorch_optimizer.SOAP()"}.get(name, f"BADM(metric='{name}', fused=True)")
    return float(_memory_row(optimizer)[ratio])


def parameters() -> float:
    """Count the parameters of the transformer whose steps are timed, which are float32."""
    return float(_memory_row("BADM(metric='diagonal', fused=True)")["parameter_bytes"] / 4)


def _memory_row(optimizer: str) -> dict[str, Any]:
    rows = results("memory")["rows"]
    return dict(next(r for r in rows if (r["set"], r["optimizer"]) == ("transformer", optimizer)))


def startup(command: str) -> dict[str, Any]:
    """Return what the command that begins so costs before it does any work, now and before."""
    start = command.split("`")[1].removesuffix(" ...")
    rows = results("startup")["cpu_seconds"]
    return dict(next(r for r in rows if r["command"].startswith(start)))


def weights_pretrained() -> float:
    """Count the weights of the masked language model; Adam keeps 8 bytes for each."""
    return float(row(*PRETRAINED, "adam")["state_bytes"] / 8)
