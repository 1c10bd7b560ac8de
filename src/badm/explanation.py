"""Explain what the optimizer does to each parameter, and why."""

from __future__ import annotations

import copy
import html
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from badm import metrics, update
from badm.distributed import fsdp
from badm.groups.roles import Role, Routing, recall, roles
from badm.metrics import Parameters
from badm.metrics.matrices import is_matrix, matrix_shape

__all__ = ["Explanation", "Row", "explain"]

_PLURAL = {"matrix": "matrices", "frozen": "frozen", "not in the optimizer": "not in the optimizer"}


@dataclass(frozen=True)
class Row:
    """What is done to one parameter.

    Attributes:
        name: Its name in the model; its place in the groups where nobody told the name.
        kind: matrix, embedding, output layer, table, vector, frozen or not in the optimizer.
        shape: Its shape.
        matrix: Rows and columns of the matrix it is read as; None if the metric reads none.
        matrices: How many such matrices it is read as.
        asked: The metric asked for; empty if it is not trained.
        used: The metric used; empty if it is not trained.
        why: The reason for the metric used.
        weight_decay: Its weight decay.
        relative_step: Length of the next step relative to the weight; None before the first step.

    >>> explain(_example()).rows[0].used
    'kronecker'
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    matrix: tuple[int, int] | None
    asked: str
    used: str
    why: str
    weight_decay: float
    relative_step: float | None
    matrices: int = 1


@dataclass(frozen=True)
class Explanation:
    """A row per parameter; prints as a table.

    Attributes:
        rows: One for each parameter, in the order of the model, or of the groups without one.

    >>> print(explain(_example()).summary)
    1 matrix kronecker, 1 output layer diagonal, 2 vectors diagonal
    """

    rows: tuple[Row, ...]

    @property
    def summary(self) -> str:
        """Count the parameters by what they are and by the metric used, in one line."""
        counts = Counter((row.kind, row.used) for row in self.rows)
        return ", ".join(
            f"{count} {_of(kind, count)} {used}".rstrip() for (kind, used), count in counts.items()
        )

    def __str__(self) -> str:
        widths = [max(map(len, column)) for column in zip(*self._cells(), strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in self._cells()
        ]
        return "\n".join([*lines, self.summary])

    def _repr_html_(self) -> str:
        head, *body = self._cells()
        lines = [_line("th", head), *(_line("td", cells) for cells in body)]
        return f"<table>{''.join(lines)}</table><p>{html.escape(self.summary)}</p>"

    def _cells(self) -> list[tuple[str, ...]]:
        head = ("parameter", "shape", "as matrix", "asked", "used", "decay", "step", "why")
        return [head, *(_row_cells(row) for row in self.rows)]


def explain(optimizer: Optimizer, model: nn.Module | None = None) -> Explanation:
    """Say for each parameter which metric was asked for, which one is used, and why.

    Args:
        optimizer: A :class:`badm.BADM`.
        model: Its model, for names and for what is not in the optimizer. Groups that
            :func:`badm.parameter_groups` or ``BADM(model)`` made know the names without it.

    >>> print(explain(_example()))
    parameter  shape    as matrix  asked      used       decay  step  why
    0.weight   (16, 8)  16 × 8     kronecker  kronecker  0.1    -     weight of a Linear
    2.weight   (4, 16)  -          kronecker  diagonal   0.1    -     the last layer
    0.bias     (16,)    -          kronecker  diagonal   0      -     a vector
    2.bias     (4,)     -          kronecker  diagonal   0      -     a vector
    1 matrix kronecker, 1 output layer diagonal, 2 vectors diagonal
    """
    if not all("metric" in group for group in optimizer.param_groups):
        raise TypeError(f"optimizer must be a badm.BADM, got a {type(optimizer).__name__}")
    return Explanation(tuple(_rows(optimizer, model, measure=True)))


def summary(optimizer: Optimizer) -> str:
    """Return the last line of the table alone, without measuring steps."""
    return Explanation(tuple(_rows(optimizer, None, measure=False))).summary


def _rows(optimizer: Optimizer, model: nn.Module | None, measure: bool) -> Iterator[Row]:
    known = {} if model is None else roles(model)
    rows: dict[Tensor, Row] = {}
    for index, group in enumerate(optimizer.param_groups):
        names = group.get("param_names") or [
            f"group {index}, parameter {i}" for i in range(len(group["params"]))
        ]
        for name, p in zip(names, group["params"], strict=True):
            routing = _routing(group["metric"], name, p, known.get(p))
            step = relative_step(group, p, optimizer.state.get(p, {})) if measure else None
            rows[p] = _row(group, p, routing, step)
    if model is None:
        yield from rows.values()
    for p, role in known.items():
        yield rows[p] if p in rows else _missing(p, role)


def _routing(asked: str, name: str, p: Tensor, role: Role | None) -> Routing:
    """Return what was decided for a parameter, by parameter_groups or by the group it is in."""
    decided = recall(p)
    if decided is not None and decided.metric == asked:
        return replace(decided, role=role) if role and role.name != decided.role.name else decided
    if role is None:
        role = Role(name, "matrix" if is_matrix(p) else "vector", "", False)
    return Routing(role, asked, asked, "its group's metric")


def _row(group: dict[str, Any], p: Tensor, routing: Routing, step: float | None) -> Row:
    real = torch.view_as_real(p) if p.is_complex() else p
    group_metric = metrics.find(group["metric"])
    metric = group_metric if not p.is_complex() else metrics.find(group_metric.fallback)
    blocks = update.as_blocks(group["blocks"])
    used = metrics.metric_for(metric.name, real, blocks)
    why = routing.why
    if used.name != group_metric.name and routing.role.kind != "vector":
        why = _why_no_matrix(p)
    elif used.name != group_metric.name:
        why = routing.role.why or "a vector"
    reads_matrix = used.fallback != used.name and not used.applies_to(torch.empty(2, device="meta"))
    return Row(
        name=routing.role.name,
        kind=routing.role.kind,
        shape=tuple(p.shape),
        matrix=matrix_shape(p, blocks) if reads_matrix else None,
        asked=routing.asked,
        used=used.name,
        why=why,
        weight_decay=group["weight_decay"],
        relative_step=step,
        matrices=math.prod(blocks) if reads_matrix else 1,
    )


def _missing(p: Tensor, role: Role) -> Row:
    kind = "not in the optimizer" if p.requires_grad else "frozen"
    why = "no group has it" if p.requires_grad else "requires_grad=False"
    return Row(role.name, kind, tuple(p.shape), None, "", "", why, 0.0, None)


def _why_no_matrix(p: Tensor) -> str:
    if p.is_complex():
        return "complex"
    return "empty" if p.numel() == 0 else "a side of length 1"


@torch.no_grad()
def relative_step(group: dict[str, Any], p: Tensor, state: dict[str, Any]) -> float | None:
    """Return ‖Δw‖/‖w‖ of the next step, taken on copies with the gradient at hand.

    Without a gradient, the dual takes its place: the mean of the gradients so far.
    """
    if not state or fsdp.is_sharded(p):
        return None
    settings = update.settings_of(group)
    g = p.grad if p.grad is not None else state["dual"]
    if p.is_complex():
        settings = replace(settings, metric=metrics.find(settings.metric).fallback)
        g = torch.view_as_real(g) if g.is_complex() else g
        p = torch.view_as_real(p)
    if g.shape != p.shape:
        return None
    w, norm = p.detach().clone(), float(torch.linalg.vector_norm(p))
    update.loop(Parameters([w], [g.clone()], [copy.deepcopy(state)]), settings)
    return float(torch.linalg.vector_norm(w - p)) / norm if norm else None


def _of(kind: str, count: int) -> str:
    return kind if count == 1 else _PLURAL.get(kind, f"{kind}s")


def _row_cells(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        str(row.shape),
        _matrices(row),
        row.asked or "-",
        row.used or "-",
        f"{row.weight_decay:g}",
        "-" if row.relative_step is None else f"{row.relative_step:.1e}",
        row.why,
    )


def _matrices(row: Row) -> str:
    if row.matrix is None:
        return "-"
    one = f"{row.matrix[0]} × {row.matrix[1]}"
    return one if row.matrices == 1 else f"{row.matrices} of {one}"


def _line(tag: str, cells: tuple[str, ...]) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _example() -> Optimizer:
    """Return an optimizer of two layers, for the examples."""
    from badm import BADM

    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    return BADM(model, metric="kronecker", weight_decay=0.1)
