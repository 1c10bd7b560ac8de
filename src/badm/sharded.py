"""One step of BADM on parameters that are sharded over ranks: DTensors, as FSDP2 makes them.

What an element's step needs of the others decides what crosses the network:

- **euclidean** and **diagonal**: nothing. Every rank makes the step on its own part.
- **spectral**: whole matrices. The ranks share them out, and each gets the parts of its matrices,
  orthogonalises them and sends the parts back: two exchanges of a step's size for all matrices
  together, and no matrix is done twice.
- **kronecker**: whole gradients, and bases that every rank keeps for itself. It saves no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from badm.matrices import as_matrix
from badm.metric import kind_for, spectral_scale
from badm.orthogonal import orthogonalize
from badm.update import Batch, Settings, alive, decay, descend, in_dtype_of, memory

Step = Callable[[Batch, Settings], None]


def is_sharded(x: object) -> bool:
    """Whether it is a DTensor; asked of its attributes, since their module is slow to import."""
    return hasattr(x, "device_mesh") and hasattr(x, "placements")


def whole_like(p: Any) -> Tensor:
    """An empty tensor of the shape that a sharded one has as a whole."""
    return torch.empty(p.shape, dtype=p.dtype, device=p.to_local().device)


def step(batch: Batch, s: Settings, plain: Step) -> None:
    """One step on sharded parameters; ``plain`` makes one on tensors that are not."""
    parts: dict[str, list[int]] = {}
    for i, w in enumerate(batch.w):
        parts.setdefault(kind_for(s.metric, w), []).append(i)
    for kind, indices in parts.items():
        part = batch.pick(indices)
        if kind == "spectral":
            _spectral(part, s)
        elif kind == "kronecker":
            _kronecker(part, s, plain)
        else:
            plain(_own(part), replace(s, metric=kind))


def _own(batch: Batch) -> Batch:
    """What this rank has of the parameters, their gradients and states; the same memory."""
    return Batch(
        [local(w) for w in batch.w],
        [local(g) for g in batch.g],
        [{key: local(value) for key, value in state.items()} for state in batch.states],
    )


def local(x: Any) -> Any:
    """What this rank has of a tensor: its part of a sharded one, all of any other."""
    return x.to_local() if is_sharded(x) else x


def _spectral(batch: Batch, s: Settings) -> None:
    own = _own(batch)
    duals = own.of("dual")
    g = list(torch._foreach_neg(own.g)) if s.maximize else own.g
    u = memory(in_dtype_of(duals, g), duals, s.beta)
    decay(own.w, s)
    x: dict[int, Tensor] = {}
    for group, indices in _groups(batch.w, u):
        shapes = [batch.w[i].shape for i in indices]
        if group is None:
            done, sizes = zip(*[_directly(u[i], batch.w[i]) for i in indices], strict=True)
            largest = torch.stack(sizes)
        else:
            done = tuple(_shared_out([u[i] for i in indices], shapes, group))
            largest = _largest([u[i] for i in indices], group)
        parts = alive(largest, [own.states[i]["peak"] for i in indices], s.beta)
        for i, direction, part in zip(indices, done, parts.unbind(), strict=True):
            x[i] = direction.mul_(spectral_scale(batch.w[i]) * part)
    descend(own.w, in_dtype_of(own.w, [x[i] for i in range(len(u))]), s.lr)


def _largest(parts: list[Tensor], group: dist.ProcessGroup) -> Tensor:
    """``max |u|`` of each matrix of which these are this rank's parts."""
    largest = torch.stack([x.abs().amax() if x.numel() else x.new_zeros(()) for x in parts])
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    return largest


def _kronecker(batch: Batch, s: Settings, plain: Step) -> None:
    steps = [
        torch.zeros(w.shape, dtype=state["dual"].dtype, device=state["dual"].device)
        for w, state in zip(batch.w, batch.states, strict=True)
    ]
    gradients = [g.full_tensor() for g in batch.g]  # type: ignore[attr-defined]
    plain(Batch(steps, gradients, batch.states), replace(s, weight_decay=0.0))
    own = _own(batch)
    decay(own.w, s)
    parts = [_part_of(x, w) for x, w in zip(steps, batch.w, strict=True)]
    torch._foreach_add_(own.w, in_dtype_of(own.w, parts))


def _groups(
    params: Sequence[Any], u: Sequence[Tensor]
) -> Iterator[tuple[dist.ProcessGroup | None, list[int]]]:
    """Matrices whose rows are cut over one group of ranks, by group; None: cut otherwise.

    By type, too: what is exchanged at once is one vector, and the ranks must agree on its type.
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


def _directly(u: Tensor, p: Any) -> tuple[Tensor, Tensor]:
    """One matrix as a whole on every rank, for parameters that are cut in some other way.

    Returns this rank's part of it, orthogonalised, and ``max |u|``.
    """
    from torch.distributed.tensor import DTensor

    matrix = DTensor.from_local(
        u, p.device_mesh, p.placements, shape=p.shape, stride=p.stride(), run_check=False
    ).full_tensor()
    return _part_of(orthogonalize(as_matrix(matrix)).view(p.shape), p), matrix.abs().amax()


def _part_of(x: Tensor, p: Any) -> Tensor:
    """This rank's part of a tensor that every rank has whole."""
    from torch.distributed.tensor import DTensor, Replicate

    same = DTensor.from_local(x, p.device_mesh, [Replicate()] * p.device_mesh.ndim, run_check=False)
    return same.redistribute(placements=p.placements).to_local()


def _shared_out(
    u: list[Tensor], shapes: list[torch.Size], group: dist.ProcessGroup
) -> list[Tensor]:
    """The orthogonalised parts of matrices of which ``u`` are this rank's rows."""
    ranks = range(dist.get_world_size(group))
    me = dist.get_rank(group)
    of = _shares(shapes, len(ranks))
    sizes = [_elements(shape, len(ranks)) for shape in shapes]
    mine = of[me]
    # There: to each rank its matrices' rows. Back: from each rank the rows of its matrices.
    there = [sum(sizes[i][me] for i in of[rank]) for rank in ranks]
    back = [sum(sizes[i][rank] for i in mine) for rank in ranks]
    none = u[0].new_empty(0)  # gives its type to what a rank without matrices sends
    rows = _exchange([none, *(u[i] for rank in ranks for i in of[rank])], there, back, group)
    pieces = iter(torch.split(rows, [sizes[i][rank] for rank in ranks for i in mine]))
    by_rank = [[next(pieces) for _ in mine] for _ in ranks]
    done = []
    for place, i in enumerate(mine):
        matrix = torch.cat([of_rank[place] for of_rank in by_rank]).view(shapes[i])
        done.append(torch.split(orthogonalize(as_matrix(matrix)).reshape(-1), sizes[i]))
    parted = [parts[rank] for rank in ranks for parts in done]
    rows = _exchange([none, *parted], back, there, group)
    pieces = iter(torch.split(rows, [sizes[i][me] for rank in ranks for i in of[rank]]))
    x = {i: next(pieces) for rank in ranks for i in of[rank]}
    return [x[i].view(part.shape) for i, part in enumerate(u)]


def _exchange(
    tensors: list[Tensor], sent: list[int], received: list[int], group: dist.ProcessGroup
) -> Tensor:
    flat = torch.cat([x.reshape(-1) for x in tensors])
    result = flat.new_empty(sum(received))
    dist.all_to_all_single(result, flat, received, sent, group=group)
    return result


def _shares(shapes: Sequence[torch.Size], ranks: int) -> list[list[int]]:
    """Which rank does which matrices: the largest first, each to whom has least to do.

    >>> _shares([torch.Size(s) for s in ((2, 2), (9, 9), (4, 4), (4, 4))], 2)
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


def _elements(shape: torch.Size, ranks: int) -> list[int]:
    """How much each rank has of a tensor that is cut along its rows, as ``torch.chunk`` does.

    >>> _elements(torch.Size((5, 2)), 4)
    [4, 4, 2, 0]
    """
    rows = -(-shape[0] // ranks)
    starts = [min(rank * rows, shape[0]) for rank in range(ranks + 1)]
    return [(b - a) * (shape.numel() // shape[0]) for a, b in pairwise(starts)]
