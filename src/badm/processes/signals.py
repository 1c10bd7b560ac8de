"""Handle Ctrl-C and SIGTERM: the first asks the process to stop, the second stops it.

A signal raises :class:`Stopped` in the main thread, with two exceptions. In ``defer_stop()`` the
first signal only sets a flag, so that a run can finish its step, save a checkpoint and return. In
``exit_on_signal()`` it exits at once, since code under import may swallow exceptions. A main thread
that is deep in C code raises nothing; a second thread then ends the process. Nothing here imports
torch: signals do not wait until it is loaded.
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

# Signals this close together count as one: `timeout` sends two, as do some terminal wrappers.
REPEAT_SECONDS = 0.5
GRACE_SECONDS = 3.0  # for the main thread to return from C code
POLL_SECONDS = 0.1
STOPPING = (
    b"badm: stopping after this step and saving a checkpoint; press Ctrl-C again to stop now\n"
)
INTERRUPTED = b"badm: interrupted\n"
SHOW_CURSOR = b"\x1b[?25h"  # a progress bar has hidden it


class Stopped(KeyboardInterrupt):
    """A signal asked this process to stop."""


class _SignalState:
    """Count the signals received so far and decide what the next one does."""

    def __init__(self, numbers: Sequence[int], *, announce: bool) -> None:
        self.numbers, self.announce = numbers, announce
        self.first = 0  # the first signal received
        self.count, self.last = 0, 0.0
        self.deferrals, self.exit_at_once, self.over = 0, False, False
        self.announced = False  # the interruption has been reported
        # Python writes each signal's number into `arrived` at once, whatever the main thread does.
        # The handler takes it out again: a number that stays has not reached Python code yet.
        self.ours, self.arrived = socket.socketpair()
        self.ours.setblocking(False)
        self.arrived.setblocking(False)

    def handle(self, number: int, _: FrameType | None) -> None:
        self._drain()
        now = time.monotonic()
        if self.count and now - self.last < REPEAT_SECONDS:
            return
        self.count, self.last = self.count + 1, now
        self.first = self.first or number
        if self.exit_at_once or self.count > 2:
            self.exit()
        if self.deferrals and self.count == 1:
            if self.announce:
                _write(STOPPING)
            return
        raise Stopped

    def _drain(self) -> None:
        try:
            while self.ours.recv(4096):
                pass
        except BlockingIOError:
            return

    def watch(self) -> None:
        """End the process if its main thread does not respond; runs in a thread of its own."""
        while not self.over:
            select.select([self.ours], [], [])
            time.sleep(POLL_SECONDS)  # signals that a task handles itself stay there, unread
            began, second, seen = time.monotonic(), 0.0, 0
            while (waiting := self._waiting()) and not self.over:
                now = time.monotonic()
                if len(waiting) > seen and now - began >= REPEAT_SECONDS:
                    second = second or now
                seen = len(waiting)
                since = second if self.deferrals and not self.count else began
                if since and now - since >= GRACE_SECONDS:
                    self.first = self.first or waiting[0]
                    self.exit()
                time.sleep(POLL_SECONDS)

    def _waiting(self) -> list[int]:
        """List the signals for which no handler has been called."""
        try:
            return [n for n in self.ours.recv(4096, socket.MSG_PEEK) if n in self.numbers]
        except BlockingIOError:
            return []

    def exit(self) -> None:
        """Exit now. Child processes end with this one (``parent_death``)."""
        if os.isatty(2):
            _write(SHOW_CURSOR)
        if self.announce and not self.announced:
            _write(INTERRUPTED)
        os._exit(128 + self.first)


def _write(text: bytes) -> None:
    """Write to stderr without its buffer: the signal may have come in the middle of a print."""
    with suppress(OSError):  # stderr may be closed, and nothing depends on it
        os.write(2, text)


_current: _SignalState | None = None


@contextmanager
def handle_signals(
    numbers: Sequence[int] = (signal.SIGINT, signal.SIGTERM), *, announce: bool = False
) -> Iterator[None]:
    """Handle signals in this process; those it inherited as ignored stay ignored.

    Args:
        numbers: The signals to handle.
        announce: Print on stderr what a signal does, as a command should; workers stay silent.
    """
    global _current
    taken = [n for n in numbers if signal.getsignal(n) is not signal.SIG_IGN]
    now = _current = _SignalState(taken, announce=announce)
    if announce:
        atexit.register(_ignore, taken)  # registered first, so called last
    woken = signal.set_wakeup_fd(now.arrived.fileno(), warn_on_full_buffer=False)
    before: dict[int, Any] = {n: signal.signal(n, now.handle) for n in taken}
    thread = threading.Thread(target=now.watch, name="badm-signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        if now.count and now.announce:  # the process is exiting, which may take a while
            now.exit_at_once = True
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
def defer_stop() -> Iterator[None]:
    """Let the first signal only set the flag that :func:`stop_requested` returns."""
    now = _current
    if now is None:
        yield
        return
    now.deferrals += 1
    try:
        yield
    finally:
        now.deferrals -= 1


@contextmanager
def exit_on_signal() -> Iterator[None]:
    """Let the first signal exit the process: there is nothing to save yet."""
    now = _current
    if now is None:
        yield
        return
    before, now.exit_at_once = now.exit_at_once, True
    try:
        yield
    finally:
        now.exit_at_once = before


def stop_requested() -> bool:
    """Return whether a signal was received."""
    return _current is not None and _current.count > 0


def exit_code() -> int:
    """Return the exit code after a signal, as in a shell: 130 after Ctrl-C."""
    return 128 + (_current.first if _current and _current.first else signal.SIGINT)


def begin_exit() -> bool:
    """Let the next signal exit at once; return whether the caller should still report why."""
    if _current is None:
        return True
    before, _current.announced = _current.announced, True
    _current.exit_at_once = True
    return not before


def raised_by_signal(error: BaseException) -> bool:
    """Return whether a signal raised the exception, and not the code that was running.

    >>> raised_by_signal(Stopped()), raised_by_signal(SystemExit(0))
    (True, False)
    """
    if isinstance(error, Stopped):
        return True
    pythons_own = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return isinstance(error, KeyboardInterrupt) and pythons_own


class StopRequest:
    """Stop this process when another one requests it, through a file or shared memory.

    A thread polls ``requested`` and exits the process, except in a ``with defer():`` block: there
    the code inside has to poll ``requested`` itself.
    """

    def __init__(self, requested: Callable[[], bool]) -> None:
        self.requested = requested
        self.deferrals = 0
        threading.Thread(target=self._watch, name="badm-stop-request", daemon=True).start()

    def _watch(self) -> None:
        while not (self.requested() and not self.deferrals):
            time.sleep(POLL_SECONDS)
        os._exit(0)

    @contextmanager
    def defer(self) -> Iterator[None]:
        self.deferrals += 1
        try:
            yield
        finally:
            self.deferrals -= 1


def _ignore(numbers: Sequence[int]) -> None:
    """Ignore signals while the interpreter shuts down: the exit code is settled by then."""
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


def _restore_handlers() -> None:
    """Restore the default handlers in a forked process, such as a DataLoader worker."""
    global _current
    if _current is not None:
        signal.set_wakeup_fd(-1)
        for number in _current.numbers:
            usual = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if usual else signal.SIG_DFL)
        _current = None


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_restore_handlers)
