"""Errors of runs and comparisons, with messages for the user."""

from __future__ import annotations

import traceback
from pathlib import Path


class TaskError(Exception):
    """A task cannot be used: its code raised, or returned something invalid."""


class MethodError(Exception):
    """The code of a method raised."""


def error_location(error: BaseException, *files: str) -> str:
    """Name the file and line that raised: the innermost frame in ``files``, if there is one."""
    frames = traceback.extract_tb(error.__traceback__)
    within = [frame for frame in frames if frame.filename in files] or frames
    return f"{Path(within[-1].filename).name}, line {within[-1].lineno}"


def described(error: BaseException) -> str:
    """Return the type of an error and its message, if it has one.

    >>> described(KeyError("colour")), described(SystemExit())
    ("KeyError: 'colour'", 'SystemExit')
    """
    kind, text = type(error).__name__, str(error)
    return f"{kind}: {text}" if text else kind


class StoreError(Exception):
    """A folder cannot be used, or no longer be used, as a store; the message says why."""


class ProtocolError(Exception):
    """A plan breaks a rule of its protocol; the message says which."""
