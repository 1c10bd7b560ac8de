"""Kill three commands sixty times at random moments, with three signals, and resume them.

A command gets SIGINT, SIGTERM or SIGKILL after a random time, alone or with its process group. Then
none of its processes may be left running, and the same command resumes in the same folder. When it
ends, its runs must be bitwise those of an undisturbed command, and the next one starts in an empty
folder. Run the same command to resume this script too.

    nohup python benchmarks/random_kills.py &
    python benchmarks/random_kills.py --kills 2 --output /tmp/kills.json
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from replica_kills import trajectory

from badm.bench.engine.environment import environment
from badm.bench.files import write_atomically
from badm.bench.records.runs import RunStore

COMMANDS: dict[str, tuple[str, ...]] = {
    "run": ("run", "digits", "--method", "badm", "--steps", "1000", "--checkpoint", "0.5"),
    "compare --jobs 2": (
        *("compare", "digits", "--methods", "badm,adam", "--jobs", "2"),
        *("--trials", "2", "--seeds", "1", "--steps", "200"),
    ),
    "run --replicas": (
        *("run", "digits", "--method", "adam", "--replicas", "outer", "--steps", "400"),
        *("--set", "ranks=2", "--set", "every=20", "--checkpoint", "0.5"),
    ),
}
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
MARK = "BADM_RANDOM_KILLS"  # environment variable of all processes of an attempt
PATIENCE = 120.0  # seconds for a command and its processes to end after the signal


@dataclass(frozen=True)
class Kill:
    signal: str
    to: str  # the process, or its group as Ctrl-C in a terminal
    after: float  # seconds
    code: int  # exit code of the command, negative for a signal
    ended_after: float  # seconds from the signal to the end of all processes
    left: list[str]  # processes that had not ended by then


class Attempt:
    """A running command, with all processes that it starts."""

    def __init__(self, words: Sequence[str], folder: Path) -> None:
        self.mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            [sys.executable, "-m", "badm", *words, "--runs", str(folder), "--quiet"],
            env={**os.environ, MARK: self.mark, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def ended_within(self, seconds: float) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        return self.process.poll() is not None

    def kill(self, number: signal.Signals, to: str, after: float) -> Kill:
        began = time.monotonic()
        if to == "group":
            os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)
        self.ended_within(PATIENCE)
        while (left := self.left()) and time.monotonic() - began < PATIENCE:
            time.sleep(0.05)
        seconds = round(time.monotonic() - began, 2)
        code = self.process.poll()
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return Kill(
            number.name,
            to,
            round(after, 2),
            self.process.wait() if code is None else code,
            seconds,
            list(left.values()),
        )

    def left(self) -> dict[int, str]:
        """List the processes that have the mark or belong to the session."""
        found = {}
        for entry in Path("/proc").iterdir():
            with suppress(OSError, ValueError, IndexError):
                state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                marked = self.mark.encode() in (entry / "environ").read_bytes()
                if state != "Z" and (marked or int(session) == self.process.pid):
                    words = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                    found[int(entry.name)] = words.decode(errors="replace").strip()
        return found


def ends(folder: Path) -> dict[str, Any]:
    """Return what must be equal in the runs of a folder, by file."""
    runs, problems = RunStore(folder).read_all()
    assert not problems, problems
    found = {}
    for run in runs:
        assert run.result is not None, f"{run.path} has not ended"
        result = run.result
        found[run.path.name] = (result.weights, result.kept, result.test, trajectory(run))
    return found


def undisturbed(name: str, folder: Path) -> float:
    """Run the command once; return the seconds it takes."""
    shutil.rmtree(folder, ignore_errors=True)
    began = time.monotonic()
    attempt = Attempt(COMMANDS[name], folder)
    assert attempt.process.wait() == 0, f"{name} does not work"
    return time.monotonic() - began


def disturb(name: str, asked: argparse.Namespace, state: dict[str, Any]) -> None:
    """Kill the command as often as required, then let it finish."""
    whole, broken = asked.work / name / "whole", asked.work / name / "broken"
    mine = state.setdefault(name, {"seconds": 0.0, "attempts": 0, "ends": [], "kills": []})
    if not mine["seconds"]:
        mine["seconds"] = round(undisturbed(name, whole), 2)
    order = [number for number in SIGNALS for _ in range(-(-asked.kills // len(SIGNALS)))]
    random.Random(f"{asked.seed} {name}").shuffle(order)
    while True:
        mine["attempts"] += 1
        draw = random.Random(f"{asked.seed} {name} {mine['attempts']}")
        enough = len(mine["kills"]) >= asked.kills
        after = draw.uniform(0.0, 1.2 * mine["seconds"])
        began = time.monotonic()
        attempt = Attempt(COMMANDS[name], broken)
        if attempt.ended_within(10 * PATIENCE if enough else after):
            code = attempt.process.returncode
            mine["seconds"] = round(
                time.monotonic() - began, 2
            )  # at the current load of the machine
            mine["ends"].append({"exit code": code, "the same": ends(broken) == ends(whole)})
            print(name, mine["ends"][-1], flush=True)
            shutil.rmtree(broken)
        else:
            to = draw.choice(("process", "group"))
            mine["kills"].append(asdict(attempt.kill(order[len(mine["kills"])], to, after)))
            print(name, len(mine["kills"]), mine["kills"][-1], flush=True)
        mine["done"] = enough
        write_atomically(asked.work / "state.json", json.dumps(state).encode())
        if enough:
            return


def report(asked: argparse.Namespace, state: dict[str, Any]) -> dict[str, Any]:
    kills = [kill for name in COMMANDS for kill in state[name]["kills"]]
    all_ends = [end for name in COMMANDS for end in state[name]["ends"]]
    return {
        "settings": {
            "commands": {name: " ".join(words) for name, words in COMMANDS.items()},
            "kills of each": asked.kills,
            "seed": asked.seed,
        },
        "environment": environment(),
        "kills": len(kills),
        "by signal": dict(Counter(kill["signal"] for kill in kills)),
        "exit codes": {
            number.name: dict(Counter(k["code"] for k in kills if k["signal"] == number.name))
            for number in SIGNALS
        },
        "left something running": sum(bool(kill["left"]) for kill in kills),
        "came to their end": len(all_ends),
        "bitwise the same end": sum(end["the same"] and not end["exit code"] for end in all_ends),
        "of each": state,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=20, help="kills per command (default: 20)")
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the random moments (default: %(default)s)"
    )
    parser.add_argument(
        "--work",
        type=Path,
        default=Path("runs/random_kills"),
        help="folder to work in (default: %(default)s)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("results/random_kills.json"),
        help="JSON file to write (default: %(default)s)",
    )
    asked = parser.parse_args()
    # Shells let background programs ignore Ctrl-C, which child processes inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    asked.work.mkdir(parents=True, exist_ok=True)
    file = asked.work / "state.json"
    state = json.loads(file.read_text()) if file.exists() else {}
    for name in COMMANDS:
        if not state.get(name, {}).get("done"):
            disturb(name, asked, state)
    found = report(asked, state)
    write_atomically(asked.output, (json.dumps(found, indent=1) + "\n").encode())
    shown = ("kills", "left something running", "came to their end", "bitwise the same end")
    print({key: found[key] for key in shown})
    same = found["bitwise the same end"] == found["came to their end"] > 0
    sys.exit(not (same and not found["left something running"]))


if __name__ == "__main__":
    main()
