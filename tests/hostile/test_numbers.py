"""Pages that say what nobody measured: it is found wherever and however it is written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

import pytest

from tests.helpers import ROOT

BENCHMARKS = ROOT / "benchmarks"
SAMPLES = 40


@pytest.fixture(scope="module")
def evidence() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        yield import_module("evidence")


@pytest.fixture(scope="module")
def pages(evidence: ModuleType) -> dict[str, str]:
    found: dict[str, str] = evidence.pages()
    return found


@pytest.fixture(scope="module")
def measured(evidence: ModuleType) -> list[tuple[str, str, int, int]]:
    """Every number that has a claim: its page, the raw text of that, where it starts and ends."""
    found = []
    for name, raw in evidence.pages().items():
        numbers, _ = evidence.check(name, raw)
        places = re.finditer(evidence.NUMBER, raw)
        for number, place in zip(numbers, places, strict=True):
            if re.match(r"results/|signature|badm\.", number.source):
                found.append((name, raw, *place.span()))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("sample", range(SAMPLES))
def test_the_last_digit_of_a_measured_number_cannot_change_unseen(
    evidence: ModuleType, measured: list[tuple[str, str, int, int]], sample: int
) -> None:
    assert len(measured) > 500
    name, raw, start, end = measured[sample * len(measured) // SAMPLES]
    changed = raw[: end - 1] + str((int(raw[end - 1]) + 1) % 10) + raw[end:]
    line = 1 + raw.count("\n", 0, start)
    assert any(
        problem.startswith(f"{name}:{line}: ") or "places that read" in problem
        for problem in evidence.check(name, changed)[1]
    )


@pytest.mark.parametrize(
    "text",
    [
        "7",
        "**7** times",
        "*7* times",
        "[7 times](page.md)",
        "## 7 times as fast",
        "> 7 times",
        "- 7 times",
        "| a | 7 |",
        "7×",
        "7 %",
        "−7 points",
        "+7.5 points",
        "7e-3",
        "1,007",
        "1,007.25 seconds",
        "0.7–0.9",
        "(7)",
        "~7",
        "seven or 7",
        "` and 7",
        "<b>7</b>",
        "٧ times",
        "７ times",
    ],
)
def test_a_number_nobody_measured_is_found_however_it_is_written(
    evidence: ModuleType, text: str
) -> None:
    problems = evidence.check("docs/new.md", f"A page.\n\n{text}")[1]
    assert problems
    assert all(re.fullmatch(r"docs/new\.md:3: \S+ has no source", found) for found in problems)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Nothing to see.",
        "```\n7\n```",
        "    7",
        "`7`",
        "[page](7.md)",
        "<!-- 7 -->",
        "CIFAR-10 and bfloat16",
        "section 7",
        "Table 1",
        "1/σ and 2.5η",
        "a 95 % interval",
        "1. first",
        "x² and w⁰",
    ],
)
def test_what_is_no_measurement_needs_no_claim(evidence: ModuleType, text: str) -> None:
    assert evidence.check("docs/new.md", text)[1] == []


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("takes 270 steps", "takes two hundred steps", "no places that read"),
        ("takes 270 steps", "takes 270.4 steps", "'270.4' is shown"),
        ("takes 270 steps", "takes −270 steps", "'−270' is shown"),
        ("takes 270 steps", "takes 270,000 steps", "'270,000' is shown"),
        ("takes 270 steps", "takes 27 steps", "'27' is shown"),
        ("| soap | 0.00562 |", "| soup | 0.00562 |", "has no row of soup"),
        ("| soap | 0.00562 |", "| soap | 5.62e-3 |", "'5.62e-3' is shown"),
        ("| soap | 0.00562 |", "| soap |  |", "no places that read"),
        ("| method | best of six lr | test acc", "| way | best of six lr | test acc", "no table"),
        ("(97.8–98.3)", "(97.8–98.4)", "is shown where with_interval"),
        ("**98.0 %** (97.8–98.3)", "never", "'never' is shown"),
    ],
)
def test_a_page_that_reads_otherwise_is_found(
    evidence: ModuleType, pages: dict[str, str], old: str, new: str, told: str
) -> None:
    name = next(name for name in ("docs/results.md", "docs/reproduction.md") if old in pages[name])
    problems = evidence.check(name, pages[name].replace(old, new))[1]
    assert any(told in problem for problem in problems)
