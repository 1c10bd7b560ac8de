"""Train with a client, be killed, resume: what every client of the table goes through."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from badm import BADM

STEPS, SAVED_AT, KILLED_AT = 8, 3, 5
BATCH, INPUTS, OUTPUTS = 4, 6, 3
METRICS = ("spectral", "kronecker")
ADAMW = "AdamW"
# Imported once and not in each process.
PRELOADED = ("transformers.trainer", "accelerate", "peft", "lightning", "skorch")
STEPS_TAKEN = "steps.txt"
PATIENCE = 600  # seconds until a run that hangs is given up


@dataclass(frozen=True)
class Run:
    """One run of a client.

    Attributes:
        client: Its name in the table.
        folder: Where its checkpoints are; if there are any, the run resumes from the last one.
        optimizer: A metric of BADM, or AdamW.
        kill: Whether the process kills itself after step ``KILLED_AT``.
        rank: Of this process.
        ranks: Number of processes.
    """

    client: str
    folder: str
    optimizer: str
    kill: bool
    rank: int = 0
    ranks: int = 1

    def make(self, params: Any, **options: Any) -> torch.optim.Optimizer:
        """Make the optimizer of a model or of parameters."""
        options = {"lr": 0.01, **options}
        if self.optimizer != ADAMW:
            return BADM(params, **options, metric=self.optimizer)
        params = params.parameters() if isinstance(params, nn.Module) else params
        return torch.optim.AdamW(params, **options)

    @property
    def arguments(self) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
        """Class and options, for clients that make the optimizer."""
        if self.optimizer == ADAMW:
            return torch.optim.AdamW, {}
        return BADM, {"metric": self.optimizer}

    def after_step(self, step: int) -> None:
        """Note the step, and let the process be killed as by a machine that is taken away."""
        if self.rank == 0:
            with open(f"{self.folder}/{STEPS_TAKEN}", "a") as file:
                file.write(f"{step}\n")
        if self.kill and step == KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)

    @property
    def checkpoint(self) -> Path:
        return Path(self.folder) / "checkpoint.pt"


@dataclass(frozen=True)
class Client:
    """A package that trains with BADM.

    Attributes:
        name: Its name in the table.
        train: Module and function that train with it and return the weights.
        packages: The packages whose versions the table shows.
        ranks: Number of processes, before and after the kill.
        near: How far the weights may be from those of an unbroken run; 0: equal bit for bit.
        note: What to know about it.
    """

    name: str
    train: str
    packages: tuple[str, ...] = ("torch",)
    ranks: tuple[int, int] = (1, 1)
    near: float = 0.0
    note: str = ""
    launched: bool = False  # one process too has the environment that torchrun gives

    @property
    def in_groups(self) -> bool:
        return self.launched or max(self.ranks) > 1


def network() -> nn.Module:
    """Two layers and a norm, the same ones in every process."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(INPUTS, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, OUTPUTS)
    )


def samples(count: int = STEPS * BATCH) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, INPUTS, generator=torch.Generator().manual_seed(1))
    return x, x[:, :OUTPUTS].sin()


def batch(step: int, run: Run) -> tuple[Tensor, Tensor]:
    """This rank's part of a batch."""
    x, y = (part.split(BATCH)[step] for part in samples())
    return x.tensor_split(run.ranks)[run.rank], y.tensor_split(run.ranks)[run.rank]


def loss(model: nn.Module, step: int, run: Run) -> Tensor:
    x, y = batch(step, run)
    return mse_loss(model(x), y)


def weights(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def train_with_torch(
    run: Run,
    model: nn.Module,
    step: Callable[[int], None],
    saved: dict[str, Any],
) -> list[Tensor]:
    """A loop with ``torch.save`` of everything that has a state dict."""
    start = 0
    if run.checkpoint.exists():
        loaded = torch.load(run.checkpoint, weights_only=False)
        start = loaded["step"]
        for name, one in saved.items():
            one.load_state_dict(loaded[name])
    for k in range(start, STEPS):
        step(k)
        if k + 1 == SAVED_AT and run.rank == 0:
            states = {name: one.state_dict() for name, one in saved.items()}
            torch.save({"step": k + 1, **states}, run.checkpoint)
        run.after_step(k + 1)
    return weights(model)


def outcome(client: Client, optimizer: str) -> dict[str, Any]:
    """Train unbroken, and killed and resumed; return how far apart the weights are.

    A client that starts anew would end alike, so the steps that were taken are looked at too.
    """
    with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as broken:
        unbroken = _run(client, Run(client.name, whole, optimizer, kill=False), client.ranks[0])
        ended = _run(client, Run(client.name, broken, optimizer, kill=True), client.ranks[0])
        resumed = _run(client, Run(client.name, broken, optimizer, kill=False), client.ranks[1])
        taken = [int(line) for line in (Path(broken) / STEPS_TAKEN).read_text().split()]
    for one in (unbroken, resumed):
        if isinstance(one, str):
            return {"error": one}
    if ended != -signal.SIGKILL:
        return {"error": f"the run was not killed, and ended with {ended}"}
    if taken != [*range(1, KILLED_AT + 1), *range(SAVED_AT + 1, STEPS + 1)]:
        return {"error": f"it did not go on from step {SAVED_AT}: its steps were {taken}"}
    pairs = zip(map(torch.tensor, unbroken), map(torch.tensor, resumed), strict=True)
    return {"difference": max(float((a - b).abs().max()) for a, b in pairs)}


def versions(client: Client) -> dict[str, str]:
    return {name: version(name) for name in client.packages}


def _run(client: Client, run: Run, ranks: int) -> Any:
    """Return the weights of rank 0, the message of an error, or the exit code of a killed run."""
    context = _context()
    receiver, sender = context.Pipe(duplex=False)
    port = _free_port()
    processes = [
        context.Process(
            target=_in_process,
            args=(client, replace(run, rank=r, ranks=ranks), port, sender),
            daemon=True,
        )
        for r in range(ranks)
    ]
    for process in processes:
        process.start()
    sender.close()
    found = _received(receiver)
    for process in processes:
        process.join(30)
        if process.is_alive():
            process.kill()  # waits for one that was killed
            process.join()
    return processes[0].exitcode if found is None else found


def _received(receiver: Any) -> Any:
    try:
        return receiver.recv() if receiver.poll(PATIENCE) else f"no end after {PATIENCE} s"
    except EOFError:
        return None


def _in_process(client: Client, run: Run, port: int, sender: Any) -> None:
    torch.set_num_threads(1)
    if client.in_groups:
        _join_group(run, port)
    module, _, function = client.train.partition(":")
    try:
        found = getattr(import_module(f"tests.clients.{module}"), function)(run)
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
        if os.environ.get("CLIENTS_TRACE"):
            raise
    if run.rank == 0:
        # Numbers: memory that is shared would be gone with the process.
        sender.send(found if isinstance(found, str) else [w.double().tolist() for w in found])
    sender.close()


def _join_group(run: Run, port: int) -> None:
    os.environ |= {
        "RANK": str(run.rank),
        "LOCAL_RANK": str(run.rank),
        "WORLD_SIZE": str(run.ranks),
        "LOCAL_WORLD_SIZE": str(run.ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "clients",  # launched as by torchrun
    }


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@cache
def _context() -> Any:
    """Processes that are forked from one which has imported torch once, and never computed."""
    context = multiprocessing.get_context("forkserver")
    found = [name for name in PRELOADED if find_spec(name.partition(".")[0])]
    context.set_forkserver_preload(["torch", "badm.optimizer", "tests.clients.harness", *found])
    return context
