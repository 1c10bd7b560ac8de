"""Which models the layer-wise methods take, and the one sentence that the others get."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from badm.bench.engine.run import run
from badm.bench.method import CannotTrain, TrainingSetup
from badm.bench.methods import find
from badm.bench.methods.perceptron import perceptron
from badm.bench.records.runs import RunConfig, RunStore
from badm.bench.task import Task
from badm.bench.tasks import find as find_task

X, Y = torch.randn(6, 4), torch.tensor([0, 1, 2, 2, 1, 0])
KIND = "dladmm trains plain perceptrons of linear layers and ReLU, and this model "


def mlp(*between: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 5), *between, nn.Linear(5, 3))


def taken(module: nn.Module, x: Tensor = X, y: Tensor = Y) -> list[tuple[int, int]]:
    found = perceptron(TrainingSetup(module, 1, supervised=lambda: (x, y)), "dladmm")
    return [(layer.in_features, layer.out_features) for layer in found.layers]


def test_perceptrons_are_recognised() -> None:
    assert taken(mlp(nn.ReLU())) == [(4, 5), (5, 3)]
    assert taken(nn.Sequential(nn.Linear(4, 3))) == [(4, 3)]
    nested = nn.Sequential(nn.Sequential(nn.Linear(4, 5), nn.ReLU()), nn.Linear(5, 3))
    assert taken(nested) == [(4, 5), (5, 3)]
    flat = nn.Sequential(nn.Flatten(), *mlp(nn.ReLU()))
    assert taken(flat, X.reshape(6, 2, 2)) == [(4, 5), (5, 3)]
    assert taken(mlp(nn.ReLU()), X.to_sparse()) == [(4, 5), (5, 3)]


def test_a_module_of_another_class_is_named() -> None:
    with pytest.raises(CannotTrain) as refused:
        taken(nn.Bilinear(2, 2, 2))
    assert str(refused.value) == KIND + "is a Bilinear"


def frozen() -> nn.Sequential:
    module = mlp(nn.ReLU())
    module[0].bias.requires_grad_(False)
    return module


def shared() -> nn.Sequential:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(4, 3))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: mlp(nn.BatchNorm1d(5), nn.ReLU()), "has BatchNorm1d"),
        (lambda: mlp(nn.ReLU(), nn.Dropout()), "has Dropout"),
        (lambda: mlp(nn.Sigmoid()), "has Sigmoid"),
        (lambda: mlp(nn.ReLU(), nn.Flatten()), "has Flatten"),
        (mlp, "does not alternate between the two from a first to a last linear layer"),
        (
            lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU()),
            "does not alternate between the two from a first to a last linear layer",
        ),
        (nn.Sequential, "does not alternate between the two from a first to a last linear layer"),
        (lambda: nn.Sequential(nn.Linear(4, 3, bias=False)), "has a layer without bias"),
        (frozen, "has shared or frozen layers"),
        (shared, "has shared or frozen layers"),
    ],
)
def test_other_models_are_refused_in_one_sentence(make: Callable[[], nn.Module], why: str) -> None:
    with pytest.raises(CannotTrain) as refused:
        taken(make())
    assert str(refused.value) == KIND + why


@pytest.mark.parametrize(
    ("x", "y", "why"),
    [
        (X, Y.float(), "needs one class number for each sample, got labels 6 of type"),
        (X, Y[:, None], "needs one class number for each sample, got labels 6×1 of"),
        (
            X,
            Y > 0,
            "needs one class number for each sample, got labels 6 of type bool",
        ),
        (X, Y + 1, "needs labels from 0 to 2, one for each output"),
        (X, Y - 1, "needs labels from 0 to 2, one for each output"),
        (X[:, :3], Y, "needs samples × 4 inputs, got 6×3"),
        (X.reshape(6, 2, 2), Y, "needs samples × 4 inputs, got 6×2×2"),
    ],
)
def test_other_data_are_refused_in_one_sentence(x: Tensor, y: Tensor, why: str) -> None:
    with pytest.raises(CannotTrain) as refused:
        taken(mlp(nn.ReLU()), x, y)
    assert str(refused.value).startswith("dladmm " + why)


def test_a_task_without_labels_is_refused() -> None:
    with pytest.raises(CannotTrain, match="trains on the whole training set at once"):
        perceptron(TrainingSetup(mlp(nn.ReLU()), 1), "dladmm")


def test_sigmoid_admm_says_that_it_wants_sigmoids() -> None:
    method = find("sigmoid-admm")
    with pytest.raises(CannotTrain) as refused:
        method.build(
            TrainingSetup(mlp(nn.ReLU()), 1, supervised=lambda: (X, Y)), method.setting({})
        )
    assert str(refused.value) == (
        "sigmoid-admm trains plain perceptrons of linear layers and Sigmoid, "
        "and this model has ReLU"
    )


@pytest.mark.parametrize(
    ("task", "method", "status"),
    [
        ("mnist-mlp", "dladmm", "finished"),
        ("fashion-mlp", "aa-dladmm", "finished"),
        ("mnist-mlp-sigmoid", "sigmoid-admm", "finished"),
        ("fashion-mlp-sigmoid", "sigmoid-admm", "finished"),
        ("mnist-mlp", "sigmoid-admm", "cannot"),
        ("fashion-mlp-sigmoid", "dladmm", "cannot"),
        ("mnist-mlp-sigmoid", "badm", "finished"),
        ("fashion-mlp", "sisa", "finished"),
    ],
)
def test_the_tasks_run_at_smoke_scale(task: str, method: str, status: str, tmp_path: Path) -> None:
    built, chosen = smoke(task), find(method)
    given = {"dladmm": {"rho": 1e-2}, "aa-dladmm": {"rho": 1e-2}, "badm": {"lr": 3e-2}}
    setting = chosen.setting(given.get(method, {}))
    config = RunConfig(task, "1", "smoke", built.steps, method, setting, seed=0)
    result = run(config, built, chosen, RunStore(tmp_path)).result
    assert result.status == status, result.message
    assert result.test is None or result.test["accuracy"] > 0.5


def smoke(name: str) -> Task:
    return find_task(name, "smoke").task


def test_missing_images_name_the_command_that_gets_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BADM_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="badm data fetch fashion-mnist"):
        find_task("fashion-mlp").task.data()


@pytest.mark.data
def test_splits_of_mnist(badm_data: Path) -> None:
    task = find_task("mnist-mlp").task
    splits = task.data()
    sizes = [len(y) for _, y in (splits.train, splits.validation, splits.test)]
    assert sizes == [18_000, 2_000, 5_000]
    assert not splits.synthetic
    model = task.model(splits)
    assert [p.shape[0] for p in model.parameters()] == [1000, 1000, 1000, 1000, 10, 10]
    assert splits.train[0].max() == 1.0
