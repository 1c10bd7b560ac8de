"""The speed protocol: the smallest part of a budget that reaches the score of a baseline."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from badm import bench
from badm.bench import methods
from badm.bench.compare.parts import evaluate_every, next_part, steps_of_part
from badm.bench.compare.protocol import ComparisonRunner
from badm.bench.compare.trial_settings import BETA2, MEMORY, searched_space, trial_settings
from badm.bench.engine.workers import Job
from badm.bench.errors import ProtocolError
from badm.bench.records.comparisons import Comparison, from_json, to_json
from badm.bench.records.plans import TUNING_SEED, ComparisonRecord, Plan, read_record
from badm.bench.records.runs import RunConfig, RunStore
from badm.bench.records.speeds import PARTS, TaskSpeed
from badm.bench.report.figures import draw_figures
from badm.bench.report.page import write_page
from badm.bench.report.text import markdown
from tests.bench.compare.test_protocol import Here
from tests.helpers import QUICK_TASKS

PLAN = Plan(
    (f"{QUICK_TASKS}:quick",),
    ("adamw", "sgd", "adam-untouched"),
    "speed",
    trials=2,
    seeds=2,
    schedule="linear",
    steps=40,
    reference="sgd",
    warmup=0.05,
    baseline="adamw",
)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ComparisonRunner, Here]:
    """A folder in which ``PLAN`` has been carried out."""
    folder = tmp_path_factory.mktemp("speed")
    return folder, *carried_out(PLAN, folder)


def carried_out(plan: Plan, folder: Path) -> tuple[ComparisonRunner, Here]:
    store = RunStore(folder)
    runner, workers = ComparisonRunner(plan, store), Here(store)
    runner.run(workers)  # type: ignore[arg-type]
    return runner, workers


def speed_of(comparison: Comparison, method: str) -> TaskSpeed:
    assert comparison.speed is not None
    (row,) = (row for row in comparison.speed.rows if row.method == method)
    return row


@given(st.integers(1, PARTS + 1))
def test_bisection_finds_the_smallest_part_in_at_most_four_measurements(smallest: int) -> None:
    known: dict[int, bool] = {}
    while (part := next_part(known)) is not None:
        assert part not in known
        known[part] = part >= smallest
    enough = [part for part, is_enough in known.items() if is_enough]
    assert min(enough, default=PARTS + 1) == smallest
    assert len(known) <= 4
    assert (8 in known) == (smallest >= 8)
    assert next(iter(known)) == 4


def test_the_target_is_the_mean_of_the_last_readings_and_parts_reach_it_or_not(
    compared: tuple[Path, ComparisonRunner, Here],
) -> None:
    folder, runner, _ = compared
    comparison = runner.comparison()
    assert comparison.speed is not None
    store = RunStore(folder)
    (target,) = comparison.speed.targets
    ends = []
    for seed in range(2):
        (entry,) = (entry for entry in runner.record.entries if entry.method == "adamw")
        run = store.read(entry.finals[seed])
        assert run is not None
        ends.append(run.validation_curve("accuracy")[1][-1])
    assert target.score == pytest.approx(sum(ends) / 2)
    assert comparison.tasks[0].target == target.score
    for row in comparison.speed.rows:
        for part in row.parts:
            assert part.mean == pytest.approx(sum(part.scores) / 2)
            assert part.reached == (part.mean >= target.score)
            assert part.steps == round(part.part * 40)


def test_a_fast_method_has_a_small_part_and_a_slow_one_never_arrives(
    compared: tuple[Path, ComparisonRunner, Here],
) -> None:
    comparison = compared[1].comparison()
    fast, slow = speed_of(comparison, "sgd"), speed_of(comparison, "adam-untouched")
    assert (fast.status, fast.part, fast.steps) == ("reached", 0.125, 5)
    assert [part.part for part in fast.parts] == [0.125, 0.25, 0.5]
    assert (slow.status, slow.part, slow.steps, slow.seconds) == ("never", *[math.inf] * 3)
    assert [part.part for part in slow.parts] == [0.5, 0.75, 0.875, 1.0]
    base = speed_of(comparison, "adamw")
    assert (base.part, base.seconds, base.step_time, base.state) == (1, 1, 1, 1)
    assert comparison.speed is not None
    by_method = {one.method: one for one in comparison.speed.methods}
    assert by_method["adam-untouched"].part.value == math.inf
    assert by_method["adam-untouched"].counted.value == 2
    assert by_method["sgd"].counted.value == 0.125
    assert "never reached by adam-untouched" in " ".join(comparison.summary)


def test_every_part_has_as_many_trials_and_an_untouched_method_one_run_for_them(
    compared: tuple[Path, ComparisonRunner, Here],
) -> None:
    _, runner, workers = compared
    for entry in runner.record.entries:
        assert [trial.index for trial in entry.tried] == [0, 1]
        assert sorted(entry.finals) == [0, 1]
    trials = Counter(
        (config.method, config.steps) for config in workers.done if config.seed == TUNING_SEED
    )
    assert {n for (method, _), n in trials.items() if method == "adam-untouched"} == {1}
    assert {n for (method, _), n in trials.items() if method != "adam-untouched"} == {2}
    defaults = dict(methods.find("adam").defaults)
    assert all(c.setting == defaults for c in workers.done if c.method == "adam-untouched")


def test_final_runs_are_evaluated_as_often_whatever_their_part_and_trials_at_their_end(
    compared: tuple[Path, ComparisonRunner, Here],
) -> None:
    folder, _, workers = compared
    for config in workers.done:
        run = RunStore(folder).read(config)
        assert run is not None
        evaluated = run.validation_curve("accuracy")[0]
        if config.seed == TUNING_SEED:
            assert evaluated == [0, config.steps]
        else:
            assert evaluated == list(range(config.steps + 1))
            assert config.evaluate_every == evaluate_every(40) == 1


class Halting(Here):
    """A worker that is interrupted after so many runs."""

    def __init__(self, store: RunStore, runs: int) -> None:
        super().__init__(store)
        self.runs = runs

    def start(self, job: Job) -> None:
        if not self.runs:
            raise KeyboardInterrupt
        self.runs -= 1
        super().start(job)


def as_measured(record: ComparisonRecord, comparison: Comparison) -> Any:
    """All that does not depend on the clock."""
    assert comparison.speed is not None
    rows = [
        replace(row, seconds=0.0, step_time=0.0, parts=[replace(p, seconds=0.0) for p in row.parts])
        for row in comparison.speed.rows
    ]
    return record.entries, rows


def test_an_interrupted_comparison_ends_equal(
    tmp_path: Path, compared: tuple[Path, ComparisonRunner, Here]
) -> None:
    store = RunStore(tmp_path)
    halted = ComparisonRunner(PLAN, store)
    with pytest.raises(KeyboardInterrupt):
        halted.run(Halting(store, 9))  # type: ignore[arg-type]
    midway = halted.comparison()  # what is known so far can be reported
    assert midway.speed is not None
    assert any(row.status == "missing" for row in midway.speed.rows)
    assert markdown(midway)
    runner, _ = carried_out(PLAN, tmp_path)
    whole = compared[1]
    assert as_measured(runner.record, runner.comparison()) == as_measured(
        whole.record, whole.comparison()
    )


def test_a_report_is_made_from_the_folder_alone(
    compared: tuple[Path, ComparisonRunner, Here], tmp_path: Path
) -> None:
    folder, runner, _ = compared
    comparison = runner.comparison()
    again = bench.report(folder)
    assert again.comparison == comparison
    assert to_json(from_json(to_json(comparison))) == to_json(comparison)
    assert "Speed at equal quality" in str(again)
    text = markdown(comparison)
    assert "| sgd | **1/8** |" in text
    assert "| adam-untouched | never | 1 of 1 | 2 |" in text
    write_page(comparison, tmp_path / "page.html")
    assert '"speed":{"baseline":"adamw"' in (tmp_path / "page.html").read_text()
    drawn = draw_figures(comparison, tmp_path, kinds=("speed",), forms=("svg",))
    assert [path.name for path in drawn] == ["speed.svg"]
    assert "never" in drawn[0].read_text()
    assert "Speed at equal quality" in again._repr_html_()


def test_a_comparison_of_another_protocol_has_no_speed_and_its_json_is_as_before() -> None:
    from tests.helpers.comparisons import comparison

    made = comparison()
    assert "speed" not in json.loads(to_json(made))
    assert from_json(to_json(made)).speed is None


def test_without_a_baseline_that_finished_no_part_is_known(tmp_path: Path) -> None:
    plan = replace(PLAN, tasks=(f"{QUICK_TASKS}:explosive",), methods=("adamw", "sgd"))
    comparison = carried_out(plan, tmp_path)[0].comparison()
    assert comparison.speed is not None
    assert math.isnan(comparison.speed.targets[0].score)
    assert {row.status for row in comparison.speed.rows} == {"missing"}
    assert "adamw has not finished" in comparison.summary[0]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"baseline": "adam"}, "baseline must be one of the methods, got 'adam'"),
        ({"methods": ("adamw", "dladmm")}, "dladmm trains layer by layer"),
        ({"tasks": (f"{QUICK_TASKS}:second",)}, "task second starts from the weights of first"),
        ({"steps": 7}, "divides a budget into 8 parts, so give at least 8 with --steps"),
        ({"objective": "steps"}, "objective must be score in the speed protocol"),
        ({"target": 0.9}, "target must be left out in the speed protocol"),
        ({"search": "deep"}, "no method has the setting 'deep' of --search"),
    ],
    ids=str,
)
def test_what_cannot_be_compared_so_is_refused(
    tmp_path: Path, changed: dict[str, Any], words: str
) -> None:
    plan = replace(PLAN, **{"reference": "adamw", **changed})
    with pytest.raises(ProtocolError, match=words):
        ComparisonRunner(plan, RunStore(tmp_path))


def test_a_baseline_that_takes_no_part_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="baseline must be one of badm, got 'adamw'"):
        bench.compare("digits", "badm", protocol="speed", runs=tmp_path)


def test_new_fields_at_their_defaults_are_in_no_key() -> None:
    config = RunConfig("digits", "1", "cpu", 300, "adam", {"lr": 1e-3}, seed=0)
    assert "evaluate_every" not in config.to_dict()
    assert replace(config, evaluate_every=5).key != config.key
    plan = Plan(("digits",), ("sgd", "adam"), trials=3, seeds=2, reference="sgd")
    assert plan.key == "e16cd388e531"
    assert len({plan.key, replace(plan, search="wide").key, PLAN.key}) == 3


def test_a_record_reads_back_with_its_parts(
    compared: tuple[Path, ComparisonRunner, Here],
) -> None:
    folder, runner, _ = compared
    record = read_record(folder / "comparisons" / f"{PLAN.key}.json")
    assert [entry.part for entry in record.entries] == [
        entry.part for entry in runner.record.entries
    ]
    assert record.plan == PLAN


def test_parts_of_a_budget_are_rounded_to_whole_steps() -> None:
    assert [steps_of_part(n / 8, 100) for n in range(1, 9)] == [12, 25, 38, 50, 62, 75, 88, 100]


def test_the_wide_search_is_the_same_for_all_methods_and_within_its_ranges() -> None:
    adamw = searched_space(methods.find("adamw"), "wide")
    badm = searched_space(methods.find("badm"), "wide")
    assert list(adamw.values()) == list(badm.values())
    for setting in trial_settings(adamw, 20):
        assert MEMORY.low <= setting["beta1"] <= MEMORY.high
        assert BETA2.low <= setting["beta2"] <= BETA2.high
        methods.find("adamw").setting(setting)
    assert searched_space(methods.find("adamw-untouched"), "wide") == {}


def test_memories_are_spread_evenly_by_their_length() -> None:
    lengths = [1 / (1 - s["beta2"]) for s in trial_settings({"beta2": BETA2}, 4)]
    ratios = [b / a for a, b in itertools.pairwise(lengths)]
    assert ratios == pytest.approx([10**0.5] * 3, rel=0.02)
