"""badm as a machine of its own runs it: ``machine.py CLOCK COMMAND...``.

Its clock is off by so many seconds, and it waits less long than people would. What it says goes to
the file ``said`` as it says it.
"""

from __future__ import annotations

import os
import sys
import time

if __name__ == "__main__":
    real, off = time.time, float(sys.argv.pop(1))
    time.time = lambda: real() + off
    os.dup2(os.open("said", os.O_WRONLY | os.O_CREAT), 2)

    from badm.bench.compare import search
    from badm.cli import main

    search.HEARTBEAT_SECONDS, search.STALE_SECONDS = 0.5, 5.0
    main()
