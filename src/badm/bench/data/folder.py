"""The data folder: the one place that reads ``BADM_DATA``."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "BADM_DATA"
DEFAULT = Path("~/.cache/badm")


def root() -> Path:
    """Return the folder of all datasets: ``BADM_DATA``, or ``~/.cache/badm`` if that is not set.

    >>> from unittest.mock import patch
    >>> with patch.dict(os.environ, BADM_DATA="/data"):
    ...     root().as_posix()
    '/data'
    """
    return Path(os.environ.get(VARIABLE) or DEFAULT).expanduser()


def root_in_words() -> str:
    """Say for messages where the path of the data folder comes from."""
    if os.environ.get(VARIABLE):
        return f"{VARIABLE} is {root()}"
    return f"{VARIABLE} is not set, so the data folder is {root()}"
