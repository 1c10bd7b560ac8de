"""The examples of docs hold: what a page shows in a terminal is what Python prints."""

from __future__ import annotations

import doctest
import re

import pytest

from tests.helpers import ROOT

PAGES = {path.relative_to(ROOT).as_posix(): path for path in sorted((ROOT / "docs").rglob("*.md"))}


def examples(page: str) -> list[doctest.Example]:
    """The examples of all terminals of a page, which go on from one to the next."""
    terminals = re.findall(r"^```pycon\n(.*?)^```", page, re.M | re.S)
    return doctest.DocTestParser().get_examples("\n".join(terminals))


def run(page: str, name: str) -> doctest.TestResults:
    test = doctest.DocTest(examples(page), {}, name, None, None, None)
    return doctest.DocTestRunner().run(test)


def test_the_first_pages_have_examples() -> None:
    shown = {name for name, path in PAGES.items() if examples(path.read_text(encoding="utf-8"))}
    assert {"docs/install.md", "docs/start.md"} <= shown


@pytest.mark.every_case
@pytest.mark.parametrize("name", PAGES)
def test_the_examples_of_a_page_hold(name: str) -> None:
    assert run(PAGES[name].read_text(encoding="utf-8"), name).failed == 0


def test_an_example_that_does_not_hold_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    page = "```pycon\n>>> a = 1\n```\n\nthen\n\n```pycon\n>>> a + 1\n3\n```\n"
    assert run(page, "page").failed == 1
    assert "Got:\n    2" in capsys.readouterr().out


def test_examples_outside_a_terminal_are_refused() -> None:
    """They would look tested and not be."""
    for name, path in PAGES.items():
        outside = re.sub(
            r"^```pycon\n.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S
        )
        assert ">>> " not in outside, name
