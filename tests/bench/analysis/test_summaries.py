"""From run files that are known to what a comparison found."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from badm.bench.analysis.summaries import summarise
from badm.bench.errors import StoreError
from badm.bench.records.comparisons import MethodInfo, TaskInfo, Trial, to_json
from badm.bench.records.plans import (
    ComparisonRecord,
    MethodRecord,
    Plan,
    latest_record,
    read_record,
)
from badm.bench.records.runs import (
    RunConfig,
    RunResult,
    RunStore,
    TrajectoryPoint,
    header,
    json_line,
)
from badm.bench.report.text import markdown

ENVIRONMENT = {"packages": {"torch": "2.9"}}
FACTS = {"synthetic": True, "notes": ["made up"]}
PLAN = Plan(("toy",), ("sgd", "adam"), trials=3, seeds=3, reference="sgd")
TASK = TaskInfo("toy", "", "cpu", "accuracy", "high", True, 20, 4, 0.8, synthetic=False)


def config(method: str, seed: int) -> RunConfig:
    return RunConfig("toy", "1", "cpu", 20, method, {"lr": 0.1}, seed)


def write(
    store: RunStore,
    method: str,
    seed: int,
    scores: list[float],
    result: RunResult | None,
    **facts: Any,
) -> None:
    """A run that read the validation split every ten steps, a second and a gradient each."""
    made = config(method, seed)
    points = [
        TrajectoryPoint(10 * i, float(10 * i), 10.0 * i, validation={"accuracy": score})
        for i, score in enumerate(scores)
    ]
    losses = [
        TrajectoryPoint(10, 10.0, 10.0, losses={"model": 1.0}),
        TrajectoryPoint(20, 20.0, 20.0, {"model": 0.5}),
    ]
    path = store.path(made)
    path.parent.mkdir(exist_ok=True)
    content = header(made, {**ENVIRONMENT, **facts}, FACTS)
    content += b"".join(json_line(asdict(point)) for point in [*points, *losses])
    if result is not None:
        content += json_line({"result": asdict(result)})
    path.write_bytes(content)


def finished(test: float, seconds: float = 20.0) -> RunResult:
    return RunResult(
        "finished", 20, score=0.9, validation={"accuracy": 0.9}, test={"accuracy": test},
        seconds=seconds, gradients=20.0, peak_bytes=1000, state_bytes=8,
    )  # fmt: skip


def entry(method: str, seeds: int = 3) -> MethodRecord:
    return MethodRecord(
        "toy",
        method,
        {"lr": 0.1},
        ["lr"],
        tried=[Trial("toy", method, i, {"lr": 0.1}, "finished", 0.9) for i in range(3)],
        finals={seed: config(method, seed) for seed in range(seeds)},
    )


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    """Three seeds of two methods: adam is better, and misses the target once."""
    store = RunStore(tmp_path)
    for seed in range(3):
        write(store, "sgd", seed, [0.5, 0.7, 0.8], finished(0.7 + 0.01 * seed))
        late = [0.5, 0.6, 0.7] if seed == 2 else [0.5, 0.9, 0.9]
        write(store, "adam", seed, late, finished(0.8 + 0.01 * seed))
    return store


@pytest.fixture
def record() -> ComparisonRecord:
    facts = [MethodInfo(name, "", "keras") for name in PLAN.methods]
    return ComparisonRecord(PLAN, "2026-01-01", [TASK], facts, [entry("sgd"), entry("adam")])


def test_rows_hold_means_medians_and_their_values_by_seed(
    store: RunStore, record: ComparisonRecord
) -> None:
    sgd, adam = summarise(record, store).rows
    assert (sgd.status, sgd.seeds, sgd.trials) == ("finished", [0, 1, 2], 3)
    assert sgd.test is not None
    assert sgd.test.values == pytest.approx([0.70, 0.71, 0.72])
    assert sgd.test.value == pytest.approx(0.71)
    assert sgd.test.low < 0.71 < sgd.test.high
    assert sgd.train_loss is not None
    assert sgd.train_loss.value == 0.5
    assert sgd.seconds_per_step == 1.0
    assert (sgd.peak_bytes, sgd.state_bytes) == (1000, 8)
    for times in (adam.steps_to_target, adam.seconds_to_target, adam.gradients_to_target):
        assert times is not None
        assert times.values == [10, 10, math.inf]  # a miss is infinite, never dropped
        assert times.value == 10
    assert sgd.steps_to_target is not None
    assert sgd.steps_to_target.values == [20, 20, 20]
    assert sgd.compared is None
    assert adam.compared is not None
    assert adam.compared.against == "sgd"
    assert adam.compared.difference == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("fact", "words"),
    [
        ("packages", "with the same versions of the packages"),
        ("commit", "at the same commit of badm"),
        ("processor", "on the same kind of processor"),
    ],
)
def test_runs_from_different_places_are_told_apart(
    store: RunStore, record: ComparisonRecord, fact: str, words: str
) -> None:
    assert summarise(record, store).notes == []
    write(store, "adam", 2, [0.5, 0.6, 0.7], finished(0.82), **{fact: "another"})
    assert summarise(record, store).notes == [f"Not all runs were made {words}."]


def test_a_report_says_at_which_commit_and_by_which_code_its_runs_were_made(
    store: RunStore, record: ComparisonRecord
) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567, with changes"
    for seed in range(3):
        for method in ("sgd", "adam"):
            write(store, method, seed, [0.5, 0.7], finished(0.7), commit=commit)
    record.methods[0] = MethodInfo("sgd", "", "keras", "2, torch 9.9")
    record.tasks[0] = replace(TASK, version="abc", data="0123456789abcdef")
    found = summarise(record, store)
    assert f"- commit: {commit}" in markdown(found)
    plain = json.loads(to_json(found))
    assert plain["environment"]["commit"] == commit
    assert plain["methods"][0]["version"] == "2, torch 9.9"
    assert (plain["tasks"][0]["version"], plain["tasks"][0]["data"]) == ("abc", "0123456789abcdef")
    assert "commit" not in markdown(replace(found, environment={"commit": None}))


def test_a_record_from_before_versions_is_read(store: RunStore, record: ComparisonRecord) -> None:
    record.write(store)
    (path,) = (store.folder / "comparisons").glob("*.json")
    plain = json.loads(path.read_text())
    del plain["plan"]["threads"]
    for facts in plain["tasks"]:
        del facts["version"], facts["data"]
    for facts in plain["methods"]:
        del facts["version"]
    for one in plain["entries"]:
        for final in one["finals"].values():
            for later in ("method_version", "data", "threads", "engine"):
                del final[later]
    path.write_text(json.dumps(plain))
    assert read_record(path) == record
    assert [row.status for row in summarise(read_record(path), store).rows] == ["finished"] * 2


def test_curves_are_the_points_of_the_runs(store: RunStore, record: ComparisonRecord) -> None:
    found = summarise(record, store)
    assert [(c.method, c.seed) for c in found.curves] == [
        (method, seed) for method in ("sgd", "adam") for seed in range(3)
    ]
    curve = found.curves[0]
    assert (curve.evaluated, curve.validation) == ([0, 10, 20], {"accuracy": [0.5, 0.7, 0.8]})
    assert (curve.steps, curve.losses) == ([10, 20], {"model": [1.0, 0.5]})
    assert curve.seconds == [10.0, 20.0]


def test_what_only_the_runs_know_of_the_data_is_taken_from_them(
    store: RunStore, record: ComparisonRecord
) -> None:
    found = summarise(record, store)
    assert (found.tasks[0].synthetic, found.tasks[0].notes) == (True, ["made up"])
    assert found.environment == ENVIRONMENT
    assert found.notes == []


@pytest.mark.parametrize(
    ("result", "status", "message"),
    [
        (RunResult("diverged", 3, "the loss is nan"), "diverged", "seed 1: the loss is nan"),
        (RunResult("failed", 3, "no memory"), "failed", "seed 1: no memory"),
        (RunResult("cannot", 0, "it wants matrices"), "cannot", "it wants matrices"),
    ],
)
def test_one_seed_that_did_not_finish_is_said_and_leaves_no_scores(
    store: RunStore, record: ComparisonRecord, result: RunResult, status: str, message: str
) -> None:
    write(store, "adam", 1, [0.5], result)
    sgd, adam = summarise(record, store).rows
    assert (adam.status, adam.message) == (status, message)
    assert adam.test is adam.steps_to_target is adam.compared is None
    assert adam.diverged == (status == "diverged")
    assert sgd.test is not None


def test_runs_that_are_missing_or_have_not_ended_are_missing(
    store: RunStore, record: ComparisonRecord
) -> None:
    store.path(config("sgd", 0)).unlink()
    write(store, "adam", 1, [0.5], None)
    rows = summarise(record, store).rows
    assert [row.status for row in rows] == ["missing", "missing"]
    assert [row.seeds for row in rows] == [[1, 2], [0, 2]]


def test_a_damaged_run_is_noted_and_left_alone(store: RunStore, record: ComparisonRecord) -> None:
    path = store.path(config("sgd", 0))
    damaged = b"{" + path.read_bytes()
    path.write_bytes(damaged)
    found = summarise(record, store)
    assert found.notes == [f"Skipped: {path}: line 1 is not JSON."]
    assert [row.status for row in found.rows] == ["missing", "finished"]
    assert path.read_bytes() == damaged


def test_a_run_cut_in_its_last_line_has_not_ended(
    store: RunStore, record: ComparisonRecord
) -> None:
    path = store.path(config("sgd", 0))
    path.write_bytes(path.read_bytes()[:-9])
    assert summarise(record, store).rows[0].status == "missing"


def test_notes_tell_what_makes_a_comparison_worth_less(
    store: RunStore, record: ComparisonRecord
) -> None:
    write(store, "adam", 0, [0.5, 0.9], finished(0.8), packages={"torch": "2.8"})
    record.interrupted = True
    sgd, adam = record.entries
    sgd.tried[0] = replace(sgd.tried[0], status="failed")
    adam.tried = [replace(trial, status="diverged", score=None) for trial in adam.tried]
    assert summarise(record, store).notes == [
        "The comparison was interrupted: some runs are missing.",
        "sgd on toy: 1 of 3 trials failed.",
        "adam on toy: no trial finished, so its final runs use the setting of the first.",
        "Not all runs were made with the same versions of the packages.",
    ]


def test_what_was_found_is_json_without_nan_and_infinity(
    store: RunStore, record: ComparisonRecord
) -> None:
    shown = json.loads(to_json(summarise(record, store)), parse_constant=pytest.fail)
    assert shown["rows"][1]["steps_to_target"]["values"] == [10, 10, None]


def test_a_record_is_read_as_it_was_written(store: RunStore, record: ComparisonRecord) -> None:
    record.write(store)
    (path,) = (store.folder / "comparisons").glob("*.json")
    assert read_record(path) == record
    assert latest_record(store) == (record, [])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "cannot be read"),
        (b"[]", "not a comparison of badm"),
        (b'{"badm": "comparison", "schema": 99}', "schema 99, this version reads 1"),
        (b'{"badm": "comparison", "schema": 1}', "not a valid comparison"),
    ],
)
def test_a_record_that_is_none_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=said) as error:
        read_record(path)
    assert str(path) in str(error.value)
