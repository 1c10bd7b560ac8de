"""Run collectives of a process group that report a lost rank instead of hanging.

When a rank is killed, the others are left in a collective that fails with the name of a socket, or
does not fail at all. Here a waiting rank checks the heartbeats of the others and names the lost
one.
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

# Imported before there is a group: its functions bind the group they find as a default argument.
import torch.distributed.nn
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions, AllreduceOptions, BroadcastOptions
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from badm.distributed.heartbeat import TIMEOUT, Heartbeat, StoreLostError

__all__ = ["RankLostError", "RankMismatchError", "init_process_group"]

_POLL_SECONDS = 0.05  # how often to check which ranks have joined
_CHECK_INTERVAL = timedelta(seconds=0.5)  # how often a waiting rank checks for the alarm

Options = TypeVar("Options", AllreduceOptions, BroadcastOptions, AllgatherOptions)


class RankLostError(RuntimeError):
    """Raised when a rank was killed, hangs or lost its connection; the message names the rank.

    Start the job again and load the last checkpoint; torchrun's ``--max-restarts`` does so itself::

        try:
            train(model, consensus)
        except badm.RankLostError as error:
            sys.exit(f"{error}; resume from the last checkpoint")
    """


class RankMismatchError(ValueError):
    """Raised when ranks have different models or settings; the message names the first difference.

    >>> require_same([{"every": 50}, {"every": 20}])
    Traceback (most recent call last):
    badm.distributed.ranks.RankMismatchError: every must be the same on all ranks: rank 0 has 50 \
and rank 1 has 20
    """


def init_process_group(backend: str = "gloo", **options: Any) -> None:
    """Initialize the default process group so that it survives restarts by torchrun.

    Use it in place of ``torch.distributed.init_process_group``. torchrun keeps one store for all
    its restarts, in which a restarted rank finds the addresses of dead processes and tries to
    connect to them. Here the ranks first agree on a prefix of the store that no attempt has used::

        badm.init_process_group("gloo")
        consensus = badm.Consensus(model.parameters(), optimizer, every=50)

    Args:
        backend: ``"gloo"`` for CPUs, the default, as it runs everywhere; ``"nccl"`` for GPUs.
        **options: Passed to ``torch.distributed.init_process_group``, such as ``timeout``.
    """
    store, rank, size = next(rendezvous("env://"))
    prefix_store = PrefixStore(f"badm/{_attempt_name(store, rank, size)}", store)
    dist.init_process_group(backend, store=prefix_store, rank=rank, world_size=size, **options)


def _attempt_name(store: Store, rank: int, size: int) -> str:
    """Agree with all ranks on a name for this attempt; torchrun counts restarts per host only.

    Each rank draws a token and publishes a hash of all tokens it sees. An entry left by an earlier
    attempt cannot contain a token drawn since, so the ranks agree once all hashes are equal.
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
    """Internal: start collectives and wait for them with :meth:`wait`, watching for lost ranks.

    Args:
        group: The process group; all ranks by default.
        timeout: Seconds to wait for late ranks.

    Where a method takes ``what``, it names the operation in the error message: "meeting 3".
    """

    def __init__(self, group: dist.ProcessGroup | None = None, timeout: float = 300.0) -> None:
        group = group or dist.distributed_c10d._get_default_group()
        # A weak reference, so that destroy_process_group waits for gloo's threads: one that still
        # releases a tensor at interpreter exit would abort the process.
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
        """Return the process group, unless it was destroyed."""
        group = self._group()
        if group is None:
            raise RuntimeError("the process group of these ranks has been destroyed")
        return group

    def close(self) -> None:
        """Stop sending heartbeats."""
        self._heartbeat.stop()

    def all_reduce(self, x: Tensor) -> dist.Work:
        """Start to sum ``x`` over all ranks, in place."""
        return self.group.allreduce([x], self._collective_options(AllreduceOptions()))

    def broadcast(self, x: Tensor) -> dist.Work:
        """Start to copy the first rank's ``x`` into that of every rank."""
        return self.group.broadcast([x], self._collective_options(BroadcastOptions()))

    def wait(self, work: dist.Work, what: str) -> None:
        """Wait for a collective; raise :class:`RankLostError` if it fails or times out."""
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
        """Gather one picklable value from every rank, in the order of ranks.

        ``torch.distributed.all_gather_object`` would wait for the process group's long timeout.
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
        """Gather vectors of equal size as the rows of a matrix."""
        rows = value.new_empty(self.size, len(value))
        options = self._collective_options(AllgatherOptions())
        self.wait(self.group.allgather([list(rows)], [value], options), what)
        return rows

    def _collective_options(self, options: Options) -> Options:
        """Count a new collective and let it time out soon after :meth:`wait` gives up.

        With the process group's own timeout, half an hour, a rank that has reported a lost rank
        could not exit before that: gloo blocks exit while a collective is pending.
        """
        self._heartbeat.count_collective()
        options.timeout = timedelta(seconds=self.timeout + TIMEOUT)
        if hasattr(options, "asyncOp"):  # torch 2.7 does not have it
            options.asyncOp = True
        return options

    def _failure_message(self, what: str, failed: bool) -> str:
        """Return the message; ``failed`` if the collective raised an error and did not time out."""
        where = f"{what} of rank {self.rank} of {self.size} failed"
        try:
            self._heartbeat.raise_alarm()
            lost, never_seen, late = self._heartbeat.check_ranks()
        except StoreLostError:
            return (
                f"{where}, and the store of the process group does not respond: the process that "
                "hosts it, torchrun or else rank 0, is gone or stopped"
            )
        if lost:
            before = f" ({_join_ranks(never_seen)} never sent one)" if never_seen else ""
            return f"{where}: {_join_ranks(lost)} sent no heartbeat for {TIMEOUT:g} seconds{before}"
        if late and not failed:
            return (
                f"{where}, though every rank is alive: {_join_ranks(late)} "
                f"{'was' if len(late) == 1 else 'were'} late by more than {self.timeout:g} seconds"
            )
        return f"{where}, though every rank is alive: a rank raised an error or the network failed"


def _join_ranks(numbers: Sequence[int]) -> str:
    return " and ".join(f"rank {number}" for number in numbers)


def require_same(settings: Sequence[Mapping[str, Any]]) -> None:
    """Internal: raise :class:`RankMismatchError` unless the settings, one per rank, are equal."""
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
    return f"entry {index} is {first[index]} on rank 0 and {other[index]} on rank {rank}"
