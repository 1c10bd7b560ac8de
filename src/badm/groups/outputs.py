"""Internal: which layers of a module are its output: told, as the model says, by name, or last."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from badm.groups.layers import is_repeated, maps, weight_of

Output = str | nn.Module | Sequence[str | nn.Module]

# Functions by which models name their own output layer: those of transformers and of timm.
_OWN_WORDS = ("get_output_embeddings", "get_classifier")
HEAD = re.compile(
    r"(?<!pre_)(?<![a-z])(heads?|classifiers?|logits|score|predictor|pred|outputs|relationship)$"
    r"|^head_|^(text|visual|image|audio)_projection$"
)
FINAL = ("output", "output_layer", "out", "fc_out")
_ATTENTION = re.compile(r"(^|_)(q|k|v|qkv|query|key|value|queries|keys|values)(_|$)")


def output_layers(module: nn.Module, output: Output | None) -> dict[nn.Parameter, str]:
    """Return the matrices of the output layers, each with the reason why it is one.

    Without ``output``: the layers that the model itself calls its output and those named like a
    head; if there are none, the layer that was registered last.
    """
    if output is not None:
        return dict(_told(module, output))
    found = {**dict(_named_like_heads(module)), **dict(_in_own_words(module))}
    if not found:
        found = {weight: "the last layer" for _, weight in list(maps(module))[-1:]}
    return found


def _told(module: nn.Module, output: Output) -> Iterator[tuple[nn.Parameter, str]]:
    parameters = {
        name: p for name, p in module.named_parameters(remove_duplicate=False) if p.ndim >= 2
    }
    for wanted in (output,) if isinstance(output, (str, nn.Module)) else output:
        if isinstance(wanted, nn.Module):
            found = [p for p in wanted.parameters() if p.ndim >= 2]
        else:
            patterns = (wanted, f"{wanted}.*")
            found = [
                p
                for name, p in parameters.items()
                if any(fnmatchcase(name, pattern) for pattern in patterns)
            ]
        if not found:
            raise ValueError(
                f"output must name layers with a matrix, got {wanted!r}, which matches none; "
                f"the last layers are {', '.join(path for path, _ in list(maps(module))[-3:])}"
            )
        for p in found:
            yield p, "an output layer, as told"


def _in_own_words(module: nn.Module) -> Iterator[tuple[nn.Parameter, str]]:
    for part in module.modules():
        for word in _OWN_WORDS:
            for layer in _called(getattr(part, word, None)):
                inside = [weight for _, weight in maps(layer)]
                # The first and the last: of a LoRA layer the base and the factor with its rows.
                for weight in (weight_of(layer), *inside[-1:]):
                    if weight is not None:
                        yield weight, f"an output layer: {word}() returns it"


def _called(function: Callable[[], Any] | None) -> list[nn.Module]:
    if not callable(function):
        return []
    try:
        answer = function()
    except (NotImplementedError, AttributeError, TypeError):
        return []  # a model that has the function and no answer
    answers = answer if isinstance(answer, (tuple, list)) else [answer]
    return [layer for layer in answers if isinstance(layer, nn.Module)]


def _named_like_heads(module: nn.Module) -> Iterator[tuple[nn.Parameter, str]]:
    """Yield the last matrix of every head: the innermost modules with such a name."""
    layers = list(maps(module))
    for path in _heads(module):
        inside = [w for where, w in layers if where == path or where.startswith(f"{path}.")]
        if inside:
            yield inside[-1], f"an output layer: {path} is named like one"
    for name, p in module.named_parameters():
        path, _, last = name.rpartition(".")
        if p.ndim >= 2 and HEAD.search(last.lower()) and not is_repeated(module, path):
            yield p, f"an output layer: {name} is named like one"


def _heads(module: nn.Module) -> Iterator[str]:
    heads = [path for path, layer in module.named_modules() if _is_head(module, path, layer)]
    for path in heads:
        if any(other.startswith(f"{path}.") for other in heads):
            continue  # what is inside tells more
        layer = module.get_submodule(path)
        if isinstance(layer, (nn.ModuleList, nn.ModuleDict)):  # each of them is a head
            yield from (f"{path}.{name}" for name, _ in layer.named_children())
        else:
            yield path


def _is_head(module: nn.Module, path: str, layer: nn.Module) -> bool:
    if path in FINAL:
        return True
    parent, _, name = path.rpartition(".")
    if not HEAD.search(name.lower()) or is_repeated(module, path):
        return False
    # What goes on to an output layer is none: a head beside an output, and in torchvision's
    # detectors a box_head beside a box_predictor.
    further = (*FINAL, f"{name.removesuffix('head')}predictor")
    if any(hasattr(module.get_submodule(parent), other) for other in further if other != name):
        return False
    return not any(_is_attention(inner, part) for inner, part in layer.named_modules())


def _is_attention(path: str, part: nn.Module) -> bool:
    name = path.rpartition(".")[2].lower()
    return isinstance(part, nn.MultiheadAttention) or _ATTENTION.search(name) is not None
