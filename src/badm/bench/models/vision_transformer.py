"""A vision transformer that predicts a box, with the layers of Keras."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from badm.bench.models.attention import SelfAttention
from badm.bench.models.keras_layers import Dense

COORDINATES = 4  # of a box
EPSILON = 1e-6  # of LayerNorm
BLOCK_DROPOUT, HEAD_DROPOUT = 0.1, 0.3
LIMIT = 0.05  # of the initial embedding, as in Keras


class VisionTransformer(nn.Module):
    """Predicts four numbers per image: patches as tokens, pre-norm blocks, a wide perceptron.

    Images are (N, side, side, 3) with pixels from 0 to 255, possibly ``uint8``; pixels are
    multiplied by ``scale``.

    >>> import torch
    >>> network = VisionTransformer()
    >>> network(torch.zeros(2, 224, 224, 3, dtype=torch.uint8)).shape
    torch.Size([2, 4])
    >>> sum(p.numel() for p in network.parameters())
    9615332
    """

    def __init__(
        self,
        side: int = 224,
        patch: int = 32,
        *,
        width: int = 64,
        heads: int = 4,
        blocks: int = 4,
        head: Sequence[int] = (2048, 1024, 512, 64, 32),
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        if side % patch:
            raise ValueError(f"side must be a multiple of patch, got {side} and {patch}")
        tokens = (side // patch) ** 2
        self.patch, self.scale = patch, scale
        self.project = Dense(3 * patch * patch, width)
        self.positions = nn.Embedding(tokens, width)
        nn.init.uniform_(self.positions.weight, -LIMIT, LIMIT)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(blocks)])
        self.norm = nn.LayerNorm(width, EPSILON)
        self.head = nn.Sequential(
            nn.Dropout(HEAD_DROPOUT), perceptron(tokens * width, head, HEAD_DROPOUT)
        )
        self.output = Dense(head[-1], COORDINATES)

    def forward(self, images: Tensor) -> Tensor:
        # Patches first: bytes are faster to rearrange than floats.
        pixels = patches(images, self.patch).to(self.project.weight.dtype) * self.scale
        tokens = self.blocks(self.project(pixels) + self.positions.weight)
        boxes: Tensor = self.output(self.head(self.norm(tokens).flatten(1)))
        return boxes


class Block(nn.Module):
    """Attention with heads as wide as a token, then a perceptron, with residual connections."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.first_norm = nn.LayerNorm(width, EPSILON)
        self.attention = SelfAttention(width, heads, key_width=width, dropout=BLOCK_DROPOUT)
        self.second_norm = nn.LayerNorm(width, EPSILON)
        self.perceptron = perceptron(width, (2 * width, width), BLOCK_DROPOUT)

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.attention(self.first_norm(tokens))
        tokens = tokens + self.perceptron(self.second_norm(tokens))
        return tokens


def patches(images: Tensor, size: int) -> Tensor:
    """Cut images (N, height, width, channels) into squares and flatten each.

    Squares are in row-major order, and so are the pixels of each, as in Keras's
    ``extract_patches``.

    >>> import torch
    >>> patches(torch.arange(16).view(1, 4, 4, 1), 2).tolist()
    [[[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]]
    """
    count, height, width, channels = images.shape
    grid = images.reshape(count, height // size, size, width // size, size, channels)
    return grid.transpose(2, 3).reshape(count, -1, size * size * channels)


def perceptron(inputs: int, units: Sequence[int], dropout: float) -> nn.Sequential:
    """Make dense layers, each followed by GELU and dropout."""
    layers: list[nn.Module] = []
    for before, after in zip([inputs, *units[:-1]], units, strict=True):
        layers += [Dense(before, after), nn.GELU(), nn.Dropout(dropout)]
    return nn.Sequential(*layers)
