"""Processes that do not outlive the one that started them, however that one ended.

``python -m badm.lifetime MODULE ...`` is ``python -m MODULE ...`` as such a process. Nothing here
waits for torch to be imported, as the parent may be gone by then.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Mapping

LOOK_SECONDS = 0.5  # between two looks at who the parent is
PARENT = "BADM_PARENT"  # the variable with the process that a module is started by
PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>


def end_with_parent(parent: int | None = None) -> None:
    """Kill this process as soon as its parent is gone, whatever it is doing then.

    ``parent`` is who has started it, for one that may have ended before this line; by default
    whoever is the parent now. It must have been the main thread that did: Linux takes the end of
    the thread for that of the process.
    """
    expected = os.getppid() if parent is None else parent
    if sys.platform == "linux":  # also where no thread gets its turn, as in a loop of C code
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != expected:
        _end()
    threading.Thread(target=_watch, args=(expected,), name="badm-parent", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:  # that of an orphan is another one
        time.sleep(LOOK_SECONDS)
    _end()


def _end() -> None:
    os._exit(1)  # without a word: there is nobody to read it


def started_by_torchrun() -> bool:
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def variables() -> Mapping[str, str]:
    """The environment for a process started as ``python -m badm.lifetime``."""
    return {**os.environ, PARENT: str(os.getpid())}


def how_it_ended(code: int) -> str:
    """The exit code of a process in words; negative ones are signals.

    >>> how_it_ended(-9), how_it_ended(-11), how_it_ended(3)
    ('killed by SIGKILL, perhaps for lack of memory', 'killed by SIGSEGV', 'exit code 3')
    """
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:  # one of the real-time signals
        name = f"signal {-code}"
    return f"killed by {name}{', perhaps for lack of memory' if name == 'SIGKILL' else ''}"


def main() -> None:
    end_with_parent(int(os.environ[PARENT]))
    os.environ.update(variables())  # for those that it starts in turn
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
