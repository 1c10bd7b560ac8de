"""Networks of dense layers: the feed-forward blocks of the graph tasks, and a plain perceptron."""

from __future__ import annotations

import torch
from scipy.sparse import csr_array
from torch import Tensor, nn

from badm.bench.models.half_dropout import HalfDropout
from badm.bench.models.keras_layers import BatchNorm, Dense, keras_init
from badm.bench.models.sparse_input import SparseInput

UNITS = 32


def block(features: int) -> nn.Sequential:
    """Make BatchNorm → Dropout(½) → Dense(32) → GELU, twice.

    >>> from badm.bench.models.keras_layers import parameter_counts
    >>> parameter_counts(block(32))
    (2368, 2240)
    """
    return nn.Sequential(*_layer(features), *_layer(UNITS))


class InputBlock(nn.Module):
    """The same block, for the rows of a sparse matrix."""

    def __init__(self, features: int, masks: int | None = None) -> None:
        super().__init__()
        self.input = SparseInput(features, UNITS, masks)
        self.rest = nn.Sequential(nn.GELU(), *_layer(UNITS))

    def forward(self, rows: csr_array, known: tuple[Tensor, Tensor] | None = None) -> Tensor:
        x: Tensor = self.rest(self.input(rows, known))
        return x


class FeedForward(nn.Module):
    """Five blocks, the last four with skip connections, and linear logits of the given nodes.

    The features are a constant of the model and not in its ``state_dict``.
    """

    def __init__(self, features: csr_array, classes: int) -> None:
        super().__init__()
        self.features = features
        self.first = InputBlock(features.shape[1])
        self.blocks = nn.ModuleList(block(UNITS) for _ in range(4))
        self.logits = Dense(UNITS, classes)

    def forward(self, nodes: Tensor) -> Tensor:
        x = self.first(self.features[nodes.cpu().numpy()])
        for further in self.blocks:
            x = x + further(x)
        logits: Tensor = self.logits(x)
        return logits


def perceptron(features: int, classes: int) -> nn.Sequential:
    """Make an F–32–32–C perceptron with ReLU, for dense rows.

    >>> [layer.out_features for layer in perceptron(100, 7) if isinstance(layer, nn.Linear)]
    [32, 32, 7]
    """
    sizes = (features, UNITS), (UNITS, UNITS), (UNITS, classes)
    # Layer-wise methods accept only torch's own layers; others might compute something else.
    first, second, last = (keras_init(nn.Linear(*size)) for size in sizes)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last)


def dense_rows(features: csr_array, nodes: Tensor) -> Tensor:
    """Return some rows of a sparse matrix as a dense tensor.

    >>> import numpy as np
    >>> dense_rows(csr_array(np.eye(3)), torch.tensor([2]))
    tensor([[0., 0., 1.]], dtype=torch.float64)
    """
    return torch.from_numpy(features[nodes.numpy()].toarray())


def _layer(features: int) -> tuple[nn.Module, ...]:
    return BatchNorm(features), HalfDropout(), Dense(features, UNITS), nn.GELU()
