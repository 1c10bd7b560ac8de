"""The small convolutional network of the image tasks, initialised as in Keras."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn.functional import max_pool2d

from badm.bench.models.keras_layers import Dense

WIDTH = 64  # of the dense layer before the output


class ConvolutionalNetwork(nn.Module):
    """Blocks of a 3×3 convolution without padding, ReLU and max-pooling; two dense layers.

    Takes images as they are stored, ``(N, side, side, 3)`` from 0 to 255, and returns logits. The
    last block has no pooling if ``last_pool`` is false.

    >>> import torch
    >>> network = ConvolutionalNetwork(32, (32, 64, 64), classes=10)
    >>> sum(p.numel() for p in network.parameters())
    73418
    >>> network(torch.zeros(5, 32, 32, 3, dtype=torch.uint8)).shape
    torch.Size([5, 10])
    """

    def __init__(
        self,
        side: int,
        channels: Sequence[int],
        classes: int,
        *,
        last_pool: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        blocks, before, left = [], 3, side
        for number, width in enumerate(channels, start=1):
            pooled = last_pool or number < len(channels)
            blocks.append(Block(before, width, pooled))
            before, left = width, (left - 2) // 2 if pooled else left - 2
            if left < 1:
                raise ValueError(f"images of {side}×{side} are too small for {number} blocks")
        self.blocks = nn.Sequential(*blocks)
        self.dropout = nn.Dropout(dropout)
        self.hidden = Dense(before * left * left, WIDTH)
        self.output = Dense(WIDTH, classes)

    def forward(self, images: Tensor) -> Tensor:
        # Channels stay last in memory, only their axis moves: a third faster on a CPU. Weights keep
        # the usual layout, for methods that treat them as matrices.
        x = images.permute(0, 3, 1, 2).to(self.hidden.weight.dtype) / 255
        x = self.dropout(self.blocks(x))
        # In the order of Keras, which is that of memory.
        x = x.permute(0, 2, 3, 1).flatten(1)
        logits: Tensor = self.output(self.hidden(x).relu())
        return logits


class Block(nn.Module):
    """A convolution, ReLU and optional max-pooling by two."""

    def __init__(self, inputs: int, outputs: int, pooled: bool) -> None:
        super().__init__()
        self.convolution = Convolution(inputs, outputs, 3)
        self.pooled = pooled

    def forward(self, x: Tensor) -> Tensor:
        x = self.convolution(x)
        # Max-pooling before ReLU: the same values and gradients for a quarter of the work.
        return (max_pool2d(x, 2) if self.pooled else x).relu()


class Convolution(nn.Conv2d):
    """A convolution initialised as in Keras: kernel Glorot uniform, bias zero."""

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
