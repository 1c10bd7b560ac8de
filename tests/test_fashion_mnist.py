"""The benchmark on real images, in short: what its committed result rests on still holds."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.helpers import ROOT

BENCHMARK = ROOT / "benchmarks" / "fashion_mnist.py"


@pytest.fixture
def benchmark_module() -> ModuleType:
    specification = importlib.util.spec_from_file_location("fashion_mnist", BENCHMARK)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture
def on_data(benchmark_module: ModuleType, badm_data: Path) -> ModuleType:
    benchmark_module.STEPS = 100
    return benchmark_module


@pytest.fixture(scope="module")
def committed() -> dict[str, Any]:
    return json.loads((ROOT / "results" / "fashion_mnist.json").read_text(encoding="utf-8"))


def tuning_run(method: str, lr: float, loss: float | None, seed: int = 100) -> dict[str, Any]:
    return {
        "method": method,
        "lr": lr,
        "seed": seed,
        "validation_loss": [loss],
        "validation_accuracy": [0.5],
        "stop": 50,
    }


@pytest.mark.data
def test_a_hundred_steps_on_fashion_mnist_order_the_metrics(on_data: ModuleType) -> None:
    """At one learning rate the default is ahead of Adam, and the printed form behind."""
    loss = {
        method: on_data.lowest_loss(on_data.run(method, 1e-3, seed=0))
        for method in ("Adam", "BADM", "BADM euclidean")
    }
    assert loss["BADM"] < 0.9 * loss["Adam"]
    assert loss["BADM euclidean"] > 2 * loss["Adam"]


@pytest.mark.data
def test_a_run_on_fashion_mnist_repeats_bit_for_bit(on_data: ModuleType) -> None:
    on_data.STEPS = 50
    once, again = (on_data.run("BADM", 3e-3, seed=1) for _ in range(2))
    assert once == again


@pytest.mark.data
def test_the_test_split_is_read_in_final_runs_only_and_once(
    on_data: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_data.STEPS = 100
    read, test_images = [], on_data.data().test.images
    real = on_data.read
    monkeypatch.setattr(
        on_data, "read", lambda model, split: read.append(split.images) or real(model, split)
    )
    tuning, final = on_data.run("Adam", 3e-3, seed=100), on_data.run("Adam", 3e-3, seed=0)
    assert sum(images is test_images for images in read) == 1
    assert "test_loss" not in tuning
    assert "test_loss" in final


@pytest.mark.data
def test_no_image_is_in_two_splits(on_data: ModuleType) -> None:
    splits = on_data.data()
    assert [len(split.labels) for split in splits] == [10_000, 10_000, 10_000]
    train, validation = (split.images.untyped_storage().data_ptr() for split in splits[:2])
    assert train == validation  # of one tensor, so that the offsets tell
    assert splits.validation.images.storage_offset() >= splits.train.images.numel()


def test_every_method_is_tried_with_as_many_learning_rates_before_one_is_chosen(
    benchmark_module: ModuleType,
) -> None:
    for method in benchmark_module.METHODS:
        todo = benchmark_module.jobs([tuning_run(method, 1e-3, 0.4)], method)
        assert len({lr for _, lr, _ in todo} | {1e-3}) >= 5
        assert {seed for _, _, seed in todo} == {100}
    assert benchmark_module.learning_rates("BADM euclidean") == (0.01, 0.03, 0.1, 0.3, 1.0)
    assert len(benchmark_module.jobs([], "Adam")) == 5


def test_final_seeds_run_at_the_learning_rate_of_the_lowest_loss(
    benchmark_module: ModuleType,
) -> None:
    losses = {1e-4: 0.5, 3e-4: 0.4, 1e-3: 0.35, 3e-3: 0.3, 1e-2: None}  # the last one diverged
    runs = [tuning_run("Adam", lr, loss) for lr, loss in losses.items()]
    runs += [tuning_run("SOAP", 1e-4, 0.1)]
    assert benchmark_module.jobs(runs, "Adam") == [("Adam", 3e-3, seed) for seed in range(3)]
    runs += [tuning_run("Adam", 3e-3, 0.9, seed) for seed in range(3)]
    assert benchmark_module.jobs(runs, "Adam") == []


def test_a_file_of_other_settings_is_not_gone_on_with(
    benchmark_module: ModuleType, tmp_path: Path
) -> None:
    file = tmp_path / "runs.json"
    file.write_text(json.dumps(benchmark_module.settings() | {"steps": 7, "runs": []}))
    with pytest.raises(SystemExit, match="made with steps = 7, not 1000: name another file"):
        benchmark_module.load(file)


def test_every_committed_learning_rate_lies_between_two_that_are_worse(
    benchmark_module: ModuleType, committed: dict[str, Any]
) -> None:
    assert [row["method"] for row in committed["rows"]] == list(benchmark_module.METHODS)
    for row in committed["rows"]:
        assert benchmark_module.jobs(committed["runs"], row["method"]) == []
        losses = {float(lr): loss for lr, loss in row["tried"].items()}
        tried = benchmark_module.learning_rates(row["method"])
        assert sorted(losses) == list(tried)
        assert row["lr"] in tried[1:-1], row["method"]
        assert losses[row["lr"]] == min(losses.values())


def test_every_committed_run_stopped_at_its_lowest_validation_loss(
    committed: dict[str, Any],
) -> None:
    for run in committed["runs"]:
        losses = [math.inf if loss is None else loss for loss in run["validation_loss"]]
        final = run["seed"] in committed["final_seeds"]
        every = committed["read_every" if final else "read_every_in_search"]
        assert len(losses) == committed["steps"] // every
        assert losses[run["stop"] // every - 1] == min(losses)


def test_the_committed_table_is_that_of_the_runs(
    benchmark_module: ModuleType, committed: dict[str, Any]
) -> None:
    assert committed["rows"] == benchmark_module.summary(committed["runs"])
    table = (ROOT / "results" / "fashion_mnist.md").read_text(encoding="utf-8")
    assert table == benchmark_module.markdown(committed["rows"]) + "\n"
    assert all(len(row["test_loss"]) == 3 for row in committed["rows"])
