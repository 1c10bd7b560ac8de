"""What any optimizer of torch promises, crossed over metrics, paths and types."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from badm import BADM
from tests.helpers.support import (
    METRICS,
    PATHS,
    SHAPES,
    assert_identical,
    assert_near,
    drive,
    normal,
    parameters,
    restless,
    trajectory,
    values,
)

HALF = (torch.bfloat16, torch.float16)
REAL = (torch.float32, torch.float64, *HALF)
COMPLEX = (torch.complex64, torch.complex128)

# How far two ways of rounding may part in a few steps of length 0.01. A half precision parameter
# is rounded after every step, so the last of its bits may differ.
TOLERANCE = {
    torch.float64: 1e-12,
    torch.complex128: 1e-12,
    torch.float32: 1e-5,
    torch.complex64: 1e-5,
    torch.bfloat16: 2e-2,
    torch.float16: 1e-2,
}

every_metric = pytest.mark.parametrize("metric", METRICS)
every_path = pytest.mark.parametrize("path", PATHS)


def noise(step: int, params: Any) -> list[Tensor]:
    return [normal(w.shape, 89 * step + i, w.dtype) for i, w in enumerate(params)]


def zeros(step: int, params: Any) -> list[Tensor]:
    return [torch.zeros_like(w) for w in params]


@pytest.mark.every_case
@every_metric
@pytest.mark.parametrize("path", ["foreach", "fused"])
@pytest.mark.parametrize("dtype", [*REAL, *COMPLEX], ids=str)
@pytest.mark.parametrize(
    "options",
    [{}, {"weight_decay": 0.1, "maximize": True}, {"beta": 0.3, "beta2": 0.9, "eps": 1e-3}],
    ids=["default", "decay and ascent", "little memory"],
)
def test_every_path_equals_the_loop(
    metric: str, path: str, dtype: torch.dtype, options: dict[str, Any]
) -> None:
    common = {"dtype": dtype, "metric": metric, "lr": 0.01, **options}
    loop = trajectory(foreach=False, **common)
    assert_near(trajectory(**PATHS[path], **common), loop, TOLERANCE[dtype])


@every_metric
def test_foreach_is_the_default(metric: str) -> None:
    assert_identical(trajectory(metric=metric), trajectory(metric=metric, foreach=True))


@every_metric
@every_path
@pytest.mark.every_case
def test_parameters_move(metric: str, path: str) -> None:
    """Guards every comparison above: none would notice a step that does nothing."""
    moved = trajectory(metric=metric, lr=0.01, **PATHS[path])
    for before, after in zip(parameters(), moved, strict=True):
        assert (after - before).norm() > 0.01


# An lr at which each metric gets there, with room to spare.
PARABOLA = dict.fromkeys(METRICS, 0.6) | {"spectral": 0.3, "kronecker-spectral": 0.3}
ROSENBROCK = {
    "euclidean": 3e-3,
    "diagonal": 0.2,
    "spectral": 0.025,
    "kronecker": 0.2,
    "kronecker-spectral": 0.025,
}


@every_metric
@every_path
@pytest.mark.every_case
def test_converges_on_a_parabola(metric: str, path: str) -> None:
    """A metric that fixes the length of its steps comes to rest only as lr does."""
    target, (w,) = normal((4, 6), 9), parameters(((4, 6),))
    optimizer = BADM([w], lr=PARABOLA[metric], metric=metric, **PATHS[path])
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98)
    for _ in range(400):
        optimizer.zero_grad()
        (0.5 * (w - target).square().sum()).backward()
        optimizer.step()
        scheduler.step()
    assert (w - target).abs().max() < 1e-3


@pytest.mark.slow
@every_metric
@every_path
def test_converges_on_rosenbrock(metric: str, path: str) -> None:
    w = torch.tensor([[-1.2, 1.0], [0.5, -0.5]], dtype=torch.float64, requires_grad=True)

    def loss() -> Tensor:
        x, y = w[:, 0], w[:, 1]
        return ((1 - x).square() + 100 * (y - x.square()).square()).sum()

    optimizer = BADM([w], lr=ROSENBROCK[metric], metric=metric, **PATHS[path])
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, total_iters=1500)
    start = loss().item()
    for _ in range(1500):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        scheduler.step()
    assert loss().item() < 5e-3 * start


@every_metric
@every_path
def test_without_a_gradient_a_parameter_and_its_state_stay(metric: str, path: str) -> None:
    params = parameters()
    optimizer = BADM(params, metric=metric, **PATHS[path])
    drive(optimizer, params, 3)
    optimizer.state_dict()  # fused duals lose their scale here, before they are compared
    still, moving = params[2], params[:2] + params[3:]
    before = still.detach().clone()
    state = {k: torch.as_tensor(v).clone() for k, v in optimizer.state[still].items()}
    others = values(moving)
    for w, g in zip(params, restless(3, params), strict=True):
        w.grad = g
    still.grad = None
    optimizer.step()
    optimizer.state_dict()
    assert torch.equal(still, before)
    assert set(optimizer.state[still]) == set(state)
    for key, value in state.items():
        assert torch.equal(torch.as_tensor(optimizer.state[still][key]), value)
    assert not any(torch.equal(a, b) for a, b in zip(moving, others, strict=True))


@every_metric
@every_path
def test_a_parameter_that_never_had_a_gradient_has_no_state(metric: str, path: str) -> None:
    params = parameters(((3, 3), (3, 3)))
    frozen = params[1].requires_grad_(False)
    before = frozen.clone()
    optimizer = BADM(params, metric=metric, **PATHS[path])
    params[0].square().sum().backward()
    optimizer.step()
    assert torch.equal(frozen, before)
    assert not optimizer.state.get(frozen)
    assert len(optimizer.state_dict()["state"]) == 1


@every_metric
@every_path
def test_a_parameter_that_gets_its_gradient_late_starts_then(metric: str, path: str) -> None:
    """Its first step is a first step: the step counts of others are none of its business."""
    early, late = parameters(((4, 3), (4, 3)))
    optimizer = BADM([early, late], metric=metric, lr=0.1, **PATHS[path])
    drive(optimizer, [early], 7)
    g = normal((4, 3), 5)
    late.grad = g.clone()
    optimizer.step()

    alone = parameters(((4, 3), (4, 3)))[1]
    drive(BADM([alone], metric=metric, lr=0.1, **PATHS[path]), [alone], 1, lambda *_: [g.clone()])
    assert_near([late], [alone], 1e-13)


@every_metric
@every_path
def test_empty_parameters_are_left_alone(metric: str, path: str) -> None:
    """And the others do not notice them."""
    options = {"steps": 12, "gradients": noise, "metric": metric, **PATHS[path]}
    with_empty = trajectory(((2, 2), (0,), (0, 3), (3, 0)), **options)
    assert [w.numel() for w in with_empty] == [4, 0, 0, 0]
    assert_near(with_empty[:1], trajectory(((2, 2),), **options), 1e-13)


LAYOUTS = {
    "transposed": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "strided": lambda x: torch.stack((x, x), -1)[..., 0],
}


@every_metric
@every_path
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("which", ["parameter", "gradient", "both"])
def test_the_order_of_memory_does_not_matter(
    metric: str, path: str, layout: str, which: str
) -> None:
    shape = (4, 3, 2, 2)
    plain, odd = parameters((shape,))[0], parameters((shape,))[0].detach()
    change = LAYOUTS[layout]
    if which != "gradient":
        odd = change(odd)
        assert not odd.is_contiguous()
    odd.requires_grad_()

    def gradients(step: int, params: Any) -> list[Tensor]:
        (g,) = restless(step, params)
        return [g if which == "parameter" else change(g)]

    options = {"metric": metric, "lr": 0.01, "weight_decay": 0.1, **PATHS[path]}
    expected = drive(BADM([plain], **options), [plain], 25)
    assert_near(drive(BADM([odd], **options), [odd], 25, gradients), expected, 1e-12)


@every_path
@pytest.mark.parametrize("metric", ["euclidean", "diagonal"])
@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_a_complex_parameter_is_its_pairs_of_reals(
    metric: str, path: str, dtype: torch.dtype
) -> None:
    params = parameters(dtype=dtype)
    pairs = [torch.view_as_real(w.detach().clone()).requires_grad_() for w in params]
    options = {"metric": metric, "lr": 0.01, "weight_decay": 0.1, **PATHS[path]}
    complex_end = drive(BADM(params, **options), params, 25, noise)
    real_end = drive(
        BADM(pairs, **options),
        pairs,
        25,
        lambda step, _: [torch.view_as_real(g) for g in noise(step, params)],
    )
    assert_identical([torch.view_as_real(w) for w in complex_end], real_end)


@every_path
@pytest.mark.parametrize("metric", ["spectral", "kronecker"])
@pytest.mark.parametrize("shape", [(), (5,), (4, 6)])
def test_a_complex_parameter_is_no_matrix(metric: str, path: str, shape: tuple[int, ...]) -> None:
    """Its real and imaginary parts are pairs, not a row of a matrix: it has the diagonal metric."""
    options = {"dtype": torch.complex128, "gradients": noise, "lr": 0.01, **PATHS[path]}
    diagonal = trajectory((shape,), metric="diagonal", **options)
    assert_near(trajectory((shape,), metric=metric, **options), diagonal, 1e-13)


@every_metric
@every_path
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_half_precision_parameters_have_single_precision_state(
    metric: str, path: str, dtype: torch.dtype
) -> None:
    params = parameters(dtype=dtype)
    optimizer = BADM(params, metric=metric, lr=0.01, **PATHS[path])
    drive(optimizer, params, 12)
    assert all(w.dtype == dtype for w in params)
    for state in optimizer.state.values():
        tensors = [value for value in state.values() if isinstance(value, Tensor)]
        tensors = [value for value in tensors if value.is_floating_point()]  # the rest counts
        assert tensors
        assert all(value.dtype == torch.float32 for value in tensors)


@every_path
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_small_changes_of_a_half_precision_dual_are_not_lost(path: str, dtype: torch.dtype) -> None:
    """(1−β)(g−m) is below half a last bit of m in bfloat16 and float16, and still adds up."""
    (w,) = parameters(((3,),), dtype=dtype)
    optimizer = BADM([w], lr=1e-6, beta=0.9999, metric="euclidean", **PATHS[path])
    ones = torch.ones_like(w)
    drive(optimizer, [w], 3000, lambda *_: [ones])
    expected = 1 - 0.9999**3000
    (state,) = optimizer.state_dict()["state"].values()
    torch.testing.assert_close(state["dual"], torch.full((3,), expected), rtol=1e-4, atol=0)


@every_metric
@every_path
def test_maximising_is_minimising_the_negated_loss(metric: str, path: str) -> None:
    options = {"metric": metric, "lr": 0.01, "weight_decay": 0.1, **PATHS[path]}
    up = trajectory(maximize=True, **options)
    down = trajectory(gradients=lambda k, w: [-g for g in restless(k, w)], **options)
    assert_near(up, down, 1e-12)


@every_metric
@every_path
def test_the_gradients_are_not_changed(metric: str, path: str) -> None:
    for maximize in (False, True):
        params = parameters()
        optimizer = BADM(params, metric=metric, maximize=maximize, **PATHS[path])
        gradients = restless(0, params)
        drive(optimizer, params, 1, lambda *_, gradients=gradients: [g.clone() for g in gradients])
        assert_identical([w.grad for w in params], gradients)


@every_metric
@every_path
def test_weight_decay_is_decoupled(metric: str, path: str) -> None:
    """w⁺ = (1 − lr·λ)w − lr·Q⁻¹u: the same u as without decay, for a first step from the same w."""
    lr, decay = 0.05, 0.3
    start = values(parameters())
    plain = trajectory(steps=1, metric=metric, lr=lr, **PATHS[path])
    decayed = trajectory(steps=1, metric=metric, lr=lr, weight_decay=decay, **PATHS[path])
    assert_near(decayed, [x - lr * decay * w for x, w in zip(plain, start, strict=True)], 1e-14)


@every_metric
@every_path
def test_weight_decay_alone_shrinks_by_the_formula(metric: str, path: str) -> None:
    ends = trajectory(
        steps=10, gradients=zeros, metric=metric, lr=0.1, weight_decay=0.5, **PATHS[path]
    )
    assert_near(ends, [0.95**10 * w for w in values(parameters())], 1e-13)


@every_path
@pytest.mark.parametrize("dtype", REAL, ids=str)
@pytest.mark.parametrize("decay", [0.1, 0.15, 0.5])
def test_weight_decay_is_exact_in_every_type(path: str, dtype: torch.dtype, decay: float) -> None:
    """1 − lr·λ is not rounded to the type of the parameter, whose 8 bits would make 0.99 0.988."""
    (w,) = parameters(((1000,),), dtype=dtype)
    exact = (w.detach().double() * (1 - 0.1 * decay)).to(dtype)
    optimizer = BADM([w], 0.1, metric="euclidean", weight_decay=decay, **PATHS[path])
    drive(optimizer, [w], 1, lambda *_: [torch.zeros_like(w)])
    bias = ((w.double() - exact.double()) / exact.double()).mean().abs()
    assert bias < 1e-2 * 0.1 * decay


@every_metric
@every_path
def test_nan_gradients_reach_their_parameter_and_no_other(metric: str, path: str) -> None:
    """As in torch.optim: nothing is raised, nothing is hidden, nothing spreads."""
    shapes = ((4, 4), (4, 4), (4, 4), (5,), (5,))

    def run(poison: bool) -> list[Tensor]:
        def gradients(step: int, params: Any) -> list[Tensor]:
            g = restless(step, params)
            if poison and step == 4:
                g[1][0, 0] = float("nan")
                g[3][0] = float("nan")
            return g

        return trajectory(shapes, 30, gradients=gradients, metric=metric, **PATHS[path])

    healthy, poisoned = run(poison=False), run(poison=True)
    assert poisoned[1].isnan().any()
    assert poisoned[3].isnan().any()
    for i in (0, 2, 4):
        assert_near([poisoned[i]], [healthy[i]], 1e-12)
    if metric in ("euclidean", "diagonal"):
        assert poisoned[1].isnan().sum() == 1
        assert poisoned[3].isnan().sum() == 1


@every_metric
@every_path
def test_infinite_gradients_do_not_raise(metric: str, path: str) -> None:
    (w,) = parameters(((3, 3),))
    optimizer = BADM([w], metric=metric, **PATHS[path])
    drive(optimizer, [w], 1, lambda *_: [torch.full((3, 3), float("inf"), dtype=w.dtype)])
    assert not w.isfinite().all()


@every_metric
@every_path
def test_a_zero_gradient_moves_nothing(metric: str, path: str) -> None:
    ends = trajectory(steps=25, gradients=zeros, metric=metric, **PATHS[path])
    assert_identical(ends, values(parameters()))


@every_metric
@every_path
def test_sparse_gradients_are_a_clear_error(metric: str, path: str) -> None:
    embedding = torch.nn.Embedding(7, 3, sparse=True)
    optimizer = BADM(embedding.parameters(), metric=metric, **PATHS[path])
    embedding(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(
        RuntimeError, match=r"dense gradients, got a sparse one .*\(7, 3\).*sparse=F"
    ):
        optimizer.step()


@every_metric
@every_path
def test_autograd_notices_a_step_between_forward_and_backward(metric: str, path: str) -> None:
    params = parameters()
    optimizer = BADM(params, metric=metric, **PATHS[path])
    drive(optimizer, params, 2)
    for w in params:
        loss = w.square().sum()
        optimizer.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def numbers_kept(optimizer: BADM, w: Tensor) -> int:
    """Elements of the state, but for those that are one number for a parameter."""
    state = optimizer.state[w]
    numbers = ("step", "peak")
    return sum(v.numel() for k, v in state.items() if isinstance(v, Tensor) and k not in numbers)


@every_path
@pytest.mark.parametrize(
    ("metric", "buffers"), [("euclidean", 1), ("diagonal", 2), ("spectral", 1)]
)
def test_buffers_per_parameter(metric: str, buffers: int, path: str) -> None:
    params = parameters()
    optimizer = BADM(params, metric=metric, **PATHS[path])
    drive(optimizer, params, 3)
    for w in params:
        is_matrix = w.ndim >= 2
        expected = buffers if is_matrix or metric != "spectral" else 2
        assert numbers_kept(optimizer, w) == expected * w.numel()
        assert optimizer.state[w].get("step", torch.zeros(())).numel() == 1


@every_metric
@every_path
def test_a_tied_parameter_steps_once(metric: str, path: str) -> None:
    """Modules list a shared weight once, and its gradients have been added up."""
    embedding, head = torch.nn.Embedding(6, 4), torch.nn.Linear(4, 6, bias=False)
    head.weight = embedding.weight
    model = torch.nn.Sequential(embedding, head).double()
    alone = model[0].weight.detach().clone().requires_grad_()
    optimizer = BADM(model.parameters(), metric=metric, **PATHS[path])
    model(torch.arange(6)).square().sum().backward()
    g = model[0].weight.grad.clone()
    optimizer.step()
    drive(BADM([alone], metric=metric, **PATHS[path]), [alone], 1, lambda *_: [g])
    assert_identical([model[1].weight], [alone])


def test_a_parameter_in_two_groups_is_an_error() -> None:
    (w,) = parameters(((3,),))
    with pytest.raises(ValueError, match="more than one parameter group"):
        BADM([{"params": [w]}, {"params": [w]}])


@every_path
def test_groups_have_their_own_metric_and_settings(path: str) -> None:
    settings: list[dict[str, Any]] = [
        {"metric": metric, "lr": 0.01 * (i + 1), "beta": 0.9 - 0.2 * i, "weight_decay": 0.1 * i}
        for i, metric in enumerate(METRICS)
    ]
    together = [parameters(seed=i) for i in range(len(settings))]
    flat = [w for group in together for w in group]
    optimizer = BADM(
        [{"params": params, **s} for params, s in zip(together, settings, strict=True)],
        **PATHS[path],
    )
    for step in range(25):
        for params in together:
            for w, g in zip(params, restless(step, params), strict=True):
                w.grad = g
        optimizer.step()
    alone = [parameters(seed=i) for i in range(len(settings))]
    for params, s in zip(alone, settings, strict=True):
        drive(BADM(params, **s, **PATHS[path]), params, 25)
    assert_identical(flat, [w for group in alone for w in group])


@every_path
def test_a_group_added_later_keeps_its_own_metric(path: str) -> None:
    first, second = parameters(seed=0), parameters(seed=1)
    optimizer = BADM(first, metric="euclidean", lr=0.01, **PATHS[path])
    drive(optimizer, first, 5)
    optimizer.add_param_group({"params": second, "metric": "diagonal", "lr": 0.02})
    drive(optimizer, second, 5)
    alone = parameters(seed=1)
    drive(BADM(alone, metric="diagonal", lr=0.02, **PATHS[path]), alone, 5)
    assert_identical(second, alone)
    assert optimizer.param_groups[1]["beta"] == optimizer.param_groups[0]["beta"]


@every_metric
def test_groups_of_several_types_step_together(metric: str) -> None:
    dtypes = (torch.float32, torch.float64, torch.bfloat16)

    def run(path: str) -> list[Tensor]:
        params = [w for dtype in dtypes for w in parameters(dtype=dtype)]
        return drive(BADM(params, metric=metric, lr=0.01, **PATHS[path]), params, 10)

    loop = run("loop")
    for path in ("foreach", "fused"):
        for actual, expected in zip(run(path), loop, strict=True):
            assert_near([actual], [expected], TOLERANCE[expected.dtype])


@pytest.mark.parametrize("metric", ["euclidean", "diagonal", "spectral"])
@pytest.mark.parametrize("path", ["foreach", "fused"])
def test_a_group_on_several_devices_steps(metric: str, path: str) -> None:
    """As of a model spread over two GPUs. The meta device stands for the second here.

    It has no QR, and so no kronecker metric.
    """
    params = parameters(((3, 4), (5,)))
    elsewhere = [torch.empty_like(w, device="meta").requires_grad_() for w in params]
    optimizer = BADM(params + elsewhere, metric=metric, lr=0.01, **PATHS[path])
    for w in elsewhere:
        w.grad = torch.empty_like(w)
    drive(optimizer, params, 5)
    alone = parameters(((3, 4), (5,)))
    assert_near(params, drive(BADM(alone, metric=metric, lr=0.01, **PATHS[path]), alone, 5), 1e-12)


def test_spectral_steps_have_the_size_of_adam_steps() -> None:
    """c = 0.4·√max(rows, cols) times an orthogonal matrix: root mean square 0.4 ± the band."""
    before = values(parameters(((40, 60),)))
    after = trajectory(((40, 60),), steps=1, metric="spectral", lr=1.0)
    rms = (after[0] - before[0]).square().mean().sqrt()
    assert 0.4 * 0.68 < rms < 0.4 * 1.33


def test_convolution_kernels_flatten_to_matrices() -> None:
    kernel, flat = parameters(((4, 3, 2, 2),))[0], parameters(((4, 12),))[0]
    assert torch.equal(kernel.reshape(4, 12), flat)
    ends = []
    for w in (kernel, flat):
        optimizer = BADM([w], metric="spectral", lr=0.1)
        for step in range(5):
            w.grad = normal((4, 12), step).reshape(w.shape)
            optimizer.step()
        ends.append(w.reshape(4, 12))
    assert_near(ends[:1], ends[1:], 1e-13)


@pytest.mark.parametrize("metric", ["spectral", "kronecker"])
@pytest.mark.parametrize("shape", [(), (5,), (1, 6), (6, 1), (1, 2, 3)])
def test_what_is_no_matrix_has_the_diagonal_metric(metric: str, shape: tuple[int, ...]) -> None:
    assert_identical(trajectory((shape,), metric=metric), trajectory((shape,), metric="diagonal"))


def test_under_a_constant_gradient_the_diagonal_step_is_that_of_adam() -> None:
    """Once the duals have met the gradient, 2m⁺ − m = g: the step has Adam's length lr."""
    ours, theirs = parameters(), parameters()
    constant = restless(0, ours)
    steps = []
    for params, optimizer in (
        (ours, BADM(ours, 0.01, metric="diagonal")),
        (theirs, torch.optim.Adam(theirs, 0.01)),
    ):
        before = drive(optimizer, params, 400, lambda *_: constant)
        after = drive(optimizer, params, 1, lambda *_: constant)
        steps.append([b - a for a, b in zip(before, after, strict=True)])
    assert_near(steps[0], steps[1], 1e-10)


def test_shapes_cover_what_the_metrics_tell_apart() -> None:
    """Guards the table: a scalar, a vector, square, wide and tall matrices, a kernel."""
    matrices = [s for s in SHAPES if len(s) == 2]
    assert () in SHAPES
    assert any(len(s) == 1 for s in SHAPES)
    assert any(len(s) == 4 for s in SHAPES)
    assert {(r > c) - (r < c) for r, c in matrices} == {-1, 0, 1}
