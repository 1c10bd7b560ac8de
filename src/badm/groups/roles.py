"""Internal: what each parameter of a module is, which decides on its metric and weight decay."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from badm.groups.layers import EMBEDDINGS, NORMALISATIONS, weight_of
from badm.groups.outputs import Output, output_layers
from badm.groups.stacks import Stack, stack_of
from badm.metrics.matrices import is_matrix

Kind = Literal["matrix", "embedding", "output layer", "table", "vector"]

TABLE = re.compile(
    r"(^|_)(pos|position|positional|tokens?|embeds?|embeddings?|emb|latents?|queries|prompts?"
    r"|codebook|table|rel_pos_[hw])$"
)
_GAINS = ("weight_g", "original0")  # of weight_norm, in its older and its newer form


@dataclass(frozen=True)
class Role:
    """What a parameter is in its module.

    Attributes:
        name: Its name in the module, the first one if it has several.
        kind: What it is; decides on the metric.
        why: The reason for the kind.
        decays: Whether weight decay applies to it.
        stack: How it is read as a stack of matrices; None: it is one.
    """

    name: str
    kind: Kind
    why: str
    decays: bool
    stack: Stack | None = None


@dataclass(frozen=True)
class Routing:
    """What was asked for a parameter and what its group got.

    Attributes:
        role: What the parameter is.
        asked: The metric asked for.
        metric: The metric of its group.
        why: The reason for it.
        place: Group and place in it, were nothing read as a stack.
    """

    role: Role
    asked: str
    metric: str
    why: str
    place: tuple[int, int] = (0, 0)


# What parameter_groups decided, for as long as the parameter lives: groups hold tensors alone, and
# badm.explain and the warnings want to say more of a parameter than its shape.
_DECIDED: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def remember(p: Tensor, routing: Routing) -> None:
    _DECIDED[p] = routing


def recall(p: Tensor) -> Routing | None:
    """Return what was decided for a parameter; None if its group was made by hand."""
    routing: Routing | None = _DECIDED.get(p)  # type: ignore[no-untyped-call]
    return routing


def roles(module: nn.Module, output: Output | None = None) -> dict[nn.Parameter, Role]:
    """Return the role of every parameter, frozen ones included, in the module's order."""
    outputs = output_layers(module, output)
    embeddings = {layer.weight for layer in module.modules() if isinstance(layer, EMBEDDINGS)}
    without_decay = set(_without_decay(module))
    found: dict[nn.Parameter, Role] = {}
    for path, layer in module.named_modules():
        for key, p in layer.named_parameters(recurse=False):
            if p not in found:
                name = f"{path}.{key}" if path else key
                kind, why = _kind(layer, name, p, embeddings, outputs)
                stack = stack_of(module, path, key, p) if kind == "matrix" else None
                decays = kind not in ("vector", "table") and p not in without_decay
                found[p] = Role(name, kind, why, decays, stack)
    return found


def _kind(
    layer: nn.Module,
    name: str,
    p: nn.Parameter,
    embeddings: set[Tensor],
    outputs: Mapping[nn.Parameter, str],
) -> tuple[Kind, str]:
    key = name.rpartition(".")[2]
    if p in embeddings:
        return "embedding", "an embedding" + (", and the output layer" if p in outputs else "")
    if why := _reads_as_vector(layer, key, p):
        return "vector", why
    if "lora_embedding_A" in name:
        return "embedding", "the LoRA factor of an embedding with a column per token"
    if p in outputs:
        return "output layer", outputs[p]
    if TABLE.search(key.lower()):
        return "table", "a table of vectors, by its name"
    return "matrix", f"{key} of a {type(layer).__name__}"


def _reads_as_vector(layer: nn.Module, key: str, p: nn.Parameter) -> str | None:
    """Say why a parameter is no matrix, whatever its number of dimensions; None if it is one."""
    if p.ndim < 2:
        return "a scalar" if p.ndim == 0 else "a vector"
    if isinstance(layer, NORMALISATIONS):
        return f"of a {type(layer).__name__}"
    if key in _GAINS:
        return "the gain of weight_norm"
    if re.match(r"bias(_|$)", key):
        return "a bias"
    if key == "A_log":
        return "logarithms of the rates of a state-space model"
    # A map to or from one feature is still a map, with weight decay.
    if not is_matrix(p) and p is not weight_of(layer):
        return f"a vector of shape {tuple(p.shape)}"
    return None


def _without_decay(module: nn.Module) -> Iterator[nn.Parameter]:
    """Yield what the model itself excludes from weight decay, as timm's and Mamba's do."""
    for p in module.parameters():
        if getattr(p, "_no_weight_decay", False):
            yield p
    for part in module.modules():
        names = getattr(part, "no_weight_decay", None)
        if callable(names):
            excluded = set(names())
            yield from (p for name, p in part.named_parameters() if name in excluded)
