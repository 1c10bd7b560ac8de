"""Describe where a run took place (versions, commit, machine), and measure its memory."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import torch

import badm
from badm.bench.method import package_versions

CHANGED = ", with changes"  # that are not in the commit
GIT_SECONDS = 20.0  # for git to answer, on a slow disk


def environment(device: str = "cpu") -> dict[str, Any]:
    """Return what readers of a result want to know about the machine; no names of people or hosts.

    >>> sorted(environment())
    ['commit', 'cores', 'packages', 'platform', 'processor', 'python', 'threads']
    """
    accelerator = {} if device == "cpu" else {"accelerator": accelerator_name(device)}
    return {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "cores": available_cores(),
        "threads": torch.get_num_threads(),
        "packages": package_versions(),
        "commit": commit(),
        **accelerator,
    }


def accelerator_name(device: str) -> str:
    """Return the name of a device, such as NVIDIA A100-SXM4-40GB."""
    return torch.cuda.get_device_name() if device == "cuda" else device


@cache
def commit() -> str | None:
    """Return the commit of badm, if it runs from a checkout and git can tell."""
    return commit_of(Path(badm.__file__).resolve().parent)


def commit_of(package: Path) -> str | None:
    """Return the commit that a package was checked out at, marked if its source has changes.

    An installed package may lie in a checkout as well: that of somebody's project.
    """
    root = package.parents[1]
    if package.parent.name != "src" or not (root / ".git").exists():
        return None
    command = ["git", "--no-optional-locks", "status", "--porcelain=v2", "--branch", "--", "src"]
    others = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        output = subprocess.run(
            command, cwd=root, env=others, capture_output=True, timeout=GIT_SECONDS, check=True
        ).stdout.decode(errors="replace")
    except (OSError, subprocess.SubprocessError):
        return None
    lines = output.splitlines()
    commits = [line.split()[-1] for line in lines if line.startswith("# branch.oid ")]
    if not commits or not re.fullmatch(r"[0-9a-f]{40,64}", commits[0]):  # "(initial)" has none yet
        return None
    changed = any(not line.startswith("#") for line in lines)
    return f"{commits[0]}{CHANGED if changed else ''}"


def available_cores() -> int:
    """Return how many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


@cache
def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [text.partition(":")[2].strip() for text in lines if text.startswith("model name")]
    return names[0] if names else platform.processor()


def synchronize(device: str) -> None:
    """Wait until a device has finished, so that clocks measure all of its work."""
    if device != "cpu":
        torch.accelerator.synchronize()


def reset_peak_memory(device: str = "cpu") -> None:
    """Reset the peak, where the system can."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def peak_memory(device: str = "cpu") -> int | None:
    """Return the peak since then in bytes, or ``None`` where the system cannot tell.

    On a GPU it is the memory of tensors there, on the CPU that of the whole process.
    """
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    if device == "mps":  # it reports no peak, but keeps what it has allocated
        return int(torch.mps.driver_allocated_memory())
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    peaks = [int(text.split()[1]) * 1024 for text in lines if text.startswith("VmHWM")]
    return peaks[0] if peaks else None
