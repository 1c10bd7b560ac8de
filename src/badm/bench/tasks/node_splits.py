"""Splits of the nodes of a graph into training, validation and test."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from badm.bench.data.graphs import Graph

TEST, VALIDATION = 0.3, 0.15  # fraction of all nodes, and of those not in the test split
SEED = 0


@dataclass(frozen=True, eq=False)
class Nodes:
    """A split: some nodes of a graph, which is shared by all splits."""

    graph: Graph
    indices: Tensor
    labels: Tensor


def nodes(graph: Graph, indices: Tensor) -> Nodes:
    return Nodes(graph, indices, graph.labels[indices])


def half_of_each_class(labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Take every node for training with probability ½, class by class, as in the Keras example.

    >>> [len(part) for part in half_of_each_class(torch.arange(1000) % 3)]
    [418, 74, 508]
    """
    generator = torch.Generator().manual_seed(SEED)
    train = torch.zeros(len(labels), dtype=torch.bool)
    for c in range(int(labels.max()) + 1):
        own = (labels == c).nonzero().flatten()
        train[own] = torch.rand(len(own), generator=generator) < 0.5
    order = torch.randperm(len(labels), generator=generator)
    return _with_validation(order[train[order]], order[~train[order]])


def seventy_thirty(labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hold out 30 % for the test, rounded up as scikit-learn does.

    >>> [len(part) for part in seventy_thirty(torch.zeros(3312))]
    [1970, 348, 994]
    """
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SEED))
    test = math.ceil(TEST * len(labels))
    return _with_validation(order[test:], order[:test])


def _with_validation(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hold out the last 15 % of the training rows, as Keras does."""
    count = int(len(train) * (1 - VALIDATION))
    return train[:count], train[count:], test
