"""Measure what commands cost before they do any work, and one that finds its work done.

Commands of two checkouts take turns. The result is the median CPU time of each, worker processes
included, and the median over the turns of the ratio. Both checkouts run in this Python with its
packages; their own C kernels are not needed.

    git worktree add ../before origin/main
    python benchmarks/startup.py ../before . --turns 5 -o results/startup.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from turns import ratios

COMPARED = ("compare", "digits", "--methods", "badm,adam,muon", "--trials", "3", "--seeds", "2")
COMMANDS = (
    ("--help",),
    ("--version",),
    ("list", "tasks"),
    ("list", "methods"),
    ("data", "list"),
    ("compare", "--help"),
    (*COMPARED, "--quiet"),
)


def cpu_seconds(checkout: Path, folder: Path, arguments: Sequence[str]) -> float:
    """Run a command of a checkout in a folder; return its CPU seconds and those of its workers."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "badm", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(before: Path, after: Path, turns: int) -> list[dict[str, Any]]:
    """Measure every command in both checkouts, each of which has a folder of finished runs."""
    rows = []
    with TemporaryDirectory() as one, TemporaryDirectory() as other:
        places = ((before, Path(one)), (after, Path(other)))
        for place in places:  # the runs, and the files that Python compiles
            cpu_seconds(*place, (*COMPARED, "--quiet"))
        for arguments in COMMANDS:
            pairs = [[cpu_seconds(*place, arguments) for place in places] for _ in range(turns)]
            old, new = zip(*pairs, strict=True)
            found = ratios(new, old)
            rows.append(
                {
                    "command": " ".join(("badm", *arguments)),
                    "seconds_before": round(ratios(old, old)["ms"] / 1e3, 2),
                    "seconds_after": round(found.pop("ms") / 1e3, 2),
                    **found,
                }
            )
            print(rows[-1])
    return rows


def commit(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("before", type=Path, help="a checkout")
    parser.add_argument("after", type=Path, help="another one")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    before, after = options.before.resolve(), options.after.resolve()
    result = {
        "before": commit(before),
        "after": commit(after),
        "turns": options.turns,
        "python": platform.python_version(),
        "torch": version("torch"),
        "cpu_seconds": measure(before, after, options.turns),
    }
    if options.output:
        options.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
