"""Choose metric and weight decay for each parameter of a module."""

from __future__ import annotations

from typing import Any

from torch import nn

from badm import metrics

__all__ = ["parameter_groups"]


def parameter_groups(
    module: nn.Module, *, weight_decay: float = 0.0, metric: str = "spectral"
) -> list[dict[str, Any]]:
    """Group the parameters of a module for :class:`badm.BADM`, each with the metric that suits it.

    - Matrices and convolution kernels: ``metric``, with weight decay.
    - Embeddings, and in the kronecker metrics the output layer: the diagonal metric, with weight
      decay. A step touches few rows of an embedding, which is no map whose singular values should
      be equal. The output layer is the last layer with a matrix, in the order in which the module
      registers its layers.
    - Biases, gains of normalisation layers and other vectors: the diagonal metric (the euclidean
      one if that is ``metric``), no weight decay.

    Args:
        module: The model; every parameter goes to exactly one group.
        weight_decay: Decoupled weight decay of matrices, at least 0.
        metric: Metric of matrices and convolution kernels; default as in :class:`badm.BADM`.

    >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    >>> for group in parameter_groups(model, weight_decay=0.1):
    ...     print(group["metric"], group["weight_decay"], [tuple(p.shape) for p in group["params"]])
    spectral 0.1 [(16, 8), (4, 16)]
    diagonal 0.0 [(16,), (4,)]
    """
    chosen = metrics.find(metric)
    excluded = _embeddings(module)
    if not chosen.suits_output_layer:
        excluded |= _output_layer(module)
    hidden, outer, vectors = [], [], []
    for parameter in module.parameters():
        if parameter.ndim < 2:
            vectors.append(parameter)
        elif id(parameter) in excluded:
            outer.append(parameter)
        else:
            hidden.append(parameter)
    groups = [
        {"params": hidden, "metric": metric, "weight_decay": weight_decay},
        {"params": outer, "metric": chosen.fallback, "weight_decay": weight_decay},
        {"params": vectors, "metric": chosen.fallback, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if not groups:
        raise ValueError(f"module must have parameters, got a {type(module).__name__} without any")
    return groups


def _embeddings(module: nn.Module) -> set[int]:
    return {
        id(layer.weight)
        for layer in module.modules()
        if isinstance(layer, (nn.Embedding, nn.EmbeddingBag))
    }


def _output_layer(module: nn.Module) -> set[int]:
    weights = [getattr(layer, "weight", None) for layer in module.modules()]
    matrices = [w for w in weights if isinstance(w, nn.Parameter) and w.ndim >= 2]
    return {id(matrices[-1])} if matrices else set()
