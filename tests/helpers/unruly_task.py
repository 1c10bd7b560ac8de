"""A task of milliseconds that does at every place what the variable of that place says.

``UNRULY_LOSS="sys.exit()"`` is executed when the loss is asked for. ``UNRULY_LOG`` names a file
that snippets write to with ``say``; ``wait`` writes the name of the place and goes on when the file
is gone that ``UNRULY_GATE`` names.
"""

from __future__ import annotations

import asyncio  # noqa: F401 - for snippets
import ctypes  # noqa: F401
import gc
import hashlib  # noqa: F401
import os
import re  # noqa: F401
import signal  # noqa: F401
import subprocess  # noqa: F401
import sys  # noqa: F401
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from badm.bench import Player, Score, Splits, Task
from badm.processes import signals


def say(*words: object) -> None:
    with open(os.environ["UNRULY_LOG"], "a") as log:
        log.write(f"{os.getpid()} {' '.join(map(str, words))}\n")


def wait_for(condition: Callable[[], object]) -> None:
    # Not imported above: what is imported with a task is part of its version.
    from tests.helpers import waiting

    waiting.wait_for(condition)


def wait(place: str) -> None:
    say(place)
    wait_for(lambda: not Path(os.environ["UNRULY_GATE"]).exists())


def wait_until_asked_to_stop(place: str) -> None:
    """By a signal, or by the process that has started this one."""
    say(place)
    requests = [one for one in gc.get_objects() if type(one) is signals.StopRequest]
    wait_for(lambda: signals.stop_requested() or any(one.requested() for one in requests))


def hang() -> None:
    """For ever, and whatever signals come."""
    threading.Event().wait()


def at(place: str, step: int = 0) -> None:
    exec(os.environ.get(f"UNRULY_{place.upper()}", ""), {**globals(), "step": step})


at("import")


class Unruly(Task):
    name = "unruly"
    score = Score("error", best="low")
    batch_size = 4
    steps = 6
    evaluate_every = 2
    taken = 0

    def __init__(self, scale: Any = "cpu") -> None:
        super().__init__(scale)
        at("constructor")

    def data(self) -> Splits:
        at("data")
        x = torch.linspace(-1.0, 1.0, 24).reshape(12, 2)
        split = x, x.sum(1, keepdim=True)
        return Splits(split, split, split)

    def model(self, splits: Splits) -> nn.Module:
        at("model")
        self.taken = 0
        return nn.Linear(2, 1)

    def players(self, model: nn.Module) -> list[Player]:
        at("players")
        return super().players(model)

    def samples(self, split: Any) -> int:
        at("samples")
        return super().samples(split)

    def batch(self, split: Any, indices: Tensor) -> Any:
        at("batch")
        return super().batch(split, indices)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        self.taken += 1
        at("loss", self.taken)
        return (model(batch[0]) - batch[1]).square().mean()

    def evaluate(self, model: nn.Module, split: Any) -> Mapping[str, float]:
        at("evaluate")
        return {"error": (model(split[0]) - split[1]).square().mean().item()}

    def after_step(self, model: nn.Module) -> None:
        at("after_step")

    def warning(self, figures: Mapping[str, float]) -> str:
        at("warning")
        return ""

    def artifacts(self, model: nn.Module, splits: Splits) -> Mapping[str, bytes | str]:
        at("artifacts")
        return {"a text": "some words"}
