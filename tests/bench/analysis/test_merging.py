"""Merged comparisons: rows of all, tests of all together, and clear refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from badm import bench
from badm.bench.analysis.differences import paired_tests
from badm.bench.analysis.merging import MergeError, merge
from badm.bench.errors import StoreError
from badm.bench.records.comparisons import Comparison, to_json
from tests.helpers.comparisons import comparison


def only(made: Comparison, *names: str, **changes: Any) -> Comparison:
    """The comparison with some of its methods, as if no others had been run."""
    return replace(
        made,
        methods=[method for method in made.methods if method.name in names],
        rows=[row for row in made.rows if row.method in names],
        curves=[curve for curve in made.curves if curve.method in names],
        tried=[trial for trial in made.tried if trial.method in names],
        artifacts=[],
        reference=names[0],
        **changes,
    )


@pytest.fixture
def whole() -> Comparison:
    return comparison(tasks=2, methods=11)


def with_code(made: Comparison, version: str, commit: str, shift: float) -> Comparison:
    """The same methods by another code, with other scores."""

    def shifted(row: Any) -> Any:
        if row.test is None:
            return row
        values = [value + shift for value in row.test.values]
        return replace(row, test=replace(row.test, values=values))

    return replace(
        made,
        methods=[replace(method, version=version) for method in made.methods],
        rows=[shifted(row) for row in made.rows],
        environment={**made.environment, "commit": commit},
    )


def test_a_method_is_added_to_results_that_are_there(whole: Comparison) -> None:
    before, more = only(whole, "adam", "badm"), only(whole, "muon")
    merged = merge({"before.json": before, "more.json": more})
    assert [method.name for method in merged.methods] == ["badm", "adam", "muon"]
    assert {(row.task, row.method) for row in merged.rows} == {
        (row.task, row.method) for one in (before, more) for row in one.rows
    }
    assert len(merged.curves) == len(before.curves) + len(more.curves)
    digits = {row.method: row for row in merged.rows if row.task == "digits"}
    scores = {name: row.test.values for name, row in digits.items() if row.test is not None}
    assert digits["muon"].compared == paired_tests(scores, "adam")["muon"]
    assert digits["muon"].rival is not None
    assert "From more.json: muon." in merged.notes


def test_intervals_are_computed_anew_from_the_values_of_the_seeds(whole: Comparison) -> None:
    narrow = only(whole, "adam", "badm")
    rows = [
        replace(row, test=replace(row.test, low=row.test.value, high=row.test.value))
        if row.test is not None
        else row
        for row in narrow.rows
    ]
    merged = merge({"old.json": replace(narrow, rows=rows)})
    tested = [row.test for row in merged.rows if row.test is not None]
    assert tested
    assert all(test.low < test.value < test.high for test in tested)


def test_samples_that_an_older_file_lacks_come_from_the_newer(whole: Comparison) -> None:
    newer = [replace(task, test_samples=400) for task in whole.tasks]
    merged = merge({"old": only(whole, "adam"), "new": only(whole, "muon", tasks=newer)})
    digits = [row for row in merged.rows if row.task == "digits"]
    assert [row.noise.samples for row in digits if row.noise is not None] == [400, 400]


def test_two_versions_of_a_method_stand_side_by_side(whole: Comparison) -> None:
    before = only(whole, "adam", "badm")
    after = with_code(before, "2", "9f" * 20, 0.001)
    names = [m.name for m in merge({"before": before, "after": after}).methods]
    assert names == ["badm", "adam", "badm@9f9f9f9", "adam@9f9f9f9"]
    same_commit = with_code(before, "2", before.environment["commit"], 0.001)
    names = [m.name for m in merge({"before": before, "after": same_commit}).methods]
    assert names[2:] == ["badm@v2", "adam@v2"]


def test_the_same_results_are_there_once(whole: Comparison) -> None:
    before = only(whole, "adam", "badm")
    merged = merge({"before": before, "again": only(whole, "badm", "muon")})
    assert [method.name for method in merged.methods] == ["badm", "adam", "muon"]
    assert len(merged.rows) == 6


def test_the_reference_may_be_any_of_the_methods(whole: Comparison) -> None:
    parts = {"a": only(whole, "adam", "badm"), "b": only(whole, "muon")}
    rows = merge(parts, "muon").rows
    assert {row.compared.against for row in rows if row.compared is not None} == {"muon"}
    with pytest.raises(MergeError, match="reference must be one of badm, adam, muon, got 'sgd'"):
        merge(parts, "sgd")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"trials": 3}, "the number of trials must be the same, and is 8 in the first and 3 in"),
        ({"schedule": "linear"}, "the schedule must be the same, and is cosine in the first and"),
        ({"protocol": "paper"}, "the protocol must be the same"),
        ({"tasks": []}, "at least one task must be the same"),
    ],
)
def test_comparisons_that_ask_something_else_are_refused(
    whole: Comparison, changes: dict[str, Any], said: str
) -> None:
    other = only(whole, "muon", **changes)
    with pytest.raises(MergeError, match=said) as error:
        merge({"a.json": only(whole, "adam"), "b.json": other})
    assert str(error.value).startswith("b.json cannot be merged with a.json: ")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"steps": 300}, "the budget in steps on digits must be the same, and is 600 in the first"),
        ({"version": "2"}, "the version of the task digits must be the same, and is 1 in the"),
        ({"target": 0.5}, "the target on digits must be the same, and is 0.95 in the first and"),
        ({"scale": "paper"}, "the scale on digits must be the same"),
    ],
)
def test_tasks_that_are_not_the_same_are_refused(
    whole: Comparison, changes: dict[str, Any], said: str
) -> None:
    first = [replace(task, version="1") for task in whole.tasks]
    second = [replace(first[0], **changes), *first[1:]]
    with pytest.raises(MergeError, match=said):
        merge({"a": only(whole, "adam", tasks=first), "b": only(whole, "muon", tasks=second)})


def test_a_result_from_before_versions_is_merged(whole: Comparison) -> None:
    tasks = [replace(task, version="2") for task in whole.tasks]
    merged = merge({"old": only(whole, "adam"), "new": only(whole, "muon", tasks=tasks)})
    assert len(merged.methods) == 2


def test_other_seeds_are_refused(whole: Comparison) -> None:
    rows = [replace(row, seeds=[0, 1]) for row in whole.rows]
    with pytest.raises(MergeError, match="the seeds must be the same, and is 0, 1, 2 in the first"):
        merge({"a": only(whole, "adam"), "b": only(replace(whole, rows=rows), "muon")})


def test_files_are_merged_as_comparisons_are(whole: Comparison, tmp_path: Path) -> None:
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    one.write_text(to_json(only(whole, "adam", "badm")))
    two.write_text(to_json(only(whole, "muon")))
    merged = bench.merge([one, two]).comparison
    assert [method.name for method in merged.methods] == ["badm", "adam", "muon"]
    assert json.loads(to_json(merged))["summary"] == merged.summary


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"{}", "not a saved comparison"), (b"[", "must be JSON"), (b"\xff", "not a saved")],
)
def test_a_file_that_is_no_comparison_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=said) as error:
        bench.merge([path])
    assert str(path) in str(error.value)


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no file or folder"):
        bench.merge([tmp_path / "none.json"])
    with pytest.raises(ValueError, match="nothing to merge"):
        bench.merge([])
