"""The parts of the paper: their tables, measured again and set beside the paper's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from badm.bench.task import Scale

if TYPE_CHECKING:
    from badm.bench.engine.workers import WorkerEvent
    from badm.bench.reproduce.result import PartReport, Reproduction


class ReproductionInterrupted(KeyboardInterrupt):
    """Ctrl-C stopped a reproduction. ``report`` has the parts, the last one as far as it went."""

    def __init__(self, report: Reproduction) -> None:
        super().__init__("run the same reproduction again to resume")
        self.report = report


def reproduce(
    parts: str | Iterable[str] = (),
    *,
    scale: Scale = "cpu",
    seeds: int = 3,
    steps: int | None = None,
    methods: str | Iterable[str] = "",
    runs: Path | str = "runs",
    jobs: int | None = None,
    threads: int = 1,
    device: Literal["cpu", "cuda", "mps", "auto"] = "cpu",
    progress: bool | Callable[[WorkerEvent], None] = False,
    on_part: Callable[[PartReport], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> Reproduction:
    """Make the tables and figures of the paper again, in its settings, beside its own numbers.

    Runs are kept in a folder and not repeated: after an interruption the same call resumes. Tasks
    whose data are missing are called "not measured", and the others go on. Runs are done by
    processes of their own, so that a script needs the usual ``if __name__ == "__main__":`` around
    the call.

    Args:
        parts: Parts of the paper, one or several: ``"node-classification"``, ``"molecule"``, …
            Default: all parts.
        scale: Size of the tasks: ``"smoke"`` (seconds), ``"cpu"``, or ``"paper"``.
        seeds: Runs of every cell.
        steps: Training steps of each run. Default: the task's own number.
        methods: Names in a list or comma-separated, ``"all"`` and patterns such as ``"badm*"``.
            Default: the paper's methods and BADM in three metrics.
        runs: Folder to keep runs in.
        jobs: Runs at a time. Default: one for each core, at most eight.
        threads: Threads per run. Part of a run's key: sums in another order are other numbers.
        device: Device of each run; ``"auto"`` is the accelerator if there is one. Part of a run's
            key.
        progress: True shows a progress bar on stderr; a function is called with each event.
        on_part: Called with the report of each part as soon as it is done, for example to save it.
        say: Called with messages such as whose data are missing. Default: they are logged.

    Returns:
        A report for each part, to print, save and show in a notebook.

    Raises:
        ValueError: if a name or value cannot be used.
        badm.bench.errors.TaskError: if all data of a part are missing, or the code of a task
            raises.
        badm.bench.errors.StoreError: if the folder of the runs cannot be written.
        ReproductionInterrupted: after Ctrl-C, with a report of the runs so far, if there are any.

    Example:
        >>> import badm.bench
        >>> result = badm.bench.reproduce(
        ...     "molecule", scale="smoke", methods="adam,badm", seeds=1, steps=5
        ... )  # doctest: +SKIP
        >>> print(result)  # doctest: +SKIP
        >>> result.save("results")  # doctest: +SKIP
    """
    # Here and not above: `import badm.bench` and `badm --help` are not to wait for them.
    from badm.bench.compare.progress import watching
    from badm.bench.compare.protocol import log, run_all
    from badm.bench.engine.options import Machine
    from badm.bench.reproduce.planning import plan_parts
    from badm.bench.reproduce.result import Reproduction

    machine = Machine(threads=threads, device=device)
    planned = plan_parts(
        parts,
        methods,
        runs,
        machine,
        scale=scale,
        seeds=seeds,
        steps=steps,
        say=say or log,
    )
    work = [one for part in planned for runner in part.runners for one in runner.methods_on_tasks]
    done: list[PartReport] = []

    def add(report: PartReport) -> None:
        done.append(report)
        if on_part is not None:
            on_part(report)

    for one in planned:
        try:
            # One display for each part: what `on_part` prints must not land inside it.
            with watching(progress, work) as watch:
                run_all(one.runners, jobs=jobs, machine=machine, watch=watch)
        except KeyboardInterrupt as interrupt:
            if not any(runner.has_final_runs for runner in one.runners):
                raise
            add(one.report())
            raise ReproductionInterrupted(Reproduction(tuple(done))) from interrupt
        add(one.report())
    return Reproduction(tuple(done))
