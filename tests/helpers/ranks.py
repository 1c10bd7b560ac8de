"""Running a function on several ranks: real processes, a real gloo process group."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

PATIENCE = 300  # seconds after which ranks that have not ended are taken to hang


def on_ranks(
    world_size: int,
    function: Callable[..., Any],
    *arguments: Any,
    stopped: Collection[int] = (),
    port: int | None = None,
) -> list[Any]:
    """``function(*arguments)`` on every rank; what each returns, or the exception it raised.

    A rank that was killed has an :class:`Exit` in its place. Those that stop themselves are not
    waited for. The store is a file, or with a ``port`` in the process of rank 0, as torch has it.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "badm"])
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(
                target=_rank, args=(folder, port, rank, world_size, function, arguments)
            )
            for rank in range(world_size)
        ]
        for process in processes:
            process.start()
        waited_for = {rank: p for rank, p in enumerate(processes) if rank not in stopped}
        for process in waited_for.values():
            process.join(PATIENCE)
        hanging = [rank for rank, process in waited_for.items() if process.is_alive()]
        for process in processes:
            process.kill()
            process.join()
        assert not hanging, f"ranks {hanging} hang"
        return [
            _result(Path(folder) / str(rank), process.exitcode)
            for rank, process in enumerate(processes)
        ]


class Exit(RuntimeError):
    """How a process ended that returned nothing: its exit code, negative for a signal."""


def _rank(
    folder: str,
    port: int | None,
    rank: int,
    world_size: int,
    function: Callable[..., Any],
    arguments: Any,
) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world_size)}
    store = (
        dist.FileStore(f"{folder}/store", world_size)
        if port is None
        else dist.TCPStore("127.0.0.1", port, world_size, rank == 0)
    )
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    try:
        result = function(*arguments)
    except Exception as error:
        result = error
    torch.save(result, f"{folder}/{rank}")
    dist.destroy_process_group()


def _result(file: Path, exit_code: int | None) -> Any:
    if not file.exists():
        return Exit(f"exit code {exit_code}")
    return torch.load(file, weights_only=False)
