"""What Ctrl-C and SIGTERM do to a process: the first asks it to stop, the next one makes it.

A signal raises :class:`Stopped` in the main thread, but not in two kinds of ``with`` blocks. In
``held()`` the first one is only noted, for a run to finish its step, write a checkpoint and end. In
``at_once()`` it ends the process there and then: imports clear errors that are none of theirs. A
main thread that is deep in C code raises nothing; another thread ends the process for it. Nothing
here waits for torch to be imported, as signals do not.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

# Signals that come so close are one: `timeout` sends two, as does a terminal with some wrappers.
REPEAT_SECONDS = 0.5
GRACE_SECONDS = 3.0  # for the main thread to come out of C code
LOOK_SECONDS = 0.1
ASKED = b"badm: stopping after this step, with a checkpoint; once more stops at once\n"
INTERRUPTED = b"badm: interrupted\n"
SHOW_CURSOR = b"\x1b[?25h"  # which a progress bar has hidden


class Stopped(KeyboardInterrupt):
    """A signal has told this process to stop."""


class _Signals:
    """What has come so far, and what is done about the next one."""

    def __init__(self, numbers: Sequence[int], *, say: bool) -> None:
        self.numbers, self.say = numbers, say
        self.first = 0  # the signal that came first
        self.count, self.last = 0, 0.0
        self.holds, self.at_once, self.over = 0, False, False
        self.told = False  # that it was interrupted
        # Python writes the number of a signal into `arrived` as it comes, whatever the main thread
        # is at. The handler takes it out: what stays has not reached Python code yet.
        self.ours, self.arrived = socket.socketpair()
        self.ours.setblocking(False)
        self.arrived.setblocking(False)

    def handle(self, number: int, _: FrameType | None) -> None:
        self._take_out()
        now = time.monotonic()
        if self.count and now - self.last < REPEAT_SECONDS:
            return
        self.count, self.last = self.count + 1, now
        self.first = self.first or number
        if self.at_once or self.count > 2:
            self.leave()
        if self.holds and self.count == 1:
            if self.say:
                _write(ASKED)
            return
        raise Stopped

    def _take_out(self) -> None:
        try:
            while self.ours.recv(4096):
                pass
        except BlockingIOError:
            return

    def watch(self) -> None:
        """The life of the thread that ends a process whose main thread does not answer."""
        while not self.over:
            select.select([self.ours], [], [])
            time.sleep(LOOK_SECONDS)  # signals that a task handles itself stay there, unwatched
            began, second, seen = time.monotonic(), 0.0, 0
            while (waiting := self._waiting()) and not self.over:
                now = time.monotonic()
                if len(waiting) > seen and now - began >= REPEAT_SECONDS:
                    second = second or now
                seen = len(waiting)
                since = second if self.holds and not self.count else began
                if since and now - since >= GRACE_SECONDS:
                    self.first = self.first or waiting[0]
                    self.leave()
                time.sleep(LOOK_SECONDS)

    def _waiting(self) -> list[int]:
        """Signals that no handler has been called for."""
        try:
            return [n for n in self.ours.recv(4096, socket.MSG_PEEK) if n in self.numbers]
        except BlockingIOError:
            return []

    def leave(self) -> None:
        """End this process now. Those it has started end with it (``lifetime``)."""
        if os.isatty(2):
            _write(SHOW_CURSOR)
        if self.say and not self.told:
            _write(INTERRUPTED)
        os._exit(128 + self.first)


def _write(text: bytes) -> None:
    """To stderr, without its buffer: a signal may come in the middle of a print."""
    with suppress(OSError):  # it may be closed, and nothing depends on it
        os.write(2, text)


_current: _Signals | None = None


@contextmanager
def signals(
    numbers: Sequence[int] = (signal.SIGINT, signal.SIGTERM), *, say: bool = False
) -> Iterator[None]:
    """Take the signals for this process; ``say`` is for a command, which answers on stderr.

    Those that whoever started the process wants it to ignore are left ignored.
    """
    global _current
    taken = [n for n in numbers if signal.getsignal(n) is not signal.SIG_IGN]
    now = _current = _Signals(taken, say=say)
    if say:
        atexit.register(_ignore, taken)  # before anybody else, and so called after everybody else
    woken = signal.set_wakeup_fd(now.arrived.fileno(), warn_on_full_buffer=False)
    before: dict[int, Any] = {n: signal.signal(n, now.handle) for n in taken}
    thread = threading.Thread(target=now.watch, name="badm-signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        if now.count and now.say:  # the process is ending, which may take a while
            now.at_once = True
        else:
            for n, handler in before.items():
                signal.signal(n, handler)
            signal.set_wakeup_fd(woken)
            now.over, _current = True, None
            now.arrived.send(b"\0")
            thread.join()
            now.ours.close()
            now.arrived.close()


@contextmanager
def held() -> Iterator[None]:
    """Let the first signal wait for who looks at :func:`asked` inside."""
    now = _current
    if now is None:
        yield
        return
    now.holds += 1
    try:
        yield
    finally:
        now.holds -= 1


@contextmanager
def at_once() -> Iterator[None]:
    """Let the first signal end this process: there is nothing to be put in order."""
    now = _current
    if now is None:
        yield
        return
    before, now.at_once = now.at_once, True
    try:
        yield
    finally:
        now.at_once = before


def asked() -> bool:
    """Whether a signal has come."""
    return _current is not None and _current.count > 0


def exit_code() -> int:
    """That of a process which a signal has ended, as shells have it: 130 after Ctrl-C."""
    return 128 + (_current.first if _current and _current.first else signal.SIGINT)


def ending() -> bool:
    """Let another signal end the process at once: why it ends is said now; false if it has been."""
    if _current is None:
        return True
    before, _current.told = _current.told, True
    _current.at_once = True
    return not before


def by_signal(error: BaseException) -> bool:
    """Whether a signal has raised it, and not the code that was running.

    >>> by_signal(Stopped()), by_signal(SystemExit(0))
    (True, False)
    """
    if isinstance(error, Stopped):
        return True
    pythons_own = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return isinstance(error, KeyboardInterrupt) and pythons_own


class Wish:
    """The wish of another process that this one should stop, which it makes known by ``asked``.

    A thread looks for it and ends the process, but in a ``with held():`` block: there ``asked`` has
    to be looked at.
    """

    def __init__(self, asked: Callable[[], bool]) -> None:
        self.asked = asked
        self.holds = 0
        threading.Thread(target=self._watch, name="badm-wish", daemon=True).start()

    def _watch(self) -> None:
        while not (self.asked() and not self.holds):
            time.sleep(LOOK_SECONDS)
        os._exit(0)

    @contextmanager
    def held(self) -> Iterator[None]:
        self.holds += 1
        try:
            yield
        finally:
            self.holds -= 1


def _ignore(numbers: Sequence[int]) -> None:
    """Python ends with the usual handlers, and by then the exit code of the command is settled."""
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


def _forget() -> None:
    """In a process that was forked, such as one that loads data, signals do what they did."""
    global _current
    if _current is not None:
        signal.set_wakeup_fd(-1)
        for number in _current.numbers:
            usual = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if usual else signal.SIG_DFL)
        _current = None


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget)
