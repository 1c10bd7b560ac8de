"""Runs on a device: on one that pretends to be, everywhere, and on CUDA where there is one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import ANY

import pytest
import torch
from torch import Tensor, nn
from torch.utils import backend_registration

from badm.bench import methods, tasks
from badm.bench.engine.options import Machine, RunOptions
from badm.bench.engine.run import run
from badm.bench.engine.task_data import move_splits
from badm.bench.engine.training import Interrupted
from badm.bench.records.runs import Run, RunConfig, RunStore
from badm.bench.task import Splits, device_of, to_device
from badm.bench.tasks.scores.prediction import predict
from tests.helpers.engine_tasks import comparable

ROOT = Path(__file__).parents[3]
# One for each model, each form of split and each way to evaluate.
TASKS = (
    "digits",
    "mnist-mlp-sigmoid",
    "node-cora-gnn",
    "node-cora-dnn",
    "node-cora-mlp",
    "bbbp",
    "bbbp-padded",
    "image-cifar10",
    "image-flowers-augmented",
    "detection",
    "cgan-mnist",
    "ddim-flowers",
    "text-imdb",
    "mlm-pretrain-dynamic",
    "mlm-finetune",
    "char-imdb",
)
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


class Pair(NamedTuple):
    x: Tensor
    name: str


@dataclass(frozen=True)
class Graph:
    nodes: Tensor
    names: tuple[str, ...]


def test_every_tensor_in_a_nest_is_moved_and_nothing_else_changes() -> None:
    module, x = nn.Linear(2, 2), torch.zeros(3)
    nest = OrderedDict(a=Pair(x, "a"), b=[Graph(x, ("n",)), None, 4], module=module)
    moved = to_device(nest, "meta")
    assert type(moved) is OrderedDict
    assert moved["a"].x.device.type == moved["b"][0].nodes.device.type == "meta"
    assert (moved["a"].name, moved["b"][0].names, moved["b"][1:]) == ("a", ("n",), [None, 4])
    assert moved["module"] is module
    assert device_of(module).type == "cpu"
    assert nest["a"].x is x


def test_what_is_on_the_device_is_not_copied() -> None:
    graph = Graph(torch.zeros(3), ())
    assert to_device([graph], "cpu")[0] is graph


def test_splits_that_are_nests_are_moved_and_others_are_left() -> None:
    x, graph = torch.zeros(3), Graph(torch.zeros(3), ())
    splits = Splits(train=(x, x), validation={"x": x}, test=graph, notes=("kept",))
    moved = move_splits(splits, "meta")
    assert moved.train[1].device.type == moved.validation["x"].device.type == "meta"
    assert moved.test is graph
    assert moved.notes == ("kept",)
    assert move_splits(splits, "cpu") is splits


def test_predictions_come_back_to_the_cpu_in_order() -> None:
    model, x = nn.Linear(2, 1), torch.randn(5, 2)
    torch.testing.assert_close(predict(model, x.split(2)), model(x))


def test_a_run_is_refused_on_another_device_than_it_is_filed_under(tmp_path: Path) -> None:
    task, sgd = tasks.find("digits", "smoke"), methods.find("sgd")
    config = task.config(sgd, sgd.setting({}), 0, device="cuda")
    with pytest.raises(ValueError, match=r"filed under device cuda.*has cpu"):
        run(config, task.task, sgd, RunStore(tmp_path))


@pytest.fixture(scope="module")
def pretended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """How each task ended: on the CPU, on the device, and there after a stop and a resume."""
    if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip("needs a torch that takes devices written in Python")
    output = tmp_path_factory.mktemp("pretended") / "ends.json"
    command = [sys.executable, "-m", "tests.helpers.pretend_device", str(output), "badm", *TASKS]
    ended = subprocess.run(
        command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    found: dict[str, Any] = json.loads(output.read_text())
    return found


def approximate(value: Any) -> Any:
    """Kernels for other devices round otherwise: numbers are close, digests say nothing."""
    if isinstance(value, dict):
        return {k: ANY if k in ("weights", "kept") else approximate(v) for k, v in value.items()}
    if isinstance(value, list):
        return [approximate(part) for part in value]
    return pytest.approx(value, rel=1e-3, abs=1e-4) if isinstance(value, float) else value


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_a_task_trains_evaluates_and_shows_the_same_on_a_device(
    pretended: dict[str, Any], name: str
) -> None:
    on_cpu, on_device, _ = pretended[name]
    assert on_cpu[-1]["status"] == "finished"
    assert on_device == approximate(on_cpu)


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_a_run_resumed_on_a_device_is_bitwise_equal(pretended: dict[str, Any], name: str) -> None:
    _, on_device, resumed = pretended[name]
    assert resumed == on_device


def trained(folder: Path, device: str, stop_at: int | None = None, name: str = "digits") -> Run:
    """A run of a task, stopped on the way and resumed if it is to be."""
    found, badm = tasks.find(name, "smoke"), methods.find("badm")
    config = found.config(badm, badm.setting({}), 0, steps=10, device=device)
    store, machine = RunStore(folder), Machine(device=device)
    machine.prepare()
    if stop_at is not None:
        steps: list[int] = []
        options = RunOptions(
            on_step=lambda step, loss: steps.append(step),
            should_stop=lambda: len(steps) >= stop_at,
        )
        with pytest.raises(Interrupted):
            run(config, found.task, badm, store, options, machine)
        assert store.checkpoint(config).exists()
    return run(config, found.task, badm, store, machine=machine)


@pytest.fixture(autouse=True)
def deterministic_as_before() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    yield
    torch.use_deterministic_algorithms(before)


DEVICES = ["cpu", pytest.param("cuda", marks=needs_cuda)]


@pytest.mark.parametrize("device", DEVICES)
def test_a_resumed_run_is_bitwise_equal(tmp_path: Path, device: str) -> None:
    whole = trained(tmp_path / "whole", device)
    resumed = trained(tmp_path / "resumed", device, stop_at=5)
    assert comparable(resumed) == comparable(whole)
    assert whole.result is not None
    assert whole.result.status == "finished"
    assert whole.result.peak_bytes


@pytest.mark.parametrize("device", DEVICES)
def test_a_run_is_filed_under_its_device(tmp_path: Path, device: str) -> None:
    done = trained(tmp_path, device)
    assert done.config.device == device
    on_cpu: RunConfig = replace(done.config, device="cpu")
    assert (done.config.key == on_cpu.key) == (device == "cpu")
    assert ("accelerator" in done.environment) == (device != "cpu")


@needs_cuda
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TASKS if name != "mlm-finetune"])
def test_a_task_trains_on_cuda(tmp_path: Path, name: str) -> None:
    done = trained(tmp_path, "cuda", name=name)
    assert done.result is not None
    assert done.result.status == "finished", done.result.message
