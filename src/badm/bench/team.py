"""The ranks that share a run: processes of torchrun, or one process alone."""

from __future__ import annotations

from typing import TypeVar

import torch.distributed as dist

from badm.company import Company, join

T = TypeVar("T")

# Seconds in which the first rank may judge a model, or any of them decode a dataset, while the
# others wait for its word.
PATIENCE = 1800.0


class Team:
    """What the ranks of a run tell each other beside their training, all of it small.

    Every rank has to ask the same in the same order. One alone has only itself to ask:

    >>> ALONE.any(True), ALONE.first("here"), ALONE.mean([0.5, 2.0])
    (True, 'here', [0.5, 2.0])
    """

    def __init__(self, company: Company | None = None) -> None:
        self._company = company
        self.rank = 0 if company is None else company.rank
        self.size = 1 if company is None else company.size

    @property
    def leads(self) -> bool:
        """Whether this is the rank that writes things down."""
        return self.rank == 0

    def every(self, own: T) -> list[T]:
        """What each rank has."""
        if self._company is None:
            return [own]
        return self._company.gather(own, "a consultation")

    def first(self, own: T) -> T:
        """What the first rank has."""
        return self.every(own)[0]

    def any(self, own: bool) -> bool:
        return any(self.every(own))

    def all(self, own: bool) -> bool:
        return all(self.every(own))

    def mean(self, own: list[float]) -> list[float]:
        return [sum(values) / self.size for values in zip(*self.every(own), strict=True)]

    def together(self) -> None:
        """Go on when all have come here."""
        self.every(None)


ALONE = Team()


def gathered() -> Team:
    """The team that torchrun has started this process for."""
    if not dist.is_initialized():
        join("gloo")
    return Team(Company(timeout=PATIENCE))
