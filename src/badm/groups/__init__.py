"""Choose metric and weight decay for each parameter of a module."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from badm import metrics
from badm.groups.outputs import Output
from badm.groups.overrides import Overrides, match_overrides
from badm.groups.roles import Role, Routing, remember, roles
from badm.metrics.matrices import Blocks

__all__ = ["parameter_groups"]


def parameter_groups(
    module: nn.Module,
    *,
    weight_decay: float = 0.0,
    metric: str = "spectral",
    output: Output | None = None,
    overrides: Overrides | None = None,
    split: bool = False,
) -> list[dict[str, Any]]:
    """Group the parameters of a module for :class:`badm.BADM`, each with the metric that suits it.

    - Matrices and convolution kernels: ``metric``, with weight decay. Several matrices in one
      parameter are read as a stack of them, by ``blocks`` of their group: experts, the groups of a
      convolution, and with ``split`` fused projections and the gates of a recurrent layer.
    - Embeddings, and in the kronecker metrics the output layers: the diagonal metric, with weight
      decay. A step touches few rows of an embedding, which is no map whose singular values should
      be equal.
    - Biases, gains of normalisation layers, tables of positions and tokens, and other vectors: the
      diagonal metric (the euclidean one if that is ``metric``), no weight decay.

    The output layers are those that the model itself says (``get_output_embeddings`` of
    transformers, ``get_classifier`` of timm) or that are named like one (``head``, ``classifier``,
    ``bbox_predictor``, ...); where there is none, the layer that was registered last. Parameters
    that require no gradient are left out: make new groups when you unfreeze them.
    :func:`badm.explain` shows the result.

    Args:
        module: The model; every trainable parameter goes to exactly one group.
        weight_decay: Decoupled weight decay of matrices, at least 0.
        metric: Metric of matrices and convolution kernels; default as in :class:`badm.BADM`.
        output: The output layers, as modules or as patterns of names such as ``"decoder.out*"``;
            ``()`` for a model without one.
        overrides: Metric or options of parameters by patterns of their names, such as
            ``{"*.router.*": "diagonal", "encoder.*": {"lr": 1e-4}}``; the first match counts.
        split: Read query, key and value, gate and up, or the gates of an LSTM or GRU in one
            parameter as a matrix each. Not by default: it did not train better.

    >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    >>> for group in parameter_groups(model, weight_decay=0.1):
    ...     print(group["metric"], group["weight_decay"], [tuple(p.shape) for p in group["params"]])
    spectral 0.1 [(16, 8), (4, 16)]
    diagonal 0.0 [(16,), (4,)]
    """
    chosen = metrics.find(metric)
    found = {p: role for p, role in roles(module, output).items() if p.requires_grad}
    if not found:
        what = "frozen ones alone" if any(True for _ in module.parameters()) else "none"
        raise ValueError(
            f"module must have trainable parameters, got a {type(module).__name__} with {what}"
        )
    override = match_overrides(overrides or {}, module)
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    whole: dict[tuple[Any, ...], list[nn.Parameter]] = {}
    routings: dict[nn.Parameter, Routing] = {}
    for p, role in found.items():
        suited = metric if _suits(chosen, role) else chosen.fallback
        pattern, changes = override.get(p, ("", {}))
        blocks = _blocks(metrics.find(changes.get("metric", suited)), role, split)
        options = {"metric": suited, "weight_decay": weight_decay if role.decays else 0.0}
        options |= {**({"blocks": blocks} if blocks else {}), **changes}
        # Groups have this order: matrices, what is around them, vectors; then what was overridden.
        place = 0 if _suits(chosen, role) else 2 if role.kind in ("table", "vector") else 1
        key = (pattern, place, not role.decays)
        groups.setdefault((*key, blocks), {"params": [], **options})["params"].append(p)
        whole.setdefault(key, []).append(p)
        if "metric" in changes:
            asked = changes["metric"]
            routings[p] = Routing(role, asked, asked, f"overrides[{pattern!r}]")
        else:
            routings[p] = Routing(role, metric, suited, _why(role, blocks))
    for index, key in enumerate(sorted(whole)):
        for i, p in enumerate(whole[key]):
            remember(p, replace(routings[p], place=(index, i)))
    return [groups[key] for key in sorted(groups)]


def _suits(metric: metrics.Metric, role: Role) -> bool:
    return role.kind == "matrix" or (role.kind == "output layer" and metric.suits_output_layer)


def _why(role: Role, blocks: Blocks) -> str:
    return f"{role.why}: {role.stack.what}" if blocks and role.stack else role.why


def _blocks(metric: metrics.Metric, role: Role, split: bool) -> Blocks:
    """Return into how many blocks the axes of a parameter are cut; none for one matrix."""
    if role.stack is None or not metric.reads_blocks:
        return ()
    return role.stack.split if split else role.stack.separate
