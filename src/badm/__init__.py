"""Batch ADMM for deep learning: an optimizer for PyTorch, its theory and its evaluation."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_WRITTEN_IN = {
    "BADM": "optimizer",
    "Consensus": "consensus",
    "Partition": "partition",
    "Shards": "shards",
    "parameter_groups": "groups",
    "penalties": "optimizer",
    "split": "partition",
}


def __getattr__(name: str) -> Any:
    """Import a part of the library, and torch with it, when it is first asked for.

    The command is imported from this package, too, and has to be ready for Ctrl-C before torch is.
    """
    module = f"badm.{_WRITTEN_IN.get(name, name)}"
    try:
        if name.startswith("__"):
            raise ModuleNotFoundError(name=module)
        found = import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:  # one that is there, but needs another that is not
            raise
        raise AttributeError(f"module 'badm' has no attribute {name!r}") from None
    value = globals()[name] = getattr(found, name) if name in _WRITTEN_IN else found
    return value
