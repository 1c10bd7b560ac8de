"""The evaluation: which method trains a task best, measured fairly.

The public names are listed here; everything else under ``badm.bench`` is internal.
"""

from badm.bench.compare import compare, run, tune
from badm.bench.method import Choice, Method, Range, optimizer_method
from badm.bench.paper import Paper
from badm.bench.report import merge, report
from badm.bench.reproduce import reproduce
from badm.bench.task import Player, Score, Splits, Task
from badm.bench.training_function import Trial, training

__all__ = [
    "Choice",
    "Method",
    "Paper",
    "Player",
    "Range",
    "Score",
    "Splits",
    "Task",
    "Trial",
    "compare",
    "merge",
    "optimizer_method",
    "report",
    "reproduce",
    "run",
    "training",
    "tune",
]
