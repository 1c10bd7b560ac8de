"""Write docs/reference.md: the public names with the first lines of their docstrings.

python docs/make_reference.py
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

PAGE = Path(__file__).with_name("reference.md")
HEAD = """# Reference

The public names, each with the first line of its docstring; `help(badm.BADM)` shows the rest.
Everything else is internal and may change without notice. The [glossary](glossary.md) has the
project's words. Made by `docs/make_reference.py`.
"""
SECTIONS = {
    "badm": "What a training script needs.",
    "badm.metrics": "To write a metric of your own; see [architecture](architecture.md).",
    "badm.algorithm1": "Algorithm 1 of the paper.",
    "badm.theory": "The convergence theorem, checked on a run; [theory](theory.md) proves it.",
    "badm.bench": "To compare methods from Python, and to write a task, as in the "
    "[tutorial](tutorial/README.md), or a method.",
}


def page() -> str:
    """Return the page as the code has it now."""
    parts = [HEAD]
    for name, purpose in SECTIONS.items():
        parts.append(f"\n## `{name}`\n\n{purpose}\n\n| name | what it is |\n|---|---|\n")
        module = _module(name)
        parts += [
            f"| `{name}.{each}` | {_summary(getattr(module, each))} |\n" for each in module.__all__
        ]
    return "".join(parts)


def _module(name: str) -> ModuleType:
    package, _, attribute = name.partition(".")
    found = import_module(package)
    return getattr(found, attribute) if attribute else found  # type: ignore[no-any-return]


def _summary(value: Any) -> str:
    """Return the first line of a docstring, without roles such as ``:class:``."""
    if not (inspect.isclass(value) or inspect.isroutine(value) or isinstance(value, ModuleType)):
        return "Type alias."
    line = (inspect.getdoc(value) or "").partition("\n")[0]
    return re.sub(r":\w+:`", "`", line).replace("``", "`")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
