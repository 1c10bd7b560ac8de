"""Matrices inside of a parameter: each is stepped as if it were a parameter of its own."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from badm import BADM, explain, metrics, parameter_groups
from badm.metrics import eigenbases
from badm.metrics.matrices import as_stack, from_stack
from badm.paper.algorithm1 import Algorithm1
from tests.helpers.ranks import on_ranks
from tests.helpers.row_scaled import RowScaled
from tests.helpers.support import (
    PATHS,
    assert_identical,
    assert_near,
    drive,
    normal,
    parameters,
    restless,
    values,
)

OF_MATRICES = ("spectral", "kronecker", "kronecker-spectral")
every_metric = pytest.mark.parametrize("metric", OF_MATRICES)
every_path = pytest.mark.parametrize("path", PATHS)

# Shape, blocks and each block as a matrix of its own.
READINGS: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, int]]] = {
    "rows": ((12, 4), (3,), (4, 4)),
    "columns": ((4, 12), (1, 3), (4, 4)),
    "experts": ((3, 5, 4), (3,), (5, 4)),
    "gate and up of experts": ((3, 6, 4), (3, 2), (3, 4)),
    "groups": ((6, 2, 3, 3), (2,), (3, 18)),
    "a kernel inside of experts": ((2, 3, 4, 2), (2,), (3, 8)),
}


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all matrices refresh their bases in the same steps, as those of one parameter do."""
    monkeypatch.setattr(eigenbases, "new_state", lambda index: {"refresh_in": torch.tensor(2)})


def apart(x: Tensor, blocks: tuple[int, ...]) -> list[Tensor]:
    """The blocks, cut by hand."""
    parts = [x]
    for axis, count in enumerate(blocks):
        parts = [piece for part in parts for piece in part.chunk(count, axis)]
    return [part[0] if len(part) == 1 and part.ndim > 2 else part for part in parts]


def run_together_and_apart(
    shape: Sequence[int], blocks: tuple[int, ...], **options: Any
) -> tuple[list[Tensor], list[Tensor]]:
    (w,) = parameters([shape])
    pieces = [part.detach().clone().requires_grad_() for part in apart(w, blocks)]
    one = BADM([w], lr=0.01, blocks=blocks, weight_decay=0.1, **options)
    each = BADM(pieces, lr=0.01, weight_decay=0.1, **options)
    for step in range(13):
        (w.grad,) = restless(step, [w])
        for piece, g in zip(pieces, apart(w.grad, blocks), strict=True):
            piece.grad = g.clone()
        one.step()
        each.step()
    return apart(w.detach(), blocks), values(pieces)


@every_metric
@every_path
@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.usefixtures("together")
def test_blocks_step_as_parameters_of_their_own(metric: str, path: str, reading: str) -> None:
    shape, blocks, _ = READINGS[reading]
    found, expected = run_together_and_apart(shape, blocks, metric=metric, **PATHS[path])
    assert_near(found, expected, 1e-12)
    assert (found[0] - apart(parameters([shape])[0], blocks)[0]).norm() > 0.1


@every_metric
def test_several_parameters_of_a_shape_are_stacked_with_all_their_matrices(metric: str) -> None:
    ends = []
    for flags in PATHS.values():
        params = parameters([(6, 4), (6, 4), (8, 3)])
        optimizer = BADM(params, metric=metric, blocks=2, **flags)
        ends.append(drive(optimizer, params, 15))
    assert_near(ends[1], ends[0], 1e-12)
    assert_near(ends[2], ends[0], 1e-12)


@every_metric
@pytest.mark.parametrize("reading", READINGS)
def test_they_are_algorithm_1_in_that_reading(metric: str, reading: str) -> None:
    shape, blocks, _ = READINGS[reading]
    w, v = normal(shape, 1), normal(shape, 1)
    rho, sigma = 90.0, 10.0
    optimizer = BADM.from_penalties([w], rho, sigma, metric=metric, blocks=blocks)
    algorithm = Algorithm1([v], 2, rho, sigma, metric=metric, blocks=blocks)
    for step in range(30):
        gradients = [normal(shape, 2 * step + s) for s in range(2)]
        algorithm.step([[g] for g in gradients])
        w.grad = sum(gradients) / 2
        optimizer.step()
    assert_near([w], [v], 1e-10)


@pytest.mark.parametrize("reading", READINGS)
def test_a_reading_loses_nothing(reading: str) -> None:
    shape, blocks, matrix = READINGS[reading]
    x = normal(shape)
    assert as_stack(x, blocks).shape == (math.prod(blocks), *matrix)
    assert from_stack(as_stack(x, blocks), shape, blocks).equal(x)
    for found, expected in zip(as_stack(x, blocks), apart(x, blocks), strict=True):
        assert found.equal(expected.flatten(1))


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=2, max_size=4))
def test_any_reading_can_be_undone(axes: list[tuple[int, int]]) -> None:
    blocks = tuple(count for count, _ in axes)
    x = normal([count * length for count, length in axes])
    assert from_stack(as_stack(x, blocks), x.shape, blocks).equal(x)


@pytest.mark.parametrize("path", PATHS)
def test_one_dead_block_rests_and_the_others_do_not(path: str) -> None:
    """Each has a peak of its own: experts that no token reaches stop, and only they."""
    (w,) = parameters([(8, 4)])
    optimizer = BADM([w], blocks=2, **PATHS[path])
    moved = []
    for step in range(250):
        (w.grad,) = restless(step, [w])
        if step >= 5:
            w.grad[:4] = 0
        before = w.detach().clone()
        optimizer.step()
        moved.append((w.detach() - before).norm(dim=1))
    assert moved[-1][:4].max() < 1e-2 * moved[4][:4].max()
    assert moved[-1][4:].min() > 0.1 * moved[4][4:].min()


@every_metric
@every_path
def test_a_checkpoint_resumes_bit_for_bit(metric: str, path: str) -> None:
    params = parameters([(6, 4), (5,), (4, 9)])
    groups = [{"params": params[:2], "blocks": (2,)}, {"params": params[2:], "blocks": (1, 3)}]
    optimizer = BADM(groups, metric=metric, **PATHS[path])
    drive(optimizer, params, 7)
    copies = [p.detach().clone().requires_grad_() for p in params]
    made = [{"params": copies[:2], "blocks": (2,)}, {"params": copies[2:], "blocks": (1, 3)}]
    resumed = BADM(made, metric=metric)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    ends = [drive(o, p, 7, start=7) for o, p in ((optimizer, params), (resumed, copies))]
    assert_identical(*ends)


class Net(nn.Module):
    """A fused projection, gates, groups, a depthwise kernel, pairs and what is around them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(9, 4)
        self.attention = nn.MultiheadAttention(4, 2)
        self.hidden = nn.Linear(4, 4)
        self.grouped = nn.Conv2d(4, 6, 3, groups=2)
        self.up = nn.ConvTranspose2d(6, 4, 2, groups=2)
        self.depthwise = nn.Conv2d(6, 6, 3, groups=6)
        self.lstm = nn.LSTM(4, 3)
        self.gru = nn.GRUCell(4, 3)
        self.pairs = nn.Bilinear(3, 4, 5)
        self.head = nn.Linear(4, 2)


LABELS = {
    "attention.in_proj_weight": (3,),
    "attention.out_proj.weight": None,
    "hidden.weight": None,
    "grouped.weight": (2,),
    "up.weight": (2,),
    "depthwise.weight": None,
    "lstm.weight_ih_l0": (4,),
    "lstm.weight_hh_l0": (4,),
    "gru.weight_ih": (3,),
    "gru.weight_hh": (3,),
    "pairs.weight": (5,),
    "head.weight": None,
}


def blocks_by_name(model: nn.Module, **options: Any) -> dict[str, tuple[int, ...] | None]:
    names = {p: name for name, p in model.named_parameters()}
    return {
        names[p]: group.get("blocks")
        for group in parameter_groups(model, **options)
        if group["metric"] != "diagonal"
        for p in group["params"]
    }


def test_layers_are_read_as_what_they_compute() -> None:
    assert blocks_by_name(Net(), split=True) == LABELS


def test_fused_projections_and_gates_stay_whole_unless_told() -> None:
    fused = ("attention", "lstm", "gru")
    whole = {name: None if name.startswith(fused) else blocks for name, blocks in LABELS.items()}
    assert blocks_by_name(Net()) == whole


def test_overrides_say_it_otherwise() -> None:
    overrides = {"attention.in_proj_weight": {"blocks": None}, "hidden.weight": {"blocks": (1, 2)}}
    found = blocks_by_name(Net(), overrides=overrides, split=True)
    assert found["attention.in_proj_weight"] is None
    assert found["hidden.weight"] == (1, 2)


@pytest.mark.parametrize("name", ["qkv", "Wqkv", "c_attn", "to_qkv", "in_proj_qkv"])
def test_fused_projections_are_known_by_name_and_shape(name: str) -> None:
    module = nn.ModuleDict({name: nn.Linear(4, 12), "head": nn.Linear(4, 2)})
    assert blocks_by_name(module, split=True)[f"{name}.weight"] == (3,)


class Conv1D(nn.Module):
    """As GPT-2 of transformers has it: a linear layer whose weight is (in, out)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 12))


def test_a_projection_with_its_outputs_in_columns_is_cut_there() -> None:
    module = nn.ModuleDict({"c_attn": Conv1D(), "head": nn.Linear(4, 2)})
    assert blocks_by_name(module, split=True)["c_attn.weight"] == (1, 3)


def test_heads_in_turns_and_fewer_keys_are_one_matrix() -> None:
    module = nn.ModuleDict(
        {
            "query_key_value": nn.Linear(4, 12),  # head by head
            "qkv_proj": nn.Linear(4, 8),  # fewer keys and values than queries
            "head": nn.Linear(4, 2),
        }
    )
    assert set(blocks_by_name(module, split=True).values()) == {None}


class ManyExperts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.randn(3, 8, 5))
        self.down_proj = nn.Parameter(torch.randn(3, 5, 4))


class TurnedExperts(ManyExperts):
    """As transformers marks experts whose matrices are (in, out)."""

    is_transposed = True


class OtherLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 8, 5))


def test_experts_are_known_by_the_name_of_their_layer() -> None:
    module = nn.ModuleDict(
        {"a": ManyExperts(), "b": TurnedExperts(), "c": OtherLayer(), "head": nn.Linear(4, 2)}
    )
    assert blocks_by_name(module)["a.gate_up_proj"] == (3,)
    assert blocks_by_name(module, split=True) == {
        "a.gate_up_proj": (3, 2),
        "a.down_proj": (3,),
        "b.gate_up_proj": (3,),
        "b.down_proj": (3,),
        "c.weight": None,
        "head.weight": None,
    }


def test_kernels_under_weight_norm_are_read_by_their_layer() -> None:
    layer = nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 6, 3, groups=2))
    found = blocks_by_name(nn.Sequential(layer, nn.Linear(6, 2)))
    assert found["0.parametrizations.weight.original1"] == (2,)


def test_depthwise_kernels_stay_one_matrix_of_channels_by_taps() -> None:
    row = next(r for r in explain(BADM(Net())).rows if r.name == "depthwise.weight")
    assert (row.kind, row.used, row.matrix, row.matrices) == ("matrix", "spectral", (6, 9), 1)


def test_explain_says_how_each_is_read() -> None:
    text = str(explain(BADM(parameter_groups(Net(), split=True))))
    lines = {line.split()[0]: line for line in text.splitlines()}
    assert "3 of 4 × 4" in lines["attention.in_proj_weight"]
    assert "query, key and value" in lines["attention.in_proj_weight"]
    assert "2 of 3 × 18" in lines["grouped.weight"]
    assert "2 of 3 × 8" in lines["up.weight"]
    assert "5 of 3 × 4" in lines["pairs.weight"]
    assert "4 gates" in lines["lstm.weight_hh_l0"]


@every_metric
def test_a_checkpoint_of_before_loads_and_continues_as_it_was(metric: str) -> None:
    """Then all matrices of a model were one group, and each parameter was one matrix."""

    def groups(model: nn.Module) -> list[dict[str, Any]]:
        whole = dict.fromkeys(LABELS, metric)
        plain = parameter_groups(model, metric=metric, split=True)
        names = {p: name for name, p in model.named_parameters()}
        merged: dict[Any, dict[str, Any]] = {}
        order = {name: i for i, name in enumerate(names.values())}
        for group in plain:
            for p in group["params"]:
                used = whole.get(names[p], "diagonal")
                if names[p] == "head.weight" and metric != "spectral":
                    used = "diagonal"
                place = 2 if p.ndim < 2 else 0 if used == metric else 1
                merged.setdefault(place, {"params": [], "metric": used})["params"].append(p)
        for group in merged.values():
            group["params"].sort(key=lambda p: order[names[p]])
        return [merged[place] for place in sorted(merged)]

    old = Net().double()
    optimizer = BADM(groups(old))
    params = list(old.parameters())
    drive(optimizer, params, 6)
    saved = copy.deepcopy(optimizer.state_dict())
    for group in saved["param_groups"]:
        del group["blocks"]

    new = Net().double()
    new.load_state_dict(old.state_dict())
    resumed = BADM(parameter_groups(new, metric=metric, split=True))
    with pytest.warns(UserWarning, match="the loaded state has metric="):
        resumed.load_state_dict(saved)
    runs = ((optimizer, old), (resumed, new))
    ends = [drive(o, list(model.parameters()), 6, start=6) for o, model in runs]
    assert_near(*ends, 1e-12)  # other stacks round otherwise


def test_blocks_that_do_not_divide_are_refused() -> None:
    (w,) = parameters([(7, 4)])
    with pytest.raises(ValueError, match=r"blocks must divide .* blocks=\(3,\) .* shape \(7, 4\)"):
        BADM([w], blocks=3)
    for wrong in (0, 1.5, "3", (2, -1), True):
        with pytest.raises(ValueError, match="blocks must be a whole number of at least 1"):
            BADM([w], blocks=wrong)


def test_a_metric_that_reads_one_matrix_refuses_blocks_and_gets_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(metrics._METRICS, RowScaled.name, RowScaled())
    (w,) = parameters([(6, 4)])
    with pytest.raises(ValueError, match="reads each parameter as one matrix"):
        BADM([w], metric=RowScaled.name, blocks=2)
    assert set(blocks_by_name(Net(), metric=RowScaled.name).values()) == {None}


def test_blocks_changed_on_the_way_start_the_state_anew_and_say_so() -> None:
    params = parameters([(6, 4)])
    optimizer = BADM(params)
    drive(optimizer, params, 3)
    optimizer.param_groups[0]["blocks"] = 2
    with pytest.warns(UserWarning, match=r"changed from 'spectral' to 'spectral' with blocks"):
        drive(optimizer, params, 1)
    assert optimizer.state[params[0]]["peak"].shape == (2,)


def test_elementwise_metrics_step_alike_with_blocks() -> None:
    ends = []
    for blocks in (None, 2):
        params = parameters([(6, 4), (4,)])
        ends.append(drive(BADM(params, metric="diagonal", blocks=blocks), params, 5))
    assert_identical(*ends)


def sharded() -> dict[str, list[Tensor]]:
    mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
    trained = {}
    for metric in OF_MATRICES:
        model = Net().double()
        for layer in (model.attention, model.grouped, model.lstm, model.pairs):
            fully_shard(layer, mesh=mesh)
        model = fully_shard(model, mesh=mesh)
        optimizer = BADM(parameter_groups(model, metric=metric, split=True))
        whole = [p.full_tensor() for p in model.parameters()]
        for step in range(8):
            for p, g in zip(model.parameters(), restless(step, whole), strict=True):
                p.grad = torch.distributed.tensor.distribute_tensor(g, mesh, p.placements)
            optimizer.step()
            whole = [p.full_tensor().detach() for p in model.parameters()]
        trained[metric] = whole
    return trained


@pytest.mark.distributed
@pytest.mark.slow
def test_fsdp2_equals_one_process() -> None:
    expected = {}
    for metric in OF_MATRICES:
        model = Net().double()
        groups = parameter_groups(model, metric=metric, split=True)
        expected[metric] = drive(BADM(groups), list(model.parameters()), 8)
    for trained in on_ranks(3, sharded):
        for metric, params in trained.items():
            assert_near(params, expected[metric], 1e-10)
