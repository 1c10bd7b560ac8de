"""Groups read off a module: each parameter once, with the metric that suits it."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from badm import BADM, parameter_groups
from tests.helpers.support import METRICS


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 8, 3),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


class Language(nn.Module):
    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 20)
        if tied:
            self.head.weight = self.embedding.weight


MODELS = {
    "mlp": mlp,
    "cnn": cnn,
    "transformer": lambda: Language(tied=False),
    "tied": lambda: Language(tied=True),
    "bare parameter": lambda: nn.ParameterList([nn.Parameter(nn.Linear(3, 4).weight.detach())]),
}


def by_name(module: nn.Module, **options: Any) -> dict[str, tuple[str, float]]:
    """name → (metric, weight decay)"""
    name = {id(p): n for n, p in module.named_parameters()}
    return {
        name[id(p)]: (group["metric"], group["weight_decay"])
        for group in parameter_groups(module, **options)
        for p in group["params"]
    }


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("model", MODELS)
def test_every_parameter_is_in_exactly_one_group(model: str, metric: str) -> None:
    module = MODELS[model]()
    grouped = [id(p) for g in parameter_groups(module, metric=metric) for p in g["params"]]
    assert sorted(grouped) == sorted(id(p) for p in module.parameters())
    BADM(parameter_groups(module, metric=metric))


@pytest.mark.parametrize("metric", ["spectral", "kronecker", "kronecker-spectral"])
def test_mlp(metric: str) -> None:
    assert by_name(mlp(), weight_decay=0.1, metric=metric) == {
        "0.weight": (metric, 0.1),
        "0.bias": ("diagonal", 0.0),
        "1.weight": ("diagonal", 0.0),
        "1.bias": ("diagonal", 0.0),
        "3.weight": ("diagonal", 0.1),
        "3.bias": ("diagonal", 0.0),
    }


def test_cnn_kernels_are_matrices_and_its_head_is_diagonal() -> None:
    assert by_name(cnn(), weight_decay=0.1) == {
        "0.weight": ("spectral", 0.1),
        "0.bias": ("diagonal", 0.0),
        "1.weight": ("diagonal", 0.0),
        "1.bias": ("diagonal", 0.0),
        "3.weight": ("spectral", 0.1),
        "3.bias": ("diagonal", 0.0),
        "5.weight": ("diagonal", 0.1),
        "5.bias": ("diagonal", 0.0),
    }


@pytest.mark.parametrize("tied", [False, True])
def test_transformer_embedding_and_head_are_diagonal_and_its_matrices_spectral(tied: bool) -> None:
    found = by_name(Language(tied), weight_decay=0.1)
    assert found["embedding.weight"] == ("diagonal", 0.1)
    assert found.get("head.weight", ("diagonal", 0.1)) == ("diagonal", 0.1)
    assert ("head.weight" in found) == (not tied)
    for layer in (0, 1):
        for matrix in ("self_attn.in_proj", "self_attn.out_proj.", "linear1.", "linear2."):
            name = f"encoder.layers.{layer}.{matrix}"
            name += "_weight" if matrix.endswith("in_proj") else "weight"
            assert found[name] == ("spectral", 0.1)
    vectors = [name for name in found if "norm" in name or "bias" in name]
    assert len(vectors) == 2 * 8 + 1
    assert all(found[name] == ("diagonal", 0.0) for name in vectors)


@pytest.mark.parametrize("metric", ["euclidean", "diagonal"])
def test_one_metric_for_all_when_it_suits_all(metric: str) -> None:
    assert {m for m, _ in by_name(Language(tied=False), metric=metric).values()} == {metric}


def test_a_module_without_parameters_is_an_error() -> None:
    with pytest.raises(
        ValueError, match=r"module must have trainable parameters, got a ReLU with none"
    ):
        parameter_groups(nn.ReLU())


def test_an_unknown_metric_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"metric must be one of .*, got 'manhattan'"):
        parameter_groups(mlp(), metric="manhattan")


def test_a_bad_weight_decay_is_an_error_when_the_optimizer_is_made() -> None:
    with pytest.raises(ValueError, match=r"weight_decay must be .* at least 0, got -0\.1"):
        BADM(parameter_groups(mlp(), weight_decay=-0.1))
