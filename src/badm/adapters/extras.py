"""Internal: say which extra of badm a missing package belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def extra(name: str, *packages: str) -> Iterator[None]:
    """Import the packages of an extra inside; where one is missing, the error names the extra.

    >>> with extra("jax", "not_there"):
    ...     import not_there
    Traceback (most recent call last):
    ModuleNotFoundError: this needs not_there, of the extra jax: pip install "badm[jax]"
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in packages:  # installed, and something of its own is missing
            raise
        raise ModuleNotFoundError(
            f'this needs {error.name}, of the extra {name}: pip install "badm[{name}]"',
            name=error.name,
        ) from None
