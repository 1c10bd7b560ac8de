"""Where a run took place: versions, machine, threads; and what it took of memory."""

from __future__ import annotations

import os
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import badm

PACKAGES = ("numpy", "scipy", "scikit-learn", "optuna", "pytorch_optimizer", "schedulefree")


@cache
def packages() -> dict[str, str]:
    found = {"badm": badm.__version__, "torch": torch.__version__}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def environment() -> dict[str, Any]:
    """What a reader of a result wants to know of the machine; no names of people or hosts.

    >>> sorted(environment())
    ['cores', 'packages', 'platform', 'processor', 'python', 'threads']
    """
    return {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "packages": packages(),
    }


def cores() -> int:
    """The cores this process may use."""
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


def forget_peak_memory() -> None:
    """Let the peak start anew, where the system can."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def peak_memory() -> int | None:
    """The most memory this process had since then, in bytes; None where the system cannot say."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    peaks = [int(text.split()[1]) * 1024 for text in lines if text.startswith("VmHWM")]
    return peaks[0] if peaks else None
