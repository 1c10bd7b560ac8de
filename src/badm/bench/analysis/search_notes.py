"""What a comparison says about its searches and budgets, one sentence for each thing."""

from __future__ import annotations

from collections.abc import Sequence

from badm.bench import formatting
from badm.bench.records.plans import MethodRecord, Plan


def edge_notes(entries: Sequence[MethodRecord]) -> list[str]:
    """For each setting whose best value was at the edge of its range, the range to try next.

    >>> badm = MethodRecord("digits", "badm", next_ranges={"lr": [0.01, 10.0]})
    >>> muon = MethodRecord("digits", "muon", next_ranges={"lr": [0.01, 10.0]})
    >>> edge_notes([badm, muon, MethodRecord("digits", "sgd")])
    ['The best lr of badm and muon on digits is at the edge of what was tried: \
--space lr=0.01..10 tries the next range, for all methods alike.']
    """
    names = dict.fromkeys(name for entry in entries for name in entry.next_ranges)
    return [_edge_note(name, [e for e in entries if name in e.next_ranges]) for name in names]


def _edge_note(name: str, entries: Sequence[MethodRecord]) -> str:
    tasks = list(dict.fromkeys(entry.task for entry in entries))
    where = []
    for task in tasks:
        methods = dict.fromkeys(entry.method for entry in entries if entry.task == task)
        where.append(f"{_listed([*methods])} on {task}")
    low = min(entry.next_ranges[name][0] for entry in entries)
    high = max(entry.next_ranges[name][1] for entry in entries)
    return (
        f"The best {name} of {_listed(where)} is at the edge of what was tried: "
        f"--space {name}={low:g}..{high:g} tries the next range, for all methods alike."
    )


def budget_notes(plan: Plan, entries: Sequence[MethodRecord]) -> list[str]:
    """How many steps each method took in a budget of seconds.

    >>> from badm.bench.records.runs import RunConfig
    >>> config = RunConfig("digits", "1", "cpu", 300, "badm", {}, 0)
    >>> plan = Plan(("digits",), ("badm",), second_budget=2.5)
    >>> budget_notes(plan, [MethodRecord("digits", "badm", finals={0: config})])
    ['Every run had about 2.5 seconds of training. Steps on digits: badm 300.']
    """
    if plan.second_budget is None:
        return []
    texts = []
    for task in dict.fromkeys(entry.task for entry in entries):
        steps = {
            entry.method: next(iter(entry.finals.values())).steps
            for entry in entries
            if entry.task == task and entry.finals
        }
        if steps:
            each = ", ".join(f"{name} {formatting.count(n)}" for name, n in steps.items())
            texts.append(f"Steps on {task}: {each}.")
    return [f"Every run had about {plan.second_budget:g} seconds of training. {' '.join(texts)}"]


def _listed(names: Sequence[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
