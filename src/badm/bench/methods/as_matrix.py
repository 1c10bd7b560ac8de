"""Convolution kernels as matrices, for optimizers of matrices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


class AsMatrix:
    """View a parameter as a matrix (out, rest) that shares its memory, in any memory format.

    Columns are in the order of memory, which makes no difference to Muon and Shampoo.

    >>> import torch
    >>> kernel = nn.Conv2d(2, 4, 3).weight
    >>> kernel.grad = torch.ones_like(kernel)
    >>> flat = AsMatrix(kernel)
    >>> with gradients_of([flat]):
    ...     torch.optim.SGD([flat.matrix], lr=1.0).step()
    >>> flat.matrix.shape, torch.equal(kernel.flatten(1), flat.matrix)
    (torch.Size([4, 18]), True)
    """

    def __init__(self, parameter: nn.Parameter) -> None:
        self.parameter = parameter
        inner = sorted(range(1, parameter.ndim), key=parameter.stride, reverse=True)
        self.order = (0, *inner)
        view = parameter.detach().permute(self.order).view(parameter.shape[0], -1)
        self.matrix = nn.Parameter(view)


@contextmanager
def gradients_of(matrices: list[AsMatrix]) -> Iterator[None]:
    """A context in which the matrices have the gradients of their parameters."""
    for flat in matrices:
        g = flat.parameter.grad
        flat.matrix.grad = None if g is None else g.permute(flat.order).reshape_as(flat.matrix)
    yield
    for flat in matrices:  # keep no gradient alive longer than without this context
        flat.matrix.grad = None
