"""Names people type, and what they may have meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def suggestion(name: str, known: Iterable[str]) -> str:
    """A question that names what comes near, or nothing.

    >>> suggestion("adm", ["adam", "badm", "sgd"])
    'did you mean adam or badm? '
    >>> suggestion("Fashion_MNIST", ["mnist", "fashion-mnist"])
    'did you mean fashion-mnist? '
    """
    spelled = name.lower().replace("_", "-")
    known = list(known)
    near = [spelled] if spelled in known else sorted(get_close_matches(spelled, known, n=2))
    return f"did you mean {' or '.join(near)}? " if near else ""
