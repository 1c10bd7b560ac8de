"""What is shipped: a wheel with the kernel for every Python, an sdist that can test itself."""

from __future__ import annotations

import re
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.helpers import ROOT

WORKFLOWS = ROOT / ".github" / "workflows"


@pytest.fixture(scope="module")
def tool() -> Iterator[ModuleType]:
    pytest.importorskip("build")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "tools")
        yield import_module("build_wheel")


@pytest.fixture(scope="module")
def built(tool: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist and the wheel, built without a network."""
    sdist, wheel = tool.build(tmp_path_factory.mktemp("dist"))
    return sdist, wheel


def read_workflow(name: str) -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    parsed: dict[str, Any] = yaml.safe_load((WORKFLOWS / name).read_text(encoding="utf-8"))
    return parsed


@pytest.mark.slow
def test_a_wheel_has_the_kernel_and_is_for_every_python(built: tuple[Path, Path]) -> None:
    _, wheel = built
    assert re.fullmatch(r"badm-[\d.]+-py3-none-(?!any)\w+\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
    kernels = [name for name in names if "/_kernel." in name]
    assert kernels in (["badm/metrics/_kernel.so"], ["badm/metrics/_kernel.pyd"])
    assert {"badm/py.typed", "badm/bench/report/assets/main.js"} <= set(names)
    assert [name for name in names if name.endswith(".c")] == []


@pytest.mark.slow
def test_a_wheel_steps_with_its_kernel_where_there_is_no_compiler(
    tool: ModuleType, built: tuple[Path, Path]
) -> None:
    tool.try_wheel(built[1])


@pytest.mark.slow
def test_a_wheel_without_the_kernel_is_refused(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a compiler there is a wheel for any platform, and the trial says what it lacks."""
    monkeypatch.setenv("CC", "/bin/false")
    _, wheel = tool.build(tmp_path)
    assert wheel.name.endswith("-py3-none-any.whl")
    with pytest.raises(subprocess.CalledProcessError):
        tool.try_wheel(wheel)


@pytest.mark.slow
def test_the_sdist_has_every_file_of_the_repository(built: tuple[Path, Path]) -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a checkout")
    with tarfile.open(built[0]) as opened:
        packed = {name.partition("/")[2] for name in opened.getnames()}
    assert [name for name in listed.stdout.splitlines() if name not in packed] == []


def test_ci_runs_every_python_that_is_promised() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    promised = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)
    jobs = read_workflow("tests.yml")["jobs"]
    assert jobs["quick"]["strategy"]["matrix"]["python"] == promised
    assert set(jobs["full"]["strategy"]["matrix"]["python"]) <= set(promised)
    assert f'requires-python = ">={promised[0]}"' in project


def test_commands_of_workflows_and_guides_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    pages = [*WORKFLOWS.glob("*.yml"), ROOT / "CONTRIBUTING.md", ROOT / "RELEASING.md"]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        typed = re.findall(r"(?:`|^ {4}|run: )make ([a-z]+)", text, re.M)
        assert set(typed) <= targets, page.name
        files = re.findall(r"`(?:python )?((?:src|tests|docs|benchmarks|tools)/[\w./]+)`", text)
        assert [file for file in files if not (ROOT / file).exists()] == [], page.name
    assert "quick" in targets


@pytest.mark.parametrize("name", ["bug", "wrong-result", "feature"])
def test_an_issue_form_asks_for_something(name: str) -> None:
    yaml = pytest.importorskip("yaml")
    file = ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml"
    form = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= set(form)
    questions = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in questions}) == len(questions)
    assert any(field.get("validations", {}).get("required") for field in questions)
