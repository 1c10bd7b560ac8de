"""End a process when its parent ends, even if the parent is killed.

``python -m badm.processes.parent_death MODULE ...`` runs ``python -m MODULE ...`` as such a child.
It does not import torch: the parent could be gone by the time that is done.
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

POLL_SECONDS = 0.5  # how often the child checks who its parent is
PARENT_VARIABLE = "BADM_PARENT"  # holds the process id of the parent
PR_SET_PDEATHSIG = 1  # from <sys/prctl.h>


def exit_with_parent(parent: int | None = None) -> None:
    """Kill this process as soon as its parent is gone, whatever it is doing.

    It must have been started from the parent's main thread: Linux takes the end of the thread that
    started a process for the end of its parent.

    Args:
        parent: Process id of the parent, in case it has ended already; the current one by default.
    """
    expected = os.getppid() if parent is None else parent
    if sys.platform == "linux":  # works even while no Python thread runs, as in a loop of C code
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != expected:
        _exit_silently()
    threading.Thread(target=_watch, args=(expected,), name="badm-parent", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:  # an orphan gets another parent
        time.sleep(POLL_SECONDS)
    _exit_silently()


def _exit_silently() -> None:
    os._exit(1)  # nobody is left to read a message


def started_by_torchrun() -> bool:
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def child_environment() -> Mapping[str, str]:
    """Return the environment for a child started with ``python -m badm.processes.parent_death``."""
    return {**os.environ, PARENT_VARIABLE: str(os.getpid())}


def main() -> None:
    exit_with_parent(int(os.environ[PARENT_VARIABLE]))
    os.environ.update(child_environment())  # for children of its own
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
