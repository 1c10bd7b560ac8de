"""Batch ADMM for deep learning: an optimizer for PyTorch, its theory and its evaluation."""

from badm import algorithm1, theory
from badm.consensus import Consensus
from badm.groups import parameter_groups
from badm.optimizer import BADM, penalties
from badm.partition import Partition, split
from badm.shards import Shards

__version__ = "0.1.0"

__all__ = [
    "BADM",
    "Consensus",
    "Partition",
    "Shards",
    "algorithm1",
    "parameter_groups",
    "penalties",
    "split",
    "theory",
]
