"""Run ``badm certify`` on the problems of docs/theory.md and save the output.

    python benchmarks/certificates.py -o results/certificates.json

Commands already in the output file are not repeated. Those with ``--paper`` take a minute or two.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

COMMANDS = (
    "badm certify",
    "badm certify --problem logistic --batches 4",
    "badm certify --start zero",
    "badm certify --paper --steps 300",
    "badm certify --paper --steps 300 --problem logistic",
)


def printed(command: str) -> object:
    arguments = [*command.split()[1:], "--json", "--no-picture"]
    done = subprocess.run(
        [sys.executable, "-m", "badm", *arguments], capture_output=True, text=True
    )
    if done.returncode != 0:
        raise SystemExit(f"{command} ended with {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("certificates.json"),
        help="JSON file to write (default: %(default)s)",
    )
    output = parser.parse_args().output
    found = json.loads(output.read_text(encoding="utf-8")) if output.exists() else {}
    for command in COMMANDS:
        if command not in found:
            found[command] = printed(command)
            output.write_text(json.dumps(found) + "\n", encoding="utf-8")
            print(command)


if __name__ == "__main__":
    main()
