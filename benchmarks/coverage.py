"""How often the intervals of a comparison hold, and how often its tests find what is not there.

    python benchmarks/coverage.py            # results/coverage.json and .md, two minutes

Seeds are drawn from distributions whose mean or median is known, and given to the functions that
``badm compare`` calls. Promised are shapes that scores and times have: nearly normal, skewed, with
heavy tails, in whole test samples, rounded up to readings. The others show where the promise ends.
"""

from __future__ import annotations

import argparse
import json
import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.progress import track

from badm.bench.analysis.differences import (
    SIGNIFICANT,
    paired_tests,
    rival_tests,
    step_rival_tests,
    step_tests,
)
from badm.bench.analysis.intervals import (
    mean_interval,
    median_interval,
    ratio_interval,
    score_interval,
)
from badm.bench.analysis.speed_over_tasks import over_tasks
from badm.bench.method import package_versions
from badm.bench.records.comparisons import Interval
from badm.bench.records.speeds import PARTS, Bounded, TaskSpeed

SEEDS = (3, 5, 10)
DRAWS = 4_000
TRUTH_DRAWS = 1_000_000
READINGS = 5  # steps between two of them
BUDGET = 80  # steps, after which a target is missed

Floats = NDArray[np.float64]
Random = np.random.Generator


@dataclass(frozen=True)
class Shape:
    """A distribution, the interval that is made of draws from it, and what it should hold."""

    kind: str
    name: str
    draw: Callable[[Random, int], Any]  # of one comparison with so many seeds
    interval: Callable[[Any], Interval | Bounded | None]
    truth: Callable[[Random], float]
    promised: bool = True
    discrete: bool = False  # so that it may hold more often than it says, and not less


@dataclass(frozen=True)
class Null:
    """Methods that do not differ, and the smallest p-value of their tests."""

    kind: str
    name: str
    draw: Callable[[Random, int], dict[str, list[float]]]
    p_value: Callable[[dict[str, list[float]]], float]


def coverage(shape: Shape, seeds: int, draws: int = DRAWS) -> float:
    """The share of draws whose interval holds the truth."""
    random = np.random.default_rng([zlib.crc32(f"{shape.kind} {shape.name}".encode()), seeds])
    truth = shape.truth(np.random.default_rng(0))
    held = 0
    for _ in range(draws):
        interval = shape.interval(shape.draw(random, seeds))
        held += interval is None or interval.low <= truth <= interval.high
    return held / draws


def called(null: Null, seeds: int, draws: int = DRAWS) -> float:
    """The share of draws in which a difference is called that is none."""
    random = np.random.default_rng([zlib.crc32(f"{null.kind} {null.name}".encode()), seeds])
    return sum(null.p_value(null.draw(random, seeds)) < SIGNIFICANT for _ in range(draws)) / draws


Drawer = Callable[[Random, Any], Floats]


def _skewed(shape: float, sign: int = 1) -> Drawer:
    """A gamma distribution of standard deviation 1, whose skewness is 2 / √shape."""
    return lambda random, size: sign * random.gamma(shape, size=size) / math.sqrt(shape)


def _normal(random: Random, size: Any) -> Floats:
    return random.standard_normal(size)


def _heavy(random: Random, size: Any) -> Floats:
    return random.standard_t(3, size)


def _mean(name: str, draw: Drawer, truth: float, promised: bool = True) -> Shape:
    return Shape(
        "mean",
        name,
        lambda random, seeds: draw(random, seeds).tolist(),
        mean_interval,
        lambda _: truth,
        promised,
    )


MEANS = (
    _mean("normal", _normal, 0.0),
    _mean("skewed: gamma, skewness 1", _skewed(4.0), 2.0),
    _mean("skewed to the left: gamma, skewness −1", _skewed(4.0, -1), -2.0),
    _mean("heavy tails: Student's t, 3 degrees", _heavy, 0.0),
    _mean("heavy tails: Laplace", lambda random, size: random.laplace(size=size), 0.0),
    _mean("beyond: gamma, skewness 2 (exponential)", _skewed(1.0), 1.0, promised=False),
    _mean("beyond: uniform", lambda random, size: random.random(size), 0.5, promised=False),
)


def _logistic(x: Floats) -> Floats:
    return 1 / (1 + np.exp(-x))


def _fraction(samples: int, centre: float, spread: float, seeds_differ: float) -> Shape:
    """Another test split in every draw: some samples are easy, some hard, and seeds differ."""

    def draw(random: Random, seeds: int) -> list[float]:
        ease = centre + spread * random.standard_normal(samples)
        skill = seeds_differ * random.standard_normal((seeds, 1))
        right = random.random((seeds, samples)) < _logistic(ease + skill)
        return right.mean(axis=1).tolist()

    def truth(random: Random) -> float:
        both = math.hypot(spread, seeds_differ)
        return float(_logistic(centre + both * random.standard_normal(TRUTH_DRAWS)).mean())

    share = f"{100 * truth(np.random.default_rng(0)):.0f} %"
    return Shape(
        "score of test samples",
        f"{samples} test samples, {share}, seeds differ by {seeds_differ:g}",
        draw,
        lambda values: score_interval(values, samples)[0],
        truth,
        discrete=True,
    )


def _whole_samples(deviation: float, offset: float) -> Shape:
    """One test split of 400 samples: scores are whole samples, around 380 and a fraction."""

    def draw(random: Random, seeds: int) -> list[float]:
        right = np.round(380 + offset + deviation * random.standard_normal(seeds))
        return (right / 400).tolist()

    def of_seeds(values: list[float]) -> Bounded:
        interval, noise = score_interval(values, 400)
        assert noise is not None
        return Bounded(interval.value, interval.value - noise.seeds, interval.value + noise.seeds)

    def truth(random: Random) -> float:
        return (
            float(np.mean(np.round(offset + deviation * random.standard_normal(TRUTH_DRAWS))) + 380)
            / 400
        )

    return Shape(
        "seeds alone, in whole samples",
        f"standard deviation {deviation:g} samples, mean {offset:g} off a whole one",
        draw,
        of_seeds,
        truth,
        discrete=True,
    )


FRACTIONS = (
    _fraction(400, 12.0, 6.0, 0.3),
    _fraction(400, 12.0, 6.0, 2.0),
    _fraction(1000, 3.2, 6.0, 0.3),
    _fraction(100, 8.0, 6.0, 1.0),
    _fraction(400, 6.0, 2.0, 0.1),  # seeds agree on few samples, so that it is too wide
    _whole_samples(0.4, 0.3),
    _whole_samples(0.7, 0.5),
    _whole_samples(1.5, 0.3),
    _whole_samples(4.0, 0.3),
)


def _times(
    name: str,
    logs: Drawer,
    middle: float,
    *,
    rounded: bool = False,
    missing: bool = False,
    promised: bool = True,
) -> Shape:
    """Steps to a target around 50: ``middle`` is the median of the logarithms."""

    def draw(random: Random, seeds: int) -> list[float]:
        times = 50 * np.exp(logs(random, seeds))
        times = READINGS * np.ceil(times / READINGS) if rounded else times
        return np.where(times > BUDGET, math.inf, times).tolist() if missing else times.tolist()

    def truth(_: Random) -> float:
        time = 50 * math.exp(middle)
        return READINGS * math.ceil(time / READINGS) if rounded else time

    return Shape(
        "median",
        name,
        draw,
        lambda times: median_interval(times, resolution=READINGS if rounded else 0.0),
        truth,
        promised,
        discrete=rounded or missing,
    )


def _scaled(factor: float, draw: Drawer) -> Drawer:
    return lambda random, size: factor * draw(random, size)


GAMMA_MEDIAN = 3.672061  # of shape 4

MEDIANS = (
    _times("lognormal", _scaled(0.2, _normal), 0.0),
    _times("heavy tails", _scaled(0.2, _heavy), 0.0),
    _times("skewed logarithms", _scaled(0.2, _skewed(4.0)), 0.2 * GAMMA_MEDIAN / 2),
    _times("rounded up to readings", _scaled(0.2, _normal), 0.0, rounded=True),
    _times("one in six misses", _scaled(0.49, _normal), 0.0, missing=True),
)


def _ratio(name: str, factor: float, logs: Drawer, *, rounded: bool) -> Shape:
    """Steps of two methods, seed by seed: a factor, a share of the seed and one of each."""

    def pairs(random: Random, count: int) -> tuple[Floats, Floats]:
        of_seed = 0.2 * random.standard_normal(count)
        own = 50 * factor * np.exp(of_seed + 0.1 * logs(random, count))
        base = 50 * np.exp(of_seed + 0.1 * logs(random, count))
        if rounded:
            own, base = (READINGS * np.ceil(one / READINGS) for one in (own, base))
        return own, base

    def truth(random: Random) -> float:
        own, base = pairs(random, TRUTH_DRAWS)
        return float(np.exp(np.mean(np.log(own / base))))

    def interval(both: tuple[Floats, Floats]) -> Interval | None:
        resolution = READINGS if rounded else 0.0
        return ratio_interval(both[0].tolist(), both[1].tolist(), resolution=resolution)

    return Shape("ratio of steps", name, pairs, interval, truth, discrete=rounded)


RATIOS = (
    _ratio("lognormal", 0.8, _normal, rounded=False),
    _ratio("heavy tails", 0.8, _heavy, rounded=False),
    _ratio("skewed", 0.8, _skewed(4.0), rounded=False),
    _ratio("rounded up to readings", 0.8, _normal, rounded=True),
)


def _tasks(name: str, logs: Drawer) -> Shape:
    """Parts of a budget on several tasks, in eighths; never counts as two budgets."""

    def parts(random: Random, count: int) -> Floats:
        eighths = np.ceil(PARTS * 0.45 * np.exp(logs(random, count)))
        return np.where(eighths > PARTS, math.inf, eighths / PARTS)

    def row(number: int, part: float) -> TaskSpeed:
        status = "reached" if math.isfinite(part) else "never"
        task = str(number)
        return TaskSpeed(task, "method", status, part, part, part, 1.0, 1.0, [])  # type: ignore[arg-type]

    def interval(drawn: Floats) -> Bounded:
        rows = [row(number, float(part)) for number, part in enumerate(drawn)]
        (method,) = over_tasks(rows, "baseline", "method")
        return method.counted

    def truth(random: Random) -> float:
        drawn = parts(random, TRUTH_DRAWS)
        return float(np.exp(np.mean(np.log(np.where(np.isinf(drawn), 2.0, drawn)))))

    return Shape("geometric mean over tasks", name, parts, interval, truth, discrete=True)


OVER_TASKS = (
    _tasks("parts that differ by a factor of 1.3", _scaled(math.log(1.3), _normal)),
    _tasks("parts that differ by a factor of 2, some never", _scaled(math.log(2), _normal)),
)

SHAPES = (*MEANS, *FRACTIONS, *MEDIANS, *RATIOS, *OVER_TASKS)


def _equals(count: int, own: Drawer, shared: float = 1.0) -> Callable[..., dict[str, list[float]]]:
    def draw(random: Random, seeds: int) -> dict[str, list[float]]:
        of_seed = shared * random.standard_normal(seeds)
        return {f"m{place}": (of_seed + own(random, seeds)).tolist() for place in range(count)}

    return draw


def _steps_of_equals(count: int, spread: float, missing: bool = False) -> Callable[..., Any]:
    def draw(random: Random, seeds: int) -> dict[str, list[float]]:
        of_seed = spread * random.standard_normal(seeds)
        made = {}
        for place in range(count):
            times = 50 * np.exp(of_seed + spread * random.standard_normal(seeds))
            times = READINGS * np.ceil(times / READINGS)
            made[f"m{place}"] = np.where(missing & (times > BUDGET), math.inf, times).tolist()
        return made

    return draw


def _in_samples(random: Random, seeds: int) -> dict[str, list[float]]:
    """Scores in whole samples of 400, which differ by a few."""
    return {
        method: (np.round(380.3 + 1.5 * random.standard_normal(seeds)) / 400).tolist()
        for method in ("m0", "m1")
    }


def _against_reference(scores: dict[str, list[float]]) -> float:
    return min(test.p_value for test in paired_tests(scores, "m0").values())


def _best_first(values: dict[str, list[float]]) -> list[str]:
    return sorted(values, key=lambda name: -float(np.mean(values[name])))


def _fastest_first(steps: dict[str, list[float]]) -> list[str]:
    return sorted(steps, key=lambda name: float(np.median(steps[name])))


def _first(scores: dict[str, list[float]]) -> float:
    order = _best_first(scores)
    return rival_tests(scores, order)[order[0]].p_value


def _others(scores: dict[str, list[float]]) -> float:
    order = _best_first(scores)
    tests = rival_tests(scores, order)
    return min(tests[name].p_value for name in order[1:])


def _steps_against_reference(steps: dict[str, list[float]]) -> float:
    return min(test.p_value for test in step_tests(steps, "m0", READINGS).values())


def _fastest(steps: dict[str, list[float]]) -> float:
    order = _fastest_first(steps)
    return step_rival_tests(steps, order, READINGS)[order[0]].p_value


REFERENCE, STEPS = "scores against the reference", "steps against the reference"
NULLS = (
    Null(REFERENCE, "2 methods, normal", _equals(2, _normal), _against_reference),
    Null(REFERENCE, "2 methods, skewness 1", _equals(2, _skewed(4.0)), _against_reference),
    Null(REFERENCE, "2 methods, heavy tails", _equals(2, _heavy), _against_reference),
    Null(REFERENCE, "2 methods, in whole samples", _in_samples, _against_reference),
    Null(REFERENCE, "6 methods, normal", _equals(6, _normal), _against_reference),
    Null("the first against the best other", "2 methods, normal", _equals(2, _normal), _first),
    Null("the first against the best other", "6 methods, normal", _equals(6, _normal), _first),
    Null("the others against the first", "6 methods, normal", _equals(6, _normal), _others),
    Null(STEPS, "2 methods, rounded", _steps_of_equals(2, 0.15), _steps_against_reference),
    Null(STEPS, "2 methods, nearly equal", _steps_of_equals(2, 0.05), _steps_against_reference),
    Null(
        STEPS,
        "2 methods, one in six misses",
        _steps_of_equals(2, 0.35, missing=True),
        _steps_against_reference,
    ),
    Null(STEPS, "6 methods, rounded", _steps_of_equals(6, 0.15), _steps_against_reference),
    Null("the fastest against the next", "6 methods, rounded", _steps_of_equals(6, 0.15), _fastest),
)


def measure(draws: int) -> Iterator[dict[str, Any]]:
    for shape in track(SHAPES, "Intervals"):
        yield {
            "kind": shape.kind,
            "name": shape.name,
            "promised": shape.promised,
            "discrete": shape.discrete,
            "held": {str(seeds): coverage(shape, seeds, draws) for seeds in SEEDS},
        }


def measure_nulls(draws: int) -> Iterator[dict[str, Any]]:
    for null in track(NULLS, "Tests"):
        yield {
            "kind": null.kind,
            "name": null.name,
            "called": {str(seeds): called(null, seeds, draws) for seeds in SEEDS},
        }


def markdown(made: dict[str, Any]) -> str:
    lines = [
        "# How often intervals hold and tests err",
        "",
        f"Made by `python benchmarks/coverage.py`: {made['draws']:,} draws of so many seeds (of so "
        "many tasks, in the last kind), given to the functions that `badm compare` calls. An "
        "interval should hold in 95 %, a test call a difference that is none in at most 5 %.",
        "",
        "| interval | shape | " + " | ".join(str(seeds) for seeds in SEEDS) + " |",
        "|---|---|" + "---:|" * len(SEEDS),
    ]
    for row in made["intervals"]:
        cells = (f"{100 * row['held'][str(seeds)]:.1f} %" for seeds in SEEDS)
        lines.append(f"| {row['kind']} | {row['name']} | {' | '.join(cells)} |")
    lines += ["", "| test | equal methods | " + " | ".join(map(str, SEEDS)) + " |"]
    lines.append("|---|---|" + "---:|" * len(SEEDS))
    for row in made["tests"]:
        cells = (f"{100 * row['called'][str(seeds)]:.1f} %" for seeds in SEEDS)
        lines.append(f"| {row['kind']} | {row['name']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=DRAWS, help="default: %(default)s")
    parser.add_argument("--output", type=Path, default=Path("results/coverage.json"))
    arguments = parser.parse_args()
    made = {
        "draws": arguments.draws,
        "seeds": SEEDS,
        "versions": package_versions(),
        "intervals": list(measure(arguments.draws)),
        "tests": list(measure_nulls(arguments.draws)),
    }
    arguments.output.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")
    arguments.output.with_suffix(".md").write_text(markdown(made))
    print(markdown(made))


if __name__ == "__main__":
    main()
