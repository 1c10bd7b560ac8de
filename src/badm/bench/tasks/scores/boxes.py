"""Boxes ``x1, y1, x2, y2`` in fractions of an image: their IoU, and an image of them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

LINES: dict[str, dict[str, Any]] = {
    "true box": {"color": "#ffd600", "linestyle": "-"},
    "predicted": {"color": "#00e5ff", "linestyle": "--"},
}
COLUMNS = 4
INCHES, GAP = 1.9, 0.12  # size of an image, and space between two
CAPTION, HEADING = 0.3, 0.36  # inches for text
DOTS = 100  # per inch


def iou(a: Tensor, b: Tensor) -> Tensor:
    """Compute the intersection over union of each pair of boxes (..., 4), in double precision.

    A box whose end is before its start is empty, and the IoU of two empty boxes is 0.

    >>> truth = torch.tensor([0.0, 0.0, 2.0, 2.0])
    >>> iou(torch.tensor([[0.0, 0.0, 2.0, 2.0], [1.0, 0.0, 3.0, 2.0], [2.0, 0.0, 0.0, 2.0]]), truth)
    tensor([1.0000, 0.3333, 0.0000], dtype=torch.float64)
    """
    a, b = a.double(), b.double()
    common = _area(torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:]))
    union = _area(a[..., :2], a[..., 2:]) + _area(b[..., :2], b[..., 2:]) - common
    return torch.where(union == 0, 0.0, common / union)


def pixel_iou(a: Tensor, b: Tensor, side: int) -> Tensor:
    """Compute the IoU in whole pixels, as the public example does on a square image.

    Corners are rounded down to pixels, and the last pixel belongs to the box.

    >>> half = torch.tensor([0.0, 0.0, 0.5, 1.0])
    >>> pixel_iou(half, torch.tensor([0.0, 0.0, 0.99, 1.0]), 10)  # 6 of 10 columns
    tensor(0.6000, dtype=torch.float64)
    """
    last = torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    return iou((side * a.double()).trunc() + last, (side * b.double()).trunc() + last)


def _area(start: Tensor, end: Tensor) -> Tensor:
    return (end - start).clamp(min=0).prod(-1)


def draw_boxes(images: Tensor, truths: Tensor, predictions: Tensor, heading: str = "") -> bytes:
    """Draw images ``(N, height, width, 3)`` with both boxes and their IoU, as PNG.

    >>> box = torch.tensor([[0.2, 0.2, 0.8, 0.8]])
    >>> draw_boxes(torch.zeros(1, 8, 8, 3, dtype=torch.uint8), box, box)[1:4]
    b'PNG'
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patheffects import withStroke

    rows = -(-len(images) // COLUMNS)
    size = COLUMNS * (INCHES + GAP), rows * (INCHES + CAPTION) + HEADING
    figure = Figure(figsize=size, facecolor="white")
    FigureCanvasAgg(figure)
    figure.text(0.01, 1 - HEADING / 2 / size[1], heading, va="center", fontsize=10)
    outline = [
        withStroke(linewidth=2.8, foreground="black", alpha=0.75)
    ]  # visible on any background
    looks = {
        name: {**line, "linewidth": 1.6, "path_effects": outline} for name, line in LINES.items()
    }
    figure.legend(
        [Line2D([], [], **look) for look in looks.values()],
        list(looks),
        loc="upper right",
        bbox_to_anchor=(1, 1),
        ncols=2,
        frameon=False,
        fontsize=10,
        borderaxespad=0.3,
    )
    grid = figure.add_gridspec(
        rows,
        COLUMNS,
        left=0.01,
        right=0.99,
        top=1 - HEADING / size[1],
        bottom=CAPTION / size[1],
        hspace=CAPTION / INCHES,
        wspace=GAP / INCHES,
    )
    scores = iou(predictions, truths).tolist()
    drawn = zip(images, truths.tolist(), predictions.tolist(), scores, strict=True)
    for place, (image, truth, prediction, score) in enumerate(drawn):
        axes = figure.add_subplot(grid[divmod(place, COLUMNS)])
        # A predicted box may lie outside the image, which stays in view.
        axes.imshow(image.numpy(), extent=(0, 1, 1, 0), interpolation="nearest")
        axes.set(xlim=(0, 1), ylim=(1, 0), xticks=[], yticks=[])
        for box, look in zip((truth, prediction), looks.values(), strict=True):
            axes.plot(*_corners(box), **look)
        axes.set_xlabel(f"IoU {score:.2f}", fontsize=9, labelpad=2)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=DOTS, metadata={"Software": None})
    return file.getvalue()


def _corners(box: Sequence[float]) -> tuple[list[float], list[float]]:
    x1, y1, x2, y2 = box
    return [x1, x2, x2, x1, x1], [y1, y1, y2, y2, y1]
