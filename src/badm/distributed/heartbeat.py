"""Internal: detect lost ranks. Every rank sends heartbeats through the store of the process group.

A collective that fails reports at best that a connection closed, and on ranks without a connection
to the lost one it hangs. Here a thread of every rank increments a counter in the store. A rank
whose collective fails raises the alarm; the others poll for it while they wait, and all of them
name the ranks whose counters stand still.

Beside its counter each rank stores how many collectives it has started: a rank that is alive but
has started fewer than the others is late.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from torch.distributed.distributed_c10d import PrefixStore, Store

INTERVAL = 0.5  # seconds between two heartbeats
TIMEOUT = 3.0  # seconds without a heartbeat after which a rank counts as lost

T = TypeVar("T")

# Every rank creates the heartbeats of a group in the same order, so equal counts belong together.
_instances: Counter[str] = Counter()


class StoreLostError(RuntimeError):
    """The store of the process group is gone, or its host does not respond."""


class RankStatus(NamedTuple):
    """Group the other ranks by what their heartbeats show."""

    lost: list[int]  # no heartbeat
    never_seen: list[int]  # those of the lost ranks that never sent one
    late: list[int]  # alive, but still in an earlier collective


@dataclass
class _SharedState:
    """State shared between a rank and its heartbeat thread."""

    started: int = 0  # collectives this rank has started
    alarm_raised: bool = False


class Heartbeat:
    """Send the heartbeats of this rank and watch those of the others."""

    def __init__(self, store: Store, name: str, rank: int, ranks: Sequence[int]) -> None:
        self._store = PrefixStore(f"badm/{name}", store)
        self._prefix = f"heartbeat/{_instances[name]}"
        _instances[name] += 1
        self._ranks = [other for other in ranks if other != rank]
        self._shared = _SharedState()
        stop = threading.Event()
        thread = threading.Thread(
            target=_send_beats,
            args=(self._store, f"{self._prefix}/{rank}", self._shared, stop),
            name="badm-heartbeat",
            daemon=True,
        )
        # Stops before the store is closed, also at interpreter exit.
        self.stop = weakref.finalize(self, _stop, thread, stop)
        thread.start()

    def count_collective(self) -> None:
        """Count a collective that this rank starts."""
        self._shared.started += 1

    def raise_alarm(self) -> None:
        """Tell the other ranks that a collective failed."""
        _call_with_timeout(lambda: self._store.set("alarm", "1"))

    def alarm_raised(self) -> bool:
        """Return whether a rank has raised the alarm or the store is gone."""
        return self._shared.alarm_raised

    def check_ranks(self) -> RankStatus:
        """Find out which ranks are lost or late; takes ``TIMEOUT`` seconds."""
        before = self._counts()
        time.sleep(TIMEOUT)
        after = self._counts()
        lost = [rank for rank in self._ranks if before[rank] == after[rank]]
        never_seen = [rank for rank in lost if after[rank] is None]
        # Compared as before the wait: a late rank may have caught up during it.
        own = self._shared.started
        behind = [rank for rank, beat in before.items() if beat is None or beat[1] < own]
        return RankStatus(lost, never_seen, [rank for rank in behind if rank not in lost])

    def _counts(self) -> dict[int, tuple[int, int] | None]:
        """Return heartbeats and collectives by rank; None for a rank without any heartbeat."""
        return _call_with_timeout(lambda: {rank: self._last(rank) for rank in self._ranks})

    def _last(self, rank: int) -> tuple[int, int] | None:
        key = f"{self._prefix}/{rank}"
        if not self._store.check([key]):
            return None
        beats, started = map(int, self._store.get(key).split())
        return beats, started


def _call_with_timeout(call: Callable[[], T]) -> T:
    """Call the store; if the process that hosts it is stopped, a plain call would never return."""
    results: list[T] = []

    def run() -> None:
        with suppress(RuntimeError):  # the store is gone: no result either
            results.append(call())

    thread = threading.Thread(target=run, name="badm-store-call", daemon=True)
    thread.start()
    thread.join(TIMEOUT)
    if not results:
        raise StoreLostError
    return results[0]


def _send_beats(store: Store, key: str, shared: _SharedState, stop: threading.Event) -> None:
    """Send heartbeats and poll for the alarm; this thread may block on a slow store."""
    beats = 0
    while not stop.is_set():
        beats += 1
        try:
            store.set(key, f"{beats} {shared.started}")
            shared.alarm_raised = bool(store.check(["alarm"]))
        except RuntimeError:  # the store is gone
            shared.alarm_raised = True
            return
        stop.wait(INTERVAL)


def _stop(thread: threading.Thread, stop: threading.Event) -> None:
    stop.set()
    thread.join(timeout=TIMEOUT)
