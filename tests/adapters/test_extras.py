"""The extras of the adapters: who needs which, and what is said where one is missing."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT

ADAPTERS = ROOT / "src" / "badm" / "adapters"
EXTRAS = {"jax": {"jax", "optax"}, "keras": {"keras"}}
MODULES = {"jax": "optax", "keras": "keras"}


def imported(file: Path) -> set[str]:
    """Return the packages that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_installs_what_its_adapter_imports_and_nothing_else(extra: str) -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (listed,) = re.findall(rf"^{extra} = \[(.*?)\]$", project, re.M | re.S)
    assert set(re.findall(r'"(\w+)', listed)) == EXTRAS[extra]
    known = set(sys.stdlib_module_names) | {"badm", "torch"}
    assert imported(ADAPTERS / f"{MODULES[extra]}.py") - known == EXTRAS[extra]


def test_what_the_adapters_share_imports_torch_alone() -> None:
    for file in ADAPTERS.glob("*.py"):
        if file.stem not in MODULES.values():
            assert imported(file) <= set(sys.stdlib_module_names) | {"badm", "torch"}, file.name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "missing", "sentence"),
    [
        ("optax", "jax", 'this needs jax, of the extra jax: pip install "badm[jax]"'),
        ("keras", "keras", 'this needs keras, of the extra keras: pip install "badm[keras]"'),
    ],
)
def test_without_its_package_an_adapter_names_the_extra(
    module: str, missing: str, sentence: str
) -> None:
    # An entry of None is how Python is told that a module is not there.
    program = f"import sys; sys.modules[{missing!r}] = None; import badm.adapters.{module}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == f"ModuleNotFoundError: {sentence}"
