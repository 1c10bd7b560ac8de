"""Waiting for a condition: the one place where tests sleep."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")


def wait_for(
    condition: Callable[[], Found], *, seconds: float = 300.0, every: float = 0.02
) -> Found:
    """Call ``condition`` until what it returns is true, and return that.

    Raises AssertionError after so many seconds, which only something that hangs ever takes.
    """
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"waited {seconds:g} seconds"
        time.sleep(every)
    return found
