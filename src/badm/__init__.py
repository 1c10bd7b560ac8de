"""Batch ADMM for deep learning: an optimizer for PyTorch, its theory and its evaluation."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from badm import metrics
    from badm.checkpoint import state_from_tensors, state_to_tensors
    from badm.distributed.consensus import Consensus
    from badm.distributed.ranks import RankLostError, RankMismatchError, init_process_group
    from badm.distributed.sampler import DistributedBatchSampler
    from badm.explanation import explain
    from badm.groups import parameter_groups
    from badm.optimizer import BADM, penalties
    from badm.paper import algorithm1, theory
    from badm.paper.partition import Partition, split

__version__ = "0.1.0"

__all__ = [
    "BADM",
    "Consensus",
    "DistributedBatchSampler",
    "Partition",
    "RankLostError",
    "RankMismatchError",
    "algorithm1",
    "explain",
    "init_process_group",
    "metrics",
    "parameter_groups",
    "penalties",
    "split",
    "state_from_tensors",
    "state_to_tensors",
    "theory",
]

_MODULE_OF = {
    "BADM": "optimizer",
    "Consensus": "distributed.consensus",
    "DistributedBatchSampler": "distributed.sampler",
    "Partition": "paper.partition",
    "RankLostError": "distributed.ranks",
    "RankMismatchError": "distributed.ranks",
    "algorithm1": "paper",
    "explain": "explanation",
    "init_process_group": "distributed.ranks",
    "parameter_groups": "groups",
    "penalties": "optimizer",
    "split": "paper.partition",
    "state_from_tensors": "checkpoint",
    "state_to_tensors": "checkpoint",
    "theory": "paper",
}


def __getattr__(name: str) -> Any:
    """Import a part of the library, and torch with it, at its first use.

    The command line is in this package too, and has to handle Ctrl-C before torch is imported.
    """
    module = f"badm.{_MODULE_OF.get(name, name)}"
    try:
        if name.startswith("__"):
            raise ModuleNotFoundError(name=module)
        found = import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:  # the module exists, but something it imports does not
            raise
        raise AttributeError(f"module 'badm' has no attribute {name!r}") from None
    value = globals()[name] = getattr(found, name) if name in _MODULE_OF else found
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
