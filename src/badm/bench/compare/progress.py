"""One display for all that is running: a bar for the comparison and a line for each run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn
from rich.progress import TaskID as BarID

from badm.bench.engine.workers import RunProgress, WorkerEvent
from badm.bench.report.terminal import console, text_column

if TYPE_CHECKING:
    from badm.bench.compare.method_on_task import MethodOnTask
    from badm.bench.compare.speed import SpeedOnTask

Watch = Callable[[WorkerEvent], None]


@contextmanager
def watching(progress: bool | Watch, work: Sequence[MethodOnTask | SpeedOnTask]) -> Iterator[Watch]:
    """What to call with each event: a function of the caller's, or one that updates a display.

    The display is drawn on stderr, if that is a terminal or a notebook and it is wanted.
    """
    if callable(progress):
        yield progress
        return
    with ProgressDisplay(work, console(stderr=True), shown=progress) as display:
        yield display.update


class ProgressDisplay:
    """To be used in a ``with`` block around a comparison; ``update`` takes each event."""

    def __init__(
        self, work: Sequence[MethodOnTask | SpeedOnTask], out: Console, *, shown: bool
    ) -> None:
        self.work = work
        self.progress = Progress(
            text_column("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            text_column("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=out,
            transient=True,
            disable=not (shown and (out.is_terminal or out.is_jupyter)),
        )
        self.whole = self.progress.add_task("runs", total=self._planned(), note="")
        self.lines: dict[str, BarID] = {}

    def __enter__(self) -> ProgressDisplay:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        self.progress.stop()

    def _planned(self) -> int:
        return sum(one.runs_planned for one in self.work)

    def update(self, event: WorkerEvent) -> None:
        config = event.job.config
        if isinstance(event, RunProgress):
            if config.key not in self.lines:
                lr = config.setting.get("lr")
                trial = "trial" if lr is None else f"lr {lr}"
                what = f"seed {config.seed}" if config.test else trial
                self.lines[config.key] = self.progress.add_task(
                    f"{config.task} {config.method} {what}", total=config.steps, note=""
                )
            self.progress.update(
                self.lines[config.key],
                completed=event.step,
                note="" if math.isnan(event.loss) else f"loss {event.loss:.4g}",
            )
        else:
            line = self.lines.pop(config.key, None)
            if line is not None:
                self.progress.remove_task(line)
        ended = sum(one.runs_ended for one in self.work)
        self.progress.update(self.whole, completed=ended, total=self._planned())
