"""Choose the samples of each step: a batch, or one rank's part of it."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from badm.bench.engine import seeds
from badm.bench.engine.ranks import SINGLE_PROCESS, Ranks
from badm.distributed.sampler import DistributedBatchSampler


class BatchSampler:
    """Divides the samples of each epoch into batches; the last one has what is left.

    Ranks share the batches that a single process would have. With ``labels`` each rank has the
    samples of some labels to itself.

    >>> sampler = BatchSampler(10, 4, "fixed", seed=0)
    >>> [sampler.at_step(step)[0].tolist() for step in (1, 2, 3, 4)]
    [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], [0, 1, 2, 3]]
    """

    def __init__(
        self,
        samples: int,
        batch_size: int,
        order: Literal["shuffled", "fixed"],
        seed: int,
        ranks: Ranks = SINGLE_PROCESS,
        labels: Tensor | None = None,
    ) -> None:
        self.samples, self.batch_size, self.shuffled = samples, batch_size, order == "shuffled"
        self.seed, self.ranks = seed, ranks
        self.epoch, self.order = -1, torch.empty(0, dtype=torch.long)
        self.label_sampler: DistributedBatchSampler | None = None
        self.num_batches = math.ceil(samples / batch_size)
        if labels is not None:
            self.label_sampler = DistributedBatchSampler(
                samples,
                math.ceil(batch_size / ranks.size),
                rank=ranks.rank,
                world_size=ranks.size,
                labels=labels,
                seed=seed,
            )
            self.num_batches = self.label_sampler.num_batches
        self.rank_samples = (
            samples / ranks.size if self.label_sampler is None else self.label_sampler.rank_samples
        )

    def at_step(self, step: int) -> tuple[Tensor, float]:
        """Return the samples of a step, counted from 1, and the weight of their mean loss."""
        epoch, number = divmod(step - 1, self.num_batches)
        if self.label_sampler is not None:
            return self._from_label_sampler(self.label_sampler, epoch, number)
        if epoch != self.epoch:
            self.epoch = epoch
            self.order = (
                seeds.order(self.samples, self.seed, epoch)
                if self.shuffled
                else torch.arange(self.samples)
            )
        batch = self.order[number * self.batch_size : (number + 1) * self.batch_size]
        own = batch.tensor_split(self.ranks.size)[self.ranks.rank]
        # A rank without a sample of its own takes one whose loss has weight 0.
        return own if len(own) else batch[:1], len(own) * self.ranks.size / len(batch)

    def _from_label_sampler(
        self, sampler: DistributedBatchSampler, epoch: int, number: int
    ) -> tuple[Tensor, float]:
        if epoch != self.epoch:
            sampler.set_epoch(epoch)
            self.epoch, self._epoch_batches = (
                epoch,
                list(zip(sampler, sampler.loss_weights, strict=True)),
            )
        own, loss_weight = self._epoch_batches[number]
        return torch.tensor(own), loss_weight
