"""Self-attention with the initialisation and arithmetic of Keras's ``MultiHeadAttention``."""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from badm.bench.models.keras_layers import Dense


class SelfAttention(nn.Module):
    """Self-attention with heads of any width.

    ``nn.MultiheadAttention`` divides the width among its heads; here each has ``key_width``.
    Dropout applies to the attention weights.

    >>> import torch
    >>> SelfAttention(64, heads=4, key_width=64, dropout=0.1)(torch.zeros(2, 49, 64)).shape
    torch.Size([2, 49, 64])
    """

    def __init__(self, width: int, heads: int, key_width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        inner = heads * key_width
        self.query, self.key, self.value = (Dense(width, inner) for _ in range(3))
        self.merge = Dense(inner, width)
        # Keras of 2024 initialises these kernels, (width, heads, key_width) and (heads, key_width,
        # width), as convolutions: the first axis counts positions, and Glorot's limit is smaller
        # than for matrices. It no longer does since 2026 (its pull request 22789).
        for layer in (self.query, self.key, self.value):
            _uniform(layer, math.sqrt(6 / (width * (heads + key_width))))
        _uniform(self.merge, math.sqrt(6 / (heads * (key_width + width))))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend within each sequence; ``mask`` is as in :meth:`mix`."""
        merged: Tensor = self.merge(self.mix(self.query(x), self.key(x), self.value(x), mask))
        return merged

    def mix(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix values by attention; all four are (batch, positions, heads · key width).

        ``mask`` is true where a query may attend to a key: (batch, heads, queries, keys), or
        broadcastable to that.
        """

        def by_head(x: Tensor) -> Tensor:
            return x.reshape(*x.shape[:2], self.heads, -1).transpose(1, 2)

        mixed = scaled_dot_product_attention(
            by_head(query),
            by_head(key),
            by_head(value),
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
        )
        return mixed.transpose(1, 2).flatten(2)


def _uniform(layer: nn.Linear, limit: float) -> None:
    nn.init.uniform_(layer.weight, -limit, limit)
