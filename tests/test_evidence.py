"""Every number of README and docs comes from somewhere and is what is there."""

from __future__ import annotations

import copy
import doctest
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.helpers import ROOT

BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture(scope="module")
def evidence() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        yield import_module("evidence")


@pytest.fixture(scope="module")
def pages(evidence: ModuleType) -> dict[str, str]:
    return evidence.pages()


Problems = Callable[[str, str], list[str]]


@pytest.fixture(scope="module")
def known(evidence: ModuleType, pages: dict[str, str]) -> set[str]:
    """What is wrong with the pages as they are, which one test tells of."""
    return {problem for page in pages.items() for problem in evidence.check(*page)[1]}


@pytest.fixture
def problems(evidence: ModuleType, known: set[str]) -> Problems:
    return lambda name, raw: [p for p in evidence.check(name, raw)[1] if p not in known]


def change_results(patch: pytest.MonkeyPatch, name: str, path: list[Any], value: Any) -> None:
    """Let one place of a results file hold another value."""
    files = sys.modules["sources.files"]
    changed = copy.deepcopy(files.parsed(files.ROOT / "results" / f"{name}.json"))
    place = changed
    for key in path[:-1]:
        place = place[key]
    assert place[path[-1]] != value
    place[path[-1]] = value
    real = files.parsed
    patch.setattr(
        files, "parsed", lambda file: changed if file.stem == Path(name).stem else real(file)
    )


def test_every_number_has_a_source_and_is_what_its_source_says(
    pages: dict[str, str], known: set[str]
) -> None:
    assert {"README.md", "docs/theory.md", "docs/replicas.md", "docs/tutorial/README.md"} <= set(
        pages
    )
    assert known == set()


@pytest.mark.parametrize(
    ("page", "shown", "changed", "told"),
    [
        (
            "docs/reproduction.md",
            "takes 270 steps to a",
            "takes 271 steps to a",
            "results/molecule.json is 270",
        ),
        ("docs/reproduction.md", "| 12 | 0 | 13 |", "| 13 | 0 | 13 |", "against_adam(row)[0]"),
        ("docs/results.md", "**59.0 %** | **60**", "**59.1 %** | **60**", "tuned/image-cifar10"),
        ("docs/results.md", "(200–never)", "(190–never)", "steps_cell"),
        ("docs/choosing.md", "default, 1e-2.", "default, 2e-2.", "signature of BADM is 0.01"),
        ("docs/choosing.md", "| bbbp | 2/8 |", "| bbbp | 1/8 |", "results/speed/defaults.json"),
        ("docs/replicas.md", "| 71.4 |", "| 71.5 |", "results/communication.json"),
        ("docs/theory.md", "71 / 0", "70 / 0", "results/certificates.json"),
        ("docs/theory.md", "`k = 68`", "`k = 69`", "results/certificates.json is 68"),
        ("docs/tutorial/README.md", "(2.5 times", "(2.6 times", "results/tutorial.json is 2.5"),
    ],
)
def test_a_digit_changed_on_a_page_is_found(
    problems: Problems, pages: dict[str, str], page: str, shown: str, changed: str, told: str
) -> None:
    assert shown in pages[page]
    (found, *_) = problems(page, pages[page].replace(shown, changed, 1))
    assert told in found


@pytest.mark.parametrize(
    ("file", "path", "value", "page"),
    [
        ("memory", ["rows", 20, "state_ratio"], 8.0, "docs/results.md"),
        ("step_time", ["rows", 0, "ratio"], 1.006, "docs/results.md"),
        ("digits", ["rows", 0, "test", "high"], 0.99, "docs/results.md"),
        ("rivals", ["rows", 1, "low"], 0.11, "README.md"),
        ("communication", ["rows", 0, "steps to target"], 330, "docs/replicas.md"),
        ("tutorial", ["trials"], 7, "docs/tutorial/README.md"),
    ],
)
def test_a_number_changed_in_a_results_file_is_found(
    problems: Problems,
    pages: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    file: str,
    path: list[Any],
    value: Any,
    page: str,
) -> None:
    change_results(monkeypatch, file, path, value)
    found = problems(page, pages[page])
    assert any(f"results/{file}.json" in problem for problem in found)


@pytest.mark.parametrize(
    "added", ["It takes 1,234 steps.", "| badm | 0.5 |", "On 3 of 4 tasks.", "At 1e-4."]
)
def test_a_number_without_a_source_is_found(
    problems: Problems, pages: dict[str, str], added: str
) -> None:
    line = pages["README.md"].count("\n") + 2
    found = problems("README.md", f"{pages['README.md']}\n{added}\n")
    assert found
    assert all(problem.startswith(f"README.md:{line}: ") for problem in found)
    assert all(problem.endswith(" has no source") for problem in found)


@pytest.mark.parametrize(
    "added", ["CIFAR-10, FSDP2 and float64.", "See Table 1 and section 5.", "`lr=3`", "Step 1/σ."]
)
def test_names_references_code_and_formulas_need_no_source(
    problems: Problems, pages: dict[str, str], added: str
) -> None:
    assert problems("README.md", f"{pages['README.md']}\n{added}\n") == []


def test_a_claim_whose_sentence_is_gone_is_found(problems: Problems, pages: dict[str, str]) -> None:
    name = "docs/reproduction.md"
    page = pages[name].replace("in every column. The", "in most columns. The")
    assert any("has no places that read" in found for found in problems(name, page))


def test_a_page_nobody_knows_of_has_numbers_without_a_source(problems: Problems) -> None:
    assert problems("docs/new.md", "It is 7 times as fast.\n") == ["docs/new.md:1: 7 has no source"]


@pytest.mark.slow
def test_the_list_shows_each_number_with_its_place_and_file(
    evidence: ModuleType,
    pages: dict[str, str],
    known: set[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["evidence.py", "--list"])
    with pytest.raises(SystemExit) as ended:
        evidence.main()
    assert ended.value.code == bool(known)
    printed = capsys.readouterr().out.splitlines()
    listed = sum(len(evidence.check(*page)[0]) for page in pages.items())
    assert len(printed) == listed + len(known)
    page = "docs/reproduction.md"
    line = 1 + next(
        i for i, text in enumerate(pages[page].splitlines()) if "ROC-AUC of 0.88" in text
    )
    of_page = [text for text in printed if text.startswith(page)]
    (shown,) = [text.split(maxsplit=2) for text in of_page if " 0.88 " in text]
    assert shown == [f"{page}:{line}", "0.88", "results/molecule.json: target('molecule')"]


@pytest.mark.slow
def test_the_examples_of_the_sources_hold(evidence: ModuleType) -> None:
    modules = [evidence, *(m for name, m in sys.modules.items() if name.startswith("sources."))]
    assert len(modules) == 8
    assert sum(doctest.testmod(module).attempted for module in modules) >= 6
    assert sum(doctest.testmod(module).failed for module in modules) == 0
