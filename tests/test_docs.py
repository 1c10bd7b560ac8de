"""What docs promise about the code: the import graph, the glossary and the files they name."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
ENTRY = re.compile(r"^\| \*\*(?P<word>.+?)\*\*(?: `.+?`)? \| (?P<meaning>.+) \|$", re.M)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def graph() -> ModuleType:
    pytest.importorskip("grimp")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS)
        return import_module("make_import_graph")


def recorded(picture: str) -> dict[tuple[str, str], int]:
    (edges,) = re.findall(r'<metadata id="imports">(.+)</metadata>', picture)
    return {(a, b): count for a, b, count in json.loads(edges)}


def test_the_picture_of_the_architecture_shows_the_imports_of_the_code(graph: ModuleType) -> None:
    picture, edges = read("docs/architecture.svg"), graph.edges()
    found, shown = set(edges.items()), set(recorded(picture).items())
    outdated = f"not in the picture: {sorted(found - shown)}; not in the code: "
    assert found == shown, f"{outdated}{sorted(shown - found)}: run docs/make_import_graph.py"
    assert picture == graph.draw(edges), "run docs/make_import_graph.py"


def test_imports_between_rooms_have_no_circle(graph: ModuleType) -> None:
    below: dict[str, set[str]] = {}
    for a, b in graph.edges():
        below.setdefault(a, set()).add(b)
    while below:
        lowest = {a for a, rooms in below.items() if not rooms & set(below)}
        assert lowest, f"a circle among {sorted(below)}"
        below = {a: rooms for a, rooms in below.items() if a not in lowest}


def test_the_picture_refuses_a_room_and_an_arrow_it_has_no_place_for(graph: ModuleType) -> None:
    edges = dict(graph.edges())
    with pytest.raises(ValueError, match="no box for attic: add one to BOXES"):
        graph.draw({**edges, ("attic", "data"): 1})
    with pytest.raises(ValueError, match="no arrow from methods to data: add one to ARROWS"):
        graph.draw({**edges, ("methods", "data"): 1})


def test_every_file_that_the_architecture_names_exists() -> None:
    named = re.findall(r"`((?:src|tests|docs)/[\w./]+)`", read("docs/architecture.md"))
    assert len(named) > 15
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_architecture_says_where_each_kind_of_thing_goes() -> None:
    kinds = re.findall(r"^\| an? (.+?) \|", read("docs/architecture.md"), re.M)
    assert kinds == [
        "metric",
        "method",
        "task",
        "dataset",
        "statistic",
        "plot",
        "CLI option",
        "score",
    ]


def test_the_glossary_has_at_most_25_entries_of_one_sentence() -> None:
    text = read("docs/glossary.md")
    entries = ENTRY.findall(text)
    assert len(entries) == text.count("\n| **")
    assert 20 <= len(entries) <= 25
    for word, meaning in entries:
        assert meaning.endswith("."), word
        assert ". " not in meaning, f"{word} takes more than a sentence"


def test_every_word_of_the_glossary_is_used() -> None:
    pages = [*DOCS.rglob("*.md"), *(ROOT / "src").rglob("*.py"), ROOT / "README.md"]
    text = "\n".join(
        page.read_text(encoding="utf-8") for page in pages if page.name != "glossary.md"
    )
    for word, _ in ENTRY.findall(read("docs/glossary.md")):
        assert re.search(rf"\b{word}s?\b", text, re.I), f"nobody uses {word}"


@pytest.mark.parametrize("page", ["README.md", "docs/replicas.md", "docs/theory.md"])
def test_pages_link_to_the_glossary(page: str) -> None:
    assert re.search(r"\]\((docs/)?glossary\.md\)", read(page))


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{p.name}" for p in DOCS.glob("*.md"))])
def test_links_to_files_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", read(page)):
        assert ((ROOT / page).parent / target).exists(), target
