"""Which samples each rank trains on: disjoint, all of them in every epoch, in a new order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import Sampler

from badm.paper.partition import require_positive


class DistributedBatchSampler(Sampler[list[int]]):
    """The batches of one rank, for ``DataLoader(dataset, batch_sampler=shards)``.

    In every epoch the samples are dealt out anew: each rank gets its part, cut into as many batches
    as the others have, of ``batch_size`` samples or slightly fewer. With ``labels`` the parts are
    by label and stay with their rank: the first rank has the samples of the first labels, and so
    on.

    ``set_epoch(epoch, skip)`` says where to go on, so that a run which stopped in the middle of an
    epoch sees every sample once all the same::

        for epoch in range(first_epoch, epochs):
            shards.set_epoch(epoch, skip=batches_done if epoch == first_epoch else 0)
            for weight, (x, y) in zip(shards.weights, loader):
                (weight * loss(model(x), y)).backward()

    ``own_samples`` says how many samples this rank has, as a weight for :class:`badm.Consensus`.
    ``weights`` are for training step by step, under DDP or FSDP2: these take the plain mean over
    the ranks, in which a sample of a smaller batch would count for more.

    >>> for rank in range(2):
    ...     shards = DistributedBatchSampler(10, batch_size=2, rank=rank, world_size=2)
    ...     print(list(shards), shards.loss_weights)
    [[4, 1], [7, 5], [3]] [1.0, 1.0, 1.0]
    [[9, 0], [8, 6], [2]] [1.0, 1.0, 1.0]
    """

    def __init__(
        self,
        samples: int,
        batch_size: int,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        labels: Sequence[int] | Tensor | None = None,
        seed: int = 0,
    ) -> None:
        require_positive("samples", samples)
        require_positive("batch_size", batch_size)
        self.world_size = dist.get_world_size() if world_size is None else world_size
        self.rank = dist.get_rank() if rank is None else rank
        require_positive("world_size", self.world_size)
        if not 0 <= self.rank < self.world_size:
            raise ValueError(
                f"rank must be from 0 to {self.world_size - 1}, as world_size is "
                f"{self.world_size}, got {self.rank}"
            )
        self.samples, self.batch_size, self.seed = samples, batch_size, seed
        self.epoch = self.skip = 0
        self._samples_by_rank = (
            None if labels is None else _split_by_label(labels, samples, self.world_size)
        )
        sizes = [len(pool) for pool in self._assign()]
        self.rank_samples = sizes[self.rank]
        self.num_batches = -(-max(sizes) // batch_size)
        if min(sizes) == 0:
            raise ValueError(
                f"samples must be at least one for each of {self.world_size} ranks, got {samples}"
            )

    def set_epoch(self, epoch: int, skip: int = 0) -> None:
        """Which epoch comes next, and how many of its batches have been seen already."""
        if not 0 <= skip <= self.num_batches:
            raise ValueError(f"skip must be from 0 to {self.num_batches} batches, got {skip}")
        self.epoch, self.skip = epoch, skip

    def __len__(self) -> int:
        return self.num_batches - self.skip

    def __iter__(self) -> Iterator[list[int]]:
        indices = self._assign()[self.rank]
        for batch in indices.tensor_split(self.num_batches)[self.skip :]:
            # A rank that has run out of samples repeats one, with the weight 0.
            yield batch.tolist() or indices[:1].tolist()

    @property
    def loss_weights(self) -> list[float]:
        """For each batch to come what its mean loss counts for: ``n_s·W / Σ_s n_s``."""
        sizes = torch.tensor(
            [[len(b) for b in pool.tensor_split(self.num_batches)] for pool in self._assign()]
        )
        parts = sizes[self.rank] * self.world_size / sizes.sum(0)
        return parts[self.skip :].tolist()

    def _assign(self) -> list[Tensor]:
        """The samples of every rank, in the order of this epoch."""
        order = torch.randperm(
            self.samples, generator=torch.Generator().manual_seed(self.seed + self.epoch)
        )
        if self._samples_by_rank is None:
            return list(order.tensor_split(self.world_size))
        position = torch.empty_like(order)
        position[order] = torch.arange(self.samples)
        return [pool[position[pool].argsort()] for pool in self._samples_by_rank]


def _split_by_label(labels: Sequence[int] | Tensor, samples: int, world_size: int) -> list[Tensor]:
    labels = torch.as_tensor(labels)
    if labels.shape != (samples,):
        raise ValueError(f"labels must be one for each of {samples} samples, got {labels.shape}")
    kinds = torch.unique(labels)
    if len(kinds) < world_size:
        raise ValueError(
            f"labels must be of at least {world_size} kinds, one for each rank, got {len(kinds)}"
        )
    return [
        torch.isin(labels, indices).nonzero().flatten()
        for indices in kinds.tensor_split(world_size)
    ]
