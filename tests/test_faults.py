"""Mistakes that would pass in silence are refused or warned of, once and with the remedy."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from badm import BADM, parameter_groups

STEPS = 5  # that are looked at


class Words(nn.Module):
    """An embedding, a hidden layer and a head, with a layer that the loss does not depend on."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(50, 8)
        self.hidden = nn.Linear(8, 8)
        self.idle = nn.Linear(8, 8, bias=False)
        self.head = nn.Linear(8, 3)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.hidden(self.embedding(words)).relu())


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int = STEPS,
    before_step: Callable[[], Any] = lambda: None,
) -> None:
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        words = torch.randint(0, 50, (6,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(words), words % 3).backward()
        before_step()
        optimizer.step()


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def flat(elements: int = 5000) -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(elements))]


def shared() -> list[nn.Parameter]:
    weight = torch.ones(4, 3)
    return [nn.Parameter(weight), nn.Parameter(weight)]


def mixed() -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(3, 2)), nn.Parameter(torch.ones(3, 2, device="meta"))]


def frozen(model: nn.Module) -> nn.Module:
    return model.requires_grad_(False)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "overridden metric": (
        lambda: BADM(parameter_groups(mlp()), metric="kronecker"),
        r"metric='kronecker' would not be used: .* 'spectral', 'diagonal'\. Leave",
    ),
    "overridden default metric": (
        lambda: BADM(parameter_groups(mlp(), metric="kronecker"), metric="spectral"),
        r"metric='spectral' would not be used: .* 'kronecker', 'diagonal'",
    ),
    "overridden weight decay": (
        lambda: BADM(parameter_groups(mlp()), weight_decay=0.1),
        r"weight_decay=0\.1 would not be used: .*its own weight_decay, 0\.0\.",
    ),
    "overridden learning rate": (
        lambda: BADM([{"params": mlp().parameters(), "lr": 0.1}], 0.2),
        r"lr=0\.2 would not be used",
    ),
    "overridden tensor": (
        lambda: BADM([{"params": mlp().parameters(), "lr": 0.1}], torch.tensor(0.2)),
        r"lr=tensor\(0\.2000\) would not be used",
    ),
    "overridden penalties": (
        lambda: BADM.from_penalties([{"params": flat(3), "beta": 0.5}], 200.0, 800.0),
        r"beta=0\.2 would not be used",
    ),
    "integers": (
        lambda: BADM([torch.ones(3, dtype=torch.int64)]),
        r"params must be floating-point .*int64.*buffer",
    ),
    "integers added later": (
        lambda: BADM(flat(3)).add_param_group({"params": [torch.ones(3, dtype=torch.bool)]}),
        r"params must be floating-point .*bool",
    ),
    "nothing to train": (lambda: BADM(nn.ReLU()), r"trainable parameters, got a ReLU with none"),
    "all frozen": (
        lambda: BADM(frozen(mlp())),
        r"trainable parameters, got a Sequential with frozen ones alone",
    ),
    "idle pattern": (
        lambda: parameter_groups(mlp(), overrides={"haed.*": "diagonal"}),
        r"pattern 'haed\.\*', which matches no parameter",
    ),
    "unknown metric of a pattern": (
        lambda: parameter_groups(mlp(), overrides={"0.*": "manhattan"}),
        r"metric must be one of .*, got 'manhattan'",
    ),
    "unknown output layer": (
        lambda: parameter_groups(mlp(), output="haed"),
        r"output must name layers .*got 'haed', which matches none; the last layers are 0, 2",
    ),
    "a tied parameter twice": (
        lambda: BADM([{"params": (p := flat(3))}, {"params": p}]),
        r"more than one parameter group",
    ),
}

WARNED: dict[str, tuple[Callable[[], Any], str]] = {
    "flattened": (
        lambda: BADM(flat()),
        r"spectral.* none of 1 parameters .*\(5000,\).*fully_shard",
    ),
    "vectors and a metric of matrices": (
        lambda: BADM(flat(3), metric="kronecker"),
        r"metric='kronecker' is for matrices.* say metric='diagonal'",
    ),
    "empty shards": (
        lambda: BADM([nn.Parameter(torch.ones(0))], metric="spectral"),
        r"none of 1 parameters is one",
    ),
    "meta and real": (lambda: BADM(mixed()), r"1 of 2 parameters are on the meta device"),
    "shared memory": (
        lambda: BADM(shared()),
        r"shape \(4, 3\) share their memory .* same Parameter",
    ),
    "misspelled option": (
        lambda: BADM([{"params": mlp().parameters(), "weight_decy": 0.1}]),
        r"has 'weight_decy', which nothing reads: do you mean 'weight_decay'\?",
    ),
    "misspelled override": (
        lambda: BADM(parameter_groups(mlp(), overrides={"0.*": {"metrics": "diagonal"}})),
        r"has 'metrics', which nothing reads: do you mean 'metric'\?",
    ),
    "no gradient at all": (lambda: BADM(mlp()).step(), r"no parameter has a gradient: .*backward"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_a_fault_is_refused(fault: str) -> None:
    cause, message = REFUSED[fault]
    with pytest.raises(ValueError, match=message):
        cause()


@pytest.mark.parametrize("fault", WARNED)
def test_a_fault_is_warned_of(fault: str) -> None:
    cause, message = WARNED[fault]
    with pytest.warns(UserWarning, match=message):
        cause()


def test_an_unused_layer_is_named() -> None:
    model = Words()
    with pytest.warns(UserWarning, match=r"^idle\.weight is without a gradient in the first 5 "):
        train(model, BADM(model))


def test_a_frozen_layer_in_the_optimizer_is_named() -> None:
    model = Words()
    frozen(model.head)
    model.idle = nn.Identity()
    optimizer = BADM([p for n, p in model.named_parameters()], metric="diagonal")
    with pytest.warns(UserWarning, match=r"parameter 3 of group 0, .* are in .* and frozen"):
        train(model, optimizer)


def test_an_embedding_stepped_as_a_matrix_is_named() -> None:
    model = Words()
    with pytest.warns(UserWarning, match=r"^embedding\.weight is stepped as a matrix"):
        train(model, BADM(model.named_parameters()))


def test_clipped_gradients_are_noticed() -> None:
    model = Words()
    clip = lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.01)  # noqa: E731
    with pytest.warns(UserWarning, match=r"gradients had the norm 0\.01 in each .* clipped"):
        train(model, BADM(model), before_step=clip)


def test_a_gradient_that_is_not_finite_is_noticed() -> None:
    model = Words()

    def spoil() -> None:
        model.hidden.bias.grad.fill_(float("nan"))

    with pytest.warns(UserWarning, match=r"was infinite or NaN"):
        train(model, BADM(model), before_step=spoil)


@pytest.mark.parametrize("metric", ["diagonal", "spectral"])
def test_a_healthy_run_warns_of_nothing(metric: str) -> None:
    """Among its gradients constant ones, whose norm is constant without clipping."""
    model = Words()
    model.idle = nn.Identity()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, BADM(model, metric=metric), 2 * STEPS)
        (p,) = shared()[:1]
        optimizer = BADM([p], metric=metric)
        for _ in range(2 * STEPS):
            p.grad = torch.ones_like(p)
            optimizer.step()


def test_clipping_that_a_metric_sees_is_no_fault() -> None:
    model = Words()
    model.idle = nn.Identity()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clip = lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.01)  # noqa: E731
        train(model, BADM(model, metric="euclidean"), before_step=clip)


def test_warnings_come_once_and_then_nothing_is_looked_at() -> None:
    model = Words()
    optimizer = BADM(model)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        train(model, optimizer, 3 * STEPS)
    assert [warning.filename for warning in seen] == [__file__]
    assert optimizer._first_steps is None


def test_an_argument_that_some_group_uses_is_taken() -> None:
    first, second = mlp(), mlp()
    optimizer = BADM(
        [{"params": first.parameters(), "lr": 0.1}, {"params": second.parameters()}], lr=0.2
    )
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.2]
    BADM(parameter_groups(mlp(), metric="kronecker"), metric="kronecker", lr=0.1)


@pytest.mark.slow
def test_looking_at_the_first_steps_does_not_break_a_compiled_step() -> None:
    model = Words()
    optimizer = BADM(model)
    step = torch.compile(optimizer.step, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model(torch.arange(6)).sum().backward()
        step()
    assert optimizer._first_steps is not None  # not looked at, and not in the way


def test_parameters_without_elements_are_nothing_to_look_at() -> None:
    empty = nn.Parameter(torch.ones(0, 5))
    optimizer = BADM([empty])
    for _ in range(6):
        empty.grad = torch.ones(0, 5)
        optimizer.step()
