"""Run every optimizer on small problems that are known to be hard: who passes which.

Every method gets the same: eight learning rates spread evenly over its own range and its default,
warmed up and decayed to 0, and three seeds. It passes a problem if one of these learning rates
brings the loss to the goal with all seeds, and passes it untouched if its default does. Problems
and goals are in ``hard_problem_set.py``.

    python benchmarks/hard_problems.py            # results/hard_problems.*, docs/hard-problems.md
    python benchmarks/hard_problems.py --pages    # the pages anew, of what has been run
    python benchmarks/hard_problems.py --quick    # few methods and learning rates, no files

A run that was interrupted goes on where it was: what a method did on a problem is kept for as long
as neither of them changes.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from hard_problem_pages import table, write_pages
from hard_problem_set import PROBLEMS, Posed, Problem
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor

import badm
from badm.bench.compare.trial_settings import trial_settings
from badm.bench.engine.environment import environment
from badm.bench.engine.schedules import lr_factor
from badm.bench.files import write_atomically
from badm.bench.method import Method, Setting, TrainingSetup
from badm.bench.methods import METHODS

RESULTS = Path(__file__).parents[1] / "results" / "hard_problems.json"

FAMILIES = ("badm", "keras", "torch", "peer")
LEARNING_RATES = 8
SEEDS = (0, 1, 2)
SCHEDULE, WARMUP = "linear", 0.05
CHECK_EVERY = 50  # steps after which weights that are not finite end a run

QUICK_METHODS = ("adam", "muon", "soap")  # beside those of BADM
QUICK_LEARNING_RATES = 3

Cell = dict[str, Any]  # what a method did on a problem, as saved
Report = dict[str, Any]


def methods() -> dict[str, Method]:
    """Return all optimizers, those of BADM first."""
    return {
        name: method
        for family in FAMILIES
        for name, method in METHODS.items()
        if method.family == family
    }


@dataclass
class Batch:
    """Passes the gradients of a problem to a trainer."""

    posed: Posed
    step: int = 0
    lr_factor: float = 1.0
    loss_weight: float = 1.0

    def gradient(self) -> float:
        self.posed.gradient(self.step)
        return 0.0

    def sub_gradients(self) -> Iterator[tuple[float, float]]:
        yield 1.0, self.gradient()

    def count_gradients(self, gradients: float) -> None:
        return


def final_loss(method: Method, problem: Problem, setting: Setting, seed: int) -> float:
    """Return the last loss as a part of the first; infinity where it is not a number."""
    torch.manual_seed(seed)  # some methods draw numbers of their own
    posed = problem.pose(torch.Generator().manual_seed(seed), problem.steps)
    first, batch = posed.loss(), Batch(posed)
    trainer = method.build(TrainingSetup(posed.module, problem.steps), method.setting(setting))
    for k in range(1, problem.steps + 1):
        batch.step, batch.lr_factor = k, lr_factor(SCHEDULE, WARMUP, k, problem.steps)
        trainer.step(batch)
        if k % CHECK_EVERY == 0 and not _finite(posed.module.parameters()):
            return math.inf
    with trainer.evaluation_weights():
        loss = posed.loss() / first
    return loss if math.isfinite(loss) else math.inf


def _finite(parameters: Iterable[Tensor]) -> bool:
    return all(bool(p.isfinite().all()) for p in parameters)


def run_cell(
    method: Method, problem: Problem, trials: int = LEARNING_RATES, seeds: Sequence[int] = SEEDS
) -> Cell:
    """Run all learning rates with the first seed, and the best with the others until one passes.

    The default gets the other seeds too, if it passes the first.
    """
    began = time.process_time()
    settings = [*trial_settings(method.space, trials), {}]
    rates = [method.setting(setting)["lr"] for setting in settings]
    raised: dict[str, str] = {}

    def run(i: int, seed: int) -> float:
        try:
            return final_loss(method, problem, settings[i], seed)
        except ImportError:
            raise
        except Exception as error:  # whatever a method raises on its way is a failure of its own
            raised[f"lr {rates[i]:g}, seed {seed}"] = f"{type(error).__name__}: {error}"[:120]
            return math.inf

    losses = [[run(i, seeds[0])] for i in range(len(settings))]

    def passes(i: int) -> bool:
        """Run the other seeds, up to the first that fails."""
        for seed in seeds[1:]:
            if losses[i][-1] > problem.goal:
                return False
            losses[i].append(run(i, seed))
        return losses[i][-1] <= problem.goal

    default = len(settings) - 1
    untouched = passes(default)
    best_first = sorted(range(default), key=lambda i: losses[i][0])
    passed = [i for i in [next(filter(passes, best_first), None)] if i is not None]
    passed += [default] * untouched
    best = min(passed or range(len(settings)), key=lambda i: max(losses[i]))
    return {
        "method": method.name,
        "problem": problem.name,
        "passed": bool(passed),
        "untouched": untouched,
        "lr": rates[best],
        "loss": _saved(max(losses[best])),
        "tried": {
            f"{lr:g}": list(map(_saved, of_lr))
            for lr, of_lr in zip(rates[:-1], losses[:-1], strict=True)
        },
        "default": list(map(_saved, losses[-1])),
        **({"raised": raised} if raised else {}),
        "seconds": round(time.process_time() - began, 2),
    }


def _saved(loss: float) -> float | None:
    return float(f"{loss:.3g}") if math.isfinite(loss) else None


def method_key(method: Method) -> str:
    """Return what a method's results depend on: its version, its settings and its range.

    Methods of BADM run the code of this project, and every change of that counts.
    """
    key = {
        "version": method.identity,
        "defaults": dict(method.defaults),
        "space": {name: repr(part) for name, part in method.space.items()},
        "source": _source() if method.family == "badm" else "",
    }
    return json.dumps(key, sort_keys=True)


@cache
def _source() -> str:
    package = Path(badm.__file__).parent
    files = sorted([*package.glob("*.py"), *(package / "metrics").glob("*.py")])
    return f"{zlib.crc32(b''.join(file.read_bytes() for file in files)):08x}"


def problem_key(problem: Problem) -> str:
    """Return a problem's length and goal, and its first loss and gradients with one seed.

    >>> problem_key(PROBLEMS["saddle"])
    '500 steps to 0.001, first loss 0.0175, gradients 0.1, 0.1'
    """
    posed = problem.pose(torch.Generator().manual_seed(SEEDS[0]), problem.steps)
    norms = []
    for step in (1, problem.steps):
        posed.gradient(step)
        squares = [p.grad.square().sum() for p in posed.module.parameters() if p.grad is not None]
        norms.append(f"{float(sum(squares)) ** 0.5:.3g}")
    start = f"{problem.steps} steps to {problem.goal:g}, first loss {posed.loss():.3g}"
    return f"{start}, gradients {', '.join(norms)}"


def new_report() -> Report:
    """Return a report without cells: what is run, and where."""
    return {
        "settings": {
            "learning rates": LEARNING_RATES,
            "seeds": list(SEEDS),
            "schedule": SCHEDULE,
            "warmup": WARMUP,
        },
        "environment": environment(),
        "methods": {
            name: {"family": method.family, "key": method_key(method)}
            for name, method in methods().items()
        },
        "problems": {
            name: {
                "sentence": problem.sentence,
                "steps": problem.steps,
                "goal": problem.goal,
                "key": problem_key(problem),
            }
            for name, problem in PROBLEMS.items()
        },
        "cells": [],
    }


def kept_cells(old: Report, new: Report) -> list[Cell]:
    """Return the cells of an older report that hold in a new one."""
    if old["settings"] != new["settings"]:
        return []

    def same(kind: str, name: str) -> bool:
        before, now = (report[kind].get(name, {}).get("key") for report in (old, new))
        return before is not None and before == now

    return [
        cell
        for cell in old["cells"]
        if same("methods", cell["method"]) and same("problems", cell["problem"])
    ]


def save(file: Path, report: Report) -> None:
    """Write a report with one line for each cell."""
    head = json.dumps({k: v for k, v in report.items() if k != "cells"}, indent=1)
    cells = ",\n".join(f"  {json.dumps(cell)}" for cell in report["cells"])
    text = f'{head.removesuffix(chr(10) + "}")},\n "cells": [\n{cells}\n ]\n}}\n'
    write_atomically(file, text.encode())


def run_all(file: Path) -> Report:
    """Run what is not in the file yet, and save after every cell."""
    report = new_report()
    if file.exists():
        report["cells"] = kept_cells(json.loads(file.read_text(encoding="utf-8")), report)
    cells = {(cell["method"], cell["problem"]): cell for cell in report["cells"]}
    wanted = [(method, problem) for method in report["methods"] for problem in report["problems"]]
    with _progress() as progress:
        bar = progress.add_task("", total=len(wanted), completed=len(cells))
        for method, problem in wanted:
            if (method, problem) in cells:
                continue
            progress.update(bar, description=f"{method} on {problem}")
            cells[method, problem] = run_cell(METHODS[method], PROBLEMS[problem])
            report["cells"] = [cells[pair] for pair in wanted if pair in cells]
            save(file, report)
            progress.advance(bar)
    save(file, report)
    return report


def run_quickly() -> Report:
    """Run the methods of BADM and a few others with few learning rates and one seed."""
    report = new_report()
    names = [n for n, m in methods().items() if m.family == "badm" or n in QUICK_METHODS]
    report["methods"] = {name: report["methods"][name] for name in names}
    wanted = [(METHODS[name], problem) for name in names for problem in PROBLEMS.values()]
    with _progress() as progress:
        report["cells"] = [
            run_cell(method, problem, QUICK_LEARNING_RATES, SEEDS[:1])
            for method, problem in progress.track(wanted)
        ]
    return report


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeElapsedColumn())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path, default=RESULTS, help="JSON file to write")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--quick", action="store_true", help="a few methods, printed only")
    what.add_argument("--pages", action="store_true", help="write the pages, and run nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of packages, about what they will rename
    if options.quick:
        print(table(run_quickly()))
        return
    if options.pages:
        report = json.loads(options.output.read_text(encoding="utf-8"))
    else:
        report = run_all(options.output)
    write_pages(report, options.output)
    print(table(report))


if __name__ == "__main__":
    main()
