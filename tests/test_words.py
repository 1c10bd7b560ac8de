"""No retired name is left: in code, tests, scripts, docs or page."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("src", "tests", "examples", "benchmarks", "docs")

# Names that no identifier has any more.
NAMES = """
    BadExhibit Board Book Company Comparing Consenting Contest Dealer Disagreement Exhibit Happening
    InFullPrecision Judge Ladder MethodFacts MethodFailed Neighbours PictureError PostLocal Pulse
    ReplicaLost Shadow Shards StandIn StepsLikeAnOptimizer StoreLost TaskFacts Wish
    book company contest contests dealer dealers exhibit exhibit_at exhibits happening happenings
    judge pulse went
    as_in_example as_whole_matrices blame by_signal end_with_parent epoch_steps for_output_layer
    how_it_ended labels_of later_keys lifetime liveliness method_at_work not_had own_parts
    own_samples race_markdown run_race runs_wanted score_of set_aside setting_of_paper sign_of_life
    stand_ins together_every wire_dtype
"""
RETIRED = set(NAMES.split())

# Ordinary words that were names of functions or methods: a variable may have them.
NOT_CALLED = {"aside", "asked", "ending", "held", "reached", "standing", "told"}

# What is saved keeps its name: the field of a trajectory point with the files of its artifacts.
SAVED = {"exhibits"}
SAVED_IN = {
    "src/badm/bench/analysis/summaries.py",
    "src/badm/bench/engine/training.py",
    "src/badm/bench/records/runs.py",
}

# Text that no page, message, comment or docstring has any more.
PHRASES = re.compile(
    r"\b(ReplicaLost|Disagreement|badm\.(company|pulse|shards|sharded|consensus|stopping|lifetime)\b"
    r"|signs? of life|own_samples|wire_dtype|Happening|in company)\b"
)


def sources() -> Iterator[Path]:
    for room in ROOMS:
        yield from sorted((ROOT / room).rglob("*.py"))


def pages() -> Iterator[Path]:
    yield ROOT / "README.md"
    for room in ROOMS:
        for end in ("md", "py", "js", "html", "css"):
            yield from (ROOT / room).rglob(f"*.{end}")


def identifiers(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Line and name of every identifier, and whether it is defined or called as a function."""
    text = path.read_text(encoding="utf-8")
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    around = zip([None, *tokens], tokens, [*tokens[1:], None], strict=False)
    for before, token, after in around:
        if token.type == tokenize.NAME:
            defined = before is not None and before.string == "def"
            called = after is not None and after.string == "("
            yield token.start[0], token.string, defined or called


def retired(path: Path, where: str) -> list[str]:
    saved = SAVED if where in SAVED_IN or where.startswith("tests/") else set()
    return [
        f"{where}:{line}: {name}"
        for line, name, called in identifiers(path)
        if (name in RETIRED and name not in saved) or (name in NOT_CALLED and called)
    ]


@pytest.mark.slow
def test_no_retired_name_is_an_identifier() -> None:
    found = [
        problem
        for path in sources()
        for problem in retired(path, path.relative_to(ROOT).as_posix())
    ]
    assert found == []


def test_no_retired_phrase_is_in_a_page_or_a_message() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in pages()
        if path != Path(__file__)
        for match in PHRASES.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize("where", sorted(SAVED_IN))
def test_a_saved_name_is_excused_only_where_it_is_used(where: str) -> None:
    names = {name for _, name, _ in identifiers(ROOT / where)}
    assert names & SAVED


def test_a_retired_name_is_found(tmp_path: Path) -> None:
    file = tmp_path / "old.py"
    file.write_text("told = 1\n# Judge\nclass Judge:\n    def held(self): return 'Dealer'\n")
    assert retired(file, "src/old.py") == ["src/old.py:3: Judge", "src/old.py:4: held"]
