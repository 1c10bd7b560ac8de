"""``__all__`` is the public API: every name exists, is documented, has an example and is listed."""

from __future__ import annotations

import inspect
import pkgutil
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import badm

DOCS = Path(__file__).parents[1] / "docs"
PUBLIC = (
    "badm",
    "badm.bench",
    "badm.checkpoint",
    "badm.distributed.consensus",
    "badm.distributed.ranks",
    "badm.distributed.sampler",
    "badm.explanation",
    "badm.groups",
    "badm.metrics",
    "badm.optimizer",
    "badm.paper.algorithm1",
    "badm.paper.partition",
    "badm.paper.problems",
    "badm.paper.theory",
)
PACKAGES = ("badm.distributed", "badm.paper")  # whose public names are their modules
APART = ("badm.bench.", "badm.commands", "badm.cli", "badm.__main__")
# They need other frameworks, and have tests of their own.
ADAPTERS = ("badm.adapters", "badm.adapters.keras", "badm.adapters.optax")
NAMES = [(module, name) for module in PUBLIC for name in import_module(module).__all__]


def is_called(value: Any) -> bool:
    return inspect.isfunction(value) or inspect.isclass(value)


def has_example(text: str) -> bool:
    """Whether a docstring has a doctest, or code after a double colon for what needs a cluster."""
    return ">>> " in text or re.search(r"::\n\n? +\S", text) is not None


def first_line(value: Any) -> str:
    return (inspect.getdoc(value) or "").partition("\n")[0]


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_a_public_name_exists_and_has_a_docstring_with_an_example(module: str, name: str) -> None:
    value = getattr(import_module(module), name)
    if not is_called(value):
        assert not isinstance(value, ModuleType) or value.__doc__
        return
    text = inspect.getdoc(value) or ""
    assert re.match(r"[A-Z`].*[.:]$", first_line(value)), f"{name}: {first_line(value)!r}"
    around = inspect.getmodule(value).__doc__ or ""  # type: ignore[union-attr]
    assert has_example(text) or (has_example(around) and name in around), name


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_names_modules_that_exist(name: str) -> None:
    for module in import_module(name).__all__:
        assert f"{name}.{module}" in PUBLIC
        import_module(f"{name}.{module}")


def test_every_module_of_the_library_is_public_or_internal() -> None:
    found = [m.name for m in pkgutil.walk_packages(badm.__path__, "badm.") if "._" not in m.name]
    assert "badm.metrics.spectral" in found
    for name in found:
        if name in (*PUBLIC, *PACKAGES, *ADAPTERS) or name.startswith(APART):
            continue
        module = import_module(name)
        inside = name.startswith("badm.processes.")  # of a package that says so itself
        assert inside or (module.__doc__ or "").startswith("Internal: "), name
        assert not hasattr(module, "__all__"), f"{name} is internal and lists public names"


def test_public_functions_explain_every_argument() -> None:
    for module, name in NAMES:
        value = getattr(import_module(module), name)
        if not module.startswith("badm.bench") and inspect.isfunction(value):
            call: Any = value
        elif name in ("BADM", "Consensus", "DistributedBatchSampler", "Partition", "Algorithm1"):
            call = value.__init__
        else:
            continue
        text = inspect.getdoc(value) or ""
        arguments = [a for a in inspect.signature(call).parameters if a not in ("self", "options")]
        if "Args:" not in text:  # one or two arguments that the first lines explain
            assert len(arguments) <= 3, f"{name} has no Args"
            continue
        missing = [a for a in arguments if not re.search(rf"^ +\**{a}: ", text, re.M)]
        assert missing == [], name


def test_the_reference_lists_the_public_names_with_their_first_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(DOCS)
    made = import_module("make_reference").page()
    assert (DOCS / "reference.md").read_text(encoding="utf-8") == made, "run docs/make_reference.py"
    listed = re.findall(r"^\| `badm\.(\w+)` \|", made, re.M)
    assert listed == badm.__all__


def test_star_import_gives_the_public_names() -> None:
    space: dict[str, Any] = {}
    exec("from badm import *", space)
    assert set(badm.__all__) == set(space) - {"__builtins__"}
    assert set(badm.__all__) <= set(dir(badm))
