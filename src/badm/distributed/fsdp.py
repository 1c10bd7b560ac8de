"""Internal: parameters that are sharded over ranks: DTensors, as FSDP2 makes them.

How elements depend on each other decides what crosses the network. Metrics that scale every element
by itself step on the local shard. The others need whole matrices: here are the exchanges that
assemble them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# Of the index of a parameter and the whole tensor: the new one, and the largest absolute value of
# each matrix in it.
OnMatrix = Callable[[int, Tensor], tuple[Tensor, Tensor]]


def is_sharded(x: object) -> bool:
    """Return whether ``x`` is a DTensor; by its attributes, since its module is slow to import."""
    return hasattr(x, "device_mesh") and hasattr(x, "placements")


def to_local(x: Any) -> Any:
    """Return this rank's shard of a DTensor, or a plain tensor as it is."""
    return x.to_local() if is_sharded(x) else x


def gather(x: Any) -> Tensor:
    """Gather a sharded tensor on every rank."""
    whole: Tensor = x.full_tensor()
    return whole


def whole(x: Any) -> Tensor:
    """Return a sharded tensor gathered, or a plain one as it is."""
    tensor: Tensor = gather(x) if is_sharded(x) else x
    return tensor


def unsharded_like(p: Any) -> Tensor:
    """Return an empty plain tensor with the full shape of a sharded one."""
    return torch.empty(p.shape, dtype=p.dtype, device=p.to_local().device)


def map_matrices(
    parts: list[Tensor], params: Sequence[Any], function: OnMatrix, matrices: int
) -> Iterator[tuple[list[int], list[Tensor], Tensor]]:
    """Apply ``function`` to whole matrices of which every rank has a part; return the parts.

    Where rows are sharded over one group of ranks, the ranks share out the matrices: two exchanges
    for all of them together, and no matrix is computed twice. Each parameter has so many
    ``matrices``. Yields the indices of parameters, their new parts, and the largest absolute value
    of each matrix before, a row for each parameter.
    """
    for group, indices in _groups(params, parts):
        own = [parts[i] for i in indices]
        if group is None:
            both = [
                _map_gathered(part, params[i], i, function)
                for part, i in zip(own, indices, strict=True)
            ]
            yield indices, [changed for changed, _ in both], torch.stack([size for _, size in both])
        else:
            shapes = [params[i].shape for i in indices]
            largest = own[0].new_zeros(len(own), matrices)

            def on_mine(
                position: int,
                whole: Tensor,
                indices: list[int] = indices,
                largest: Tensor = largest,
            ) -> Tensor:
                changed, largest[position] = function(indices[position], whole)
                return changed

            changed = _map_shared(own, shapes, group, on_mine)
            dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
            yield indices, changed, largest


def _groups(
    params: Sequence[Any], u: Sequence[Tensor]
) -> Iterator[tuple[dist.ProcessGroup | None, list[int]]]:
    """Group matrices by the ranks their rows are sharded over; None if sharded another way.

    Also by dtype: all of a group are exchanged as one vector.
    """
    groups: dict[tuple[dist.ProcessGroup | None, torch.dtype], list[int]] = {}
    for i, (p, part) in enumerate(zip(params, u, strict=True)):
        cut = [d for d, place in enumerate(p.placements) if not place.is_replicate()]
        by_rows = len(cut) == 1 and type(p.placements[cut[0]]).__name__ == "Shard"
        by_rows = by_rows and p.placements[cut[0]].is_shard(0)
        group = p.device_mesh.get_group(cut[0]) if by_rows else None
        groups.setdefault((group, part.dtype), []).append(i)
    for (group, _), indices in groups.items():
        yield group, indices


def _map_gathered(part: Tensor, p: Any, i: int, function: OnMatrix) -> tuple[Tensor, Tensor]:
    """Gather one matrix on every rank, for parameters that are not sharded by rows."""
    from torch.distributed.tensor import DTensor

    matrix = DTensor.from_local(
        part, p.device_mesh, p.placements, shape=p.shape, stride=p.stride(), run_check=False
    ).full_tensor()
    changed, largest = function(i, matrix)
    return local_part(changed, p), largest


def local_part(x: Tensor, p: Any) -> Tensor:
    """Return this rank's part of a tensor that every rank has in full."""
    from torch.distributed.tensor import DTensor, Replicate

    same = DTensor.from_local(x, p.device_mesh, [Replicate()] * p.device_mesh.ndim, run_check=False)
    return same.redistribute(placements=p.placements).to_local()


def _map_shared(
    parts: list[Tensor],
    shapes: list[torch.Size],
    group: dist.ProcessGroup,
    function: Callable[[int, Tensor], Tensor],
) -> list[Tensor]:
    """Map matrices of which ``parts`` are this rank's rows; return the rows of the results."""
    ranks = range(dist.get_world_size(group))
    me = dist.get_rank(group)
    of = _assign_matrices(shapes, len(ranks))
    sizes = [_shard_sizes(shape, len(ranks)) for shape in shapes]
    mine = of[me]
    # there: rows sent to each rank for its matrices; back: rows received for my own.
    there = [sum(sizes[i][me] for i in of[rank]) for rank in ranks]
    back = [sum(sizes[i][rank] for i in mine) for rank in ranks]
    none = parts[0].new_empty(0)  # gives a dtype to what a rank without matrices sends
    rows = _all_to_all([none, *(parts[i] for rank in ranks for i in of[rank])], there, back, group)
    pieces = iter(torch.split(rows, [sizes[i][rank] for rank in ranks for i in mine]))
    by_rank = [[next(pieces) for _ in mine] for _ in ranks]
    done = []
    for position, i in enumerate(mine):
        matrix = torch.cat([of_rank[position] for of_rank in by_rank]).view(shapes[i])
        done.append(torch.split(function(i, matrix).reshape(-1), sizes[i]))
    returned = [pieces_of[rank] for rank in ranks for pieces_of in done]
    rows = _all_to_all([none, *returned], back, there, group)
    pieces = iter(torch.split(rows, [sizes[i][me] for rank in ranks for i in of[rank]]))
    x = {i: next(pieces) for rank in ranks for i in of[rank]}
    return [x[i].view(part.shape) for i, part in enumerate(parts)]


def _all_to_all(
    tensors: list[Tensor], sent: list[int], received: list[int], group: dist.ProcessGroup
) -> Tensor:
    flat = torch.cat([x.reshape(-1) for x in tensors])
    result = flat.new_empty(sum(received))
    dist.all_to_all_single(result, flat, received, sent, group=group)
    return result


def _assign_matrices(shapes: Sequence[torch.Size], ranks: int) -> list[list[int]]:
    """Assign matrices to ranks: the largest first, each to the rank with the least work.

    >>> _assign_matrices([torch.Size(s) for s in ((2, 2), (9, 9), (4, 4), (4, 4))], 2)
    [[1], [2, 3, 0]]
    """
    work = [0.0] * ranks
    shares: list[list[int]] = [[] for _ in range(ranks)]
    cost = [shape.numel() * min(shape[0], shape.numel() // shape[0]) for shape in shapes]
    for i in sorted(range(len(shapes)), key=lambda i: -cost[i]):
        rank = work.index(min(work))
        work[rank] += cost[i]
        shares[rank].append(i)
    return shares


def _shard_sizes(shape: torch.Size, ranks: int) -> list[int]:
    """Return how many elements each rank has of a tensor sharded by rows, as by ``torch.chunk``.

    >>> _shard_sizes(torch.Size((5, 2)), 4)
    [4, 4, 2, 0]
    """
    rows = -(-shape[0] // ranks)
    starts = [min(rank * rows, shape[0]) for rank in range(ranks + 1)]
    return [(b - a) * (shape.numel() // shape[0]) for a, b in pairwise(starts)]
