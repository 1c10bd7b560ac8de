"""A small decoder-only transformer that predicts the next symbol of a sequence."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

SPREAD = 0.02  # standard deviation of initial weights, as in GPT-2


class CausalTransformer(nn.Module):
    """Pre-norm layers over learned positions; takes ids ``(N, length)``, returns logits.

    >>> import torch
    >>> network = CausalTransformer(96, length=64, width=96, heads=4, layers=3)
    >>> network(torch.zeros(2, 64, dtype=torch.long)).shape
    torch.Size([2, 64, 96])
    >>> sum(p.numel() for p in network.parameters())
    360384
    """

    def __init__(self, symbols: int, *, length: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width must be a multiple of heads, got {width} and {heads}")
        self.embedding = nn.Embedding(symbols, width)
        self.positions = nn.Embedding(length, width)
        self.layers = nn.ModuleList(CausalLayer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, symbols)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=SPREAD)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, numbers: Tensor) -> Tensor:
        x: Tensor = self.embedding(numbers) + self.positions.weight[: numbers.shape[1]]
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.output(self.norm(x))
        return logits


class CausalLayer(nn.Module):
    """Attention to the symbols so far, then a perceptron of four times the width."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        # Three matrices and not one: metrics that work on matrices treat each for itself.
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.merge = nn.Linear(width, width)
        self.hidden, self.project = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first_norm(x)
        query, key, value = (
            layer(y).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.merge(mixed.transpose(1, 2).flatten(2))
        x = x + self.project(gelu(self.hidden(self.second_norm(x))))
        return x
