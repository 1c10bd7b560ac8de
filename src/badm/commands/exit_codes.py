"""How commands end: a sentence for people, a number for scripts."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EDQUOT, EFBIG, EIO, ENOSPC
from typing import NoReturn

import typer

from badm.bench.errors import (
    MethodError,
    ProtocolError,
    StoreError,
    TaskError,
    described,
    error_location,
)
from badm.bench.files import os_error_reason
from badm.bench.report.terminal import visible
from badm.commands.output_streams import discard_output, spell_out
from badm.processes import signals

FAILED = 1  # a run or a task failed
USAGE = 2  # what was asked for does not exist or cannot be
STORE_FAILED = 4  # the folder cannot be written


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Turn what can go wrong into a sentence on stderr and an exit code."""
    try:
        yield
    except (ProtocolError, ValueError) as error:
        exit_with(str(error), USAGE)
    except (TaskError, MethodError) as error:
        exit_with(str(error), FAILED)
    except StoreError as error:
        exit_with(str(error), STORE_FAILED)
    except KeyboardInterrupt:
        exit_with("interrupted; run the same command to resume", signals.exit_code())
    except RuntimeError as error:
        from badm.distributed.ranks import RankLostError  # imports torch, which was imported to run

        if not isinstance(error, RankLostError):
            raise
        exit_with(str(error), FAILED)
    except SystemExit as error:  # no command raises it: a task has, where nobody asked it to work
        exit_with(f"the code of a task raised {described(error)} ({error_location(error)})", FAILED)


@contextmanager
def usable_output() -> Iterator[None]:
    """Around a whole command: where its output cannot be written, a sentence and an exit code."""
    spell_out()
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:  # it is where stdout was closed from the beginning
                sys.stdout.flush()
    except BrokenPipeError:  # `| head`: the reader has had enough
        discard_output()
        sys.exit(FAILED)
    except OSError as error:
        if error.filename is None and error.errno not in (ENOSPC, EDQUOT, EFBIG, EIO):
            raise
        what = f"{error.filename}:" if error.filename else "the output cannot be written:"
        say(f"{what} {os_error_reason(error)}")
        discard_output()
        sys.exit(STORE_FAILED)


def say(message: str) -> None:
    """A sentence on stderr, if that can be written."""
    with suppress(OSError):
        print(f"badm: {visible(message)}", file=sys.stderr)


def exit_with(message: str, code: int) -> NoReturn:
    """Say why the command ends, and end it with this exit code."""
    signals.begin_exit()
    say(message)
    raise typer.Exit(code)
