"""State that survives: state dicts old and new, files, copies, pickles."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

from badm import BADM, state_from_tensors, state_to_tensors
from tests.helpers.support import (
    METRICS,
    PATHS,
    assert_identical,
    drive,
    duals,
    parameters,
    restless,
    values,
)

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64)

every_metric = pytest.mark.parametrize("metric", METRICS)
every_path = pytest.mark.parametrize("path", PATHS)


def through_a_file(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def begin(metric: str, path: str, dtype: torch.dtype = torch.float64) -> tuple[list[Tensor], BADM]:
    params = parameters(dtype=dtype)
    optimizer = BADM(params, lr=0.01, beta=0.8, metric=metric, weight_decay=0.1, **PATHS[path])
    drive(optimizer, params, 13)
    return params, optimizer


def tensors(optimizer: BADM) -> list[dict[str, Any]]:
    return [copy.deepcopy(state) for state in optimizer.state_dict()["state"].values()]


@every_metric
@every_path
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("carry", [copy.deepcopy, through_a_file])
def test_a_loaded_state_is_the_saved_one_bit_for_bit(
    metric: str, path: str, dtype: torch.dtype, carry: Any
) -> None:
    """Half precision parameters included: torch would cast their state to their type."""
    params, optimizer = begin(metric, path, dtype)
    saved = tensors(optimizer)
    carried = carry(optimizer.state_dict())
    fresh = [w.detach().clone().requires_grad_() for w in params]
    restored = BADM(fresh)
    restored.load_state_dict(carried)
    for state, expected in zip(tensors(restored), saved, strict=True):
        assert set(state) == set(expected)
        for key, value in expected.items():
            if isinstance(value, Tensor):
                assert state[key].dtype == value.dtype
                assert torch.equal(state[key], value)
            else:
                assert state[key] == value
    assert_identical(drive(restored, fresh, 12, start=13), drive(optimizer, params, 12, start=13))


@every_metric
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_state_is_single_after_loading_twice(
    metric: str, dtype: torch.dtype
) -> None:
    params, optimizer = begin(metric, "foreach", dtype)
    for _ in range(2):
        restored = BADM([w.detach().clone().requires_grad_() for w in params])
        restored.load_state_dict(through_a_file(optimizer.state_dict()))
        optimizer = restored
    for state in optimizer.state.values():
        for value in state.values():
            counted = not isinstance(value, Tensor) or value.dtype == torch.int64
            assert counted or value.dtype == torch.float32


@every_metric
def test_state_takes_the_precision_of_wider_parameters(metric: str) -> None:
    params, optimizer = begin(metric, "foreach", torch.float32)
    wide = [w.detach().double().requires_grad_() for w in params]
    restored = BADM(wide)
    restored.load_state_dict(optimizer.state_dict())
    for narrow, state in zip(optimizer.state.values(), restored.state.values(), strict=True):
        assert state["dual"].dtype == torch.float64
        assert torch.equal(state["dual"], narrow["dual"].double())
    drive(restored, wide, 12, start=13)


@every_metric
@every_path
def test_loading_copies_the_state(metric: str, path: str) -> None:
    params, optimizer = begin(metric, path)
    restored = BADM([w.detach().clone().requires_grad_() for w in params])
    saved = optimizer.state_dict()
    restored.load_state_dict(saved)
    before = tensors(restored)
    drive(optimizer, params, 12, start=13)
    for state, expected in zip(tensors(restored), before, strict=True):
        assert torch.equal(state["dual"], expected["dual"])


@every_metric
@every_path
def test_taking_a_state_dict_changes_nothing(metric: str, path: str) -> None:
    """Up to the last digit of a fused dual, which is kept under a scale."""
    params, optimizer = begin(metric, path)
    watched, observed = begin(metric, path)
    for step in range(13, 25):
        observed.state_dict()
        drive(observed, watched, 1, start=step)
    expected = drive(optimizer, params, 12, start=13)
    for a, b in zip(watched, expected, strict=True):
        torch.testing.assert_close(a.detach(), b, rtol=1e-13, atol=1e-13)


@every_metric
@every_path
@pytest.mark.parametrize("carry", ["deepcopy", "pickle"])
def test_a_copy_continues_bit_for_bit(metric: str, path: str, carry: str) -> None:
    params, optimizer = begin(metric, path)
    if carry == "deepcopy":
        twins, twin = copy.deepcopy((params, optimizer))
    else:
        twins, twin = pickle.loads(pickle.dumps((params, optimizer)))
    assert type(twin) is BADM
    assert twin.param_groups[0]["params"][0] is twins[0]
    expected = drive(optimizer, params, 12, start=13)
    assert_identical(drive(twin, twins, 12, start=13), expected)
    assert_identical(duals(twin), duals(optimizer))


def without(state: dict[str, Any], *options: str) -> dict[str, Any]:
    state = copy.deepcopy(state)
    for group in state["param_groups"]:
        for option in options:
            group.pop(option, None)
    return state


@every_metric
def test_a_checkpoint_from_before_an_option_loads_with_its_default(metric: str) -> None:
    params, optimizer = begin(metric, "foreach")
    old = without(optimizer.state_dict(), "maximize", "foreach", "fused", "differentiable")
    fresh = [w.detach().clone().requires_grad_() for w in params]
    restored = BADM(fresh, foreach=True)
    restored.load_state_dict(old)
    (group,) = restored.param_groups
    assert (group["maximize"], group["fused"], group["differentiable"]) == (False, None, False)
    assert_identical(drive(restored, fresh, 12, start=13), drive(optimizer, params, 12, start=13))


def test_a_pickle_from_before_an_option_loads_with_its_default() -> None:
    params, optimizer = begin("spectral", "foreach")
    for group in optimizer.param_groups:
        for option in ("maximize", "foreach", "fused", "differentiable"):
            del group[option]
    twins, twin = pickle.loads(pickle.dumps((params, optimizer)))
    drive(twin, twins, 3)


@every_metric
def test_a_parameter_missing_from_the_state_starts_anew(metric: str) -> None:
    params, optimizer = begin(metric, "foreach")
    saved = copy.deepcopy(optimizer.state_dict())
    del saved["state"][2]
    fresh = [w.detach().clone().requires_grad_() for w in params]
    restored = BADM(fresh)
    restored.load_state_dict(saved)
    assert fresh[2] not in restored.state or not restored.state[fresh[2]]
    drive(restored, fresh, 12, start=13)
    assert "dual" in restored.state[fresh[2]]


def test_an_untouched_optimizer_saves_and_loads() -> None:
    params, fresh = parameters(), parameters()
    optimizer, restored = BADM(params, 0.1), BADM(fresh, 0.2)
    restored.load_state_dict(optimizer.state_dict())
    assert restored.param_groups[0]["lr"] == 0.1
    assert_identical(drive(restored, fresh, 3), drive(optimizer, params, 3))


def test_a_checkpoint_of_other_groups_is_an_error() -> None:
    params, optimizer = begin("spectral", "foreach")
    other = BADM([{"params": params[:2]}, {"params": params[2:]}])
    with pytest.raises(ValueError, match="different number of parameter groups"):
        other.load_state_dict(optimizer.state_dict())


def test_hooks_of_others_see_and_change_what_is_loaded() -> None:
    params, optimizer = begin("euclidean", "foreach")
    saved = optimizer.state_dict()
    restored = BADM([w.detach().clone().requires_grad_() for w in params])

    def double(_: Any, state: dict[str, Any]) -> dict[str, Any]:
        state = copy.deepcopy(state)
        for entry in state["state"].values():
            entry["dual"].mul_(2)
        return state

    restored.register_load_state_dict_pre_hook(double)
    restored.load_state_dict(saved)
    assert_identical(duals(restored), [2 * m for m in duals(optimizer)])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_a_hook_after_loading_has_the_last_word(dtype: torch.dtype) -> None:
    params, optimizer = begin("euclidean", "foreach", dtype)
    restored = BADM([w.detach().clone().requires_grad_() for w in params])

    def clear(loaded: torch.optim.Optimizer) -> None:
        for state in loaded.state.values():
            state["dual"] = torch.zeros_like(state["dual"])

    restored.register_load_state_dict_post_hook(clear)
    restored.load_state_dict(optimizer.state_dict())
    assert all(m.abs().sum() == 0 for m in duals(restored))
    assert all(m.abs().sum() > 0 for m in duals(optimizer))


def test_a_post_hook_of_state_dict_sees_the_plain_dual() -> None:
    _, optimizer = begin("euclidean", "fused")
    seen: list[Tensor] = []
    optimizer.register_state_dict_post_hook(
        lambda _, state: seen.extend(entry["dual"].clone() for entry in state["state"].values())
    )
    expected = values(duals(begin("euclidean", "loop")[1]))
    optimizer.state_dict()
    for m, plain in zip(seen, expected, strict=True):
        torch.testing.assert_close(m, plain, rtol=1e-12, atol=1e-12)


def test_a_held_state_dict_stays_loadable_after_more_fused_steps() -> None:
    """It shares memory with the optimizer, as in torch, and must share its meaning too."""
    params, optimizer = begin("euclidean", "fused")
    held = optimizer.state_dict()
    drive(optimizer, params, 5, start=13)
    fresh = [w.detach().clone().requires_grad_() for w in params]
    restored = BADM(fresh)
    restored.load_state_dict(held)
    for a, b in zip(duals(restored), duals(optimizer), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-13)


def test_restless_gradients_depend_on_the_step() -> None:
    """Guards the comparisons above: equal gradients would hide a state that was lost."""
    params = parameters()
    assert not torch.equal(restless(0, params)[2], restless(1, params)[2])


@every_metric
def test_state_as_tensors_and_text_resumes_bit_for_bit(metric: str) -> None:
    """What safetensors can hold: contiguous tensors of their own, and strings."""
    params, optimizer = begin(metric, "foreach")
    tensors, text = state_to_tensors(optimizer.state_dict())
    assert all(type(x) is Tensor and x.is_contiguous() for x in tensors.values())
    assert all(isinstance(x, str) for x in text.values())
    copies = [w.detach().clone().requires_grad_() for w in params]
    resumed = BADM(copies, metric=metric)
    resumed.load_state_dict(state_from_tensors(tensors, text))
    ends = [drive(o, p, 9, start=13) for o, p in ((optimizer, params), (resumed, copies))]
    assert_identical(*ends)


def test_a_tensor_lr_is_a_tensor_again() -> None:
    (w,) = parameters([(3,)])
    state = BADM([w], torch.tensor(0.5)).state_dict()
    assert torch.equal(
        state_from_tensors(*state_to_tensors(state))["param_groups"][0]["lr"], torch.tensor(0.5)
    )


def test_state_without_its_text_is_refused() -> None:
    with pytest.raises(ValueError, match=r"text must have the entries of state_to_tensors"):
        state_from_tensors({}, {"state": "{}"})
    with pytest.raises(TypeError, match=r"state\.0\.odd must be a tensor, .* got a set"):
        state_to_tensors({"state": {0: {"odd": {1}}}, "param_groups": []})
