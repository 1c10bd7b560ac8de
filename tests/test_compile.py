"""``torch.compile`` of the step: the same result, and no new compilation when lr changes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from badm import BADM
from tests.helpers.support import (
    METRICS,
    PATHS,
    assert_identical,
    assert_near,
    parameters,
    restless,
    values,
)

STEPS = 4
SHAPES = ((5,), (3, 7), (3, 7))  # two of a shape make a stack


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def run(
    metric: str, path: str, lr: float | Tensor, backend: object = None, steps: int = STEPS
) -> tuple[list[Tensor], list[int]]:
    """The end of a run in which lr changes at every step, and how often it compiled by each."""
    params, compilations = parameters(SHAPES), []
    optimizer = BADM(params, lr, metric=metric, weight_decay=0.1, **PATHS[path])
    step = optimizer.step if backend is None else torch.compile(optimizer.step, backend=backend)
    (group,) = optimizer.param_groups
    for k in range(steps):
        if isinstance(lr, Tensor):
            lr.fill_(0.01 / (k + 1))
        else:
            group["lr"] = 0.01 / (k + 1)
        for w, g in zip(params, restless(k, params), strict=True):
            w.grad = g
        step()
        compilations.append(getattr(backend, "frame_count", 0))
    return values(params), compilations


def tensor_lr() -> Tensor:
    return torch.tensor(0.01, dtype=torch.float64)


@pytest.mark.slow
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("path", PATHS)
def test_a_compiled_step_equals_the_plain_one(metric: str, path: str) -> None:
    backend = CompileCounterWithBackend("eager")
    compiled, compilations = run(metric, path, tensor_lr(), backend)
    plain, _ = run(metric, path, tensor_lr())
    assert_near(compiled, plain, 1e-13)
    assert compilations[-1] > 0


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["euclidean", "diagonal", "spectral"])
@pytest.mark.parametrize("path", PATHS)
def test_a_changed_tensor_lr_does_not_compile_again(metric: str, path: str) -> None:
    """The first step makes the state, the second sees it there; from then on nothing is new."""
    _, compilations = run(metric, path, tensor_lr(), CompileCounterWithBackend("eager"))
    assert len(set(compilations[1:])) == 1, compilations


@pytest.mark.slow
def test_kronecker_compiles_no_more_once_its_bases_are_there() -> None:
    """Refreshes of single matrices are no reason: 25 steps have them all."""
    backend = CompileCounterWithBackend("eager")
    _, compilations = run("kronecker", "foreach", tensor_lr(), backend, steps=25)
    assert len(set(compilations[3:])) == 1, compilations


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["euclidean", "diagonal", "spectral"])
def test_the_step_is_one_graph(metric: str) -> None:
    """Nothing is left to Python in between, so nothing waits for the device.

    The one break is torch's own, at the door of every optimizer's step.
    """
    params = parameters(SHAPES)
    optimizer = BADM(params, tensor_lr(), metric=metric)
    for k in range(2):
        for w, g in zip(params, restless(k, params), strict=True):
            w.grad = g
        optimizer.step()
    torch._dynamo.utils.counters.clear()
    backend = CompileCounterWithBackend("eager")
    torch.compile(optimizer.step, backend=backend)()
    assert backend.frame_count == 1
    breaks = list(torch._dynamo.utils.counters["graph_break"])
    assert all(reason.startswith("Call to `torch._dynamo.graph_break()`") for reason in breaks)


@pytest.mark.slow
def test_the_kernel_is_called_not_traced() -> None:
    """Tracing would look for the library anew in each graph, and torch warns of it."""
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "error", message="Dynamo detected a call to a `functools.lru_cache`"
        )
        run("diagonal", "fused", tensor_lr(), CompileCounterWithBackend("eager"))


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["euclidean", "diagonal", "spectral"])
def test_the_traced_step_can_be_functionalised(metric: str) -> None:
    """aot_eager turns every in-place change into a pure one, as real compilers want it."""
    compiled, _ = run(metric, "foreach", tensor_lr(), CompileCounterWithBackend("aot_eager"), 3)
    assert_near(compiled, run(metric, "foreach", tensor_lr(), steps=3)[0], 1e-13)


@pytest.mark.slow
def test_inductor_makes_the_same_step() -> None:
    """Of the spectral metric, whose vectors have the diagonal one."""
    backend = CompileCounterWithBackend("inductor")
    compiled, _ = run("spectral", "foreach", tensor_lr(), backend)
    assert_near(compiled, run("spectral", "foreach", tensor_lr())[0], 1e-11)


@pytest.mark.slow
def test_plain_steps_after_compiled_ones_continue() -> None:
    """The state is the same state."""
    ends = []
    for compiled in (0, 3):
        params = parameters(SHAPES)
        optimizer = BADM(params, tensor_lr(), metric="diagonal", foreach=False)
        step = torch.compile(optimizer.step, backend="eager")
        for k in range(6):
            for w, g in zip(params, restless(k, params), strict=True):
                w.grad = g
            step() if k < compiled else optimizer.step()
        ends.append(values(params))
    assert_identical(ends[0], ends[1])


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["euclidean", "diagonal", "spectral"])
def test_a_fresh_optimizer_of_several_groups_is_one_graph(metric: str) -> None:
    """Its states are made while it is compiled, those of all groups: as in torch's optimizers."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 4), nn.LayerNorm(4), nn.Linear(4, 4))
    optimizer = BADM(model, tensor_lr(), metric=metric)
    backend = CompileCounterWithBackend("eager")
    step = torch.compile(optimizer.step, backend=backend)
    for k in range(3):
        for p in model.parameters():
            p.grad = torch.randn_like(p)
        step()
        assert backend.frame_count == 1, k
