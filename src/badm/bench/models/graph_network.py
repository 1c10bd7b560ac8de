"""The graph network of the node tasks, whose forward pass covers the whole graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor, nn

from badm.bench.models.feed_forward import UNITS, InputBlock, block
from badm.bench.models.keras_layers import Dense
from badm.bench.models.sparse_input import moments, sparse_product
from badm.bench.task import to_device

Weights = Literal["edges", "degree"]
Messages = Literal["edge", "sender"]


@dataclass(frozen=True)
class Edges:
    """Edges of a graph. All edges into a node have one weight, which scales their sum."""

    matrix: csr_array  # row: receiver, column: sender
    receivers: Tensor
    senders: Tensor
    weights: Tensor  # by receiver, as a column

    @classmethod
    def of(cls, adjacency: csr_array, weights: Weights = "edges") -> Edges:
        """Make edges of weight 1/|E|, or with ``"degree"`` of 1 / the in-degree of the node.

        >>> adjacency = csr_array(np.array([[0, 1, 1], [0, 0, 1], [0, 0, 0]], np.float32))
        >>> Edges.of(adjacency).weights.flatten().tolist() == [1 / np.float32(3)] * 3
        True
        >>> Edges.of(adjacency, "degree").weights.flatten().tolist()
        [0.5, 1.0, 1.0]
        """
        degrees = np.diff(adjacency.indptr)
        scale = 1 / np.maximum(degrees, 1) if weights == "degree" else np.full(len(degrees), 1.0)
        if weights == "edges":
            scale /= max(1, adjacency.nnz)
        return cls(
            matrix=adjacency,
            receivers=torch.from_numpy(np.repeat(np.arange(len(degrees)), degrees)),
            senders=torch.from_numpy(adjacency.indices.astype(np.int64)),
            weights=torch.from_numpy(scale).float()[:, None],
        )


class GraphConvolution(nn.Module):
    """Sums messages from senders, and passes them with a node's own state through a block.

    With ``messages="edge"`` a message goes through BatchNorm and dropout once per edge, as in the
    Keras example; with ``"sender"`` once per node, so that all its receivers get the same. In
    evaluation mode the two are equal.
    """

    def __init__(self, messages: Messages = "edge") -> None:
        super().__init__()
        self.messages = messages
        self.prepare = block(UNITS)
        self.update = block(2 * UNITS)

    def forward(self, x: Tensor, edges: Edges) -> Tensor:
        if self.training and self.messages == "edge":
            said = self.prepare(x.index_select(0, edges.senders))
            heard = torch.zeros_like(x).index_add(0, edges.receivers, said)
        else:
            heard = sparse_product(edges.matrix, self.prepare(x))
        return unit_rows(self.update(torch.cat([x, heard * edges.weights], 1)))


class GraphNetwork(nn.Module):
    """A block, two graph convolutions with skip connections, a block, and logits of some nodes.

    Features and edges are constants of the model and not in its ``state_dict``. ``masks`` is as in
    :class:`SparseInput`.
    """

    def __init__(
        self,
        features: csr_array,
        edges: Edges,
        classes: int,
        messages: Messages = "edge",
        masks: int | None = None,
    ) -> None:
        super().__init__()
        self.features, self.edges = features, edges
        self.moments = moments(features)
        self.before = InputBlock(features.shape[1], masks)
        self.convolutions = nn.ModuleList(GraphConvolution(messages) for _ in range(2))
        self.after = block(UNITS)
        self.logits = Dense(UNITS, classes)

    def forward(self, nodes: Tensor) -> Tensor:
        # Kept where the nodes are. No buffers: ranks that average these would average constants.
        self.edges, self.moments = to_device((self.edges, self.moments), nodes.device)
        x = self.before(self.features, self.moments)
        for convolution in self.convolutions:
            x = x + convolution(x, self.edges)
        logits: Tensor = self.logits(self.after(x)[nodes])
        return logits


def unit_rows(x: Tensor) -> Tensor:
    """Divide each row by its norm, as ``tf.nn.l2_normalize`` does.

    >>> unit_rows(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    return x * (x * x).sum(1, keepdim=True).clamp(min=1e-12).rsqrt()
