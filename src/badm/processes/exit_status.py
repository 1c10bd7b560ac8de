"""Describe how a process ended."""

from __future__ import annotations

import signal


def describe_exit(code: int) -> str:
    """Describe the exit code of a process; negative codes are signals.

    >>> describe_exit(-9), describe_exit(-11), describe_exit(3)
    ('killed by SIGKILL, perhaps for lack of memory', 'killed by SIGSEGV', 'exit code 3')
    """
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:  # one of the real-time signals
        name = f"signal {-code}"
    return f"killed by {name}{', perhaps for lack of memory' if name == 'SIGKILL' else ''}"
