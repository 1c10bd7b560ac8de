"""Two hosts on one machine: network namespaces, and a link whose rate can be set.

Needs root and iproute2, on Linux.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

RANKS = 2
HOSTS = tuple(f"badm-{rank}" for rank in range(RANKS))
ADDRESSES = tuple(f"10.77.0.{rank + 1}" for rank in range(RANKS))


def require() -> None:
    """Exit with a message if hosts cannot be created."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        sys.exit("needs root, and ip and tc of iproute2, to create hosts and limit their link")


def run(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True)


@contextmanager
def hosts() -> Iterator[None]:
    """Create a network namespace for each rank, and a link between them."""
    for host in HOSTS:
        run("ip", "netns", "add", host)
    try:
        run("ip", "link", "add", "badm0", "type", "veth", "peer", "name", "badm1")
        for number, (host, address) in enumerate(zip(HOSTS, ADDRESSES, strict=True)):
            run("ip", "link", "set", f"badm{number}", "netns", host)
            inside = ("ip", "-n", host)
            run(*inside, "link", "set", f"badm{number}", "name", "cable")
            run(*inside, "addr", "add", f"{address}/24", "dev", "cable")
            run(*inside, "link", "set", "cable", "up")
            run(*inside, "link", "set", "lo", "up")
        yield
    finally:
        for host in HOSTS:
            run("ip", "netns", "del", host)


def shape(megabits: float | None) -> None:
    """Set the rate of the link in both directions; ``None`` removes the limit."""
    for host in HOSTS:
        inside = ("ip", "netns", "exec", host, "tc", "qdisc")
        subprocess.run([*inside, "del", "dev", "cable", "root"], stderr=subprocess.DEVNULL)
        if megabits is not None:
            limits = ("rate", f"{megabits}mbit", "burst", "256kb", "latency", "200ms")
            run(*inside, "add", "dev", "cable", "root", "tbf", *limits)


def on_hosts(orders: dict[str, Any]) -> list[Any]:
    """Start a rank on every host, wait for them, and return the results of the first."""
    with tempfile.TemporaryDirectory() as scratch:
        orders = {**orders, "output": f"{scratch}/rows.json"}
        processes = []
        for number, host in enumerate(HOSTS):
            variables = {
                "MASTER_ADDR": ADDRESSES[0],
                "MASTER_PORT": "29571",
                "RANK": str(number),
                "WORLD_SIZE": str(RANKS),
                "GLOO_SOCKET_IFNAME": "cable",
                "OMP_NUM_THREADS": "1",
            }
            command = ["ip", "netns", "exec", host, sys.executable, sys.argv[0]]
            command += ["--as-rank", json.dumps(orders)]
            processes.append(subprocess.Popen(command, env={**os.environ, **variables}))
        codes = [process.wait() for process in processes]
        if any(codes):
            raise RuntimeError(f"the ranks ended with {codes}")
        rows: list[Any] = json.loads(Path(orders["output"]).read_text())
        return rows


def sent() -> int:
    """Return the bytes that this host has sent."""
    return int(Path("/sys/class/net/cable/statistics/tx_bytes").read_text())
