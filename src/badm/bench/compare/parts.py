"""The parts of a budget in which the speed protocol looks for the smallest that is enough."""

from __future__ import annotations

from collections.abc import Mapping

from badm.bench.compare.budgets import steps_in_epochs
from badm.bench.records.plans import Plan
from badm.bench.records.speeds import PARTS
from badm.bench.tasks import FoundTask, suite

READINGS = 40  # of the validation score over the whole budget, at least


def next_part(reached: Mapping[int, bool]) -> int | None:
    """The part to measure next, in eighths, by bisection; ``None`` once the smallest is known.

    ``reached`` has the parts measured so far. A longer run is taken to do no worse than a shorter
    one, so that at most four parts are measured; the whole budget only if seven eighths fail.

    >>> next_part({}), next_part({4: True}), next_part({4: False}), next_part({4: True, 2: False})
    (4, 2, 6, 3)
    >>> next_part({4: False, 6: False, 7: False}), next_part({4: True, 2: False, 3: False})
    (8, None)
    """
    enough = min((part for part, is_enough in reached.items() if is_enough), default=PARTS + 1)
    too_few = max((part for part, is_enough in reached.items() if not is_enough), default=0)
    middle = (too_few + enough) // 2
    return middle if too_few < middle < enough else None


def whole_budget(plan: Plan, found: FoundTask) -> int:
    """The steps of a run at the whole budget: those asked for, the suite's or the task's own.

    A budget in seconds becomes steps once a method has been timed (``budgets.py``).
    """
    if plan.epoch_budget is not None:
        return steps_in_epochs(found, plan.epoch_budget)
    if plan.steps is None and plan.protocol == "speed" and plan.scale == "cpu":
        return suite.BUDGETS.get(found.source, found.task.steps)
    return plan.steps or found.task.steps


def steps_of_part(part: float, budget: int) -> int:
    """The steps of a run at a part of the budget.

    >>> steps_of_part(0.375, 300), steps_of_part(1.0, 300)
    (112, 300)
    """
    return max(1, round(part * budget))


def evaluate_every(budget: int) -> int:
    """Steps between evaluations, the same at every part of the budget.

    >>> evaluate_every(300), evaluate_every(12)
    (7, 1)
    """
    return max(1, budget // READINGS)
