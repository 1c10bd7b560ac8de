"""How commands end: a sentence for people, a number for scripts."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from badm.bench.faults import TaskError
from badm.bench.methods import UnknownMethod
from badm.bench.plan import ProtocolError
from badm.bench.store import StoreError
from badm.bench.tasks import UnknownTask
from badm.company import ReplicaLost

FAILED = 1  # a run or a task failed
USAGE = 2  # what was asked for does not exist or cannot be
STORE = 4  # the folder cannot be written
INTERRUPTED = 130  # as shells have it


@contextmanager
def told() -> Iterator[None]:
    """Turn what can go wrong into a sentence on stderr and an exit code."""
    try:
        yield
    except (UnknownTask, UnknownMethod, ProtocolError, ValueError) as error:
        stop(str(error), USAGE)
    except (TaskError, ReplicaLost) as error:
        stop(str(error), FAILED)
    except StoreError as error:
        stop(str(error), STORE)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is ending: nobody has to press again
        stop("interrupted; the same command goes on from here", INTERRUPTED)


def stop(message: str, code: int) -> None:
    print(f"badm: {message}", file=sys.stderr)
    raise typer.Exit(code)
