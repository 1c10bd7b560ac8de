"""The index of results: every file is in it, and what it says of them is so."""

from __future__ import annotations

import doctest
import hashlib
import json
import re
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest

from badm.bench import methods
from tests.helpers import ROOT

RESULTS = ROOT / "results"
INDEX: dict[str, Any] = json.loads((RESULTS / "index.json").read_text(encoding="utf-8"))
ENTRIES: list[dict[str, Any]] = INDEX["results"]
AGAIN = "run python benchmarks/results_index.py"


@pytest.fixture(scope="module")
def tool() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        yield import_module("results_index")


@pytest.fixture
def history(tool: ModuleType) -> ModuleType:
    if not tool.has_history():
        pytest.skip("needs a whole clone")
    return tool


def test_every_file_of_results_is_in_the_index(tool: ModuleType) -> None:
    names = [entry["name"] for entry in ENTRIES]
    assert names == sorted(set(names))
    found = {tool.name_of(file) for file in tool.files()}
    assert sorted(found - set(names)) == [], "add them to results/index.json"
    assert sorted(set(names) - found) == [], "these have no files any more"


def test_a_file_belongs_to_the_name_that_it_begins_with(tool: ModuleType) -> None:
    assert doctest.testmod(tool).failed == 0
    assert tool.name_of("a/b-figures/c-loss.png") == tool.name_of("a/b.md") == "a/b"


@pytest.mark.slow
def test_the_page_of_the_index_is_up_to_date(tool: ModuleType) -> None:
    assert tool.PAGE.read_text(encoding="utf-8") == tool.page(INDEX), AGAIN


def test_every_commit_of_the_index_exists(history: ModuleType) -> None:
    of_changes = [change["commit"] for change in INDEX["changes"].values()]
    for commit in {*of_changes, *(entry["commit"] for entry in ENTRIES)}:
        assert history.git("merge-base", "--is-ancestor", commit, "HEAD").returncode == 0, commit


def test_the_time_of_a_change_is_that_of_its_commit(history: ModuleType) -> None:
    for change in INDEX["changes"].values():
        shown = history.git("show", "-s", "--format=%cI", change["commit"]).stdout.strip()
        assert shown == change["time"]


def test_a_commit_that_a_file_names_is_that_of_the_index(history: ModuleType) -> None:
    named = 0
    for entry in ENTRIES:
        file = RESULTS / f"{entry['name']}.json"
        content = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        commit = (content.get("environment") or {}).get("commit") or ""
        commit = commit.partition(",")[0]
        if history.git("cat-file", "-e", commit).returncode == 0:  # not rebased since
            assert commit.startswith(entry["commit"]), entry["name"]
            named += 1
    assert named


def test_what_is_marked_stale_is_stale_and_nothing_else(history: ModuleType) -> None:
    marked = {entry["name"]: entry["stale"] for entry in ENTRIES}
    found = {entry["name"]: history.stale(entry, INDEX["changes"]) for entry in ENTRIES}
    assert marked == found, AGAIN


def test_a_result_of_before_a_change_is_stale(history: ModuleType) -> None:
    entry = next(entry for entry in ENTRIES if entry["name"] == "molecule")
    before = INDEX["changes"]["badm"]["commit"] + "~1"
    changes = {"badm": INDEX["changes"]["badm"]}
    assert history.stale({**entry, "commit": before}, changes) == ["badm"]
    assert history.stale({**entry, "commit": "HEAD"}, changes) == []


@pytest.mark.parametrize("name", [n for n, c in INDEX["changes"].items() if n in methods.METHODS])
def test_the_last_change_of_a_method_is_that_of_its_version(name: str) -> None:
    """Whoever raises the version of a method says so in results/index.json."""
    assert methods.METHODS[name].version == INDEX["changes"][name]["version"]


def test_a_method_whose_version_was_raised_is_among_the_changes() -> None:
    raised = {name for name, method in methods.METHODS.items() if method.version != 1}
    measured = {row for entry in ENTRIES for row in rows(entry)}
    assert raised & measured <= set(INDEX["changes"])


def rows(entry: dict[str, Any]) -> set[str]:
    file = RESULTS / f"{entry['name']}.json"
    return set(re.findall(r'"method": ?"([\w-]+)"', file.read_text(encoding="utf-8")))


def test_a_command_that_a_page_states_is_that_of_the_index() -> None:
    stated = 0
    for entry in ENTRIES:
        page = RESULTS / f"{entry['name']}.md"
        if page.exists():
            made = re.findall(r"^Made (?:with|by) `(.+?)`", page.read_text(encoding="utf-8"), re.M)
            assert made in ([], [entry["made"]]), entry["name"]
            stated += len(made)
    assert stated > 10


def test_commands_of_the_index_name_scripts_that_exist() -> None:
    for entry in ENTRIES:
        assert entry["made"].startswith(("python benchmarks/", "python -m ", "badm ", "make "))
        for script in re.findall(r"benchmarks/\w+\.py", entry["made"]):
            assert (ROOT / script).is_file(), script


def test_results_take_at_most_15_megabytes(tool: ModuleType) -> None:
    sizes = {path: path.stat().st_size for path in RESULTS.rglob("*") if path.is_file()}
    assert tool.LIMIT == 15_000_000
    largest = sorted(sizes, key=lambda path: -sizes[path])[:5]
    assert sum(sizes.values()) <= tool.LIMIT, f"the largest: {largest}"


def test_the_picture_of_the_report_shows_the_results_as_they_are() -> None:
    from PIL import Image

    with Image.open(ROOT / "docs" / "report.png") as picture:
        shown = picture.text["sources"]  # type: ignore[attr-defined]
    name, digest = shown.split()
    assert hashlib.sha256((ROOT / name).read_bytes()).hexdigest() == digest, (
        "run python docs/make_report_picture.py"
    )
