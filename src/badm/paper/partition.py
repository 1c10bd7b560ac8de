"""Split data into batches and sub-batches, with their weights α."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from badm.checks import require_positive

__all__ = ["Partition", "split"]


class Partition:
    """Split sample indices into batches and each batch into sub-batches, once and for all.

    With ``N_bs`` the samples of sub-batch ``s`` of batch ``b``, the weights of the theory are::

        α_bs = |N_bs|/N,    α_s = Σ_b α_bs

    As the theory assumes, every call of :meth:`batches` gives the same index sets. Create a new
    partition for another order. If the last batch has fewer samples than sub-batches, its last
    sub-batches are empty, with weight 0.

    Args:
        num_samples: Number of samples ``N``, at least 1.
        batch_size: Samples per batch; the last batch may be smaller.
        sub_batch_size: Samples per sub-batch, the last one shorter; or give ``sub_batches``.
        sub_batches: Sub-batches per batch, whose sizes differ by at most one.
        shuffle: Draw a random order, the default, as the paper does.
        generator: Source of the order; torch's global one by default.

    >>> partition = Partition(10, 6, sub_batches=2, shuffle=False)
    >>> [[part.tolist() for part in batch] for batch in partition.batches()]
    [[[0, 1, 2], [3, 4, 5]], [[6, 7], [8, 9]]]
    >>> partition.alpha_bs.tolist()
    [[0.3, 0.3], [0.2, 0.2]]
    >>> partition.alpha_s.tolist()
    [0.5, 0.5]
    """

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        *,
        sub_batch_size: int | None = None,
        sub_batches: int | None = None,
        shuffle: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        require_positive("num_samples", num_samples)
        require_positive("batch_size", batch_size)
        batch_size = min(batch_size, num_samples)
        if (sub_batch_size is None) == (sub_batches is None):
            raise ValueError(
                "give exactly one of sub_batch_size and sub_batches, "
                f"got sub_batch_size={sub_batch_size} and sub_batches={sub_batches}"
            )
        if sub_batch_size is not None:
            require_positive("sub_batch_size", sub_batch_size)
            if sub_batch_size > batch_size:
                raise ValueError(
                    f"sub_batch_size must be at most the {batch_size} samples of a batch, "
                    f"got {sub_batch_size}"
                )
            count = -(-batch_size // sub_batch_size)
        else:
            assert sub_batches is not None
            require_positive("sub_batches", sub_batches)
            _require_enough(sub_batches, batch_size)
            count = sub_batches

        order = (
            torch.randperm(num_samples, generator=generator)
            if shuffle
            else torch.arange(num_samples)
        )
        self._batches: list[list[Tensor]] = []
        for batch in torch.split(order, batch_size):
            if sub_batch_size is None:
                parts = list(batch.tensor_split(count))
            else:
                parts = list(torch.split(batch, sub_batch_size))
                parts += [batch[:0]] * (count - len(parts))
            self._batches.append(parts)

        sizes = torch.tensor([[len(part) for part in parts] for parts in self._batches])
        #: ``α_bs = |N_bs|/N``, one row per batch
        self.alpha_bs = sizes.double() / num_samples
        #: ``α_s = Σ_b α_bs``
        self.alpha_s = sizes.sum(0).double() / num_samples

    def batches(self) -> Iterator[list[Tensor]]:
        """Yield for each batch a list of index tensors, one per sub-batch."""
        for parts in self._batches:
            yield list(parts)

    def __len__(self) -> int:
        return len(self._batches)


def split(batch: Any, sub_batches: int) -> list[Any]:
    """Split a nested structure of tensors into sub-batches along the first dimension.

    Tensors of at least one dimension are split into parts whose sizes differ by at most one;
    anything else (a number, a string, ``None``, a zero-dimensional tensor) goes into every part.

    Args:
        batch: Tensors in any nesting of mappings, tuples and lists, all of one length.
        sub_batches: Number of parts, at least 1 and at most the number of samples.

    >>> x, y = torch.arange(5), torch.zeros(5, 2)
    >>> [part["x"].tolist() for part in split({"x": x, "y": (y, "name")}, 2)]
    [[0, 1, 2], [3, 4]]
    """
    require_positive("sub_batches", sub_batches)
    sizes = set(_sample_counts(batch))
    if len(sizes) != 1:
        raise ValueError(
            "batch must contain tensors that agree in their first dimension, "
            f"got the sizes {sorted(sizes)}"
        )
    _require_enough(sub_batches, sizes.pop())
    return [map_leaves(partial(_part, index, sub_batches), batch) for index in range(sub_batches)]


def _sample_counts(nest: Any) -> Iterator[int]:
    if isinstance(nest, Tensor):
        if nest.ndim > 0:
            yield len(nest)
    elif isinstance(nest, Mapping):
        for value in nest.values():
            yield from _sample_counts(value)
    elif isinstance(nest, (tuple, list)):
        for value in nest:
            yield from _sample_counts(value)


def _part(index: int, count: int, leaf: Any) -> Any:
    is_cut = isinstance(leaf, Tensor) and leaf.ndim > 0
    return leaf.tensor_split(count)[index] if is_cut else leaf


def map_leaves(function: Callable[[Any], Any], nest: Any) -> Any:
    """Apply a function to whatever a nest of mappings, tuples and lists holds.

    >>> map_leaves(lambda leaf: leaf + 1, {"x": (1, [2])})
    {'x': (2, [3])}
    """
    if isinstance(nest, dict):
        mapped = copy.copy(nest)  # an OrderedDict or defaultdict stays what it is
        mapped.update((key, map_leaves(function, value)) for key, value in nest.items())
        return mapped
    if isinstance(nest, Mapping):
        return type(nest)({key: map_leaves(function, value) for key, value in nest.items()})  # type: ignore[call-arg]
    if isinstance(nest, (tuple, list)):
        parts = [map_leaves(function, value) for value in nest]
        is_namedtuple = hasattr(nest, "_fields")
        return type(nest)(*parts) if is_namedtuple else type(nest)(parts)
    return function(nest)


def _require_enough(sub_batches: int, samples: int) -> None:
    if sub_batches > samples:
        raise ValueError(
            f"sub_batches must be at most the {samples} samples of a batch, got {sub_batches}"
        )
