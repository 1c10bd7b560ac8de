"""Which samples a step is made with: a batch, or of a batch the part of one rank."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from badm.bench import seeds
from badm.bench.team import ALONE, Team
from badm.shards import Shards


class Dealer:
    """Deals out the samples of each epoch in batches, the last of which is what is left.

    Ranks part the very batches that one process would have. With ``labels`` each rank has the
    samples of some labels for itself.

    >>> dealer = Dealer(10, 4, "fixed", seed=0)
    >>> [dealer.at(step)[0].tolist() for step in (1, 2, 3, 4)]
    [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], [0, 1, 2, 3]]
    """

    def __init__(
        self,
        samples: int,
        batch_size: int,
        order: Literal["shuffled", "fixed"],
        seed: int,
        team: Team = ALONE,
        labels: Tensor | None = None,
    ) -> None:
        self.samples, self.batch_size, self.shuffled = samples, batch_size, order == "shuffled"
        self.seed, self.team = seed, team
        self.epoch, self.order = -1, torch.empty(0, dtype=torch.long)
        self.shards: Shards | None = None
        self.batches = math.ceil(samples / batch_size)
        if labels is not None:
            self.shards = Shards(
                samples,
                math.ceil(batch_size / team.size),
                rank=team.rank,
                world_size=team.size,
                labels=labels,
                seed=seed,
            )
            self.batches = self.shards.batches
        self.own_samples = samples / team.size if self.shards is None else self.shards.own_samples

    def at(self, step: int) -> tuple[Tensor, float]:
        """The samples of a step, from 1 on, and what their mean loss counts for among the ranks."""
        epoch, number = divmod(step - 1, self.batches)
        if self.shards is not None:
            return self._own_labels(self.shards, epoch, number)
        if epoch != self.epoch:
            self.epoch = epoch
            self.order = (
                seeds.order(self.samples, self.seed, epoch)
                if self.shuffled
                else torch.arange(self.samples)
            )
        batch = self.order[number * self.batch_size : (number + 1) * self.batch_size]
        own = batch.tensor_split(self.team.size)[self.team.rank]
        # A rank for which there is no sample takes one that counts for nothing.
        return own if len(own) else batch[:1], len(own) * self.team.size / len(batch)

    def _own_labels(self, shards: Shards, epoch: int, number: int) -> tuple[Tensor, float]:
        if epoch != self.epoch:
            shards.set_epoch(epoch)
            self.epoch, self._dealt = epoch, list(zip(shards, shards.weights, strict=True))
        own, share = self._dealt[number]
        return torch.tensor(own), share
