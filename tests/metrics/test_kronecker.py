"""The kronecker metric: its bases, when they are renewed, and a dual that turns with them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from badm import BADM, parameter_groups
from badm.metrics import eigenbases
from tests.helpers.support import (
    PATHS,
    assert_near,
    basis_of,
    drive,
    duals,
    normal,
    parameters,
    restless,
)

SIDES = ("left", "right")


def matrix(x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], -1)


def into(x: Tensor, state: dict[str, Any]) -> Tensor:
    """``U_Lᵀ x U_R`` of every block"""
    x = eigenbases.to_blocks(matrix(x)[None])
    return basis_of(state, "left", x).mT @ x @ basis_of(state, "right", x)


def out_of(x: Tensor, state: dict[str, Any]) -> Tensor:
    """``U_L x U_Rᵀ`` of every block"""
    return basis_of(state, "left", x) @ x @ basis_of(state, "right", x).mT


@pytest.fixture
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sides of more than four are cut, or of more than two if the other one has one or two."""
    monkeypatch.setattr(eigenbases, "SHORTEST", 4)
    monkeypatch.setattr(eigenbases, "LONGEST", 4)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bases_stay_orthonormal(path: str, dtype: torch.dtype) -> None:
    params = parameters(((6, 4), (6, 4), (5, 5), (3, 2, 2, 2)), dtype=dtype)
    optimizer = BADM(params, metric="kronecker", **PATHS[path])
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    for step in range(0, 120, 3):
        drive(optimizer, params, 3, start=step)
        for w in params:
            for side, length in zip(SIDES, matrix(w).shape, strict=True):
                basis = optimizer.state[w][f"{side}_basis"]
                identity = torch.eye(length, dtype=dtype)[None]
                torch.testing.assert_close(basis.mT @ basis, identity, rtol=0, atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("side", SIDES)
def test_bases_come_to_diagonalise_a_fixed_covariance(side: str) -> None:
    """Gradients A·Q with Q orthogonal have ggᵀ = AAᵀ whatever Q: U_L finds its eigenvectors."""
    truth = torch.linalg.qr(normal((5, 5), 1)).Q
    a = truth * torch.tensor([8.0, 4.0, 2.0, 1.0, 0.5], dtype=torch.float64)

    def gradients(step: int, w: Any) -> list[Tensor]:
        g = a @ torch.linalg.qr(normal((5, 5), 100 + step)).Q
        return [g if side == "left" else g.mT]

    params = parameters(((5, 5),))
    optimizer = BADM(params, metric="kronecker")
    drive(optimizer, params, 60 * eigenbases.REFRESH_EVERY, gradients)
    overlap = (optimizer.state[params[0]][f"{side}_basis"][0].mT @ truth).abs()
    torch.testing.assert_close(overlap, torch.eye(5, dtype=torch.float64), rtol=0, atol=1e-6)


@pytest.mark.parametrize("path", PATHS)
def test_the_second_moment_changes_places_with_the_columns_of_the_bases(path: str) -> None:
    """Columns are put in order of their eigenvalues, and what belongs to one goes with it.

    Diagonal gradients keep both bases among the axes, so that a refresh can only reorder; in the
    middle of the run the small eigenvalues become the large ones.
    """
    beta2 = 0.9
    (w,) = parameters(((4, 4),))
    optimizer = BADM([w], metric="kronecker", beta2=beta2, **PATHS[path])
    sizes = torch.tensor([3.0, 4.0, 5.0, 6.0], dtype=torch.float64)
    reordered = 0
    for step in range(20 * eigenbases.REFRESH_EVERY):
        g = torch.diag(sizes if step < 10 * eigenbases.REFRESH_EVERY else sizes.flip(0))
        before = {k: v.clone() for k, v in optimizer.state.get(w, {}).items() if "_in" not in k}
        drive(optimizer, [w], 1, lambda *_, g=g: [g])
        if step == 0:
            continue  # the first step starts the second moment anew
        after = optimizer.state[w]
        left, right = ((before[f"{s}_basis"].mT @ after[f"{s}_basis"]).abs() for s in SIDES)
        moment = beta2 * before["second_moment"] + (1 - beta2) * into(g, before).square()
        expected = left.mT @ moment @ right
        torch.testing.assert_close(after["second_moment"], expected, rtol=1e-9, atol=1e-9)
        reordered += not torch.equal(left[0].round(), torch.eye(4, dtype=torch.float64))
    assert reordered > 0


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5), (4, 2, 2, 2)])
def test_the_dual_turns_with_the_bases(path: str, shape: tuple[int, ...]) -> None:
    follow_a_plain_form(path, shape)


@pytest.mark.usefixtures("short_blocks")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("shape", [(3, 7), (7, 3), (7, 9), (2, 3, 2, 2)])
def test_each_block_has_bases_of_its_own(path: str, shape: tuple[int, ...]) -> None:
    """As above; none of these shapes is a multiple of its blocks."""
    state = follow_a_plain_form(path, shape)
    assert len(state["left_basis"]) == len(state["right_basis"]) > 1


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("shape", "turned"), [((6, 4), "right"), ((4, 6), "left"), ((3, 2, 2, 2), "left")]
)
def test_a_side_beyond_the_limit_keeps_the_identity(
    path: str, shape: tuple[int, ...], turned: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eigenbases, "LIMIT", 5)
    state = follow_a_plain_form(path, shape)
    assert [side for side in SIDES if f"{side}_basis" in state] == [turned]
    assert [side for side in SIDES if f"{side}_covariance" in state] == [turned]
    basis = state[f"{turned}_basis"]
    assert not torch.allclose(basis, torch.eye(basis.shape[-1], dtype=basis.dtype)[None])


@pytest.mark.parametrize("path", PATHS)
def test_beyond_the_limit_no_row_depends_on_where_it_stands(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eigenbases, "LIMIT", 5)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    (start,) = parameters(((6, 4),))
    ends = []
    for rows in (torch.arange(6), order):
        w = torch.nn.Parameter(start.detach()[rows].clone())
        optimizer = BADM([w], 0.02, metric="kronecker", **PATHS[path])
        for step in range(40):
            w.grad = restless(step, [start])[0][rows]
            optimizer.step()
        ends.append(w)
    assert_near([ends[1]], [ends[0][order]], 1e-12)


def test_a_matrix_with_both_sides_beyond_the_limit_has_the_diagonal_metric(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(eigenbases, "LIMIT", 5)
    ends = []
    for metric in ("kronecker", "diagonal"):
        params = parameters(((6, 7),))
        ends.append(drive(BADM(params, 0.1, metric=metric), params, 12))
    assert_near(ends[0], ends[1], 1e-14)


def follow_a_plain_form(path: str, shape: tuple[int, ...]) -> dict[str, Any]:
    """A plain form of the step that keeps its dual out of the basis, and never has to turn it.

    m⁺ = m + θ(g − m),  w⁺ = w − lr·U_L[(U_Lᵀ(2m⁺ − m)U_R)/(√v̂ + ε)]U_Rᵀ
    """
    lr, beta, beta2, eps = 0.02, 0.8, 0.95, 1e-8
    params = parameters((shape, shape))
    optimizer = BADM(params, lr, beta, metric="kronecker", beta2=beta2, eps=eps, **PATHS[path])
    w = [p.detach().clone() for p in params]
    m = [torch.zeros_like(x) for x in w]
    for step in range(60):
        for i, g in enumerate(restless(step, params)):
            state = optimizer.state.get(params[i], {})
            t = float(state.get("step", torch.zeros(()))) + 1
            v = state["second_moment"] if state else torch.zeros_like(into(g, {}))
            v = beta2 * v + (1 - beta2) * into(g, state).square()
            d = (1 - beta) * (g - m[i])
            m[i] = m[i] + d
            scaled = into(m[i] + d, state) / ((v / (1 - beta2**t)).sqrt() + eps)
            x = eigenbases.from_blocks(out_of(scaled, state), *matrix(g).shape)
            w[i] = w[i] - lr * x.reshape(shape)
        drive(optimizer, params, 1, start=step)
        assert_near(params, w, 1e-12)
        assert_near(duals(optimizer), m, 1e-12)
    return optimizer.state[params[0]]


def test_the_first_step_is_a_diagonal_step() -> None:
    ends = []
    for metric in ("kronecker", "diagonal"):
        params = parameters(((6, 4), (3, 2, 2, 2)))
        ends.append(drive(BADM(params, 0.1, metric=metric), params, 1))
    assert_near(ends[0], ends[1], 1e-14)


@pytest.mark.parametrize(
    ("shape", "grid"),
    [
        ((64, 128), (1, 1)),
        ((32, 256), (1, 1)),
        ((32, 300), (1, 1)),
        ((32, 400), (1, 2)),
        ((64, 512), (1, 2)),
        ((2048, 512), (4, 1)),
        ((600, 512), (1, 1)),
        ((513, 64), (2, 1)),
        ((2, 256), (1, 1)),
        ((4096, 4096), (1, 1)),
        ((4097, 9000), (2, 3)),
        ((10_000, 64), (39, 1)),
        ((10_001, 64), (1, 1)),  # keeps the identity
        ((12_000, 5000), (1, 2)),
    ],
)
def test_only_a_side_longer_than_the_other_is_cut(
    shape: tuple[int, int], grid: tuple[int, int]
) -> None:
    assert eigenbases.grid(*shape) == grid


@pytest.mark.parametrize("metric", ["kronecker", "kronecker-spectral"])
def test_a_state_with_larger_blocks_loads_with_its_dual_and_trains_on(
    metric: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (w,) = parameters(((4, 12),))
    old = BADM([w], 0.02, metric=metric)
    drive(old, [w], 7)
    left, right = eigenbases.bases([old.state[w]])
    dual = eigenbases.rotate_back(old.state[w]["dual"], left, right)[0]

    monkeypatch.setattr(eigenbases, "SHORTEST", 4)
    (w2,) = parameters(((4, 12),))
    new = BADM([w2], 0.02, metric=metric)
    new.load_state_dict(old.state_dict())
    assert new.state[w2]["dual"].shape == (3, 4, 4)
    assert_near([eigenbases.from_blocks(new.state[w2]["dual"], 4, 12)[0]], [dual], 1e-12)
    assert float(new.state[w2]["step"]) == 0
    drive(new, [w2], 7)
    assert w2.isfinite().all()
    other = BADM(parameters(((4, 11),)), 0.02, metric=metric)
    with pytest.raises(ValueError, match="does not match"):
        other.load_state_dict(old.state_dict())


@pytest.mark.slow
@given(n=st.integers(1, 3), rows=st.integers(1, 40), cols=st.integers(1, 40))
def test_blocks_cover_a_matrix_once(n: int, rows: int, cols: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"SHORTEST": 3, "LONGEST": 7}.items():
            patch.setattr(eigenbases, name, value)
        x = torch.arange(1, n * rows * cols + 1).view(n, rows, cols)
        blocks = eigenbases.to_blocks(x)
        assert max(blocks.shape[1:]) <= 7
        for matrix, own in zip(x, blocks.chunk(n), strict=True):
            assert sorted(own[own > 0].tolist()) == matrix.flatten().tolist()
        assert torch.equal(eigenbases.from_blocks(blocks, rows, cols), x)


@pytest.mark.usefixtures("short_blocks")
@pytest.mark.parametrize("path", PATHS)
def test_blocks_step_as_matrices_would(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A matrix of two blocks against its halves, from the first step on."""
    monkeypatch.setattr(eigenbases, "place_by_weights", lambda w: 0)
    options: dict[str, Any] = {"lr": 0.02, "metric": "kronecker", **PATHS[path]}
    (matrix,) = parameters(((3, 8),))
    halves = [half.detach().clone().requires_grad_() for half in matrix.chunk(2, dim=1)]
    together, apart = BADM([matrix], **options), [BADM([half], **options) for half in halves]
    for step in range(45):
        g = normal((3, 8), step)
        drive(together, [matrix], 1, lambda *_, g=g: [g])
        for optimizer, half, part in zip(apart, halves, g.chunk(2, dim=1), strict=True):
            drive(optimizer, [half], 1, lambda *_, part=part: [part])
    assert_near([matrix], [torch.cat(halves, 1)], 1e-12)


PATTERNS = {
    "matrices alone": [(3, 3)] * 40,
    "matrix and bias": [(3, 3), (3,)] * 40,
    "matrix, bias, gain, offset": [(3, 3), (3,), (3,), (3,)] * 40,
    "attention blocks": [(6, 3), (6,), (3, 3), (3,), (4, 3), (4,), (3, 4), (3,)] * 10,
    "ten to a block": ([(3, 3)] + [(3,)] * 9) * 30,
}


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(("made_by", "limit"), [("model", 1.5), ("list", 2.0)])
def test_no_step_refreshes_more_than_its_share(
    made_by: str, limit: float, pattern: str, path: str
) -> None:
    """In a list places come from the weights, as if drawn; in a model they are dealt out evenly."""
    shapes = PATTERNS[pattern]
    model = nn.ParameterList(parameters(shapes))
    params = list(model)
    given = parameter_groups(model, metric="kronecker", output=()) if made_by == "model" else params
    optimizer = BADM(given, metric="kronecker", **PATHS[path])
    matrices = [w for w in params if w.ndim == 2]
    period = eigenbases.REFRESH_EVERY
    # After two periods every matrix has had its first refresh and is in its place.
    drive(optimizer, params, 2 * period)
    refreshes: Counter[int] = Counter()
    last = [0] * len(matrices)
    before = [optimizer.state[w]["left_basis"].clone() for w in matrices]
    for step in range(2 * period):
        drive(optimizer, params, 1, start=2 * period + step)
        for i, w in enumerate(matrices):
            basis = optimizer.state[w]["left_basis"]
            if not torch.equal(basis, before[i]):
                refreshes[step] += 1
                last[i] += 1
                before[i] = basis.clone()
    assert last == [2] * len(matrices)  # every matrix once in a period
    share = len(matrices) / period
    assert max(refreshes.values()) <= limit * share + 1


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("shape", [(40, 8), (8, 40), (600, 7)])
def test_what_no_gradient_reaches_does_not_move(path: str, shape: tuple[int, int]) -> None:
    """Rows or columns, also where a long side is cut: not by a rounding that the metric scales."""
    long = 0 if shape[0] > shape[1] else 1
    (w,) = params = parameters((shape,), dtype=torch.float32)
    optimizer = BADM(params, lr=0.01, metric="kronecker", **PATHS[path])
    before = w.detach().clone()
    reached = torch.arange(10, 20)

    def gradients(step: int, w: Any) -> list[Tensor]:
        g = torch.zeros(shape)
        part = normal((10, min(shape)), step, torch.float32)
        return [g.index_copy(long, reached, part if long == 0 else part.mT)]

    drive(optimizer, params, 50, gradients)
    moved = (w.detach() - before).abs().amax(1 - long)
    assert moved[reached].min() > 0.01
    others = torch.ones(max(shape), dtype=torch.bool).index_fill(0, reached, value=False)
    assert torch.equal(moved[others], torch.zeros(max(shape) - 10))


@pytest.mark.parametrize("path", PATHS)
def test_what_only_the_first_gradient_reaches_goes_as_far_as_in_the_diagonal_metric(
    path: str,
) -> None:
    far = {}
    for metric in ("diagonal", "kronecker"):
        (w,) = params = parameters(((12, 6),), dtype=torch.float32)
        before = w.detach().clone()

        def gradients(step: int, w: Any) -> list[Tensor]:
            g = normal((12, 6), step, torch.float32)
            g[0] = 0
            g[:, 0] = 0
            if step == 0:
                g[0, 0] = 3.0  # a block of its own in both covariances
            return [g]

        optimizer = BADM(params, lr=0.01, metric=metric, beta2=0.999, **PATHS[path])
        drive(optimizer, params, 60, gradients)
        far[metric] = (w.detach() - before)[0, 0].item()
    assert far["kronecker"] == pytest.approx(far["diagonal"], rel=1e-3)
