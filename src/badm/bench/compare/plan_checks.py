"""What a plan must be before any of it is done; each error names what is wrong with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import get_args

from badm.bench.compare.parts import whole_budget
from badm.bench.engine.schedules import MOST_WARMUP
from badm.bench.errors import ProtocolError
from badm.bench.method import Method
from badm.bench.records.plans import TUNING_SEED, Plan, ProtocolName
from badm.bench.records.speeds import PARTS
from badm.bench.task import SCALES
from badm.bench.tasks import FoundTask

PROTOCOLS: tuple[ProtocolName, ...] = get_args(ProtocolName)


def check_plan(plan: Plan) -> None:
    """Raise an error for a plan that no tasks could make possible."""
    searches = plan.protocol != "paper"
    speed = plan.protocol == "speed"
    rules = (
        ("tasks", len(plan.tasks) > 0, "at least one"),
        ("methods", len(plan.methods) > 0, "at least one"),
        ("methods", len(set(plan.methods)) == len(plan.methods), "different from each other"),
        ("protocol", plan.protocol in PROTOCOLS, f"one of {', '.join(PROTOCOLS)}"),
        ("objective", plan.objective in ("score", "steps"), "score or steps"),
        ("clip_norm", 0 <= plan.clip_norm < math.inf, "a finite number of at least 0"),
        ("warmup", 0 <= plan.warmup <= MOST_WARMUP, f"a number from 0 to {MOST_WARMUP}"),
        ("scale", plan.scale in SCALES, f"one of {', '.join(SCALES)}"),
        ("trials", plan.trials >= searches, "a whole number of at least 1"),
        ("seeds", 0 <= plan.seeds <= TUNING_SEED, f"a whole number from 0 to {TUNING_SEED}"),
        ("steps", plan.steps is None or plan.steps >= 1, "a whole number of at least 1"),
        ("epoch_budget", _is_amount(plan.epoch_budget), "a number of epochs above 0"),
        ("second_budget", _is_amount(plan.second_budget), "a number of seconds above 0"),
        (
            "second_budget",
            plan.protocol == "tuned" or plan.second_budget is None,
            "left out in other protocols than tuned, which count steps",
        ),
        ("target", plan.target is None or math.isfinite(plan.target), "a finite number"),
        ("seeds", not speed or plan.seeds >= 1, "at least 1 in the speed protocol"),
        ("objective", not speed or plan.objective == "score", "score in the speed protocol"),
        (
            "target",
            not speed or plan.target is None,
            "left out in the speed protocol, where it is the score that the baseline reaches",
        ),
    )
    budgets = (plan.steps, plan.epoch_budget, plan.second_budget)
    if sum(budget is not None for budget in budgets) > 1:
        raise ProtocolError("a budget must be in steps, in epochs or in seconds, got several")
    for name, right, wanted in rules:
        if not right:
            raise ProtocolError(f"{name} must be {wanted}, got {getattr(plan, name)!r}")


def _is_amount(budget: float | None) -> bool:
    return budget is None or 0 < budget < math.inf


def check_methods(plan: Plan, chosen: Sequence[Method]) -> None:
    """Raise an error for methods of one name, or a reference or baseline that is none of them."""
    names = [method.name for method in chosen]
    for name in names:
        if names.count(name) > 1:
            sources = [method.found_by for method in chosen if method.name == name]
            raise ProtocolError(
                f"methods must have different names, got {name} from {' and '.join(sources)}: "
                "brackets such as badm[beta=0.95] make another name"
            )
    for method in chosen:
        if plan.clip_norm and method.family == "replicas":
            raise ProtocolError(
                f"clip_norm must be 0 for {method.name}, whose ranks each have a gradient, "
                f"got {plan.clip_norm:g}"
            )
    if plan.reference not in ("", *names):
        raise ProtocolError(f"reference must be one of the methods, got {plan.reference!r}")
    if plan.protocol == "speed" and plan.baseline not in names:
        raise ProtocolError(f"baseline must be one of the methods, got {plan.baseline!r}")


def check_tasks(plan: Plan, found: Sequence[FoundTask], chosen: Sequence[Method] = ()) -> None:
    """Raise an error for tasks that one comparison cannot have together, or without a target."""
    for one in found:
        for method in chosen:
            one.require_single_process(method)
    by_name: dict[str, list[str]] = {}
    for one in found:
        by_name.setdefault(one.task.name, []).append(one.source)
    for name, sources in by_name.items():
        if len(sources) > 1:
            raise ProtocolError(
                f"tasks must have different names, got {name} from {' and '.join(sources)}"
            )
    if plan.objective == "steps" and plan.target is None:
        for one in found:
            if one.task.target is None:
                raise ProtocolError(
                    f"task {one.task.name} has no target to count steps to: give one with --target"
                )


def check_speed(plan: Plan, found: Sequence[FoundTask], chosen: Sequence[Method]) -> None:
    """Raise an error for what cannot be compared at parts of a budget."""
    for method in chosen:
        if method.family == "layer-wise":
            raise ProtocolError(
                f"{method.name} trains layer by layer and has no learning rate to fit to a part of "
                "the budget: leave it out of the speed protocol"
            )
    for one in found:
        budget = whole_budget(plan, one)
        if one.previous_stage is not None:
            raise ProtocolError(
                f"task {one.task.name} starts from the weights of {one.task.after}: the speed "
                "protocol takes tasks of one stage"
            )
        if budget < PARTS:
            raise ProtocolError(
                f"task {one.task.name} has {budget} steps: the speed protocol divides a budget "
                f"into {PARTS} parts, so give at least {PARTS} with --steps"
            )
