"""What can go wrong in a run or a comparison: errors whose message is for the reader."""

from __future__ import annotations

import traceback
from pathlib import Path


class TaskError(Exception):
    """A task cannot be used: its own code raised, or gave what it must not."""


class MethodError(Exception):
    """The code of a method raised."""


def error_location(error: BaseException, *files: str) -> str:
    """The line that raised: the innermost one in ``files``, if it went through them."""
    frames = traceback.extract_tb(error.__traceback__)
    within = [frame for frame in frames if frame.filename in files] or frames
    return f"{Path(within[-1].filename).name}, line {within[-1].lineno}"


class StoreError(Exception):
    """The folder cannot be used as a store, or not any more; the message says why."""


class ProtocolError(Exception):
    """The rules of a protocol cannot be kept; the message says which."""
