"""The convolutional network for texts, with the layers of Keras."""

from __future__ import annotations

from torch import Tensor, nn

from badm.bench.models.half_dropout import HalfDropout
from badm.bench.models.keras_layers import Dense, Embedding

KERNEL, STRIDE = 7, 3


class TextCnn(nn.Module):
    """One logit per text: embedding, two strided convolutions, max-pooling over positions.

    Takes ids of words, ``(N, length)``. Padding is embedded like any word.

    >>> import torch
    >>> network = TextCnn(20_000)
    >>> sum(p.numel() for p in network.parameters())
    2806273
    >>> network(torch.zeros(3, 500, dtype=torch.int32)).shape
    torch.Size([3])
    """

    def __init__(self, words: int, width: int = 128) -> None:
        super().__init__()
        self.embedding = Embedding(words, width)
        self.first, self.second = (Convolution(width, width, KERNEL, STRIDE) for _ in range(2))
        self.hidden = Dense(width, width)
        self.dropout = HalfDropout()
        self.output = Dense(width, 1)

    def forward(self, numbers: Tensor) -> Tensor:
        x = self.dropout(self.embedding(numbers)).transpose(1, 2)
        x = self.first(x).relu()
        # Max-pooling before ReLU: the same values and gradients for less work.
        x = self.second(x).amax(2).relu()
        logits: Tensor = self.output(self.dropout(self.hidden(x).relu()))
        return logits[:, 0]


class Convolution(nn.Conv1d):
    """A convolution initialised as in Keras: kernel Glorot uniform, bias zero."""

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
