"""Keep what the code of a task prints, reads and changes away from the command."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path

STDIN, STDOUT, STDERR = 0, 1, 2


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Send what is printed to stderr, by programs and C code as well: stdout is for results.

    There is nothing to read on stdin, unless it is a terminal, where people debug. Afterwards the
    working directory is restored.
    """
    with redirect_stdout(sys.stderr), _as(STDOUT, STDERR), _without_input(), same_directory():
        yield


@contextmanager
def same_directory() -> Iterator[None]:
    """Return to the working directory from before, wherever the code inside has gone."""
    folder = os.getcwd()
    try:
        yield
    finally:
        with suppress(FileNotFoundError):  # removed meanwhile
            os.chdir(folder)


@contextmanager
def output_to(path: Path, mode: str) -> Iterator[None]:
    """Send what Python code prints and logs to a file, line by line.

    Handlers of loggers keep the stream that they were made with: those of the terminal are moved.
    """
    terminal = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    handlers = {
        handler: handler.stream
        for logger in loggers
        for handler in getattr(logger, "handlers", ())
        if isinstance(handler, logging.StreamHandler) and handler.stream in terminal
    }
    log = path.open(mode, encoding="utf-8", errors="replace", buffering=1)
    with log, redirect_stdout(log), redirect_stderr(log):
        for handler in handlers:
            handler.setStream(log)
        try:
            yield
        finally:
            for handler, stream in handlers.items():
                handler.setStream(stream)


def leave_to_the_parent() -> None:
    """Do the same for good, in a process whose parent has the terminal."""
    os.dup2(STDERR, STDOUT)
    sys.stdout = sys.stderr  # which accepts any character, whatever the terminal can show
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, STDIN)
    os.close(nothing)


@contextmanager
def _without_input() -> Iterator[None]:
    if _is_terminal(STDIN):
        yield
        return
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        with _as(STDIN, nothing):
            yield
    finally:
        os.close(nothing)


@contextmanager
def _as(number: int, other: int) -> Iterator[None]:
    """Redirect a file descriptor for a while; one that is closed stays closed."""
    try:
        before = os.dup(number)
    except OSError:
        yield
        return
    try:
        with suppress(OSError):  # the other is closed
            os.dup2(other, number)
        yield
    finally:
        _flush()
        os.dup2(before, number)
        os.close(before)


def _flush() -> None:
    """Flush the buffers of C code."""
    if os.name == "posix":
        ctypes.CDLL(None).fflush(None)


def _is_terminal(number: int) -> bool:
    try:
        return os.isatty(number)
    except OSError:
        return False
