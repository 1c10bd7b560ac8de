"""Split the samples of every epoch among the ranks: disjoint, complete, in a new order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import Sampler

from badm.checks import require_positive

__all__ = ["DistributedBatchSampler"]


class DistributedBatchSampler(Sampler[list[int]]):
    """Sample the batches of one rank, for ``DataLoader(dataset, batch_sampler=sampler)``.

    The samples are split anew among the ranks in every epoch. Each rank's part is cut into the same
    number of batches, of ``batch_size`` samples or slightly fewer. With ``labels`` the split is by
    label and stays fixed: the first rank has all samples of the first labels, and so on.

    ``set_epoch(epoch, skip)`` resumes in the middle of an epoch, so that every sample is seen once
    even if the run was interrupted::

        for epoch in range(first_epoch, epochs):
            sampler.set_epoch(epoch, skip=batches_done if epoch == first_epoch else 0)
            for weight, (x, y) in zip(sampler.loss_weights, loader):
                (weight * loss(model(x), y)).backward()

    ``rank_samples`` is this rank's number of samples, for ``weight`` of :class:`badm.Consensus`.
    ``loss_weights`` are for training step by step under DDP or FSDP2: they average gradients over
    ranks with equal weights, in which a sample of a smaller batch would count for more.

    Args:
        num_samples: Number of samples in the dataset, at least one per rank.
        batch_size: Largest number of samples in a batch of one rank.
        rank: This rank; that of the default process group by default.
        world_size: Number of ranks; that of the default process group by default.
        labels: Label of every sample, to split by label; None, the default, splits at random.
        seed: Seed of the order, the same on all ranks; epoch ``e`` uses ``seed + e``.

    >>> for rank in range(2):
    ...     sampler = DistributedBatchSampler(10, batch_size=2, rank=rank, world_size=2)
    ...     print(list(sampler), sampler.loss_weights)
    [[4, 1], [7, 5], [3]] [1.0, 1.0, 1.0]
    [[9, 0], [8, 6], [2]] [1.0, 1.0, 1.0]
    """

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        labels: Sequence[int] | Tensor | None = None,
        seed: int = 0,
    ) -> None:
        require_positive("num_samples", num_samples)
        require_positive("batch_size", batch_size)
        self.world_size = dist.get_world_size() if world_size is None else world_size
        self.rank = dist.get_rank() if rank is None else rank
        require_positive("world_size", self.world_size)
        if not 0 <= self.rank < self.world_size:
            raise ValueError(
                f"rank must be from 0 to {self.world_size - 1}, as world_size is "
                f"{self.world_size}, got {self.rank}"
            )
        self.num_samples, self.batch_size, self.seed = num_samples, batch_size, seed
        self.epoch = self.skip = 0
        self._samples_by_rank = (
            None if labels is None else _split_by_label(labels, num_samples, self.world_size)
        )
        sizes = [len(pool) for pool in self._assign()]
        self.rank_samples = sizes[self.rank]
        self.num_batches = -(-max(sizes) // batch_size)
        if min(sizes) == 0:
            raise ValueError(
                f"num_samples must be at least {self.world_size}, one for each rank, "
                f"got {num_samples}"
            )

    def set_epoch(self, epoch: int, skip: int = 0) -> None:
        """Choose the next epoch and skip its first batches, which a run has seen already."""
        if not 0 <= skip <= self.num_batches:
            raise ValueError(f"skip must be from 0 to {self.num_batches} batches, got {skip}")
        self.epoch, self.skip = epoch, skip

    def __len__(self) -> int:
        return self.num_batches - self.skip

    def __iter__(self) -> Iterator[list[int]]:
        indices = self._assign()[self.rank]
        for batch in indices.tensor_split(self.num_batches)[self.skip :]:
            # A rank that has run out of samples repeats one, with weight 0.
            yield batch.tolist() or indices[:1].tolist()

    @property
    def loss_weights(self) -> list[float]:
        """Weights ``n_s·W / Σ_s n_s`` of the mean losses of the remaining batches."""
        sizes = torch.tensor(
            [[len(b) for b in pool.tensor_split(self.num_batches)] for pool in self._assign()]
        )
        parts = sizes[self.rank] * self.world_size / sizes.sum(0)
        return parts[self.skip :].tolist()

    def _assign(self) -> list[Tensor]:
        """Return the samples of every rank, in the order of this epoch."""
        order = torch.randperm(
            self.num_samples, generator=torch.Generator().manual_seed(self.seed + self.epoch)
        )
        if self._samples_by_rank is None:
            return list(order.tensor_split(self.world_size))
        position = torch.empty_like(order)
        position[order] = torch.arange(self.num_samples)
        return [pool[position[pool].argsort()] for pool in self._samples_by_rank]


def _split_by_label(labels: Sequence[int] | Tensor, samples: int, world_size: int) -> list[Tensor]:
    labels = torch.as_tensor(labels)
    if labels.shape != (samples,):
        raise ValueError(
            f"labels must be one for each of {samples} samples, got {tuple(labels.shape)}"
        )
    distinct = torch.unique(labels)
    if len(distinct) < world_size:
        raise ValueError(
            f"labels must have at least {world_size} values, one for each rank, got {len(distinct)}"
        )
    return [
        torch.isin(labels, indices).nonzero().flatten()
        for indices in distinct.tensor_split(world_size)
    ]
