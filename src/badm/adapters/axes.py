"""Internal: which axes of a parameter are the rows of its matrix: those of the outputs.

Metrics that read a matrix read torch's: ``(out, in)``, kernels ``(out, in, height, width)`` with
everything but the outputs flattened. Flax and Keras have ``(in, out)`` and ``(height, width, in,
out)``: the same matrix after a permutation of axes, which decides on the blocks of the kronecker
metrics and on nothing else that could be seen in exact arithmetic.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from badm.adapters.arrays import Array, Arrays

Shape = tuple[int, ...]

# Layers of an attention by their names in Flax and Keras, whose kernels have three axes.
TO_HEADS = ("query", "key", "value")  # (in, heads, size of a head)
_FROM_HEADS = ("out", "attention_output")  # (heads, size of a head, out)


class Axes(NamedTuple):
    """Axes of a parameter that are the rows of its matrix, and those that are its columns.

    >>> Axes((3,), (2, 0, 1)).matrix_shape((5, 5, 8, 16))
    (16, 200)
    """

    rows: tuple[int, ...]
    cols: tuple[int, ...]

    def matrix_shape(self, shape: Shape) -> tuple[int, int]:
        """Return the rows and columns of the matrix of a parameter of that shape."""
        return math.prod(shape[i] for i in self.rows), math.prod(shape[i] for i in self.cols)


def output_last(path: str, shape: Shape) -> Axes:
    """Return the axes of a parameter of Flax or Keras, whose outputs come last.

    >>> output_last("Conv_0/kernel", (5, 5, 8, 16))
    Axes(rows=(3,), cols=(2, 0, 1))
    >>> output_last("attention/query/kernel", (32, 4, 8))
    Axes(rows=(1, 2), cols=(0,))
    """
    layer = path.split("/")[-2] if "/" in path else ""
    if len(shape) == 3 and layer in TO_HEADS:
        return Axes((1, 2), (0,))
    if len(shape) == 3 and layer in _FROM_HEADS:
        return Axes((2,), (0, 1))
    *spatial, inputs, outputs = range(len(shape))
    return Axes((outputs,), (inputs, *spatial))


def output_first(path: str, shape: Shape) -> Axes:
    """Return the axes of a parameter whose outputs come first, as in torch.

    >>> output_first("layers/0/weight", (16, 8, 5, 5))
    Axes(rows=(0,), cols=(1, 2, 3))
    """
    return Axes((0,), tuple(range(1, len(shape))))


def to_matrix(arrays: Arrays, x: Array, axes: Axes) -> Array:
    """Return a parameter as its matrix."""
    shape = axes.matrix_shape(tuple(x.shape))
    permuted = arrays.xp.transpose(arrays.whole(x), (*axes.rows, *axes.cols))
    return arrays.xp.reshape(permuted, shape)


def from_matrix(arrays: Arrays, matrix: Array, axes: Axes, shape: Shape) -> Array:
    """Return the parameter of that shape whose matrix is given."""
    order = (*axes.rows, *axes.cols)
    back = sorted(range(len(order)), key=order.__getitem__)
    permuted = arrays.xp.reshape(matrix, tuple(shape[i] for i in order))
    return arrays.xp.transpose(permuted, tuple(back))
