"""Ranks that find each other, also when torchrun has started them again."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch.distributed as dist

from badm.distributed.ranks import _attempt_name

SURVIVOR = """
import os, signal, threading
import torch, torch.distributed as dist
import badm.distributed.ranks

attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
badm.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
if attempt < 2:
    if dist.get_rank() == attempt:
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()  # until torchrun ends it
print(f"sum {total.item():g} in attempt {attempt}", flush=True)
dist.destroy_process_group()
"""


def attempts(store: dist.Store, size: int) -> list[str]:
    """The names on which ranks agree that come one after the other."""
    names: dict[int, str] = {}

    def come(rank: int) -> None:
        names[rank] = _attempt_name(store, rank, size)

    threads = [threading.Thread(target=come, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
        thread.join(0.02)
    for thread in threads:
        thread.join(30)
    return [names[rank] for rank in range(size)]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_ranks_agree_on_a_name_that_no_attempt_before_had(size: int) -> None:
    store = dist.HashStore()
    seen: set[str] = set()
    for _ in range(4):
        (name,) = set(attempts(store, size))
        assert name not in seen
        seen.add(name)


def test_a_rank_that_has_not_come_again_is_waited_for() -> None:
    store = dist.HashStore()
    attempts(store, 2)
    names: list[str] = []
    first = threading.Thread(target=lambda: names.append(_attempt_name(store, 0, 2)))
    first.start()
    first.join(0.5)
    assert first.is_alive()  # what rank 1 has left from before is not taken for an answer
    names.append(_attempt_name(store, 1, 2))
    first.join(30)
    assert names[0] == names[1]


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("options", [["--standalone"], []], ids=["standalone", "static"])
def test_ranks_that_torchrun_starts_again_find_each_other(
    tmp_path: Path, options: list[str]
) -> None:
    script = tmp_path / "survivor.py"
    script.write_text(SURVIVOR)
    port = [] if options else ["--master-port", str(29_000 + os.getpid() % 1_000)]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", *options, *port),
            *("--nproc-per-node=4", "--max-restarts=2", str(script)),
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sum 4 in attempt 2") == 4
