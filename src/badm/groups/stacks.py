"""Internal: layers that keep several matrices in one parameter, and how their axes are cut."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch import nn

from badm.metrics.matrices import Blocks

_CONVOLUTIONS = nn.modules.conv._ConvNd
_GATES: dict[type[nn.Module], int] = {nn.LSTM: 4, nn.LSTMCell: 4, nn.GRU: 3, nn.GRUCell: 3}

# Projections whose rows are query, key and value, one after the other. Not query_key_value, whose
# rows go head by head.
_QKV = re.compile(r"(^|_)(w?qkv|qkv_proj|c_attn|in_proj_weight|to_qkv)$")
_GATE_AND_UP = re.compile(r"^(gate_up(_proj)?|w12|weights_in)$")
_EXPERTS = re.compile(r"expert|moe", re.IGNORECASE)


@dataclass(frozen=True)
class Stack:
    """How a parameter is read as a stack of matrices.

    Attributes:
        what: What the matrices are.
        separate: Into how many blocks its axes are cut for matrices that share neither inputs nor
            outputs, as experts and the groups of a convolution do: one matrix of all of them is not
            what the layer computes.
        split: The same, with matrices that share their inputs cut too.
    """

    what: str
    separate: Blocks
    split: Blocks


def stack_of(module: nn.Module, path: str, key: str, p: nn.Parameter) -> Stack | None:
    """Return how a parameter is read as a stack; None if it is one matrix.

    >>> layer = nn.MultiheadAttention(8, 2)
    >>> stack_of(layer, "", "in_proj_weight", layer.in_proj_weight)
    Stack(what='query, key and value', separate=(), split=(3,))
    """
    if p.ndim < 2:
        return None
    layer, key = _layer(module, path, key)
    if isinstance(layer, _CONVOLUTIONS):
        return _groups_of(layer, key)
    if isinstance(layer, nn.Bilinear) and key == "weight":
        return Stack("one for each output", (len(p),), (len(p),))
    gates = next((count for kind, count in _GATES.items() if isinstance(layer, kind)), None)
    if gates and key.startswith(("weight_ih", "weight_hh")):
        return Stack(f"{gates} gates", (), (gates,))
    return _of_experts(layer, path, key, p) if p.ndim == 3 else _fused(layer, path, key, p)


def _groups_of(layer: _CONVOLUTIONS, key: str) -> Stack | None:
    """Return the groups of a convolution, along the first axis whether transposed or not.

    Depthwise kernels have a vector for each channel. They stay one matrix of channels by taps, in
    which they trained better than as vectors (results/inside.json).
    """
    if layer.groups in (1, layer.in_channels, layer.out_channels) or not key.startswith("weight"):
        return None
    return Stack(f"{layer.groups} groups", (layer.groups,), (layer.groups,))


def _of_experts(layer: nn.Module, path: str, key: str, p: nn.Parameter) -> Stack | None:
    """Return the experts of a batched layer, by its name: axes alone do not tell."""
    if not (_EXPERTS.search(type(layer).__name__) or _EXPERTS.search(path)):
        return None
    experts = (len(p),)
    # What transformers says of its experts: (expert, in, out), and gate and up in turns.
    output = 2 if getattr(layer, "is_transposed", False) else 1
    concatenated = getattr(layer, "is_concatenated", output == 1)
    if _GATE_AND_UP.search(key.lower()) and concatenated and p.shape[output] % 2 == 0:
        split = (len(p), 2) if output == 1 else (len(p), 1, 2)
        return Stack(f"{len(p)} experts", experts, split)
    return Stack(f"{len(p)} experts", experts, experts)


def _fused(layer: nn.Module, path: str, key: str, p: nn.Parameter) -> Stack | None:
    """Return the projections that one matrix has side by side, by its name."""
    name = (path if key == "weight" else key).rpartition(".")[2].lower()
    # Of transformers, (in, out); fully_shard puts a word before the name of a class.
    output = 1 if type(layer).__name__.endswith("Conv1D") else 0
    rows, columns = p.shape[output], p.shape[1 - output]
    if _QKV.search(name) and rows == 3 * columns:  # else fewer keys than queries
        return Stack("query, key and value", (), (1, 3) if output else (3,))
    if _GATE_AND_UP.search(name) and rows % 2 == 0:
        return Stack("gate and up", (), (1, 2) if output else (2,))
    return None


def _layer(module: nn.Module, path: str, key: str) -> tuple[nn.Module, str]:
    """Return layer and name of a parameter, also if it is behind a parametrisation."""
    outer, found, inner = path.rpartition("parametrizations.")
    if found:
        return module.get_submodule(outer.removesuffix(".")), inner
    return module.get_submodule(path), key
