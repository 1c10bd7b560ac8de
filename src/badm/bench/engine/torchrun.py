"""Run torchrun and write which ranks were killed: ``python -m`` this module, a file, arguments."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main as torchrun

from badm.processes.exit_status import describe_exit


def main() -> None:
    file, *arguments = sys.argv[1:]
    try:
        torchrun(arguments)
    except ChildFailedError as error:
        killed = [
            f"rank {rank} was {describe_exit(failure.exitcode)}"
            for rank, failure in error.failures.items()
            # torchrun itself ends the others with SIGTERM.
            if failure.exitcode < 0 and -failure.exitcode != signal.SIGTERM
        ]
        if killed:
            Path(file).write_text("; ".join(killed), encoding="utf-8")
        raise


if __name__ == "__main__":
    main()
