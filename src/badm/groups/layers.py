"""Internal: the layers of a module and the matrix that each of them multiplies with."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch import nn

EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
NORMALISATIONS = (
    nn.LayerNorm,
    nn.RMSNorm,
    nn.GroupNorm,
    nn.LocalResponseNorm,
    nn.modules.batchnorm._NormBase,
)


def weight_of(layer: nn.Module) -> nn.Parameter | None:
    """Return the trained matrix behind ``layer.weight``; None if there is none.

    Under a parametrisation ``weight`` is computed, and what is trained has another name: the
    direction of ``weight_norm`` and whatever else has the most elements.
    """
    if nn.utils.parametrize.is_parametrized(layer, "weight"):
        parametrization = layer.get_submodule("parametrizations.weight")
        originals = list(parametrization.parameters(recurse=False))
        weight: nn.Parameter | None = max(originals, key=nn.Parameter.numel)
    else:
        names = ("weight_v", "weight_orig", "weight")  # the first two: older parametrisations
        found = (getattr(layer, name, None) for name in names)
        weight = next((w for w in found if isinstance(w, nn.Parameter)), None)
    return weight if weight is not None and weight.ndim >= 2 else None


def maps(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield path and matrix of every layer that maps features to features, in their order."""
    for path, layer in module.named_modules():
        if isinstance(layer, (*EMBEDDINGS, *NORMALISATIONS)):
            continue
        if (weight := weight_of(layer)) is not None:
            yield path, weight


def is_repeated(module: nn.Module, path: str) -> bool:
    """Return whether a path leads through one of several blocks of the same kind.

    >>> model = nn.ModuleDict({"blocks": nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])})
    >>> is_repeated(model, "blocks.0"), is_repeated(model, "blocks")
    (True, False)
    """
    for component in path.split(".") if path else ():
        if re.fullmatch(r"\d+", component):
            kinds = [type(child) for child in module.children()]
            if kinds.count(type(module.get_submodule(component))) > 1:
                return True
        module = module.get_submodule(component)
    return False
