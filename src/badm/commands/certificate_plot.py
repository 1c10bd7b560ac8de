"""A picture of a certificate: the Lagrangian with its descent, and the gradient with its bound."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import Tensor

    from badm.paper.theory import Certificate

FORMATS = (".png", ".pdf", ".svg")
MEASURED, BOUND, RISE, FAILS = "#1f5fa8", "#d1730f", "#8a5cc2", "#c4162a"


def draw(certificate: Certificate, title: str, path: Path) -> None:
    """Write the picture of a certificate to ``path``."""
    from matplotlib.figure import Figure  # not for --help to wait for

    # A Figure of its own, not pyplot: its canvas is Agg, no display is looked for.
    figure = Figure(figsize=(11, 5.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    _descent(left, certificate)
    _rate(right, certificate)
    for axes in (left, right):
        axes.set(xlabel="iteration k", yscale="log")
        axes.grid(alpha=0.25)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), frameon=False, ncols=2)
    figure.suptitle(f"{title}\n{textwrap.fill(certificate.verdict, 120)}", fontsize=10)
    figure.savefig(path, dpi=120)


def _descent(axes: Axes, certificate: Certificate) -> None:
    above = certificate.lagrangian - certificate.minimum.value
    change, allowed = certificate.change, certificate.allowed
    _plot(axes, 0, above, "-", "black", "$L^k - F^*$")
    _plot(axes, 1, -change, ".", MEASURED, "fall $L^{k-1} - L^k$, measured")
    _plot(axes, 1, change, "^", RISE, "rise $L^k - L^{k-1}$, measured")
    _plot(axes, 1, -allowed, "--", BOUND, "least fall the theorem takes")
    _plot(axes, 1, allowed, "--", BOUND, "largest rise the theorem takes")
    failed = change.new_zeros(len(change))
    for k in certificate.violations:
        failed[k - 1] = change[k - 1].abs()
    _plot(axes, 1, failed, "x", FAILS, "an inequality fails")
    axes.set_title("Descent of the augmented Lagrangian")


def _rate(axes: Axes, certificate: Certificate) -> None:
    origin = "L^0" if certificate.first == 1 else "L^1"
    best = r"$\min_{j≤k}\|∇F(z^j)\|^2$, measured"
    _plot(axes, 1, certificate.best, "-", MEASURED, best)
    _plot(axes, 1, certificate.bound, "--", BOUND, f"bound $12δ + 24σ({origin} - F^*)/k$")
    if certificate.delta > 0:
        axes.axhline(12 * certificate.delta, color=BOUND, lw=0.8, ls=":", label="$12δ$")
    axes.set(title="Smallest squared gradient norm", xscale="log")


def _plot(axes: Axes, first: int, values: Tensor, style: str, color: str, label: str) -> None:
    """Draw against ``k = first, …`` what a logarithmic axis can hold, if anything."""
    kept = (values > 0) & (values < 1e200)
    if kept.any():
        k = first + kept.nonzero().flatten()
        axes.plot(
            k, values[kept], style, color=color, lw=1.6, ms=6 if style == "x" else 4, label=label
        )
