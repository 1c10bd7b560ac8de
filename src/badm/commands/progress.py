"""One display for all that is running: a bar for the comparison and a line for each run."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn
from rich.progress import TaskID as BarID

from badm.bench.engine.workers import RunProgress as Stepped
from badm.bench.engine.workers import WorkerEvent
from badm.commands.terminal import text_column

if TYPE_CHECKING:
    from badm.bench.compare.method_on_task import MethodOnTask


class ProgressDisplay:
    """To be used in a ``with`` block around a comparison, and told of all that happens."""

    def __init__(self, pairs: list[MethodOnTask], console: Console, *, shown: bool) -> None:
        self.pairs = pairs
        self.progress = Progress(
            text_column("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            text_column("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not (shown and console.is_terminal),
        )
        self.whole = self.progress.add_task("runs", total=self._wanted(), note="")
        self.lines: dict[str, BarID] = {}

    def __enter__(self) -> ProgressDisplay:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        self.progress.stop()

    def _wanted(self) -> int:
        return sum(pair.runs_planned for pair in self.pairs)

    def update(self, event: WorkerEvent) -> None:
        config = event.job.config
        if isinstance(event, Stepped):
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
                note=f"loss {event.loss:.4g}",
            )
        else:
            line = self.lines.pop(config.key, None)
            if line is not None:
                self.progress.remove_task(line)
        ended = sum(pair.runs_ended for pair in self.pairs)
        self.progress.update(self.whole, completed=ended, total=self._wanted())
