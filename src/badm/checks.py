"""Internal: checks of arguments that several modules share."""

from __future__ import annotations


def require_positive(name: str, value: int) -> None:
    """Raise ``ValueError`` unless ``value`` is an integer of at least 1.

    >>> require_positive("batch_size", 0)
    Traceback (most recent call last):
    ValueError: batch_size must be a whole number of at least 1, got 0
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
