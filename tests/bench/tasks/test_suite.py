"""The suite of the speed protocol: every kind of task, with budgets of its own."""

from __future__ import annotations

import pytest

from badm.bench.compare.choices import task_sources
from badm.bench.compare.parts import whole_budget
from badm.bench.records.plans import Plan
from badm.bench.tasks import TASKS, find, suite

KINDS = ("node-", "bbbp", "image-", "detection", "cgan-", "ddim-", "text-", "mlm-")


def plan(**options: object) -> Plan:
    return Plan(("digits",), ("adamw",), **{"protocol": "speed", **options})  # type: ignore[arg-type]


def test_the_suite_has_ten_tasks_or_more_and_one_of_each_kind() -> None:
    assert len(suite.BUDGETS) >= 10
    for kind in KINDS:
        assert any(name.startswith(kind) for name in suite.BUDGETS), kind
    assert "char-imdb" in suite.BUDGETS


def test_its_name_stands_for_its_tasks_and_repeats_none() -> None:
    assert task_sources(["bbbp", suite.NAME]) == tuple(dict.fromkeys(["bbbp", *suite.BUDGETS]))
    assert suite.NAME not in TASKS


@pytest.mark.parametrize(("name", "budget"), suite.BUDGETS.items())
def test_its_budgets_are_no_longer_than_those_of_the_tasks(name: str, budget: int) -> None:
    assert budget <= TASKS[name]("cpu").steps


def test_a_budget_is_the_suites_only_in_the_speed_protocol_at_cpu_scale() -> None:
    bbbp, smoke = find("bbbp"), find("bbbp", "smoke")
    assert whole_budget(plan(), bbbp) == suite.BUDGETS["bbbp"]
    assert whole_budget(plan(steps=50), bbbp) == 50
    assert whole_budget(plan(protocol="tuned"), bbbp) == bbbp.task.steps
    assert whole_budget(plan(scale="smoke"), smoke) == smoke.task.steps
