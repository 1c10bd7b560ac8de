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
        "stop": 25,
    }


@pytest.mark.data
def test_a_hundred_steps_on_fashion_mnist_order_the_metrics(on_data: ModuleType) -> None:
    """At one learning rate kronecker and spectral are ahead of Adam, the printed form is behind."""
    loss = {
        method: on_data.lowest_loss(on_data.run(method, 3e-3, seed=0))
        for method in ("Adam", "BADM euclidean", "BADM spectral", "BADM kronecker")
    }
    assert loss["BADM kronecker"] < 0.9 * loss["Adam"]
    assert loss["BADM spectral"] < loss["Adam"]
    assert loss["BADM euclidean"] > 2 * loss["Adam"]


@pytest.mark.data
def test_a_run_on_fashion_mnist_repeats_bit_for_bit(on_data: ModuleType) -> None:
    on_data.STEPS = 25
    once, again = (on_data.run("BADM kronecker", 3e-3, seed=1) for _ in range(2))
    assert once == again


@pytest.mark.data
def test_the_test_split_is_read_in_final_runs_only_and_once(
    on_data: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_data.STEPS = 50
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
    assert [len(split.labels) for split in splits] == [10_000, 5_000, 5_000]
    train, validation = (split.images.untyped_storage().data_ptr() for split in splits[:2])
    assert train == validation  # of one tensor, so that the offsets tell
    assert splits.validation.images.storage_offset() >= splits.train.images.numel()


@pytest.mark.parametrize(
    ("losses", "beyond"),
    [
        ({1e-3: 0.4, 3e-3: 0.5, 1e-2: 0.6}, 3e-4),
        ({1e-3: 0.6, 3e-3: 0.5, 1e-2: 0.4}, 3e-2),
        ({1e-3: 0.6, 3e-3: 0.5, 1e-2: 0.4, 3e-2: 0.3}, 1e-1),
    ],
)
def test_a_best_learning_rate_at_the_edge_is_followed_beyond_it(
    benchmark_module: ModuleType, losses: dict[float, float], beyond: float
) -> None:
    runs = [tuning_run("Adam", lr, loss) for lr, loss in losses.items()]
    assert benchmark_module.jobs(runs, "Adam") == [("Adam", beyond, 100)]


def test_final_seeds_run_when_the_best_lies_between_two_that_are_worse(
    benchmark_module: ModuleType,
) -> None:
    losses = {1e-3: 0.4, 3e-3: 0.3, 1e-2: None}  # the last one diverged
    runs = [tuning_run("Adam", lr, loss) for lr, loss in losses.items()]
    assert benchmark_module.jobs(runs, "Adam") == [("Adam", 3e-3, seed) for seed in range(5)]
    runs += [tuning_run("Adam", 3e-3, 0.3, seed) for seed in range(5)]
    assert benchmark_module.jobs(runs, "Adam") == []


def test_the_grid_is_run_before_anything_is_chosen(benchmark_module: ModuleType) -> None:
    runs = [tuning_run("Adam", 1e-3, 0.4)]
    assert benchmark_module.jobs(runs, "Adam") == [("Adam", 3e-3, 100), ("Adam", 1e-2, 100)]


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
        tried = {float(lr): loss for lr, loss in row["tried"].items()}
        ordered = sorted(tried)
        place = ordered.index(row["lr"])
        assert 0 < place < len(ordered) - 1, row["method"]
        assert tried[row["lr"]] == min(tried.values())


def test_every_committed_run_stopped_at_its_lowest_validation_loss(
    committed: dict[str, Any],
) -> None:
    for run in committed["runs"]:
        losses = [math.inf if loss is None else loss for loss in run["validation_loss"]]
        assert len(losses) == committed["steps"] // committed["read_every"]
        assert losses[run["stop"] // committed["read_every"] - 1] == min(losses)


def test_the_committed_table_is_that_of_the_runs(
    benchmark_module: ModuleType, committed: dict[str, Any]
) -> None:
    assert committed["rows"] == benchmark_module.summary(committed["runs"])
    table = (ROOT / "results" / "fashion_mnist.md").read_text(encoding="utf-8")
    assert table == benchmark_module.markdown(committed["rows"]) + "\n"
    assert all(len(row["test_loss"]) == 5 for row in committed["rows"])
