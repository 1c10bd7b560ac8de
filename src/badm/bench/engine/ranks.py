"""The ranks of a run: processes of torchrun, or a single process."""

from __future__ import annotations

from typing import TypeVar

import torch.distributed as dist

from badm.distributed.ranks import RankGroup, init_process_group

T = TypeVar("T")

# Seconds that ranks wait for another, which may be evaluating the model or decoding a dataset.
TIMEOUT = 1800.0


class Ranks:
    """What the ranks of a run exchange beside their training, all of it small.

    Every rank must make the same calls in the same order. A single process talks to itself:

    >>> SINGLE_PROCESS.any(True), SINGLE_PROCESS.from_first("here"), SINGLE_PROCESS.mean([0.5, 2.0])
    (True, 'here', [0.5, 2.0])
    """

    def __init__(self, group: RankGroup | None = None) -> None:
        self._group = group
        self.rank = 0 if group is None else group.rank
        self.size = 1 if group is None else group.size

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that evaluates the model and writes the files."""
        return self.rank == 0

    def all_gather(self, value: T) -> list[T]:
        """Return the values of all ranks, by rank."""
        if self._group is None:
            return [value]
        return self._group.all_gather(value, "an all_gather")

    def from_first(self, value: T) -> T:
        """Return the value of the first rank."""
        return self.all_gather(value)[0]

    def any(self, value: bool) -> bool:
        return any(self.all_gather(value))

    def all(self, value: bool) -> bool:
        return all(self.all_gather(value))

    def mean(self, value: list[float]) -> list[float]:
        return [sum(values) / self.size for values in zip(*self.all_gather(value), strict=True)]

    def barrier(self) -> None:
        """Wait until all ranks have come here."""
        self.all_gather(None)


SINGLE_PROCESS = Ranks()


def join_ranks() -> Ranks:
    """Join the ranks that torchrun has started."""
    if not dist.is_initialized():
        init_process_group("gloo")
    return Ranks(RankGroup(timeout=TIMEOUT))
