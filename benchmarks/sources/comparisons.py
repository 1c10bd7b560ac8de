"""Results of ``badm compare`` and ``badm reproduce`` on a task."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from statistics import mean, median
from typing import Any

from badm.bench.formatting import seconds
from sources.files import count, results, word

NODES, IMAGES, TEXT = "node-classification", "image-classification", "text-classification"
GAN, GAN_EXAMPLE = "image-generation", "image-generation-example"
LANGUAGE, PRETRAINING = "language-model", "tuned/mlm-pretrain"

# A file and one of its tasks
CIFAR = ("tuned/image-cifar10", "image-cifar10")
SVHN = ("tuned/image-svhn", "image-svhn")
CMATERDB = ("tuned/image-cmaterdb", "image-cmaterdb")
PRETRAINED = (PRETRAINING, "mlm-pretrain")
DIGITS = ("digits", "digits")
OWN = ("tutorial", "breast-cancer")
CORA = (NODES, "node-cora-dnn")
MOLECULES = ("molecule", "bbbp")
DETECTION, SCALED = ("detection", "detection"), ("detection", "detection-scaled")
GAN_DIGITS, GAN_FASHION = (GAN, "cgan-mnist"), (GAN, "cgan-fashion")
DIGITS_EXAMPLE = (GAN_EXAMPLE, "cgan-mnist-example")
FASHION_EXAMPLE = (GAN_EXAMPLE, "cgan-fashion-example")
FLOWERS, FLOWERS_32 = ("diffusion", "ddim-flowers"), ("ddim-flowers-32", "ddim-flowers-32")
IMDB = (TEXT, "text-imdb")
SUMMED, FINETUNED = (LANGUAGE, "mlm-pretrain"), (LANGUAGE, "mlm-finetune-example")


def comparisons(file: str) -> list[dict[str, Any]]:
    report = results(file)
    return list(report["comparisons"]) if "comparisons" in report else [report]


def row(file: str, task: str, method: str) -> dict[str, Any]:
    for comparison in comparisons(file):
        for found in comparison["rows"]:
            if (found["task"], found["method"]) == (task, method):
                return dict(found)
    raise LookupError(f"results/{file}.json has no row of {method} on {task}")


def task(file: str, name: str) -> dict[str, Any]:
    return next(t for c in comparisons(file) for t in c["tasks"] if t["name"] == name)


def tasks(file: str) -> list[str]:
    return sorted({t["name"] for c in comparisons(file) for t in c["tasks"]})


def target(file: str) -> float:
    """Return the only target of a file."""
    (found,) = {t["target"] for c in comparisons(file) for t in c["tasks"]}
    return float(found)


def seeds(file: str) -> int:
    """Return the number of seeds of every row of a file."""
    (found,) = {len(r["seeds"]) for c in comparisons(file) for r in c["rows"]}
    return found


def noted(file: str, name: str, pattern: str) -> float:
    """Return a number from the notes of a task."""
    found = re.search(pattern, " ".join(task(file, name)["notes"]))
    if found is None:
        raise LookupError(f"the notes of {name} in results/{file}.json have no {pattern!r}")
    return float(found[1].replace(",", ""))


def score(file: str, task: str, method: str) -> float:
    return float(row(file, task, method)["test"]["value"])


def percent(file: str, task: str, method: str) -> float:
    return 100 * score(file, task, method)


def interval(file: str, task: str, method: str, digits: int = 1, unit: float = 100) -> str:
    """Return the ends of the 95 % interval of a mean.

    >>> interval("digits", "digits", "soap")
    '97.8–98.3'
    """
    test = row(file, task, method)["test"]
    return f"{unit * test['low']:.{digits}f}–{unit * test['high']:.{digits}f}"


def paper(file: str, task: str, method: str) -> float:
    return float(row(file, task, method)["paper"])


def gap(file: str, task: str, method: str) -> float:
    """Return our score minus the paper's, in points."""
    return percent(file, task, method) - 100 * paper(file, task, method)


def setting(file: str, task: str, method: str, name: str = "lr") -> float:
    return float(row(file, task, method)["setting"][name])


def lr(file: str, task: str, method: str) -> str:
    return f"{setting(file, task, method):.3g}"


def steps(file: str, task: str, method: str) -> float:
    """Return the median steps over the seeds; infinite if the target was missed."""
    found = row(file, task, method)["steps_to_target"]
    return math.inf if found is None or found["value"] is None else float(found["value"])


def steps_cell(file: str, task: str, method: str) -> str:
    """Format the median with its 95 % interval, if that has a width.

    >>> steps_cell("digits", "digits", "muon"), steps_cell("digits", "digits", "sgd")
    ('50 (40–75)', 'never')
    """
    middle = steps(file, task, method)
    found = row(file, task, method)["steps_to_target"]
    if found is None:
        return "never"
    low, high = (math.inf if found[end] is None else found[end] for end in ("low", "high"))
    return count(middle) if low == high else f"{count(middle)} ({count(low)}–{count(high)})"


def with_interval(
    file: str, task: str, method: str, digits: int = 1, unit: float = 100, sign: str = " %"
) -> str:
    """Format the mean with its 95 % interval, or the status of a run without one."""
    found = row(file, task, method)
    if found["test"] is None:
        return f"diverged with {word(found['diverged'])} seed of {word(len(found['seeds']))}"
    ends = interval(file, task, method, digits, unit)
    return f"{unit * found['test']['value']:.{digits}f}{sign} ({ends})"


def best_of(file: str, value: Callable[[str, str, str], float], name: str = "") -> dict[str, int]:
    """Count the tasks with ``name`` in theirs on which a method has the greatest value."""
    found: dict[str, int] = {}
    for task in (t for t in tasks(file) if name in t):
        rows = [r for c in comparisons(file) for r in c["rows"] if r["task"] == task]
        values = {r["method"]: value(file, task, r["method"]) for r in rows}
        for method, own in values.items():
            found[method] = found.get(method, 0) + (own == max(values.values()))
    return found


def firsts(file: str, name: str = "") -> dict[str, int]:
    return best_of(file, score, name)


def quickest(file: str) -> dict[str, int]:
    return best_of(file, lambda *row: -steps(*row))


def scores(file: str, method: str) -> list[float]:
    """Return test scores on all tasks in per cent, ascending."""
    return sorted(percent(file, task, method) for task in tasks(file))


def best_trial(file: str) -> dict[str, Any]:
    """Return the trial of all methods with the lowest validation loss."""
    trials = [t for t in results(file)["tried"] if t["score"] is not None]
    return dict(min(trials, key=lambda trial: trial["score"]))


def runs(file: str) -> int:
    """Count the runs of a tuned comparison: trials and final seeds of all methods."""
    return sum(r["trials"] + len(r["seeds"]) for r in results(file)["rows"])


def missed(file: str, task: str, method: str) -> int:
    """Count the seeds that missed the target."""
    return sum(value is None for value in row(file, task, method)["steps_to_target"]["values"])


def curves(file: str, task: str, method: str) -> list[dict[str, Any]]:
    """Return the curves of all seeds."""
    return [
        curve
        for comparison in comparisons(file)
        for curve in comparison["curves"]
        if (curve["task"], curve["method"]) == (task, method)
    ]


def at_end(file: str, task: str, method: str, metric: str) -> float:
    """Return the mean over the seeds of a validation metric after the last step."""
    return mean(c["validation"][metric][-1] for c in curves(file, task, method))


def to_level(file: str, task: str, method: str, decibel: float) -> list[float]:
    """Return the steps of each seed until the validation KID is at a level in dB, ascending."""
    found = []
    for curve in curves(file, task, method):
        name = next(n for n in curve["validation"] if re.fullmatch(r"KID \([\w ]+\)", n))
        values = zip(curve["evaluated"], curve["validation"][name], strict=True)
        reached = (step for step, kid in values if kid is not None and kid <= 10 ** (decibel / 10))
        found.append(next(reached, math.inf))
    return sorted(found)


def median_to_level(file: str, task: str, method: str, decibel: float = -8) -> float:
    return median(to_level(file, task, method, decibel))


def arrived(task: str, method: str, decibel: float = -8) -> int:
    """Count the seeds with which the conditional GAN reaches a KID in dB."""
    return sum(map(math.isfinite, to_level(GAN, task, method, decibel)))


def others_that_arrive(method: str) -> str:
    rows = {(r["task"], r["method"]) for c in comparisons(GAN) for r in c["rows"]}
    return word(sum(arrived(*row) for row in rows if row[1] != method)).capitalize()


def noise(method: str) -> float:
    return at_end("diffusion", "ddim-flowers", method, "noise error")


def to_the_end_of(file: str, task: str, method: str, reference: str = "adam") -> float:
    """Return the median steps until each seed has the reference's final validation loss."""
    of_reference = {c["seed"]: c["validation"]["loss"][-1] for c in curves(file, task, reference)}
    found = []
    for curve in curves(file, task, method):
        values = zip(curve["evaluated"], curve["validation"]["loss"], strict=True)
        wanted = of_reference[curve["seed"]]
        found.append(next((step for step, loss in values if loss <= wanted), math.inf))
    return median(found)


def printed(method: str) -> str:
    """Return the row of a method as the command prints it."""
    file, task = OWN
    score = f"{percent(file, task, method):.1f} % ({interval(file, task, method)} %)"
    time = seconds(row(file, task, method)["seconds_to_target"]["value"])
    return f"{lr(file, task, method)} {score} {steps_cell(file, task, method)} {time}"
