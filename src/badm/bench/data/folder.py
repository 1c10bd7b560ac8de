"""Where the data are: the one place that reads ``BADM_DATA``."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "BADM_DATA"
DEFAULT = Path("~/.cache/badm")


def root() -> Path:
    """The folder of all datasets: ``BADM_DATA``, or ``~/.cache/badm`` if that is not set.

    >>> from unittest.mock import patch
    >>> with patch.dict(os.environ, BADM_DATA="/data"):
    ...     root().as_posix()
    '/data'
    """
    return Path(os.environ.get(VARIABLE) or DEFAULT).expanduser()


def root_in_words() -> str:
    """Why that folder is looked in, for messages."""
    if os.environ.get(VARIABLE):
        return f"{VARIABLE} is {root()}"
    return f"{VARIABLE} is not set, so {root()} is looked in"
