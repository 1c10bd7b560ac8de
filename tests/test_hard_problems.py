"""Hard problems: what BADM passes still passes, and the pages say what was measured."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from badm.bench.method import Method, Range, optimizer_method
from badm.bench.methods import METHODS
from tests.helpers import ROOT

RESULTS = ROOT / "results" / "hard_problems.json"
FAMILIES = ("badm", "keras", "torch", "peer")


@pytest.fixture(scope="module")
def hard() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        yield import_module("hard_problems")


@pytest.fixture(scope="module")
def pages(hard: ModuleType) -> ModuleType:
    return import_module("hard_problem_pages")


@pytest.fixture(scope="module")
def committed() -> dict[str, Any]:
    return json.loads(RESULTS.read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("metric", "problem"),
    [
        ("diagonal", "axis-aligned 1e6"),
        ("diagonal", "layer scales"),
        ("spectral", "kronecker 1e4"),
        ("spectral", "deep linear"),
        ("kronecker", "kronecker 1e6"),
        ("kronecker", "saddle"),
        ("kronecker", "parity"),
        ("kronecker-spectral", "dense 1e2"),
    ],
)
def test_a_metric_passes_what_it_was_made_for(hard: ModuleType, metric: str, problem: str) -> None:
    method, posed = METHODS[f"badm-{metric}"], hard.PROBLEMS[problem]
    rates = hard.trial_settings(method.space, hard.LEARNING_RATES)
    losses = (hard.final_loss(method, posed, setting, seed=0) for setting in rates[::-1])
    assert any(loss <= posed.goal for loss in losses)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("metric", "problem", "memory"),
    [
        ("diagonal", "rosenbrock", {"beta2": 0.95}),
        ("diagonal", "heavy tails", {"beta2": 0.95}),
        ("diagonal", "scale drop", {"beta2": 0.95}),
        ("spectral", "axis-aligned 1e4", {"beta": 0.98}),
        ("spectral", "dense 1e4", {"beta": 0.98}),
        ("kronecker", "dense 1e4", {"beta": 0.98}),
        ("kronecker", "rare gradients", {"beta2": 0.999}),
        ("kronecker-spectral", "dense 1e4", {"beta": 0.98}),
    ],
)
def test_with_the_memory_that_the_page_names_a_metric_passes(
    hard: ModuleType, pages: ModuleType, metric: str, problem: str, memory: dict[str, float]
) -> None:
    method, posed = METHODS[f"badm-{metric}"], hard.PROBLEMS[problem]
    ((name, value),) = memory.items()
    assert f"`{name}={value}`" in pages.WHY[problem][method.name]
    rates = hard.trial_settings(method.space, hard.LEARNING_RATES)
    losses = (
        hard.final_loss(method, posed, {**setting, **memory}, seed=0) for setting in rates[::-1]
    )
    assert any(loss <= posed.goal for loss in losses)


@pytest.mark.parametrize(
    "problem",
    ["axis-aligned 1e4", "kronecker 1e6", "dense 1e4", "rosenbrock chain", "saddle", "parity"],
)
def test_a_gradient_is_that_of_its_loss(hard: ModuleType, problem: str) -> None:
    posed = hard.PROBLEMS[problem].pose(torch.Generator().manual_seed(0), 100)
    posed.gradient(1)
    parameters = list(posed.module.parameters())
    slope = sum(float(p.grad.double().square().sum()) for p in parameters)
    distance = 1e-3 * sum(float(p.detach().square().sum()) for p in parameters) ** 0.5
    losses = []
    for sign in (1, -1):
        for p in parameters:
            p.data.add_(p.grad, alpha=sign * distance / slope**0.5)
        losses.append(posed.loss())
        for p in parameters:
            p.data.sub_(p.grad, alpha=sign * distance / slope**0.5)
    assert (losses[0] - losses[1]) / (2 * distance) == pytest.approx(slope**0.5, rel=0.05)


def test_a_seed_poses_the_same_problem_and_noise_to_every_method(hard: ModuleType) -> None:
    for problem in hard.PROBLEMS.values():
        seen = []
        for _ in range(2):
            posed = problem.pose(torch.Generator().manual_seed(1), problem.steps)
            for step in (1, 2):
                posed.gradient(step)
            gradients = [p.grad for p in posed.module.parameters()]
            seen.append((posed.loss(), torch.cat([g.flatten() for g in gradients])))
        assert seen[0][0] == seen[1][0] > 0, problem.name
        assert seen[0][1].equal(seen[1][1]), problem.name


def at_once(reach: float) -> Method:
    """A method that ends at a fixed part of the loss, if its learning rate is 0.01 or more."""

    class Jump(torch.optim.SGD):
        def step(self, closure: None = None) -> None:
            for group in self.param_groups:
                for p in group["params"]:
                    if group["initial"] >= 0.01:
                        p.data.mul_(reach**0.5)

    def make(module: torch.nn.Module, lr: float) -> Jump:
        jump = Jump(module.parameters(), lr=lr)
        jump.param_groups[0]["initial"] = lr
        return jump

    return optimizer_method(
        "jump", "", make, defaults={"lr": 1e-3}, space={"lr": Range(1e-4, 1e-1)}
    )


def from_one(hard: ModuleType, goal: float) -> Any:
    """One step from 1, with the square of the weight as its loss."""
    posed = import_module("hard_problem_set")

    def pose(generator: torch.Generator, steps: int) -> Any:
        module = posed.Weights(torch.ones(1))
        (w,) = module.parameters()

        def gradient(step: int) -> None:
            w.grad = 2 * w.detach()

        return posed.Posed(module, gradient, lambda: float(w.detach().square()))

    return posed.Problem("from one", "", pose, steps=1, goal=goal)


def test_a_method_passes_with_a_learning_rate_that_reaches_the_goal_with_all_seeds(
    hard: ModuleType,
) -> None:
    cell = hard.run_cell(at_once(1e-4), from_one(hard, 1e-3), trials=2)
    assert cell["passed"]
    assert not cell["untouched"]
    assert cell["lr"] == 0.0178
    assert cell["loss"] == pytest.approx(1e-4)
    assert cell["tried"] == {"0.000562": [1.0], "0.0178": [pytest.approx(1e-4)] * 3}
    assert cell["default"] == [1.0]


def test_a_method_that_misses_the_goal_fails_with_its_lowest_loss(hard: ModuleType) -> None:
    cell = hard.run_cell(at_once(1e-2), from_one(hard, 1e-3), trials=2)
    assert not cell["passed"]
    assert cell["loss"] == pytest.approx(1e-2)
    assert cell["tried"]["0.0178"] == [pytest.approx(1e-2)]  # other seeds are not run for nothing


def test_what_raises_or_diverges_fails(hard: ModuleType) -> None:
    diverged = hard.run_cell(at_once(math.nan), from_one(hard, 1e-3), trials=2)
    assert not diverged["passed"]
    assert diverged["tried"]["0.0178"] == [None]
    raised = hard.run_cell(at_once(-1.0), from_one(hard, 1e-3), trials=2)  # of a complex root
    assert not raised["passed"]
    assert raised["raised"].keys() == {"lr 0.0178, seed 0"}


def test_a_run_goes_on_where_it_was_unless_a_method_or_a_problem_changed(
    hard: ModuleType, committed: dict[str, Any]
) -> None:
    assert hard.kept_cells(committed, committed) == committed["cells"]
    changed = copy.deepcopy({k: v for k, v in committed.items() if k != "cells"})
    changed["methods"]["adam"]["key"] = "other"
    changed["problems"]["saddle"]["key"] = "other"
    kept = hard.kept_cells(committed, changed)
    assert {c["method"] for c in kept} == set(committed["methods"]) - {"adam"}
    assert {c["problem"] for c in kept} == set(committed["problems"]) - {"saddle"}
    changed["settings"] = {**changed["settings"], "seeds": [0]}
    assert hard.kept_cells(committed, changed) == []


def test_a_saved_report_is_read_as_it_was(
    hard: ModuleType, committed: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "again.json"
    hard.save(file, committed)
    assert json.loads(file.read_text(encoding="utf-8")) == committed
    assert file.read_bytes() == RESULTS.read_bytes()


def test_the_results_leave_no_optimizer_and_no_problem_out(
    hard: ModuleType, committed: dict[str, Any]
) -> None:
    assert set(committed["methods"]) == {n for n, m in METHODS.items() if m.family in FAMILIES}
    assert list(committed["problems"]) == list(hard.PROBLEMS)
    pairs = [(cell["method"], cell["problem"]) for cell in committed["cells"]]
    assert pairs == [(m, p) for m in committed["methods"] for p in committed["problems"]]


def test_a_committed_mark_is_what_its_runs_say(committed: dict[str, Any]) -> None:
    seeds = len(committed["settings"]["seeds"])
    for cell in committed["cells"]:
        goal = committed["problems"][cell["problem"]]["goal"]

        def passes(losses: list[float | None], goal: float = goal) -> bool:
            return len(losses) == seeds and all(x is not None and x <= goal for x in losses)

        assert len(cell["tried"]) == committed["settings"]["learning rates"]
        assert cell["untouched"] == passes(cell["default"])
        tried = any(map(passes, cell["tried"].values()))
        assert cell["passed"] == (tried or cell["untouched"])


def test_no_metric_of_badm_raised(committed: dict[str, Any]) -> None:
    of_badm = [n for n, m in committed["methods"].items() if m["family"] == "badm"]
    assert [c for c in committed["cells"] if c["method"] in of_badm and "raised" in c] == []


def test_the_pages_are_those_of_the_results(
    pages: ModuleType, committed: dict[str, Any], tmp_path: Path
) -> None:
    pages.write_pages(committed, tmp_path / RESULTS.name, tmp_path / pages.PAGE.name)
    for committed_page in (pages.PAGE, RESULTS.with_suffix(".md")):
        made = (tmp_path / committed_page.name).read_text(encoding="utf-8")
        shown = committed_page.read_text(encoding="utf-8")
        assert shown == made, "run benchmarks/hard_problems.py --pages"


def test_a_reason_is_for_a_method_and_a_problem_that_exist(
    hard: ModuleType, pages: ModuleType
) -> None:
    assert set(pages.WHY) <= set(hard.PROBLEMS)
    assert {m for reasons in pages.WHY.values() for m in reasons} <= set(METHODS)
