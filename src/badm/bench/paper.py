"""What the paper states of a task: its settings and its figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Paper:
    """Settings and figures of one task of the paper; ``None`` where it states nothing.

    ``figures`` has the reported score for each method, by the name it has here.

    >>> Paper(lr=1e-3, rho=200, sigma=800, figures={"adam": 0.7358}).figures["adam"]
    0.7358
    """

    lr: float | None = None
    rho: float | None = None
    sigma: float | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    note: str = ""
