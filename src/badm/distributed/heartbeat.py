"""Which rank is gone: every rank sends heartbeats through the store of the process group.

A collective that fails says at best that some connection closed, and on ranks that had no
connection to the lost one it says nothing and waits. Here a thread of every rank counts up its own
number in the store, and whoever has seen a collective fail raises the alarm: the others look for it
while they wait, and all of them name the ranks whose numbers stand still.

Beside it stands how many collectives the rank has begun: one that is alive and has begun fewer than
the others is late.
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

INTERVAL = 0.5  # seconds between two beats
TIMEOUT = 3.0  # seconds without one, after which a rank is given up

T = TypeVar("T")

# Every rank makes those of a group in the same order, so that equal numbers mean the same one.
_made: Counter[str] = Counter()


class StoreLost(RuntimeError):
    """The store of the process group is gone, or its host does not answer."""


class Standing(NamedTuple):
    """What is known of the other ranks: each list has their numbers."""

    lost: list[int]  # without a heartbeat
    never: list[int]  # of these, the ones that never had one
    late: list[int]  # with a heartbeat, in a collective before this one


@dataclass
class _Signs:
    """What a rank and the thread of its heartbeat tell each other."""

    begun: int = 0  # collectives
    alarmed: bool = False


class Heartbeat:
    """Sends the heartbeats of this rank and watches those of the others."""

    def __init__(self, store: Store, name: str, rank: int, ranks: Sequence[int]) -> None:
        self._store = PrefixStore(f"badm/{name}", store)
        self._prefix = f"heartbeat/{_made[name]}"
        _made[name] += 1
        self._ranks = [other for other in ranks if other != rank]
        self._signs = _Signs()
        stop = threading.Event()
        thread = threading.Thread(
            target=_send_beats,
            args=(self._store, f"{self._prefix}/{rank}", self._signs, stop),
            name="badm-heartbeat",
            daemon=True,
        )
        # Before the store goes, also at the end of the program.
        self.stop = weakref.finalize(self, _stop, thread, stop)
        thread.start()

    def begin(self) -> None:
        """Count a collective that this rank begins."""
        self._signs.begun += 1

    def raise_alarm(self) -> None:
        """Tell the others that something is wrong."""
        _answer(lambda: self._store.set("alarm", "1"))

    def alarm_raised(self) -> bool:
        """Whether one of the ranks has raised the alarm, or the store is gone."""
        return self._signs.alarmed

    def standing(self) -> Standing:
        """Who is lost and who is late; takes ``STILL`` seconds."""
        before = self._counts()
        time.sleep(TIMEOUT)
        after = self._counts()
        lost = [rank for rank in self._ranks if before[rank] == after[rank]]
        never = [rank for rank in lost if after[rank] is None]
        # As it was before the wait, in which the late one may have come.
        own = self._signs.begun
        behind = [rank for rank, beat in before.items() if beat is None or beat[1] < own]
        return Standing(lost, never, [rank for rank in behind if rank not in lost])

    def _counts(self) -> dict[int, tuple[int, int] | None]:
        """Beats and collectives begun, by rank; None where there never was a beat."""
        return _answer(lambda: {rank: self._last(rank) for rank in self._ranks})

    def _last(self, rank: int) -> tuple[int, int] | None:
        key = f"{self._prefix}/{rank}"
        if not self._store.check([key]):
            return None
        beats, begun = map(int, self._store.get(key).split())
        return beats, begun


def _answer(ask: Callable[[], T]) -> T:
    """What the store answers; if the process that hosts it is stopped, asking would never end."""
    answers: list[T] = []

    def hear() -> None:
        with suppress(RuntimeError):  # the store is gone: no answer either
            answers.append(ask())

    asking = threading.Thread(target=hear, name="badm-ask", daemon=True)
    asking.start()
    asking.join(TIMEOUT)
    if not answers:
        raise StoreLost
    return answers[0]


def _send_beats(store: Store, key: str, signs: _Signs, stop: threading.Event) -> None:
    """Only this thread asks while the rank waits: it may wait for the store as long as it takes."""
    beats = 0
    while not stop.is_set():
        beats += 1
        try:
            store.set(key, f"{beats} {signs.begun}")
            signs.alarmed = bool(store.check(["alarm"]))
        except RuntimeError:  # the store is gone, and with it whoever would look
            signs.alarmed = True
            return
        stop.wait(INTERVAL)


def _stop(thread: threading.Thread, stop: threading.Event) -> None:
    stop.set()
    thread.join(timeout=TIMEOUT)
