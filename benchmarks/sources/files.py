"""Reading the files of results, and formatting numbers."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
read: set[str] = set()  # files read by the current expression

# fmt: off
WORDS = (
    "no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "thirteen", "fourteen", "fifteen", "sixteen",
)
# fmt: on


@cache
def parsed(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def results(name: str) -> Any:
    file = ROOT / "results" / f"{name}.json"
    read.add(f"results/{name}.json")
    return parsed(file)


def word(count: int) -> str:
    """
    >>> word(5)
    'five'
    """
    return WORDS[count]


def about(value: float, digits: int = 2) -> float:
    """
    >>> about(1534.0), about(0.0123, 1)
    (1500.0, 0.01)
    """
    return float(f"{value:.{digits}g}")


def count(value: float) -> str:
    return f"{value:g}" if math.isfinite(value) else "never"


def lines(file: str) -> int:
    read.add(file)
    return len((ROOT / file).read_text(encoding="utf-8").splitlines())


def constant(module: str, name: str) -> Any:
    """
    >>> constant("math", "pi") > 3
    True
    """
    read.add(f"{module}.{name}")
    return getattr(import_module(module), name)


def default(thing: Callable[..., Any], name: str) -> Any:
    """Return the default of an argument.

    >>> default(about, "digits")
    2
    """
    read.add(f"signature of {thing.__name__}")
    return inspect.signature(thing).parameters[name].default
