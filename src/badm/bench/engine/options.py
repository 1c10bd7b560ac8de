"""How a run is carried out: on which machine, and with which checkpoints and callbacks.

Both objects are passed whole from the command to the training. What a result depends on is in
:class:`~badm.bench.records.runs.RunConfig`: threads and device are in both, and must agree.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

DEVICES = ("cpu", "cuda", "mps")
AUTO = "auto"  # the accelerator if there is one, else the CPU


def available_devices() -> tuple[str, ...]:
    """The devices that torch can use here, the fastest first.

    >>> available_devices()[-1]
    'cpu'
    """
    import torch

    present = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    return tuple(filter(present.get, present))


def resolve_device(name: str) -> str:
    """Return the device of that name, ``auto`` resolved; ``ValueError`` if torch has none here.

    >>> resolve_device("cpu")
    'cpu'
    >>> resolve_device("gpu")
    Traceback (most recent call last):
    ValueError: device must be one of cpu, cuda, mps, auto, got 'gpu'
    """
    if name not in (*DEVICES, AUTO):
        raise ValueError(f"device must be one of {', '.join((*DEVICES, AUTO))}, got {name!r}")
    import torch

    available = available_devices()
    if name == AUTO:
        return available[0]
    if name not in available:
        raise ValueError(
            f"device {name} is not available: torch {torch.__version__} has {', '.join(available)}"
        )
    return name


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What each run has of the machine. ``device`` is one that is there: ``auto`` is resolved.

    >>> Machine(threads=2)
    Machine(threads=2, device='cpu')
    """

    threads: int = 1  # of torch, in each process
    device: str = "cpu"  # cpu, cuda, mps or auto

    def __post_init__(self) -> None:
        object.__setattr__(self, "device", resolve_device(self.device))

    def prepare(self) -> None:
        """Set up torch in this process; to be called before the code of a task runs."""
        import torch

        torch.set_num_threads(self.threads)
        if self.device == "cpu":
            return
        # Equal runs give equal results, bit for bit, also after a resume. An operation for which
        # torch has no deterministic form makes it warn.
        torch.use_deterministic_algorithms(True, warn_only=True)
        if self.device == "cuda":
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS's condition for it
            local_rank = int(os.environ.get("LOCAL_RANK", "0"))  # set by torchrun
            torch.cuda.set_device(local_rank % torch.cuda.device_count())


def _ignore(step: int, loss: float) -> None: ...


def _never() -> bool:
    return False


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a run is carried out; nothing here changes its result."""

    checkpoint_seconds: float = 20.0  # between two checkpoints; 0: one after every step
    keep_weights: bool = False  # as a file beside the run, such as a later stage starts from
    on_step: Callable[[int, float], None] = _ignore  # called with the step and its loss
    should_stop: Callable[[], bool] = _never  # asked before every step
    # Entered around all of a run that asks `should_stop`: it delays whatever would end the process.
    hold: Callable[[], AbstractContextManager[None]] = nullcontext

    def to_dict(self) -> dict[str, Any]:
        """The options that can be sent to another process, which has callbacks of its own."""
        return {"checkpoint_seconds": self.checkpoint_seconds, "keep_weights": self.keep_weights}
