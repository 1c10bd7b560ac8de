"""Groups read off a module: each parameter once, with the metric that suits it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
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
        "3.weight": ("spectral" if metric == "spectral" else "diagonal", 0.1),
        "3.bias": ("diagonal", 0.0),
    }


def test_cnn_kernels_are_matrices_and_so_is_its_head() -> None:
    assert by_name(cnn(), weight_decay=0.1) == {
        "0.weight": ("spectral", 0.1),
        "0.bias": ("diagonal", 0.0),
        "1.weight": ("diagonal", 0.0),
        "1.bias": ("diagonal", 0.0),
        "3.weight": ("spectral", 0.1),
        "3.bias": ("diagonal", 0.0),
        "5.weight": ("spectral", 0.1),
        "5.bias": ("diagonal", 0.0),
    }


@pytest.mark.parametrize("tied", [False, True])
def test_transformer_embedding_is_diagonal_tied_or_not_and_its_matrices_spectral(
    tied: bool,
) -> None:
    found = by_name(Language(tied), weight_decay=0.1)
    assert found["embedding.weight"] == ("diagonal", 0.1)
    assert found.get("head.weight", ("spectral", 0.1)) == ("spectral", 0.1)
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


def hidden(module: nn.Module, **options: Any) -> set[str]:
    """Names of the matrices that are no output layers: they have the kronecker metric."""
    found = by_name(module, metric="kronecker", **options)
    return {name for name, (metric, _) in found.items() if metric == "kronecker"}


class Parts(nn.Module):
    """Parts by name, registered in this order."""

    def __init__(self, **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


def body() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))


def test_a_head_registered_first_is_the_output_layer() -> None:
    assert hidden(Parts(head=nn.Linear(6, 3), body=body())) == {"body.0.weight", "body.2.weight"}


def test_each_of_several_heads_is_an_output_layer() -> None:
    heads = nn.ModuleDict(
        {"a": nn.Linear(6, 3), "b": nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 2))}
    )
    module = Parts(body=body(), heads=heads)
    assert hidden(module) == {"body.0.weight", "body.2.weight", "heads.b.0.weight"}


def test_heads_of_attention_are_no_output_layers() -> None:
    attention = nn.ModuleDict({"query": nn.Linear(6, 6), "key": nn.Linear(6, 6)})
    module = Parts(heads=attention, last=nn.Linear(6, 3))
    assert hidden(module) == {"heads.query.weight", "heads.key.weight"}


def test_heads_in_repeated_blocks_are_no_output_layers() -> None:
    blocks = nn.ModuleList([nn.ModuleDict({"head": nn.Linear(6, 6)}) for _ in range(2)])
    assert hidden(Parts(blocks=blocks, last=nn.Linear(6, 3))) == {
        "blocks.0.head.weight",
        "blocks.1.head.weight",
    }


def test_a_head_before_an_output_is_none() -> None:
    module = Parts(body=body(), head=nn.Linear(6, 6), output=nn.Linear(6, 3))
    assert hidden(module) == {"body.0.weight", "body.2.weight", "head.weight"}


@pytest.mark.parametrize("word", ["get_output_embeddings", "get_classifier"])
def test_a_model_names_its_own_output_layer(word: str) -> None:
    module = Parts(unusual=nn.Linear(6, 3), body=body())
    setattr(module, word, lambda: module.unusual)
    assert hidden(module) == {"body.0.weight", "body.2.weight"}


@pytest.mark.parametrize("answer", [None, NotImplementedError])
def test_a_model_without_an_answer_is_asked_no_further(answer: Any) -> None:
    module = mlp()

    def get_output_embeddings() -> None:
        if answer is not None:
            raise answer

    module.get_output_embeddings = get_output_embeddings  # type: ignore[assignment]
    assert hidden(module) == {"0.weight"}


def test_output_layers_can_be_told() -> None:
    module = Parts(first=nn.Linear(6, 3), second=nn.Linear(6, 3), body=body())
    inside = {"body.0.weight", "body.2.weight"}
    assert hidden(module, output=["first", module.second]) == inside
    assert hidden(module, output="*rst.weight") == {*inside, "second.weight"}
    assert hidden(module, output=()) == {*inside, "first.weight", "second.weight"}


def test_overrides_by_name_take_a_metric_or_options() -> None:
    module = mlp()
    overrides = {"0.weight": "euclidean", "3.*": {"lr": 0.5, "weight_decay": 0.3}}
    groups = parameter_groups(module, weight_decay=0.1, overrides=overrides)
    found = {
        name: {key: value for key, value in group.items() if key != "params"}
        for group in groups
        for name, p in module.named_parameters()
        if any(p is each for each in group["params"])
    }
    assert found["0.weight"] == {"metric": "euclidean", "weight_decay": 0.1}
    assert found["3.weight"] == {"metric": "spectral", "weight_decay": 0.3, "lr": 0.5}
    assert found["1.weight"] == {"metric": "diagonal", "weight_decay": 0.0}
    assert {group["lr"] for group in BADM(groups).param_groups} == {0.5, 1e-2}


def test_a_tied_weight_can_be_overridden_by_either_name() -> None:
    for name in ("embedding.weight", "head.weight"):
        found = by_name(Language(tied=True), overrides={name: "euclidean"})
        assert found["embedding.weight"][0] == "euclidean"


@pytest.mark.parametrize("norm", [nn.utils.parametrizations.weight_norm, nn.utils.weight_norm])
@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
def test_weight_norm_has_a_direction_and_a_gain(norm: Any) -> None:
    module = nn.Sequential(norm(nn.Linear(6, 8)), norm(nn.Linear(8, 3)))
    found = by_name(module, weight_decay=0.1, metric="kronecker")
    gains = [n for n in found if n.endswith(("weight_g", "original0"))]
    (inner, out) = [n for n in found if n.endswith(("weight_v", "original1"))]
    assert [found[name] for name in gains] == [("diagonal", 0.0)] * 2
    assert found[inner] == ("kronecker", 0.1)
    assert found[out] == ("diagonal", 0.1)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("pos_embed", (9, 6)),
        ("cls_token", (1, 1, 6)),
        ("position_embeddings", (1, 9, 6)),
        ("relative_position_bias_table", (9, 2)),
        ("latents", (4, 6)),
        ("A_log", (6, 4)),
        ("layer_scale", (6, 1, 1)),
        ("bias", (6, 6)),
    ],
)
def test_bare_tables_and_gains_are_diagonal_without_decay(
    name: str, shape: tuple[int, ...]
) -> None:
    module = Parts(body=body(), head=nn.Linear(6, 3), **{name: nn.Parameter(torch.ones(shape))})
    assert by_name(module, weight_decay=0.1)[name] == ("diagonal", 0.0)


def test_a_bare_matrix_is_a_matrix() -> None:
    module = Parts(mixing=nn.Parameter(torch.ones(6, 6)), head=nn.Linear(6, 3))
    assert by_name(module, weight_decay=0.1)["mixing"] == ("spectral", 0.1)


def test_gains_of_a_norm_over_images_are_vectors() -> None:
    module = Parts(norm=nn.LayerNorm((4, 5)), head=nn.Linear(6, 3))
    assert by_name(module, weight_decay=0.1)["norm.weight"] == ("diagonal", 0.0)


def test_what_the_model_excludes_from_weight_decay_has_none() -> None:
    module = Parts(body=body(), head=nn.Linear(6, 3))
    module.body[0].weight._no_weight_decay = True
    module.no_weight_decay = lambda: {"head.weight"}  # type: ignore[assignment]
    found = by_name(module, weight_decay=0.1, metric="kronecker")
    assert found["body.0.weight"] == ("kronecker", 0.0)
    assert found["body.2.weight"] == ("kronecker", 0.1)
    assert found["head.weight"] == ("diagonal", 0.0)


def test_frozen_parameters_are_left_out_and_the_output_layer_stays_the_last() -> None:
    module = mlp()
    module[3].requires_grad_(False)
    assert hidden(module) == {"0.weight"}
    assert set(by_name(module)) == {"0.weight", "0.bias", "1.weight", "1.bias"}


def test_a_module_is_grouped_by_the_optimizer_itself() -> None:
    module = mlp()
    made = BADM(module, metric="kronecker", weight_decay=0.1)
    wanted = BADM(parameter_groups(module, metric="kronecker", weight_decay=0.1))
    assert [g["metric"] for g in made.param_groups] == ["kronecker", "diagonal", "diagonal"]
    for a, b in zip(made.param_groups, wanted.param_groups, strict=True):
        assert [id(p) for p in a.pop("params")] == [id(p) for p in b.pop("params")]
        assert {**a, "metric": ""} == {**b, "metric": ""}
