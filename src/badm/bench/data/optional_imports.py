"""Libraries that only fetching needs, imported on demand."""

from __future__ import annotations

import importlib
from typing import Any

from badm.bench.data.dataset import FetchFailed


class MissingLibrary(FetchFailed):
    """A library that fetching needs is not installed."""


def library(name: str, extra: str) -> Any:
    """Import a module; the error names the extra of badm that installs it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise MissingLibrary(
            f'fetching needs the library {error.name}: pip install "badm[{extra}]"'
        ) from error


def fetch_error(what: str, source: str, error: Exception) -> FetchFailed:
    """Turn whatever a library raised into one sentence."""
    reason = (str(error).strip() or "no reason given").splitlines()[0]
    kind = type(error).__name__
    return FetchFailed(f"{what} could not be downloaded {source} ({kind}: {reason})")
