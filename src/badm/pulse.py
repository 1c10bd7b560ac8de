"""Which rank is gone: every rank lets its pulse be felt in the store of the process group.

A collective that fails says at best that some connection closed, and on ranks that had no
connection to the lost one it says nothing and waits. Here a thread of every rank counts up its own
number in the store, and whoever has seen a collective fail raises the alarm: the others look for it
while they wait, and all of them name the ranks whose numbers stand still.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Sequence

from torch.distributed.distributed_c10d import PrefixStore, Store

BEAT = 0.5  # seconds between two beats
STILL = 3.0  # seconds without one, after which a rank is given up


class Pulse:
    """The pulse of this rank, and a finger on those of the others."""

    def __init__(self, store: Store, name: str, rank: int, ranks: Sequence[int]) -> None:
        self._store = PrefixStore(f"badm/{name}", store)
        self._ranks = [other for other in ranks if other != rank]
        stop = threading.Event()
        beating = threading.Thread(
            target=_beat, args=(self._store, f"pulse/{rank}", stop), name="badm-pulse", daemon=True
        )
        # Before the store goes, also at the end of the program.
        self.stop = weakref.finalize(self, _stop, beating, stop)
        beating.start()

    def alarm(self) -> None:
        """Tell the others that something is wrong."""
        self._store.set("alarm", "1")

    def alarmed(self) -> bool:
        return bool(self._store.check(["alarm"]))

    def lost(self) -> list[int]:
        """The ranks without a pulse; takes ``STILL`` seconds."""
        before = self._beats()
        time.sleep(STILL)
        after = self._beats()
        return [rank for rank in self._ranks if before[rank] == after[rank]]

    def _beats(self) -> dict[int, bytes]:
        return {
            rank: self._store.get(f"pulse/{rank}") if self._store.check([f"pulse/{rank}"]) else b""
            for rank in self._ranks
        }


def _beat(store: Store, key: str, stop: threading.Event) -> None:
    beats = 0
    while not stop.is_set():
        beats += 1
        try:
            store.set(key, str(beats))
        except RuntimeError:  # the store is gone, and with it whoever would look
            return
        stop.wait(BEAT)


def _stop(beating: threading.Thread, stop: threading.Event) -> None:
    stop.set()
    beating.join(timeout=STILL)
