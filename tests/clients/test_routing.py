"""Real architectures, labelled by hand, are routed as labelled; each miss is named."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase

import pytest
from torch import nn

pytest.importorskip("transformers", reason="make clients installs it")
pytest.importorskip("peft", reason="make clients installs it")

from badm import BADM, explain, parameter_groups
from badm.groups.roles import roles
from tests.clients.architectures import ARCHITECTURES
from tests.clients.routing import FILE, kinds, misses, table


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture_is_routed_as_labelled(name: str) -> None:
    architecture = ARCHITECTURES[name]
    found = kinds(architecture.make())
    assert misses(architecture, found).keys() == architecture.misses.keys()
    for patterns in architecture.labels.values():  # no label is idle
        for pattern in patterns:
            assert any(fnmatchcase(each, pattern) for each in found), pattern


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_metric_and_decay_follow_from_the_kind(name: str) -> None:
    model = ARCHITECTURES[name].make()
    for row in explain(BADM(model, metric="kronecker", weight_decay=0.1), model).rows:
        if row.used:
            assert row.weight_decay == (0.0 if row.kind in ("vector", "table") else 0.1), row
            assert row.used == "diagonal" or (row.kind, row.used) == ("matrix", "kronecker"), row
        else:
            assert row.kind == "frozen", row


def reverse(model: nn.Module) -> None:
    """Register the parts of a model in the reverse order: the head first, the body last."""
    part = model
    while len(part._modules) == 1:  # PEFT wraps models in models
        (part,) = part.children()
    part._modules = dict(reversed(part._modules.items()))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_order_of_registration_does_not_matter(name: str) -> None:
    """Where a layer is the output only because it is the last, its order is all there is."""
    model = ARCHITECTURES[name].make()
    before = {p: role.kind for p, role in roles(model).items()}
    if any(role.why == "the last layer" for role in roles(model).values()):
        pytest.skip("no head by name")
    reverse(model)
    assert {p: role.kind for p, role in roles(model).items()} == before


def test_frozen_parameters_are_left_out() -> None:
    model = ARCHITECTURES["LoRA on GPT-2"].make()
    grouped = [p for group in parameter_groups(model) for p in group["params"]]
    assert grouped
    assert all(p.requires_grad for p in grouped)


def test_at_least_25_architectures_and_the_committed_table_is_theirs() -> None:
    assert len(ARCHITECTURES) >= 25
    committed = json.loads(FILE.read_text(encoding="utf-8"))
    assert committed["rows"] == table()["rows"]
