"""Optimizer state as named tensors and text, for formats that hold nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["state_from_tensors", "state_to_tensors"]


def state_to_tensors(state_dict: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Split a state dict into named tensors and text, as safetensors takes them.

    Args:
        state_dict: What ``optimizer.state_dict()`` returns.

    >>> weight = torch.nn.Parameter(torch.ones(3, 2))
    >>> weight.grad = torch.ones(3, 2)
    >>> from badm import BADM
    >>> optimizer = BADM([weight])
    >>> optimizer.step()
    >>> tensors, text = state_to_tensors(optimizer.state_dict())
    >>> sorted(tensors), sorted(text)
    (['state.0.dual', 'state.0.peak'], ['param_groups', 'state'])
    """
    tensors: dict[str, Tensor] = {}
    text = {
        room: json.dumps(_without_tensors(state_dict[room], room, tensors))
        for room in ("state", "param_groups")
    }
    return tensors, text


def state_from_tensors(tensors: Mapping[str, Tensor], text: Mapping[str, str]) -> dict[str, Any]:
    """Make the state dict again that :func:`state_to_tensors` split.

    Args:
        tensors: The tensors, by their names.
        text: The text; more entries than it had do no harm.

    >>> saved = {"state": {0: {"count": 3}}, "param_groups": [{"lr": 0.1, "params": [0]}]}
    >>> state_from_tensors(*state_to_tensors(saved)) == saved
    True
    """
    if missing := {"state", "param_groups"} - set(text):
        raise ValueError(
            f"text must have the entries of state_to_tensors, got none for {', '.join(missing)}"
        )
    state = _with_tensors(json.loads(text["state"]), tensors)
    return {
        "state": {int(key) if key.isdigit() else key: value for key, value in state.items()},
        "param_groups": _with_tensors(json.loads(text["param_groups"]), tensors),
    }


_TENSOR = "tensor:"  # what the text has in the place of a tensor


def _without_tensors(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        # A copy: formats refuse memory that is shared or has gaps.
        tensors[name] = value.detach().clone(memory_format=torch.contiguous_format)
        return _TENSOR + name
    if isinstance(value, Mapping):
        items = value.items()
        return {key: _without_tensors(inner, f"{name}.{key}", tensors) for key, inner in items}
    if isinstance(value, (list, tuple)):
        return [_without_tensors(inner, f"{name}.{i}", tensors) for i, inner in enumerate(value)]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"{name} must be a tensor, a number or text, got a {type(value).__name__}")


def _with_tensors(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, str) and value.startswith(_TENSOR):
        return tensors[value.removeprefix(_TENSOR)]
    if isinstance(value, dict):
        return {key: _with_tensors(inner, tensors) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_tensors(inner, tensors) for inner in value]
    return value
