"""The C kernels of two metrics: built, right, and done without where they are missing."""

from __future__ import annotations

import ctypes
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from badm import BADM, metrics
from badm.metrics import kernel
from tests.helpers.support import (
    SHAPES,
    assert_identical,
    assert_near,
    drive,
    normal,
    parameters,
    trajectory,
)

LARGE = ((400, 500), (7,), (333, 3), (), (100_003,))  # more than two threads' worth of elements
OPTIONS = {"metric": "diagonal", "lr": 0.01, "weight_decay": 0.1}
EUCLIDEAN = {**OPTIONS, "metric": "euclidean"}
PATHS = ({"foreach": False}, {"foreach": True}, {"fused": True})

both_metrics = pytest.mark.parametrize("options", [EUCLIDEAN, OPTIONS], ids=lambda o: o["metric"])


def given(step: int, params: Sequence[Tensor]) -> list[Tensor]:
    """Gradients that do not depend on the point: nothing amplifies a difference in rounding."""
    return [normal(w.shape, 97 * step + i, w.dtype) for i, w in enumerate(params)]


@pytest.fixture
def without_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "_library", lambda: None)


@pytest.fixture
def torch_threads() -> Iterator[None]:
    """Whatever a test sets."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tensors each call of the kernel was given."""
    counts: list[int] = []
    real = kernel._call

    def counted(name, block, *rest):
        counts.append(len(block.params))
        return real(name, block, *rest)

    monkeypatch.setattr(kernel, "_call", counted)
    return counts


def test_the_kernel_is_built_here() -> None:
    assert kernel.available()


@both_metrics
def test_fused_steps_use_the_kernel(options: dict[str, Any], calls: list[int]) -> None:
    trajectory(steps=2, fused=True, **options)
    assert calls == [len(SHAPES)] * 2


@both_metrics
def test_other_paths_do_not_use_the_kernel(options: dict[str, Any], calls: list[int]) -> None:
    trajectory(steps=2, foreach=True, **options)
    trajectory(steps=2, foreach=False, **options)
    assert calls == []


def test_half_precision_does_not_use_the_kernel(calls: list[int]) -> None:
    trajectory(steps=2, dtype=torch.bfloat16, fused=True, **OPTIONS)
    assert sum(calls) == 0


@both_metrics
def test_tensors_the_kernel_cannot_read_are_left_to_foreach(
    options: dict[str, Any], calls: list[int]
) -> None:
    """Non-contiguous ones beside contiguous ones, in one group."""

    def run(**flags: bool) -> list[Tensor]:
        plain, turned = parameters(((4, 6), (4, 6)))
        params = [plain, turned.detach().T.requires_grad_()]
        return drive(BADM(params, **options, **flags), params, 10)

    assert_near(run(fused=True), run(foreach=False), 1e-13)
    assert calls == [1] * 10


@both_metrics
def test_a_parameter_transposed_between_steps_is_not_mistaken(options: dict[str, Any]) -> None:
    """Its memory has the same address and size, and another order."""

    def run(**flags: bool) -> list[Tensor]:
        (w,) = parameters(((4, 4),))
        optimizer = BADM([w], **options, **flags)
        drive(optimizer, [w], 2, given)
        w.data = w.data.T
        return drive(optimizer, [w], 2, given)

    assert_near(run(fused=True), run(foreach=False), 1e-13)


@both_metrics
def test_without_the_kernel_fused_is_foreach(options: dict[str, Any], without_kernel: None) -> None:
    assert not kernel.available()
    fused = trajectory(fused=True, **options)
    assert_identical(fused, trajectory(foreach=True, **options))


def test_a_dual_that_was_scaled_for_the_kernel_of_torch_is_unscaled() -> None:
    """As in an optimizer that was pickled by an older version."""
    params, twins = parameters(((3, 4),)), parameters(((3, 4),))
    optimizer, twin = (BADM(w, fused=True, **EUCLIDEAN) for w in (params, twins))
    for each, w in ((optimizer, params), (twin, twins)):
        drive(each, w, 3, given)
    state = optimizer.state[params[0]]
    state["dual"].mul_(5.0)
    state["dual_scale"] = 5.0
    assert_near(drive(optimizer, params, 3, given), drive(twin, twins, 3, given), 1e-13)
    assert set(state) == {"dual"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_gradients_whose_squares_overflow_are_limited_on_every_path(dtype: torch.dtype) -> None:
    """The second moment stays finite, and the step has the size of one after any other spike."""
    large = 1e200 if dtype == torch.float64 else 1e30

    def spike(size: float) -> Callable[[int, Sequence[Tensor]], list[Tensor]]:
        return lambda step, params: [(size if step == 3 else 1) * g for g in given(step, params)]

    ends = []
    for flags in PATHS:
        params = parameters(((3, 50),), dtype=dtype)
        optimizer = BADM(params, **OPTIONS, **flags)
        ends.append(drive(optimizer, params, 6, spike(large)))
        assert optimizer.state[params[0]]["second_moment"].isfinite().all()
    ordinary = trajectory(((3, 50),), 6, dtype, spike(1e8), foreach=False, **OPTIONS)
    close = 1e-2 if dtype == torch.bfloat16 else 1e-4
    for end in (ends[1], ends[2], ordinary):
        assert_near(end, ends[0], close)


def test_gradients_whose_squares_are_finite_are_used_bit_for_bit() -> None:
    exponents = torch.arange(-149.0, 63.0, 0.25)
    g = torch.cat([2.0**exponents, -(2.0**exponents), torch.tensor([0.0, -0.0])])
    limited = metrics.find("diagonal").limit(g)
    assert torch.equal(limited.view(torch.int32), g.view(torch.int32))


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("beta2", [0.0, 0.5, 0.999])
@pytest.mark.parametrize("beta", [0.0, 0.5, 0.95])
@both_metrics
def test_double_precision_agrees_with_the_loop(
    options: dict[str, Any], beta: float, beta2: float, maximize: bool
) -> None:
    options = {**options, "beta": beta, "beta2": beta2, "maximize": maximize}
    loop = trajectory(steps=100, gradients=given, foreach=False, **options)
    assert_near(trajectory(steps=100, gradients=given, fused=True, **options), loop, 1e-13)


@both_metrics
def test_single_precision_agrees_with_the_loop_within_rounding(options: dict[str, Any]) -> None:
    loop, fused = (
        trajectory(steps=100, dtype=torch.float32, **flags, **options)
        for flags in ({"foreach": False}, {"fused": True})
    )
    assert_near(fused, loop, 2e-6)


def test_single_and_double_precision_in_one_group() -> None:
    def run(**flags: bool) -> list[Tensor]:
        params = parameters(((3, 4), (5,)), dtype=torch.float32) + parameters(((3, 4), (5,)))
        return drive(BADM(params, **OPTIONS, **flags), params, 20)

    assert_near(run(fused=True), run(foreach=False), 1e-6)


@pytest.mark.parametrize("started_by", ["torch", "the kernel"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_threads_do_not_change_a_bit(
    dtype: torch.dtype, started_by: str, torch_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if started_by == "torch":
        assert kernel._team()
    else:
        monkeypatch.setattr(kernel, "_team", lambda: None)
    ends = []
    for count in (1, 2, 5):
        torch.set_num_threads(count)
        ends.append(trajectory(LARGE, 3, dtype, given, fused=True, **OPTIONS))
    assert sum(w.numel() for w in ends[0]) > 131_072
    assert_identical(ends[1], ends[0])
    assert_identical(ends[2], ends[0])


class Team:
    """Stands for ``GOMP_parallel``: of the threads asked for, a few come, one after another."""

    def __init__(self, coming: int) -> None:
        self.coming = coming
        self.asked_for: list[int] = []
        work = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        kind = ctypes.CFUNCTYPE(None, work, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
        self.function = kind(self.run)

    def run(self, work: Any, argument: int, threads: int, flags: int) -> None:
        self.asked_for.append(threads)
        for _ in range(self.coming):
            work(argument)

    def __call__(self) -> int | None:
        return ctypes.cast(self.function, ctypes.c_void_p).value


@pytest.mark.parametrize("threads", [2, 7, 1000])
@pytest.mark.parametrize("coming", [1, 3])
def test_threads_that_never_come_are_not_missed(
    coming: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = trajectory(LARGE, 3, gradients=given, fused=True, **OPTIONS)
    team = Team(coming)
    monkeypatch.setattr(kernel, "_team", team)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert_identical(trajectory(LARGE, 3, gradients=given, fused=True, **OPTIONS), expected)
    assert team.asked_for == [threads] * 3


def test_few_elements_are_no_work_for_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    team = Team(1)
    monkeypatch.setattr(kernel, "_team", team)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    trajectory(steps=2, fused=True, **OPTIONS)
    assert team.asked_for == []


def _step_in_child(queue: multiprocessing.Queue, optimizer: BADM) -> None:
    optimizer.step()
    queue.put([w.detach().numpy() for w in optimizer.param_groups[0]["params"]])


@pytest.mark.parametrize("shapes", [SHAPES, LARGE], ids=["one thread", "two threads"])
def test_a_forked_process_can_step(shapes: Sequence[Sequence[int]], torch_threads: None) -> None:
    """As a worker does that was forked from a process in which the kernel had run.

    It has none of torch's threads, so that the kernel must not wait for them.
    """
    torch.set_num_threads(2)
    params = parameters(shapes)
    optimizer = BADM(params, fused=True, **OPTIONS)
    drive(optimizer, params, 2, given)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_step_in_child, args=(queue, optimizer))
    child.start()
    try:
        result = queue.get(timeout=60)
        child.join()
    finally:
        child.kill()
    assert child.exitcode == 0
    optimizer.step()
    assert_identical([torch.from_numpy(w) for w in result], params)


def test_autograd_notices_what_the_kernel_changed() -> None:
    (w,) = parameters(((3,),))
    optimizer = BADM([w], fused=True, **OPTIONS)
    loss = w.square().sum()
    w.grad = torch.ones_like(w)
    version = w._version
    optimizer.step()
    assert w._version > version
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
