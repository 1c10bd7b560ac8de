"""Steps to common levels of KID, beside what the paper says of one."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from badm.bench.records.comparisons import Comparison, Curve, MethodInfo, TaskInfo
from badm.bench.reproduce.part import StepsToLevels
from badm.bench.reproduce.parts import PARTS
from badm.bench.reproduce.steps_to_levels import MAX_LEVELS, levels_markdown, steps_to_levels
from badm.bench.reproduce.tables import paper_markdown
from tests.helpers.comparisons import comparison as made_up

LADDER = StepsToLevels("cgan-mnist", "adam", "The paper says so.", level=-8)
STEPS = [0, 10, 20, 30, 40]


def db(*values: float) -> list[float]:
    return [10 ** (value / 10) for value in values]


def compared(**methods: list[list[float]]) -> Comparison:
    """By method the readings of each seed, at the steps of ``STEPS``."""
    facts = TaskInfo("cgan-mnist", "", "cpu", "KID", "low", False, 40, 64, None, False)
    curves = [
        Curve("cgan-mnist", name.replace("_", "-"), seed, [], [], {}, STEPS, [], {"KID": readings})
        for name, seeds in methods.items()
        for seed, readings in enumerate(seeds)
    ]
    names = [name.replace("_", "-") for name in methods]
    return replace(
        made_up(tasks=1, methods=1, protocol="paper"),
        tasks=[facts],
        methods=[MethodInfo(name, name, "keras") for name in names],
        curves=curves,
        rows=[],
        notes=[],
    )


def test_levels_are_whole_decibels_that_two_methods_come_to() -> None:
    found = compared(
        adam=[db(4, 2.5, 1, -0.4, -1.2)],
        badm=[db(4, -0.9, -2, -3.7, -3)],
        soap=[db(4, 4.5, 3.9, 2.2, 2.6)],
    )
    levels, steps = steps_to_levels(LADDER, found)
    # soap comes to 2.2, adam to -1.2, badm alone to -3.7; -8 is the paper's.
    assert levels == [3, -1, -8]
    assert steps["adam"] == [10, 40, math.inf]
    assert steps["badm"] == [10, 20, math.inf]
    assert steps["soap"] == [30, math.inf, math.inf]


def test_what_all_start_from_is_no_level() -> None:
    found = compared(
        adam=[db(4, 4, 4, 4, 4)], badm=[db(4, 3, 2, 1.5, 0.5)], soap=[db(4, 3.5, 1.5, 0.9, 0.9)]
    )
    levels, _ = steps_to_levels(replace(LADDER, level=None), found)
    assert levels == [1]  # adam stays at its start: 4 says nothing of it


def test_a_level_close_below_the_start_may_be_reached_by_accident_and_is_none() -> None:
    found = compared(
        adam=[db(2.4, 1.9, 3, 3, 3)], badm=[db(2.4, 1.9, 0.5, 0, 0)], soap=[db(2.4, 2, 1, 0.5, 0.5)]
    )
    levels, _ = steps_to_levels(replace(LADDER, level=None), found)
    assert levels == [1]


def test_steps_are_the_median_over_seeds_and_a_miss_is_never_dropped() -> None:
    found = compared(
        adam=[db(4, 3, 0.5, 0.5, 0.5), db(4, 3, 3, 0.5, 0.5), db(4, 3, 3, 3, 0.5)],
        badm=[db(4, 0.5, 3, 3, 3), db(4, 3, 3, 3, 2.5), db(4, 3, 3, 3, 2.5)],
        soap=[db(4, 0.2, 3, 3, 3), db(4, 0.2, 3, 3, 3), db(4, 3, 3, 3, 2.5)],
    )
    levels, steps = steps_to_levels(replace(LADDER, level=None), found)
    assert levels == [3, 1]
    assert {name: last for name, (_, last) in steps.items()} == {
        "adam": 30,
        "badm": math.inf,
        "soap": 10,
    }


def test_estimates_below_zero_and_lost_numbers_make_no_levels() -> None:
    found = compared(
        adam=[[3.0, 1.0, -0.01, 0.5, 0.5]],
        badm=[[3.0, 1.0, math.nan, math.nan, math.nan]],
        soap=[[3.0, math.nan, math.nan, math.nan, math.nan]],
    )
    levels, steps = steps_to_levels(LADDER, found)
    assert levels == [0, -8]
    assert steps["adam"] == [10, 20]  # less than zero is as good as any level
    assert steps["badm"] == [10, math.inf]
    assert steps["soap"] == [math.inf, math.inf]


def test_many_levels_are_thinned_out_and_the_ends_kept() -> None:
    ends = [-0.5, -1.5, -2.5, -3.5, -4.5, -5.5, -6.5, -7.5]
    methods = {f"m{i}": [db(4, 3, 2, 1, end)] for i, end in enumerate(ends)}
    levels, _ = steps_to_levels(replace(LADDER, level=None), compared(**methods))
    assert len(levels) == MAX_LEVELS
    assert (levels[0], levels[-1]) == (0, -6)  # the last comes to -7.5 alone


def test_the_table_has_times_against_the_method_named() -> None:
    found = compared(
        adam=[db(4, 2, 1.5, 0.5, -0.5)], badm=[db(4, 0.4, -0.5, -1, -1)], soap=[db(4, 4, 4, 4, 4)]
    )
    heading, says, table = levels_markdown(LADDER, found)
    assert heading == "## Steps to levels of KID: cgan-mnist"
    assert says.endswith("The paper says so.")
    assert table.splitlines() == [
        "| method | 0 dB (1) | −8 dB (0.158) |",
        "| --- | ---: | ---: |",
        "| adam | 40 | never |",
        "| badm | 20 (2.0×) | never |",
        "| soap | never | never |",
    ]


def test_a_task_that_was_not_measured_has_no_table() -> None:
    found = compared(adam=[db(4, 2, 1.5, 0.5, -0.5)])
    assert list(levels_markdown(replace(LADDER, task="cgan-fashion"), found)) == []
    assert list(levels_markdown(LADDER, replace(found, curves=[]))) == []


@pytest.mark.parametrize(("task", "times"), [("cgan-mnist", 2), ("cgan-fashion", 3)])
def test_the_part_of_the_paper_has_its_claims_beside_the_steps(task: str, times: int) -> None:
    part = PARTS["image-generation"]
    (ladder,) = (one for one in part.steps_to_levels if one.task == task)
    assert ladder.level == -8
    assert f"at least {times} times as fast" in ladder.claim
    found = compared(adam=[db(4, 2, 1.5, 0.5, -0.5)], badm=[db(4, 0.4, -0.5, -1, -8.5)])
    renamed = replace(
        found,
        tasks=[replace(found.tasks[0], name=task)],
        curves=[replace(curve, task=task) for curve in found.curves],
    )
    markdown = paper_markdown(part, renamed, "badm reproduce image-generation")
    assert f"## Steps to levels of KID: {task}" in markdown
    assert ladder.claim in markdown
    assert "| badm | 20 (2.0×) | 40 |" in markdown
