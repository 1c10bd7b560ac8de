"""The ranks of a process group in company: collectives that do not wait for who will never come.

A rank that is killed leaves the others in a collective that fails with the name of a socket, or
does not fail at all. Here whoever waits looks about, and says which rank is lost.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from badm.pulse import STILL, Pulse

_POLL = 0.05  # seconds between two looks at who has come
_LOOK = timedelta(seconds=0.5)  # how often a rank that waits looks for the alarm


class ReplicaLost(RuntimeError):
    """A rank is gone, or the network between the ranks; the message names the rank."""


class Disagreement(ValueError):
    """Ranks were given different models or settings; the message says which and what."""


def join(backend: str = "gloo", **options: Any) -> None:
    """``torch.distributed.init_process_group`` for processes of torchrun that may be restarted.

    torchrun has one store for all its attempts, in which a rank that is started again finds the
    addresses of those that are dead, takes them for the others' and does not get through. Here the
    ranks first agree on a place in the store that none has been to.
    """
    store, rank, size = next(rendezvous("env://"))
    place = PrefixStore(f"badm/{_attempt(store, rank, size)}", store)
    dist.init_process_group(backend, store=place, rank=rank, world_size=size, **options)


def _attempt(store: Store, rank: int, size: int) -> str:
    """A name for this attempt on which all ranks agree; torchrun's own count is one for each host.

    Each rank draws a token and says which tokens it sees. What was left by an attempt before cannot
    be the answer to a token drawn since, so that all are done when all see the same.
    """
    store.set(f"badm/token/{rank}", secrets.token_hex(8))
    while True:
        tokens = [store.get(f"badm/token/{other}") for other in range(size)]
        name = hashlib.sha256(b" ".join(tokens)).hexdigest()
        store.set(f"badm/seen/{rank}", name)
        if all(store.get(f"badm/seen/{other}") == name.encode() for other in range(size)):
            return name
        time.sleep(_POLL)


class Company:
    """The ranks of ``group``, all ranks unless given; ``timeout`` seconds are waited for the late.

    Collectives are started as torch has them, with ``async_op=True``, and waited for here. ``what``
    is what the ranks were about to do, for the message if they cannot: "meeting 3".
    """

    def __init__(self, group: dist.ProcessGroup | None = None, timeout: float = 300.0) -> None:
        self.group = group or dist.distributed_c10d._get_default_group()
        self.timeout = timeout
        self.rank = dist.get_rank(self.group)
        self.size = dist.get_world_size(self.group)
        self._pulse = Pulse(
            dist.distributed_c10d._get_default_store(),
            self.group.group_name,
            self.rank,
            range(self.size),
        )

    def leave(self) -> None:
        """Give no more signs of life."""
        self._pulse.stop()

    def wait(self, work: dist.Work, what: str) -> None:
        """Wait for a collective."""
        waited = timedelta()
        while True:
            try:
                work.wait(_LOOK)
                return
            except RuntimeError as error:
                waited += _LOOK
                late = waited.total_seconds() >= self.timeout
                if not (work.is_completed() or late or self._alarmed()):
                    continue
                raise ReplicaLost(self._who_is_lost(what)) from error

    def gather(self, own: Any, what: str) -> list[Any]:
        """What every rank has, by rank; anything that can be pickled."""
        every_rank: list[Any] = [None] * self.size
        try:
            dist.all_gather_object(every_rank, own, group=self.group)
        except RuntimeError as error:
            raise ReplicaLost(self._who_is_lost(what)) from error
        return every_rank

    def _alarmed(self) -> bool:
        try:
            return self._pulse.alarmed()
        except RuntimeError:  # the store is gone
            return True

    def _who_is_lost(self, what: str) -> str:
        where = f"{what} of rank {self.rank} of {self.size}"
        try:
            self._pulse.alarm()
            lost = self._pulse.lost()
        except RuntimeError:
            return f"{where} failed, and so did the store of the process group: its host is gone"
        if lost:
            names = " and ".join(f"rank {rank}" for rank in lost)
            return f"{where} failed: {names} gave no sign of life for {STILL:g} seconds"
        return (
            f"{where} failed, though every rank is alive: one was late by more than "
            f"{self.timeout:g} seconds, had an error of its own, or the network is broken"
        )


def require_same(settings: Sequence[Mapping[str, Any]]) -> None:
    """Raise :class:`Disagreement` unless all ranks, in their order, have the same settings."""
    for rank, other in enumerate(settings):
        for name, value in settings[0].items():
            if other[name] != value:
                raise Disagreement(
                    f"{name} must be the same on all ranks: {_difference(value, other[name], rank)}"
                )


def _difference(first: Any, other: Any, rank: int) -> str:
    if not isinstance(first, list):
        return f"rank 0 has {first!r} and rank {rank} has {other!r}"
    if len(first) != len(other):
        return f"rank 0 has {len(first)} of them and rank {rank} has {len(other)}"
    place = next(i for i, (a, b) in enumerate(zip(first, other, strict=True)) if a != b)
    return f"number {place} is {first[place]} on rank 0 and {other[place]} on rank {rank}"
