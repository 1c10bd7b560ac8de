"""Write docs/reference.md: the public names with the first lines of their docstrings.

python docs/make_reference.py
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
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
    "badm.adapters.optax": "BADM for JAX; see [JAX and Keras](jax-and-keras.md).",
    "badm.adapters.keras": "BADM for Keras; see [JAX and Keras](jax-and-keras.md).",
    "badm.bench": "To compare methods from Python, and to write a task, as in the "
    "[tutorial](tutorial/README.md), or a method.",
}


def page() -> str:
    """Return the page as the code has it now."""
    parts = [HEAD]
    for name, purpose in SECTIONS.items():
        parts.append(f"\n## `{name}`\n\n{purpose}\n\n| name | what it is |\n|---|---|\n")
        lines = _of_source(name) if name.startswith("badm.adapters.") else _of_module(name)
        parts += [f"| `{name}.{each}` | {_plain(line)} |\n" for each, line in lines]
    return "".join(parts)


def _of_module(name: str) -> Iterator[tuple[str, str]]:
    """Yield the public names of a module and what their docstrings say first."""
    module = _module(name)
    for each in module.__all__:
        yield each, _summary(getattr(module, each))


def _of_source(name: str) -> Iterator[tuple[str, str]]:
    """Do the same without importing the module, which needs another framework."""
    source = PAGE.parents[1] / "src" / Path(*name.split(".")).with_suffix(".py")
    defined = {
        node.name: ast.get_docstring(node) or ""
        for node in ast.parse(source.read_text(encoding="utf-8")).body
        if isinstance(node, (ast.ClassDef, ast.FunctionDef))
    }
    (listed,) = re.findall(r"^__all__ = (\[.+\])$", source.read_text(encoding="utf-8"), re.M)
    for each in ast.literal_eval(listed):
        yield each, defined[each].partition("\n")[0]


def _module(name: str) -> ModuleType:
    package, _, attribute = name.partition(".")
    found = import_module(package)
    return getattr(found, attribute) if attribute else found  # type: ignore[no-any-return]


def _summary(value: Any) -> str:
    """Return the first line of a docstring."""
    if not (inspect.isclass(value) or inspect.isroutine(value) or isinstance(value, ModuleType)):
        return "Type alias."
    return (inspect.getdoc(value) or "").partition("\n")[0]


def _plain(line: str) -> str:
    """Return a line without roles such as ``:class:``."""
    return re.sub(r":\w+:`", "`", line).replace("``", "`")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
