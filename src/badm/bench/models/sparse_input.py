"""The first layers of a network whose input is a sparse matrix, without making it dense.

BatchNorm → Dropout(½) → Dense of a matrix X is, with BatchNorm's x ↦ a·x + c for each column, the
mask M and the kernel W,

    2 · M⊙(X·a + c) · W + bias = (M⊙X) · (2a⊙W) + M · (2c⊙W) + bias.

The first product is sparse. The second needs the mask, packed eight bits to a byte and unpacked in
chunks that fit the cache, again in the backward pass. Nothing is approximated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor, nn

from badm.bench.models.half_dropout import random_bytes, unpack
from badm.bench.models.keras_layers import BatchNorm, Dense
from badm.bench.task import to_device

PIECE = 1 << 19  # mask elements unpacked at once


class SparseInput(nn.Module):
    """BatchNorm → Dropout(½) → Dense on the rows of a sparse matrix.

    ``masks`` limits the number of different dropout masks; if there are more rows, some share one,
    at random and differently each time. Each row still has a fair mask, and the work is that of
    ``masks`` rows.

    >>> layer = SparseInput(3, 2).eval()
    >>> layer(csr_array(np.eye(4, 3, dtype=np.float32))).shape
    torch.Size([4, 2])
    """

    def __init__(self, features: int, units: int, masks: int | None = None) -> None:
        super().__init__()
        self.masks = masks
        self.norm = BatchNorm(features)
        self.dense = Dense(features, units)

    def forward(self, rows: csr_array, known: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Apply the layers; ``known`` are the moments of the rows, if they never change."""
        mean, variance = self.norm.running_mean, self.norm.running_var
        if self.training:
            mean, variance = to_device(known or moments(rows), mean.device)
            self.norm.observe(mean, variance)
        a = self.norm.weight * (variance + self.norm.eps).rsqrt()
        c = self.norm.bias - mean * a
        kernel = self.dense.weight
        if not self.training:
            return sparse_product(rows, (kernel * a).T) + kernel @ c + self.dense.bias
        count, features = rows.shape
        drawn = min(count, self.masks or count)
        # On the CPU, where the sparse matrix is.
        coins = random_bytes(drawn * -(-features // 8)).view(drawn, -1)
        lots = torch.arange(count) if drawn == count else torch.randperm(count) % drawn
        constant = _coins_times(coins.to(c.device), (2 * kernel * c).T)[lots.to(c.device)]
        return sparse_product(_kept(rows, coins, lots), (2 * kernel * a).T) + (
            constant + self.dense.bias
        )


def moments(rows: csr_array) -> tuple[Tensor, Tensor]:
    """Compute mean and biased variance of each column.

    >>> [m.tolist() for m in moments(csr_array(np.array([[0.0, 1.0], [2.0, 1.0]])))]
    [[1.0, 1.0], [1.0, 0.0]]
    """
    count, features = rows.shape
    values = rows.data.astype(np.float64)
    mean = np.bincount(rows.indices, values, features) / count
    present = np.bincount(rows.indices, minlength=features)
    # Around the mean, not around zero: the difference of two large squares would lose digits.
    squares = np.bincount(rows.indices, (values - mean[rows.indices]) ** 2, features)
    variance = (squares + (count - present) * mean**2) / count
    return torch.from_numpy(mean).float(), torch.from_numpy(variance).float()


def sparse_product(matrix: csr_array, dense: Tensor) -> Tensor:
    """Compute ``matrix @ dense``, differentiable in the dense factor.

    >>> matrix = csr_array(np.array([[0, 2]], np.float32))
    >>> sparse_product(matrix, torch.tensor([[5.0], [7.0]]))
    tensor([[14.]])
    """
    product: Tensor = _Product.apply(matrix, dense)  # type: ignore[no-untyped-call]
    return product


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrix: csr_array, dense: Tensor) -> Tensor:
        ctx.matrix = matrix
        return _times(matrix, dense)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        return None, _times(ctx.matrix.T, gradient)


class _CoinsTimes(torch.autograd.Function):
    """M · C, differentiable in C."""

    @staticmethod
    def forward(ctx: Any, coins: Tensor, c: Tensor) -> Tensor:
        ctx.save_for_backward(coins)
        ctx.features = len(c)
        product = c.new_empty(len(coins), c.shape[1])
        for rows, mask in _pieces(coins):
            torch.mm(mask[:, : len(c)], c, out=product[rows])
        return product

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        (coins,) = ctx.saved_tensors
        by_c = gradient.new_zeros(gradient.shape[1], 8 * coins.shape[1])
        for rows, mask in _pieces(coins):
            by_c.addmm_(gradient[rows].T, mask)
        return None, by_c.T[: ctx.features]


def _coins_times(coins: Tensor, c: Tensor) -> Tensor:
    product: Tensor = _CoinsTimes.apply(coins, c)  # type: ignore[no-untyped-call]
    return product


def _pieces(coins: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield the mask as ones and zeros, some rows at a time, in a reused buffer.

    Rows are whole bytes, with up to seven more elements than there are features.
    """
    count, width = coins.shape
    height = max(1, PIECE // (8 * width))
    memory = torch.empty(min(height, count) * width, 8, device=coins.device)
    for first in range(0, count, height):
        packed = coins[first : first + height]
        mask = unpack(packed, out=memory[: packed.numel()])
        yield slice(first, first + len(packed)), mask.view(len(packed), -1)


def _kept(x: csr_array, coins: Tensor, lots: Tensor) -> csr_array:
    """Compute M⊙X, where row i has the mask of row ``lots[i]``."""
    starts = lots.numpy() * coins.shape[1]
    places = np.repeat(starts, np.diff(x.indptr)) + (x.indices >> 3)
    shown = coins.numpy().ravel().take(places) >> (x.indices & 7).astype(np.uint8) & 1
    return csr_array((x.data * shown, x.indices, x.indptr), shape=x.shape)


def _times(matrix: Any, dense: Tensor) -> Tensor:
    if dense.device.type == "cpu":
        return torch.from_numpy(matrix @ dense.detach().contiguous().numpy())
    return product_by_entries(matrix, dense.detach())


def product_by_entries(matrix: Any, dense: Tensor) -> Tensor:
    """``matrix @ dense`` on the device of the dense factor, which scipy knows nothing of.

    >>> product_by_entries(csr_array(np.array([[0, 2]], np.float32)), torch.tensor([[5.0], [7.0]]))
    tensor([[14.]])
    """
    entries = matrix.tocoo()
    rows, columns, values = (
        torch.from_numpy(part).to(dense.device) for part in (entries.row, entries.col, entries.data)
    )
    product = dense.new_zeros(matrix.shape[0], dense.shape[1])
    return product.index_add_(0, rows, values[:, None] * dense[columns])
