"""Measure an optimizer's memory beyond parameters and gradients: its state, and a step's peak.

State: the bytes of every tensor in ``optimizer.state``, counted exactly, over the bytes of the
parameters. Peak: the most memory that is live during a step beyond what was live before it,
measured in two ways, since each misses something:

- *torch*: allocations and frees as torch's allocator reports them. Exact to the byte, but without
  the work space of BLAS and LAPACK.
- *process*: the high-water mark of resident memory, reset before the steps. It includes
  everything, to within about a megabyte of library caches; too coarse for the tiny tensors.

Each optimizer has its own process and is measured for a few steps after the first, for kronecker
and SOAP until every basis has been refreshed.

    python benchmarks/memory.py                               # all optimizers, both sets of tensors
    python benchmarks/memory.py --set transformer -o results/memory.json
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytorch_optimizer
import torch
from step_time import SETS, Make, parameters
from torch import Tensor
from torch.autograd.profiler import profile, record_function

from badm import BADM

# Without refreshes every step is like the next. SOAP refreshes all its bases every tenth step,
# kronecker each of them once in ten steps.
STEPS = 3
STEPS_WITH_REFRESHES = 10


@dataclass(frozen=True)
class Case:
    name: str
    make: Make
    buffers: int | None = None
    """Promised buffers per parameter, where one is promised."""
    matrices_only: bool = False
    steps: int = STEPS


CASES = (
    Case(
        "torch.optim.SGD(momentum=0.9, fused=True)",
        lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9, fused=True),
    ),
    Case(
        "BADM(metric='euclidean', fused=True)",
        lambda p: BADM(p, metric="euclidean", fused=True),
        buffers=1,
    ),
    Case("BADM(metric='euclidean')", lambda p: BADM(p, metric="euclidean"), buffers=1),
    Case("torch.optim.Adam(fused=True)", lambda p: torch.optim.Adam(p, fused=True)),
    Case("torch.optim.Adam(foreach=True)", lambda p: torch.optim.Adam(p, foreach=True)),
    Case(
        "BADM(metric='diagonal', fused=True)",
        lambda p: BADM(p, metric="diagonal", fused=True),
        buffers=2,
    ),
    Case("BADM(metric='diagonal')", lambda p: BADM(p, metric="diagonal"), buffers=2),
    Case(
        "torch.optim.Muon()",
        lambda p: torch.optim.Muon(p, weight_decay=0.0),
        matrices_only=True,
    ),
    Case(
        "BADM(metric='spectral', fused=True)",
        lambda p: BADM(p, metric="spectral", fused=True),
        buffers=1,
        matrices_only=True,
    ),
    Case(
        "pytorch_optimizer.SOAP()",
        lambda p: pytorch_optimizer.SOAP(p, weight_decay=0.0),
        matrices_only=True,
        steps=STEPS_WITH_REFRESHES,
    ),
    Case(
        "BADM(metric='kronecker', fused=True)",
        lambda p: BADM(p, metric="kronecker", fused=True),
        matrices_only=True,
        steps=STEPS_WITH_REFRESHES,
    ),
)


def measure(set_name: str, index: int, threads: int) -> dict[str, Any]:
    """Measure one case; must be called in a new process."""
    torch.set_num_threads(threads)
    case = CASES[index]
    shapes = SETS[set_name](case.matrices_only)

    params = parameters(shapes)
    optimizer = case.make(params)
    optimizer.step()  # the first step creates the state
    kept = [t for state in optimizer.state.values() for t in tensors(state)]
    parameter_bytes, state_bytes = storage_bytes(params), storage_bytes(kept)
    # A step count takes bytes, but is not a buffer.
    elements = sum(t.numel() for t in kept if t.numel() > 1)
    buffers = elements / sum(p.numel() for p in params)
    process = resident_peak(optimizer, case.steps) if set_name == "transformer" else None
    del params, optimizer, kept

    borrowed = allocator_peak(case, shapes)
    return {
        "set": set_name,
        "optimizer": case.name,
        "tensors": len(shapes),
        "matrices_only": case.matrices_only,
        "steps": case.steps,
        "parameter_bytes": parameter_bytes,
        "state_bytes": state_bytes,
        "state_ratio": round(state_bytes / parameter_bytes, 6),
        "buffers": round(buffers, 6),
        "buffers_promised": case.buffers,
        "step_peak_bytes_torch": borrowed,
        "step_peak_ratio_torch": round(borrowed / parameter_bytes, 4),
        "step_peak_bytes_process": process,
        "step_peak_ratio_process": None if process is None else round(process / parameter_bytes, 4),
    }


def tensors(nest: object) -> Iterator[Tensor]:
    if isinstance(nest, Tensor):
        yield nest
    elif isinstance(nest, dict):
        for value in nest.values():
            yield from tensors(value)
    elif isinstance(nest, (list, tuple)):
        for value in nest:
            yield from tensors(value)


def storage_bytes(kept: Sequence[Tensor]) -> int:
    """Count the bytes of the tensors' storages; views of one storage count once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in kept}
    return sum(storages.values())


def allocator_peak(case: Case, shapes: list[tuple[int, ...]]) -> int:
    """Return the peak of live bytes during a step beyond those before, from torch's allocator."""
    # From before the first tensor: earlier blocks would be freed unseen, and an optimizer that
    # replaces its state would seem to take twice the memory.
    with profile(profile_memory=True) as profiler:
        optimizer = case.make(parameters(shapes))
        optimizer.step()
        for _ in range(case.steps):
            with record_function("step"):
                optimizer.step()
    assert profiler.kineto_results is not None
    # The raw events: the public forms build an object for each of millions of operations.
    events = [
        (event.start_ns(), event.name(), event.nbytes())
        for event in profiler.kineto_results.events()
        if event.name() in ("step", "[memory]")
    ]
    live, before, peak = 0, None, 0
    for _, name, size in sorted(events):
        if name == "step":
            before = live
            continue
        live += size
        if before is not None:
            peak = max(peak, live - before)
    return peak


def resident_peak(optimizer: torch.optim.Optimizer, steps: int) -> int | None:
    """Return the peak of resident bytes during the steps beyond those before; Linux only."""
    reset = Path("/proc/self/clear_refs")
    if not reset.exists():
        return None
    optimizer.step()  # libraries set up their threads and caches
    reset.write_text("5")  # reset the high-water mark
    before = status_bytes("VmRSS")
    for _ in range(steps):
        optimizer.step()
    return max(0, status_bytes("VmHWM") - before)


def status_bytes(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.M)
    assert found is not None, f"no {field} in /proc/self/status"
    return 1024 * int(found[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", choices=list(SETS), help="measure one set of tensors only")
    parser.add_argument(
        "--threads",
        type=int,
        default=torch.get_num_threads(),
        help="threads of torch (default: %(default)s)",
    )
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write")
    arguments = parser.parse_args()

    # For the child processes: return freed memory to the system at once. Otherwise a step could
    # reuse what an earlier one left, and the high-water mark would not move.
    os.environ["MALLOC_MMAP_THRESHOLD_"] = os.environ["MALLOC_TRIM_THRESHOLD_"] = "65536"
    os.environ["KINETO_LOG_LEVEL"] = "99"  # the profiler would log every start and stop

    print(f"{'× the bytes of the parameters':55} {'kept':>7} {'borrowed by a step':>24}")
    print(f"{'':55} {'state':>7} {'by torch':>12} {'by process':>11}")
    report: dict[str, Any] = {
        "torch": torch.__version__,
        "pytorch_optimizer": version("pytorch_optimizer"),
        "python": platform.python_version(),
        "processor": platform.processor() or platform.machine(),
        "threads": arguments.threads,
        "complete": False,
        "rows": [],
    }
    sets = [arguments.set] if arguments.set else list(SETS)
    # Slow cases come last, and an interrupted run keeps its results.
    for index, case in enumerate(CASES):
        for set_name in sets:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                row = pool.apply(measure, (set_name, index, arguments.threads))
            report["rows"].append(row)
            report["complete"] = len(report["rows"]) == len(CASES) * len(sets)
            process = row["step_peak_ratio_process"]
            print(
                f"{set_name:12} {case.name:42} {row['state_ratio']:7.3f} "
                f"{row['step_peak_ratio_torch']:12.3f} "
                f"{'–' if process is None else format(process, '.3f'):>11}",
                flush=True,
            )
            if arguments.output:
                arguments.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
