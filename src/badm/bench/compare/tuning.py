"""What ``badm.bench.tune`` returns: the settings that were tried, and the best of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from badm.bench.records.plans import MethodRecord
from badm.bench.report.terminal import plain_text
from badm.bench.report.text import WIDTH
from badm.bench.task import Score

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType


@dataclass(frozen=True)
class Tuning:
    """The searches of one or more methods on a task, to print or to show in a notebook.

    Attributes:
        searches: One for each method: ``setting`` is the best, ``tried`` has all trials.
        scores: What the trials on a task are judged by, by the name of the task.
    """

    searches: list[MethodRecord]
    scores: dict[str, Score]

    @property
    def settings(self) -> dict[str, dict[str, Any]]:
        """The best setting by method, without methods of which no trial finished."""
        return {one.method: one.setting or {} for one in self.searches if _finished(one)}

    @property
    def finished(self) -> bool:
        """Whether every method has a trial that finished."""
        return all(map(_finished, self.searches))

    def best(self) -> list[str]:
        """A sentence for each method: its best setting."""
        return [_best(one) for one in self.searches]

    def to_list(self) -> list[dict[str, Any]]:
        """As plain data, for JSON."""
        return [_to_dict(one) for one in self.searches]

    def __str__(self) -> str:
        return plain_text(self, WIDTH)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """For each method the table of its trials and its best setting."""
        for one in self.searches:
            yield trial_table(one, self.scores[one.task])
            yield Text(_best(one))

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def trial_table(search: MethodRecord, score: Score) -> Table:
    """The settings tried, with their scores."""
    table = Table(title=f"{search.task}: {search.method}", title_justify="left", box=None)
    for heading in (*search.searched, score.name, ""):
        table.add_column(heading, justify="right")
    for trial in search.tried:
        best = trial.setting == search.setting and trial.status == "finished"
        value = "" if trial.score is None else score.format(trial.score)
        table.add_row(
            *(_shown(trial.setting[name]) for name in search.searched),
            value if trial.status == "finished" else trial.status,
            "best" if best else "",
            style="bold" if best else "",
        )
    return table


def _finished(search: MethodRecord) -> bool:
    return any(trial.status == "finished" for trial in search.tried)


def _best(search: MethodRecord) -> str:
    if not _finished(search):
        return f"{search.method}: no trial finished"
    chosen = search.setting or {}
    text = ", ".join(f"{name} = {_shown(chosen[name])}" for name in search.searched)
    edge = "".join(
        f"; {name} is at the edge of the values tried{_offer(search, name)}"
        for name in search.at_edge
    )
    return f"{search.method}: {text}{edge}"


def _offer(search: MethodRecord, name: str) -> str:
    """The range to try next, as an option of the command."""
    if name not in search.next_ranges:
        return ""
    low, high = search.next_ranges[name]
    return f" (--space {name}={low:g}..{high:g})"


def _shown(value: object) -> str:
    """A value of a setting: a number, or one of a few words."""
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)


def _to_dict(search: MethodRecord) -> dict[str, Any]:
    return {
        "task": search.task,
        "method": search.method,
        "setting": search.setting,
        "at_edge": search.at_edge,
        "trials": [
            {"setting": trial.setting, "status": trial.status, "score": trial.score}
            for trial in search.tried
        ],
    }
