"""The ranks that share a run: processes of torchrun, or one process alone."""

from __future__ import annotations

from typing import TypeVar

import torch.distributed as dist

from badm.distributed.ranks import RankGroup, init_process_group

T = TypeVar("T")

# Seconds in which the first rank may judge a model, or any of them decode a dataset, while the
# others wait for its word.
PATIENCE = 1800.0


class Ranks:
    """What the ranks of a run tell each other beside their training, all of it small.

    Every rank has to ask the same in the same order. One alone has only itself to ask:

    >>> SINGLE_PROCESS.any(True), SINGLE_PROCESS.from_first("here"), SINGLE_PROCESS.mean([0.5, 2.0])
    (True, 'here', [0.5, 2.0])
    """

    def __init__(self, group: RankGroup | None = None) -> None:
        self._group = group
        self.rank = 0 if group is None else group.rank
        self.size = 1 if group is None else group.size

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that writes things down."""
        return self.rank == 0

    def all_gather(self, value: T) -> list[T]:
        """What each rank has."""
        if self._group is None:
            return [value]
        return self._group.all_gather(value, "a consultation")

    def from_first(self, value: T) -> T:
        """What the first rank has."""
        return self.all_gather(value)[0]

    def any(self, value: bool) -> bool:
        return any(self.all_gather(value))

    def all(self, value: bool) -> bool:
        return all(self.all_gather(value))

    def mean(self, value: list[float]) -> list[float]:
        return [sum(values) / self.size for values in zip(*self.all_gather(value), strict=True)]

    def barrier(self) -> None:
        """Go on when all have come here."""
        self.all_gather(None)


SINGLE_PROCESS = Ranks()


def join_ranks() -> Ranks:
    """The ranks that torchrun has started this process for."""
    if not dist.is_initialized():
        init_process_group("gloo")
    return Ranks(RankGroup(timeout=PATIENCE))
