"""A small encoder like BERT's, with a head for masked words and one for whole texts."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from badm.bench.models.attention import SelfAttention
from badm.bench.models.keras_layers import Dense, Embedding

EPSILON = 1e-6  # of LayerNorm
DROPOUT = 0.1
POOLED = 64  # units of the classifier


class Encoder(nn.Module):
    """Words and positions, then one post-norm layer: attention and a perceptron.

    Takes ids of words, ``(N, length)``, and returns ``(N, length, width)``. Padding is a word like
    any other. Positions are fixed sines and cosines unless they are learned.

    >>> Encoder(30, 7, width=16)(torch.zeros(2, 7, dtype=torch.int32)).shape
    torch.Size([2, 7, 16])
    """

    waves: Tensor

    def __init__(
        self,
        words: int,
        length: int,
        *,
        width: int = 128,
        heads: int = 8,
        learned_positions: bool = False,
    ) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width must be a multiple of heads, got {width} and {heads}")
        self.words, self.width, self.learned_positions = words, width, learned_positions
        self.embedding = Embedding(words, width)
        if learned_positions:
            self.positions = nn.Embedding(length, width)
            nn.init.xavier_uniform_(self.positions.weight)
        else:
            # Not saved with the weights: a function of the sizes.
            self.register_buffer("waves", waves(length, width), persistent=False)
        self.attention = SelfAttention(width, heads, key_width=width // heads)
        self.first_norm = nn.LayerNorm(width, EPSILON)
        self.hidden, self.project = Dense(width, width), Dense(width, width)
        self.second_norm = nn.LayerNorm(width, EPSILON)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, numbers: Tensor) -> Tensor:
        positions = self.positions.weight if self.learned_positions else self.waves
        x: Tensor = self.embedding(numbers) + positions
        x = self.first_norm(x + self.dropout(self.attention(x)))
        x = self.second_norm(x + self.dropout(self.project(self.hidden(x).relu())))
        return x


class MaskedLanguageModel(nn.Module):
    """Predicts masked words: logits over the vocabulary, at the given places only.

    ``places`` ``(N, length)`` is true where a word is predicted; logits are in its order, a row for
    each. A loss that gives the other places no weight is the same, with the same gradients, at ten
    times the cost.

    >>> network = MaskedLanguageModel(Encoder(30_000, 256))
    >>> sum(p.numel() for p in network.parameters())
    7809584
    >>> places = torch.zeros(2, 256, dtype=torch.bool)
    >>> places[0, 3] = places[1, :2] = True
    >>> network(torch.zeros(2, 256, dtype=torch.int32), places).shape
    torch.Size([3, 30000])
    """

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.output = Dense(encoder.width, encoder.words)

    def forward(self, numbers: Tensor, places: Tensor) -> Tensor:
        logits: Tensor = self.output(self.encoder(numbers)[places])
        return logits


class PooledClassifier(nn.Module):
    """One logit per text: the encoder, max-pooling over positions, two dense layers.

    >>> network = PooledClassifier(Encoder(30_000, 256))
    >>> sum(p.numel() for name, p in network.named_parameters() if not name.startswith("encoder"))
    8321
    """

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.hidden = Dense(encoder.width, POOLED)
        self.output = Dense(POOLED, 1)

    def forward(self, numbers: Tensor) -> Tensor:
        pooled = self.encoder(numbers).amax(1)
        logits: Tensor = self.output(self.hidden(pooled).relu())
        return logits[:, 0]


def waves(length: int, width: int) -> Tensor:
    """Return sines at even features and cosines at odd ones, of decreasing frequency.

    As in the public example, the first position is all zeros.

    >>> waves(3, 2)
    tensor([[ 0.0000,  0.0000],
            [ 0.8415,  0.5403],
            [ 0.9093, -0.4161]])
    """
    position = torch.arange(length, dtype=torch.float64)[:, None]
    feature = torch.arange(width)
    angle = position / 10_000 ** (2 * (feature // 2) / width).double()
    wave = torch.where(feature % 2 == 0, angle.sin(), angle.cos())
    wave[0] = 0
    return wave.float()
