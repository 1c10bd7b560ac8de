"""The pages of the hard problems, made from their results alone.

``docs/hard-problems.md`` has who passes what, ``results/hard_problems.md`` the losses.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "hard-problems.md"

Report = dict[str, Any]
Cell = dict[str, Any]

FAILS, SEARCHED, UNTOUCHED = "✗", "(✓)", "✓"

# Why a method of BADM fails a problem. The page has the reasons for what fails in the results, and
# no others.
_ONE_LENGTH = "One step length for all directions: what is flat or small takes thousands of steps."
_ELEMENTS = "The axes are not those of the elements, which are all that it scales."
_MIXED = (
    "No rows and columns have these axes, so what counts is the memory, and it is short: with "
    "`beta=0.98` all metrics of matrices pass."
)
_WALLS = "The second moment remembers the steep start for a thousand steps; `beta2=0.95` passes."
_SPEED = "Steps are shorter than Adam's at the same learning rate: the largest hardly keeps up."
WHY: dict[str, dict[str, str]] = {
    "axis-aligned 1e4": {
        "badm-printed": _ONE_LENGTH,
        "badm-spectral": "It makes singular values equal, and sees no curvatures of single "
        "elements; a longer memory helps, and `beta=0.98` passes.",
    },
    "axis-aligned 1e6": {"badm-printed": _ONE_LENGTH},
    "kronecker 1e4": {"badm-printed": _ONE_LENGTH, "badm-diagonal": _ELEMENTS},
    "kronecker 1e6": {"badm-printed": _ONE_LENGTH, "badm-diagonal": _ELEMENTS},
    "dense 1e2": {"badm-printed": _ONE_LENGTH},
    "dense 1e4": {
        "badm-printed": _ONE_LENGTH,
        "badm-diagonal": _ELEMENTS,
        "badm-spectral": _MIXED,
        "badm-kronecker": _MIXED,
        "badm-kronecker-spectral": _MIXED,
    },
    "noisy ravine": {"badm-printed": _ONE_LENGTH},
    "rosenbrock": {
        "badm-printed": _ONE_LENGTH,
        "badm-diagonal": _WALLS,
        "badm-spectral": f"A vector, so this is the diagonal metric. {_WALLS}",
    },
    "rosenbrock chain": {"badm-printed": _ONE_LENGTH},
    "saddle": {"badm-printed": "The way down grows by a few percent a step: too slow from 1e-6."},
    "deep linear": {
        "badm-printed": "Gradients are tiny until the product is not, and steps are in proportion.",
        "badm-diagonal": "Steps of one size for all elements make the product one of low rank: it "
        "stays at a saddle, without the smallest directions, as Adam does.",
    },
    "rare gradients": {
        "badm-printed": "Twenty gradients, of which each shortens the way by a part alone.",
        "badm-kronecker": "Second moment and bases forget within twenty steps, so each of twenty "
        "gradients is the only one they know, and moves it far; `beta2=0.999` passes.",
    },
    "heavy tails": {
        "badm-printed": "Steps as large as the noise, which knows no bounds.",
        "badm-diagonal": "A spike stays in the second moment for a thousand steps, and shortens "
        "them all; `beta2=0.95` passes.",
        "badm-spectral": "All steps have one length, but a spike owns their direction for as long "
        "as the memory has it.",
    },
    "scale drop": {
        "badm-printed": "Steps fall with the gradients, to 1e-4 of what they were.",
        "badm-diagonal": "The second moment remembers a thousand steps, so it divides by the scale "
        "of before, as in Adam; `beta2=0.95` passes.",
    },
    "moving optimum": {"badm-spectral": _SPEED, "badm-kronecker-spectral": _SPEED},
    "layer scales": {"badm-printed": _ONE_LENGTH},
}


def by_pair(report: Report) -> dict[tuple[str, str], Cell]:
    return {(cell["method"], cell["problem"]): cell for cell in report["cells"]}


def of_family(report: Report, family: str) -> list[str]:
    return [name for name, method in report["methods"].items() if method["family"] == family]


def count(report: Report, key: str, method: str = "", problem: str = "") -> int:
    """Return in how many cells of a method or a problem ``passed`` or ``untouched`` holds."""
    return sum(
        cell[key]
        for cell in report["cells"]
        if method in ("", cell["method"]) and problem in ("", cell["problem"])
    )


def mark(cell: Cell | None) -> str:
    """Return the mark of a cell; nothing where it was not run."""
    if cell is None:
        return ""
    return UNTOUCHED if cell["untouched"] else SEARCHED if cell["passed"] else FAILS


def table(report: Report) -> str:
    """Return a row for each method, with its totals and a mark for each problem."""
    cells, problems = by_pair(report), list(report["problems"])
    numbers = " | ".join(str(i) for i, _ in enumerate(problems, start=1))
    lines = [f"| method | passes | untouched | {numbers} |", "|---|" + "---|" * (len(problems) + 2)]
    for name in report["methods"]:
        totals = f"{count(report, 'passed', name)} | {count(report, 'untouched', name)}"
        marks = " | ".join(mark(cells.get((name, problem))) for problem in problems)
        lines.append(f"| {name} | {totals} | {marks} |")
    passed = " | ".join(str(count(report, "passed", problem=problem)) for problem in problems)
    lines.append(f"| methods that pass | | | {passed} |")
    return "\n".join(lines) + "\n"


def losses(report: Report) -> str:
    """Return the best loss and learning rate of each method, one table for each problem."""
    cells, parts = by_pair(report), []
    for problem, about in report["problems"].items():
        lines = [
            f"## {problem}\n",
            f"{about['sentence']} {about['steps']:,} steps; {about['goal']:g} of the first loss "
            "passes.\n",
            "| method | passes | loss | learning rate | untouched |",
            "|---|---|---|---|---|",
        ]
        for method in report["methods"]:
            cell = cells.get((method, problem))
            if cell is not None:
                shown = [mark(cell), _number(cell["loss"]), f"{cell['lr']:g}"]
                worst = None if None in cell["default"] else max(cell["default"])
                lines.append(f"| {method} | {' | '.join(shown)} | {_number(worst)} |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _number(loss: float | None) -> str:
    return "diverged" if loss is None else f"{loss:.2g}"


def page(report: Report) -> str:
    """Return the page of the docs."""
    settings, problems = report["settings"], report["problems"]
    listed = "".join(
        f"{i}. **{name}**: {about['sentence']} {about['steps']:,} steps to {about['goal']:g}.\n"
        for i, (name, about) in enumerate(problems.items(), start=1)
    )
    return f"""# Hard problems

Small problems that are known to be hard, each for one reason, and who passes them. A problem has
about fifty parameters, matrices wherever a method for matrices would meet one, a fixed number of
steps and a goal: the last loss as a part of the first. All methods get the same:

- {settings["learning rates"]} learning rates, spread evenly over the three decades that are the
  method's range in every comparison, and its default,
- a warm-up of {settings["warmup"]:.0%} of the steps and a linear decay to 0,
- {len(settings["seeds"])} seeds, all of which must reach the goal with one learning rate.

{UNTOUCHED} passes untouched, with the default learning rate; {SEARCHED} passes with another one;
{FAILS} fails with all. Untouched mostly compares the default learning rates: these problems are
short and want large ones.

{table(report)}
{listed}
## Where BADM fails

Behind each problem is the lowest loss that a metric reached with all its learning rates.

{_failures(report)}
Passing says that a method copes with what makes a problem hard, not how fast it is, nor how well it
trains a network: what is hard here is rarely alone there.
[All losses and learning rates](../results/hard_problems.md), `benchmarks/hard_problems.py`.
"""


def _failures(report: Report) -> str:
    """List what each metric of BADM fails, by reason; ``badm`` is one of them by another name."""
    cells, lines = by_pair(report), []
    for name in of_family(report, "badm"):
        failed: dict[str, list[str]] = {}
        for problem in report["problems"]:
            cell = cells[name, problem]
            if not cell["passed"]:
                reason = WHY.get(problem, {}).get(name, "")
                failed.setdefault(reason, []).append(f"{problem} ({_number(cell['loss'])})")
        if name != "badm" and failed:
            total = sum(map(len, failed.values()))
            lines.append(f"**{name}** fails {total} of {len(report['problems'])}:\n")
            lines += [f"- {', '.join(found)}: {why}" for why, found in failed.items() if why]
            lines += [f"- {', '.join(found)}." for why, found in failed.items() if not why]
            lines.append("")
    return "\n".join(lines)


def write_pages(report: Report, results: Path, page_file: Path = PAGE) -> None:
    """Write the losses beside the results, and the page of the docs."""
    head = "Made with `python benchmarks/hard_problems.py`.\n\n"
    results.with_suffix(".md").write_text(head + losses(report), encoding="utf-8")
    page_file.write_text(page(report), encoding="utf-8")
