"""Suggestions for names that do not exist."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def suggestion(name: str, known: Iterable[str]) -> str:
    """Ask whether one of the nearest known names was meant, or return ``""``.

    >>> suggestion("adm", ["adam", "badm", "sgd"])
    'did you mean adam or badm? '
    >>> suggestion("Fashion_MNIST", ["mnist", "fashion-mnist"])
    'did you mean fashion-mnist? '
    """
    normalized = name.lower().replace("_", "-")
    known = list(known)
    near = (
        [normalized] if normalized in known else sorted(get_close_matches(normalized, known, n=2))
    )
    return f"did you mean {' or '.join(near)}? " if near else ""
