"""Grids of images as PNG: the same bytes for the same images."""

from __future__ import annotations

import io
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import interpolate

RIGHT, WRONG = "#1a7f37", "#c62828"
COLUMNS = 8
DOTS = 110  # per inch
TILE, FRAME, GAP = 134, 3, 16  # dots: image with its frame, frame, space between two
CAPTION, HEADING = 46, 38  # dots for text below an image and at the top
POINTS = 8  # font size
SAMPLE, MARGIN = 64, 2  # dots: least size of a sample, space between two


def classified_grid(
    images: Tensor, truths: Sequence[str], guesses: Sequence[str], columns: int = COLUMNS
) -> bytes:
    """Draw a grid of images ``(N, side, side, 3)`` with their classes and predictions.

    Correct ones have their class below, in green; wrong ones the prediction as well, in red.

    >>> images = torch.zeros(2, 4, 4, 3, dtype=torch.uint8)
    >>> classified_grid(images, ["cat", "cat"], ["cat", "dog"])[1:4]
    b'PNG'
    """
    from matplotlib.colors import to_rgb
    from matplotlib.figure import Figure

    _require_images(images, "(N, side, side, 3)", images.ndim == 4 and images.shape[3] == 3)
    columns = min(columns, len(images))
    rows = -(-len(images) // columns)
    width, height = GAP + columns * (TILE + GAP), HEADING + rows * (TILE + CAPTION)
    figure = Figure(figsize=(width / DOTS, height / DOTS), dpi=DOTS)
    right = sum(map(str.__eq__, truths, guesses))
    figure.text(
        GAP / width, 1 - HEADING / 2 / height, f"{right} of {len(images)} right", va="center"
    )
    # All images as one array, drawn at once: a hundred axes would take a second.
    sheet = torch.ones(height, width, 3)
    for place, (tile, truth, guess) in enumerate(zip(_tiles(images), truths, guesses, strict=True)):
        row, column = divmod(place, columns)
        top, left = HEADING + row * (TILE + CAPTION), GAP + column * (TILE + GAP)
        colour = RIGHT if truth == guess else WRONG
        framed = sheet[top : top + TILE, left : left + TILE]
        framed[:] = torch.tensor(to_rgb(colour))
        framed[FRAME:-FRAME, FRAME:-FRAME] = tile
        figure.text(
            (left + TILE / 2) / width,
            1 - (top + TILE + 4) / height,
            truth if truth == guess else f"{truth}\nguess: {guess}",
            color=colour,
            fontsize=POINTS,
            ha="center",
            va="top",
            parse_math=False,  # a dollar sign in a name is no formula
        )
    figure.figimage(sheet.numpy())
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=DOTS, metadata={"Software": None})
    return file.getvalue()


def sample_grid(images: Tensor, columns: int = COLUMNS) -> bytes:
    """Draw a grid of samples ``(N, channels, side, side)`` from 0 to 1, each pixel a square.

    >>> sample_grid(torch.zeros(3, 1, 4, 4))[1:4]
    b'PNG'
    """
    from PIL import Image

    squares = images.ndim == 4 and images.shape[2] == images.shape[3]
    _require_images(images, "(N, channels, side, side)", squares and images.shape[1] in (1, 3))
    count, _, side, _ = images.shape
    zoom = max(1, SAMPLE // side)
    columns, step = min(columns, count), zoom * side + MARGIN
    rows = -(-count // columns)
    sheet = torch.ones(rows * step - MARGIN, columns * step - MARGIN, 3)
    # A diverging model may make NaN while its weights are still finite: draw those pixels black.
    pixels = images.cpu().float().nan_to_num(0.0).clamp(0, 1)
    large = interpolate(pixels, scale_factor=zoom, mode="nearest")
    for place, tile in enumerate(large.expand(-1, 3, -1, -1).permute(0, 2, 3, 1)):
        row, column = divmod(place, columns)
        top, left = row * step, column * step
        sheet[top : top + zoom * side, left : left + zoom * side] = tile
    file = io.BytesIO()
    Image.fromarray((255 * sheet).round().to(torch.uint8).numpy()).save(file, "PNG")
    return file.getvalue()


def _require_images(images: Tensor, wanted: str, fits: bool) -> None:
    shape = tuple(images.shape)
    if not fits or 0 in shape:
        raise ValueError(f"images must be {wanted} and not empty, got {shape}")


def _tiles(images: Tensor) -> Tensor:
    """Resize images to the inside of a frame, enlarging without smoothing."""
    x, inside = images.permute(0, 3, 1, 2).float() / 255, TILE - 2 * FRAME
    mode = "area" if images.shape[1] > inside else "nearest"
    return interpolate(x, size=(inside, inside), mode=mode).permute(0, 2, 3, 1)
