"""A run of four ranks of which twenty are killed, one at a time, under the restarts of torchrun.

After a random time a random rank gets SIGKILL; torchrun ends the others and starts all of them
anew, and they go on from their last checkpoint. At the end the weights and the trajectory must be
those of a run that nobody disturbed, to the last bit.

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

from badm.bench.environment import environment
from badm.bench.store import Run, Store

RANKS = 4
LONGEST = 6.0  # seconds until a kill: a rank takes some of them to import torch and to meet


def start(folder: Path, asked: argparse.Namespace) -> subprocess.Popen[bytes]:
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *(f"--nproc-per-node={RANKS}", f"--max-restarts={asked.kills}"),
        *("-m", "badm", "run", "digits", "--method", asked.method, "--replicas", asked.replicas),
        *("--steps", str(asked.steps), "--checkpoint", "0", "--runs", str(folder), "--quiet"),
    ]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def ranks_of(launcher: int) -> list[int]:
    """The processes that torchrun has started, by rank."""
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


def disturb(launcher: subprocess.Popen[bytes], draw: random.Random, kills: int) -> list[Any]:
    """Kill ranks until that was often enough or the run has ended; which, and after how long."""
    done: list[Any] = []
    while len(done) < kills and launcher.poll() is None:
        seconds = draw.uniform(0.5, LONGEST)
        time.sleep(seconds)
        processes = ranks_of(launcher.pid)
        if len(processes) < RANKS:  # being started
            continue
        victim = draw.randrange(RANKS)
        try:
            os.kill(processes[victim], signal.SIGKILL)
        except ProcessLookupError:
            continue
        done.append({"rank": victim, "after seconds": round(seconds, 2)})
        print(f"kill {len(done)}: rank {victim}", flush=True)
    return done


def the_run(folder: Path) -> Run:
    (run,), problems = Store(folder).runs()
    assert not problems, problems
    assert run.result is not None, "the run has not ended"
    return run


def trajectory(run: Run) -> list[Any]:
    return [(p.step, p.losses, p.validation) for p in run.points]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--method", default="adam")
    parser.add_argument("--replicas", default="dual")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("results/replica_kills.json"))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        whole, broken = Path(scratch) / "whole", Path(scratch) / "broken"
        assert start(whole, asked).wait() == 0
        launcher = start(broken, asked)
        kills = disturb(launcher, random.Random(asked.seed), asked.kills)
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
    sys.exit(not (report["same weights"] and report["same trajectory"]))


if __name__ == "__main__":
    main()
