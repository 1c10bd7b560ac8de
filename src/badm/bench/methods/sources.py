"""Read how people write methods: ``badm``, ``mine.py:Mine``, ``badm[beta=0.95]``, in lists."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

OPENING, CLOSING = "([{", ")]}"
WORDS = {"true": True, "false": False, "none": None, "null": None}


def split_list(text: str) -> list[str]:
    """Split a comma-separated list, not within brackets or quotes; empty entries are left out.

    >>> split_list("mine.py:Mine[betas=(0.9,0.99),nesterov=True], badm")
    ['mine.py:Mine[betas=(0.9,0.99),nesterov=True]', 'badm']
    """
    parts, start = [], 0
    for place, depth in _depths(text):
        if text[place] == "," and depth == 0:
            parts.append(text[start:place])
            start = place + 1
    return [part for part in map(str.strip, [*parts, text[start:]]) if part]


def split_brackets(source: str) -> tuple[str, str | None]:
    """Split what is before the last brackets from what is in them, if the source ends with some.

    >>> split_brackets("badm[beta=0.95]"), split_brackets("badm[]"), split_brackets("badm")
    (('badm', 'beta=0.95'), ('badm', ''), ('badm', None))
    """
    if not source.endswith("]"):
        return source, None
    opened = [place for place, depth in _depths(source) if source[place] == "[" and depth == 1]
    if not opened:
        raise ValueError(f"{source} must have a [ for its ]")
    return source[: opened[-1]], source[opened[-1] + 1 : -1]


def read_settings(source: str, text: str) -> dict[str, Any]:
    """Read what is in brackets: values as in Python, words as strings.

    >>> read_settings("mine.py:Mine", "lr=1e-2, nesterov=True, mode=fast, betas=(0.9, 0.99)")
    {'lr': 0.01, 'nesterov': True, 'mode': 'fast', 'betas': [0.9, 0.99]}
    >>> read_settings("badm", "beta")
    Traceback (most recent call last):
    ValueError: badm[beta] must have settings as name=value in its brackets, got 'beta'
    """
    settings: dict[str, Any] = {}
    for part in split_list(text):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not (name.isidentifier() and equals and value):
            raise ValueError(
                f"{source}[{text}] must have settings as name=value in its brackets, got {part!r}"
            )
        if name in settings:
            raise ValueError(f"{source}[{text}] must have every name once, got {name} twice")
        settings[name] = read_value(value)
    return settings


def read_value(text: str) -> Any:
    """Read one value: a number, a truth value, None, a string or a list of these.

    >>> [read_value(text) for text in ("1e-3", "true", "'a b'", "word", "(1, 2)")]
    [0.001, True, 'a b', 'word', [1, 2]]
    """
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    try:
        return as_json(ast.literal_eval(text))
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return text


def as_json(value: Any) -> Any:
    """Return a value as it is after JSON, tuples as lists; ``TypeError`` if JSON has none."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        return [as_json(part) for part in value]
    raise TypeError(f"{value!r} cannot be saved as JSON")


def in_brackets(settings: Mapping[str, Any]) -> str:
    """Write settings as they stand in brackets, always in the same way.

    >>> in_brackets({"lr": 0.01, "nesterov": True, "betas": [0.9, 0.99]})
    '[lr=0.01,nesterov=True,betas=(0.9,0.99)]'
    """
    return f"[{','.join(f'{name}={written(value)}' for name, value in settings.items())}]"


def written(value: Any) -> str:
    """Write a value so that :func:`read_value` reads the same."""
    if isinstance(value, list):
        return f"({','.join(map(written, value))})"
    # A word that would be read as something else, or as several settings, needs its quotes.
    if isinstance(value, str) and (read_value(value) != value or set(value) & set(",=[](){} ")):
        return repr(value)
    return str(value)


def _depths(text: str) -> Iterator[tuple[int, int]]:
    """Yield every place outside of quotes with the number of brackets open there."""
    depth, quote = 0, ""
    for place, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
            continue
        if character in "'\"":
            quote = character
            continue
        depth += character in OPENING
        yield place, depth
        depth -= character in CLOSING and depth > 0
