"""What a part of the paper consists of: tables, suspect scores, claims about speed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from badm.bench.records.plans import Plan
from badm.bench.task import Scale


@dataclass(frozen=True)
class SubstituteTasks:
    """Other tasks, in the order of the columns, for a method that cannot train those of a block."""

    tasks: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class TableSpec:
    """One table: a row for each method, a column for each task.

    ``substitutes`` has, by method, the tasks that its row is taken from instead.
    """

    title: str
    columns: Mapping[str, str]  # task by heading
    methods: tuple[str, ...]
    substitutes: Mapping[str, SubstituteTasks] = field(default_factory=dict)

    def tasks(self, method: str) -> tuple[str, ...]:
        """Where the cells of a row come from."""
        stand_in = self.substitutes.get(method)
        return tuple(self.columns.values()) if stand_in is None else stand_in.tasks


@dataclass(frozen=True)
class SuspectScores:
    """Scores of the paper, by task and method, that should not be taken at face value."""

    cells: tuple[tuple[str, str], ...]
    why: str


@dataclass(frozen=True)
class NotMeasured:
    """A task whose data were missing, with the scores the paper reports, formatted, by method."""

    task: str
    paper: Mapping[str, str]


@dataclass(frozen=True)
class StepsToMatch:
    """A task on which methods are timed to what one of them has at its end.

    ``claim`` is what the paper says of it.
    """

    task: str
    reference: str
    claim: str


@dataclass(frozen=True)
class StepsToLevels:
    """A task that is judged by KID, on which methods are timed to levels of it.

    ``level`` is the one that the paper speaks of, in dB, ``claim`` what it says.
    """

    task: str
    reference: str
    claim: str
    level: float | None = None


@dataclass(frozen=True)
class PaperPart:
    """A part of the paper, by the name people type. ``names`` has what the paper calls a method."""

    name: str
    title: str
    tables: tuple[TableSpec, ...]
    names: Mapping[str, str] = field(default_factory=dict)
    suspects: tuple[SuspectScores, ...] = ()
    notes: tuple[str, ...] = ()
    steps_to_match: tuple[StepsToMatch, ...] = ()
    steps_to_levels: tuple[StepsToLevels, ...] = ()

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for table in self.tables for name in table.methods))

    @property
    def tasks(self) -> tuple[str, ...]:
        """All tasks, those that stand in for others among them."""
        cells = (table.tasks(name) for table in self.tables for name in table.methods)
        return tuple(dict.fromkeys(task for row in cells for task in row))

    def rows(self, table: TableSpec, chosen: Sequence[str] = ()) -> tuple[str, ...]:
        """The methods of a block, all or those of them that are chosen.

        A chosen method that the part does not have comes after them in every block; one that the
        part has in another table stays where the paper has it.
        """
        if not chosen:
            return table.methods
        kept = [name for name in table.methods if name in chosen]
        return (*kept, *(name for name in chosen if name not in self.methods))

    def plans(
        self,
        chosen: Sequence[str] = (),
        *,
        scale: Scale = "cpu",
        seeds: int = 3,
        steps: int | None = None,
        absent: Collection[str] = (),
    ) -> list[Plan]:
        """The comparisons of the part: one for all tasks that the same methods train.

        Tasks that are ``absent`` are left out.

        >>> from badm.bench.reproduce.parts import PARTS
        >>> for plan in PARTS["node-classification"].plans():
        ...     print(len(plan.tasks), plan.tasks[0], *plan.methods[:3])
        12 node-cora-dnn sgd adagrad rmsprop
        6 node-cora-mlp dladmm
        """
        methods: dict[str, list[str]] = {}
        for table in self.tables:
            for name in self.rows(table, chosen):
                for task in table.tasks(name):
                    if task not in absent:
                        methods.setdefault(task, []).append(name)
        tasks: dict[tuple[str, ...], list[str]] = {}
        for task, names in methods.items():
            tasks.setdefault(tuple(dict.fromkeys(names)), []).append(task)
        return [
            Plan(
                tuple(those),
                names,
                protocol="paper",
                scale=scale,
                seeds=seeds,
                steps=steps,
                reference="badm" if "badm" in names else names[0],
            )
            for names, those in tasks.items()
        ]
