"""Collectives of a process group that do not wait for a rank that is gone.

A rank that is killed leaves the others in a collective that fails with the name of a socket, or
does not fail at all. Here whoever waits looks about, and says which rank is lost.
"""

from __future__ import annotations

import hashlib
import pickle
import secrets
import time
import weakref
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

# Before there is a group: its functions have the one they find as a default, and keep it for ever.
import torch.distributed.nn
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions, AllreduceOptions, BroadcastOptions
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from badm.distributed.heartbeat import TIMEOUT, Heartbeat, StoreLost

_POLL_SECONDS = 0.05  # seconds between two looks at who has come
_CHECK_INTERVAL = timedelta(seconds=0.5)  # how often a rank that waits looks for the alarm

Options = TypeVar("Options", AllreduceOptions, BroadcastOptions, AllgatherOptions)


class RankLostError(RuntimeError):
    """A rank is gone, or the network between the ranks; the message names the rank."""


class RankMismatchError(ValueError):
    """Ranks were given different models or settings; the message says which and what."""


def init_process_group(backend: str = "gloo", **options: Any) -> None:
    """``torch.distributed.init_process_group`` for processes of torchrun that may be restarted.

    torchrun has one store for all its attempts, in which a rank that is started again finds the
    addresses of those that are dead, takes them for the others' and does not get through. Here the
    ranks first agree on a place in the store that none has been to.
    """
    store, rank, size = next(rendezvous("env://"))
    prefix_store = PrefixStore(f"badm/{_attempt_name(store, rank, size)}", store)
    dist.init_process_group(backend, store=prefix_store, rank=rank, world_size=size, **options)


def _attempt_name(store: Store, rank: int, size: int) -> str:
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
        time.sleep(_POLL_SECONDS)


class RankGroup:
    """The ranks of ``group``, all ranks unless given; ``timeout`` seconds are waited for the late.

    Collectives are started here and waited for with :meth:`wait`. ``what`` is what the ranks were
    about to do, for the message if they cannot: "meeting 3".
    """

    def __init__(self, group: dist.ProcessGroup | None = None, timeout: float = 300.0) -> None:
        group = group or dist.distributed_c10d._get_default_group()
        # Held by torch alone: destroy_process_group then waits for the threads of gloo. One that
        # still lets go of a tensor when the interpreter ends would abort the process.
        self._group = weakref.ref(group)
        self.timeout = timeout
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self._heartbeat = Heartbeat(
            dist.distributed_c10d._get_default_store(),
            group.group_name,
            self.rank,
            range(self.size),
        )

    @property
    def group(self) -> dist.ProcessGroup:
        """The process group, until it is destroyed."""
        group = self._group()
        if group is None:
            raise RuntimeError("the process group of these ranks has been destroyed")
        return group

    def close(self) -> None:
        """Give no more signs of life."""
        self._heartbeat.stop()

    def all_reduce(self, x: Tensor) -> dist.Work:
        """Start the sum of every rank's ``x``, into ``x``."""
        return self.group.allreduce([x], self._begin(AllreduceOptions()))

    def broadcast(self, x: Tensor) -> dist.Work:
        """Start to send what the first rank has, into ``x``."""
        return self.group.broadcast([x], self._begin(BroadcastOptions()))

    def wait(self, work: dist.Work, what: str) -> None:
        """Wait for a collective."""
        end = time.monotonic() + self.timeout
        while True:
            try:
                work.wait(_CHECK_INTERVAL)
                return
            except RuntimeError as error:
                failed = work.is_completed()
                if failed or time.monotonic() >= end or self._heartbeat.alarm_raised():
                    raise RankLostError(self._failure_message(what, failed)) from error

    def all_gather(self, value: Any, what: str) -> list[Any]:
        """What every rank has, by rank; anything that can be pickled.

        ``torch.distributed.all_gather_object`` would wait for as long as the process group does.
        """
        device = dist.distributed_c10d._get_object_coll_device(self.group)
        packed = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8).to(device)
        sizes = self._gather(torch.tensor([len(packed)], device=device), what).flatten().tolist()
        padded = packed.new_zeros(max(sizes))
        padded[: len(packed)] = packed
        rows = self._gather(padded, what).cpu()
        return [
            pickle.loads(row[:size].numpy().tobytes())
            for row, size in zip(rows, sizes, strict=True)
        ]

    def _gather(self, value: Tensor, what: str) -> Tensor:
        """The vectors of all ranks, which are of one size, as rows."""
        rows = value.new_empty(self.size, len(value))
        options = self._begin(AllgatherOptions())
        self.wait(self.group.allgather([list(rows)], [value], options), what)
        return rows

    def _begin(self, options: Options) -> Options:
        """Options of a collective that begins now, and ends by itself some time after the wait.

        With the timeout of the process group, half an hour, a rank that has told of another's loss
        could not end before it: gloo lets no process go that has something under way.
        """
        self._heartbeat.begin()
        options.timeout = timedelta(seconds=self.timeout + TIMEOUT)
        if hasattr(options, "asyncOp"):  # torch 2.7 has none yet
            options.asyncOp = True
        return options

    def _failure_message(self, what: str, failed: bool) -> str:
        """The message; ``failed``: the collective ended with an error, and nobody was late."""
        where = f"{what} of rank {self.rank} of {self.size} failed"
        try:
            self._heartbeat.raise_alarm()
            lost, never, late = self._heartbeat.standing()
        except StoreLost:
            return (
                f"{where}, and so did the store of the process group: its host, which is rank 0 "
                "unless torchrun has it, is gone or stopped"
            )
        if lost:
            before = f", {_ranks(never)} none before either" if never else ""
            return f"{where}: {_ranks(lost)} gave no sign of life for {TIMEOUT:g} seconds{before}"
        if late and not failed:
            return (
                f"{where}, though every rank is alive: {_ranks(late)} "
                f"{'was' if len(late) == 1 else 'were'} late by more than {self.timeout:g} seconds"
            )
        return (
            f"{where}, though every rank is alive: one had an error of its own, or the network "
            "is broken"
        )


def _ranks(numbers: Sequence[int]) -> str:
    return " and ".join(f"rank {number}" for number in numbers)


def require_same(settings: Sequence[Mapping[str, Any]]) -> None:
    """Raise :class:`RankMismatchError` unless all ranks, in their order, have the same settings."""
    for rank, other in enumerate(settings):
        for name, value in settings[0].items():
            if other[name] != value:
                raise RankMismatchError(
                    f"{name} must be the same on all ranks: {_difference(value, other[name], rank)}"
                )


def _difference(first: Any, other: Any, rank: int) -> str:
    if not isinstance(first, list):
        return f"rank 0 has {first!r} and rank {rank} has {other!r}"
    if len(first) != len(other):
        return f"rank 0 has {len(first)} of them and rank {rank} has {len(other)}"
    index = next(i for i, (a, b) in enumerate(zip(first, other, strict=True)) if a != b)
    return f"number {index} is {first[index]} on rank 0 and {other[index]} on rank {rank}"
