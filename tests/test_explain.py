"""``badm.explain``: each parameter with the metric asked for, the metric used, and why."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import badm
from badm import BADM, explain, parameter_groups
from tests.helpers.support import METRICS, parameters, restless


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(20, 8)
        self.hidden = nn.Linear(8, 8)
        self.narrow = nn.Linear(8, 1, bias=False)
        self.head = nn.Linear(8, 4)


def rows(optimizer: BADM, model: nn.Module | None = None) -> dict[str, tuple[str, str, str]]:
    return {r.name: (r.asked, r.used, r.why) for r in explain(optimizer, model).rows}


EXPLAINED = {
    "embedding.weight": ("kronecker", "diagonal", "an embedding"),
    "hidden.weight": ("kronecker", "kronecker", "weight of a Linear"),
    "hidden.bias": ("kronecker", "diagonal", "a vector"),
    "narrow.weight": ("kronecker", "diagonal", "a side of length 1"),
    "head.weight": ("kronecker", "diagonal", "an output layer: head is named like one"),
    "head.bias": ("kronecker", "diagonal", "a vector"),
}


def test_a_model_is_explained_without_being_passed_again() -> None:
    model = Model()
    assert rows(BADM(model, metric="kronecker")) == EXPLAINED
    assert rows(BADM(parameter_groups(model, metric="kronecker"))) == EXPLAINED


def test_with_the_model_rows_have_its_order_and_frozen_ones_are_shown() -> None:
    model = Model()
    model.hidden.requires_grad_(False)
    found = explain(BADM(model, metric="kronecker"), model)
    assert [row.name for row in found.rows] == [name for name, _ in model.named_parameters()]
    assert [row.why for row in found.rows if row.kind == "frozen"] == ["requires_grad=False"] * 2
    assert "2 frozen" in found.summary


def test_a_parameter_that_no_group_has_is_shown() -> None:
    model = Model()
    optimizer = BADM(model.hidden.parameters())
    found = {row.name: row for row in explain(optimizer, model).rows}
    assert found["head.weight"].kind == "not in the optimizer"
    assert found["hidden.weight"].used == "spectral"


def test_named_parameters_give_names_and_say_that_the_group_decided() -> None:
    model = Model()
    found = rows(BADM(model.named_parameters()))
    assert found["head.weight"] == ("spectral", "spectral", "its group's metric")
    assert found["head.bias"] == ("spectral", "diagonal", "a vector")


def test_without_names_a_parameter_has_its_place() -> None:
    assert list(rows(BADM(parameters(((3, 4), (3,)))))) == [
        "group 0, parameter 0",
        "group 0, parameter 1",
    ]


def test_overrides_are_named() -> None:
    model = Model()
    optimizer = BADM(parameter_groups(model, overrides={"hidden.w*": "euclidean"}))
    assert rows(optimizer)["hidden.weight"] == ("euclidean", "euclidean", "overrides['hidden.w*']")


def test_complex_and_kernels_and_what_they_are_read_as() -> None:
    params = [
        torch.ones(4, 3, 2, 2, requires_grad=True),
        torch.ones(4, 3, dtype=torch.complex64, requires_grad=True),
    ]
    kernel, number = explain(BADM(params)).rows
    assert (kernel.matrix, kernel.used) == ((4, 12), "spectral")
    assert (number.matrix, number.used, number.why) == (None, "diagonal", "complex")


def test_the_summary_counts() -> None:
    model = Model()
    assert explain(BADM(model, metric="kronecker"), model).summary == (
        "1 embedding diagonal, 1 matrix kronecker, 2 vectors diagonal, 1 matrix diagonal, "
        "1 output layer diagonal"
    )


def test_printing_an_optimizer_is_one_line_with_the_summary() -> None:
    text = repr(BADM(Model(), lr=0.02))
    assert text.startswith("BADM(lr=0.02): 1 matrix spectral")
    assert "\n" not in text


def test_the_table_prints_and_is_escaped_in_html() -> None:
    found = explain(BADM(nn.ModuleDict({"a<b": nn.Linear(2, 3)}), metric="diagonal"))
    assert str(found).splitlines()[-1] == found.summary
    assert len({line.index("diagonal") for line in str(found).splitlines()[1:-1]}) == 1
    page = found._repr_html_()
    assert "a&lt;b.weight" in page
    assert "a<b" not in page


@pytest.mark.parametrize("metric", METRICS)
def test_the_relative_step_is_that_of_the_next_step(metric: str) -> None:
    params = parameters(((5,), (4, 4), (3, 2, 2)))
    optimizer = BADM(params, lr=0.01, metric=metric, weight_decay=0.1)
    assert [row.relative_step for row in explain(optimizer).rows] == [None] * 3
    for step in range(2):
        for p, g in zip(params, restless(step, params), strict=True):
            p.grad = g
        if step == 0:
            optimizer.step()
    state = copy.deepcopy(optimizer.state_dict())
    told = [row.relative_step for row in explain(optimizer).rows]
    before = [p.detach().clone() for p in params]
    optimizer.step()
    walked = [
        float((p.detach() - old).norm() / old.norm()) for p, old in zip(params, before, strict=True)
    ]
    assert told == pytest.approx(walked, rel=1e-9)
    assert state["state"].keys() == optimizer.state_dict()["state"].keys()


@pytest.mark.parametrize("metric", METRICS)
def test_explaining_changes_nothing(metric: str) -> None:
    (p,) = parameters(((4, 4),))
    optimizer = BADM([p], metric=metric)
    p.grad = torch.ones_like(p)
    optimizer.step()
    weight = p.detach().clone()
    state = copy.deepcopy(optimizer.state[p])
    assert explain(optimizer).rows[0].relative_step is not None
    assert p.equal(weight)
    for key, value in optimizer.state[p].items():
        assert torch.equal(value, state[key]) if torch.is_tensor(value) else value == state[key]


def test_without_a_gradient_the_dual_takes_its_place() -> None:
    (p,) = parameters(((4, 4),))
    optimizer = BADM([p], metric="spectral", lr=0.01)
    p.grad = torch.ones_like(p)
    optimizer.step()
    step = explain(optimizer).rows[0].relative_step
    optimizer.zero_grad()
    assert explain(optimizer).rows[0].relative_step == pytest.approx(step, rel=1e-9)


def test_another_optimizer_is_an_error() -> None:
    with pytest.raises(TypeError, match=r"optimizer must be a badm\.BADM, got a SGD"):
        explain(torch.optim.SGD(Model().parameters()))


def test_the_function_is_public() -> None:
    assert badm.explain is explain
