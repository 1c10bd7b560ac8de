"""Kill ranks of a run of four, twenty times, one at a time, while torchrun restarts them.

After a random time a random rank gets SIGKILL: three times out of four after the ranks have trained
some steps since the last kill, otherwise at any moment, which is mostly during start-up. torchrun
ends the others and restarts all of them, and they resume from their last checkpoint. At the end the
weights and the trajectory must be bitwise those of an undisturbed run.

    python benchmarks/replica_kills.py
    python benchmarks/replica_kills.py --kills 3 --method badm --replicas step
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from badm.bench.engine.environment import environment
from badm.bench.records.runs import Run, RunStore

RANKS = 4
LONGEST = 2.0  # seconds until a kill
IN_TRAINING = 0.75  # fraction of kills during training


def start(folder: Path, asked: argparse.Namespace) -> subprocess.Popen[bytes]:
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *(f"--nproc-per-node={RANKS}", f"--max-restarts={asked.kills}"),
        *("-m", "badm", "run", "digits", "--method", asked.method, "--replicas", asked.replicas),
        *("--steps", str(asked.steps), "--checkpoint", "0", "--runs", str(folder), "--quiet"),
    ]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def ranks_of(launcher: int) -> list[int]:
    """Return the processes that torchrun has started, by rank."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            variables = (entry / "environ").read_bytes().split(b"\0")
        except (OSError, ValueError, IndexError):
            continue
        names = [text for text in variables if text.startswith(b"LOCAL_RANK=")]
        if parent == launcher and names:
            found[int(names[0].partition(b"=")[2])] = int(entry.name)
    return [found[rank] for rank in sorted(found)]


def disturb(
    launcher: subprocess.Popen[bytes], folder: Path, asked: argparse.Namespace
) -> list[dict[str, Any]]:
    """Kill ranks as often as required or until the run ends; return which ranks at which step."""
    done: list[dict[str, Any]] = []
    draw = random.Random(asked.seed)
    while len(done) < asked.kills and launcher.poll() is None:
        in_training, seconds = draw.random() < IN_TRAINING, draw.uniform(0.0, LONGEST)
        before = step_reached(folder)
        while in_training and step_reached(folder) == before and launcher.poll() is None:
            time.sleep(0.05)
        time.sleep(seconds)
        processes = ranks_of(launcher.pid)
        if len(processes) < RANKS:  # starting up
            continue
        victim = draw.randrange(RANKS)
        try:
            os.kill(processes[victim], signal.SIGKILL)
        except ProcessLookupError:
            continue
        done.append({"rank": victim, "step": step_reached(folder), "in training": in_training})
        print(f"kill {len(done)}: {done[-1]}", flush=True)
    return done


def step_reached(folder: Path) -> int:
    """Return the last step in the trajectory of the run, 0 if there is none yet."""
    runs, _ = RunStore(folder).read_all()
    return max((point.step for run in runs for point in run.points), default=0)


def the_run(folder: Path) -> Run:
    (run,), problems = RunStore(folder).read_all()
    assert not problems, problems
    assert run.result is not None, "the run has not ended"
    return run


def trajectory(run: Run) -> list[Any]:
    return [(p.step, p.losses, p.validation) for p in run.points]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--kills", type=int, default=20, help="number of kills (default: %(default)s)"
    )
    parser.add_argument(
        "--method", default="adam", help="name of the method (default: %(default)s)"
    )
    parser.add_argument(
        "--replicas", default="dual", help="mode of the replicas (default: %(default)s)"
    )
    parser.add_argument(
        "--steps", type=int, default=4_000, help="training steps (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the random moments (default: %(default)s)"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("results/replica_kills.json"),
        help="JSON file to write (default: %(default)s)",
    )
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        whole, broken = Path(scratch) / "whole", Path(scratch) / "broken"
        assert start(whole, asked).wait() == 0
        launcher = start(broken, asked)
        kills = disturb(launcher, broken, asked)
        code = launcher.wait()
        expected, got = the_run(whole), the_run(broken)
        assert expected.result is not None
        assert got.result is not None
        report = {
            "settings": {"ranks": RANKS, "method": f"{asked.method}+{asked.replicas}"}
            | {"steps": asked.steps, "seed": asked.seed},
            "environment": environment(),
            "kills": kills,
            "exit code": code,
            "same weights": expected.result.weights == got.result.weights,
            "same trajectory": trajectory(expected) == trajectory(got),
            "files left": [p.name for p in broken.glob("digits/*") if p.suffix != ".jsonl"],
        }
    asked.output.write_text(json.dumps(report, indent=1) + "\n")
    print({key: report[key] for key in ("exit code", "same weights", "same trajectory")})
    enough = len(kills) == asked.kills
    sys.exit(not (enough and report["same weights"] and report["same trajectory"]))


if __name__ == "__main__":
    main()
