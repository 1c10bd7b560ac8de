"""Libraries that only fetching needs, imported when it does."""

from __future__ import annotations

import importlib
from typing import Any

from badm.bench.data.dataset import FetchFailed


class MissingLibrary(FetchFailed):
    """A library that fetching needs is not installed."""


def library(name: str, extra: str) -> Any:
    """The module of that name; what is missing is named with the extra that brings it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise MissingLibrary(
            f'fetching needs the library {error.name}: pip install "badm[{extra}]" brings it'
        ) from error


def fetch_error(what: str, whence: str, error: Exception) -> FetchFailed:
    """One sentence of whatever a library raised."""
    reason = (str(error).strip() or "no reason given").splitlines()[0]
    return FetchFailed(f"{what} could not be had {whence} ({type(error).__name__}: {reason})")
