"""Comparisons for the tests of reports: made up, but shaped like those that are measured."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from dataclasses import replace
from typing import Any

import numpy as np

from badm.bench.analysis.speed_over_tasks import over_tasks
from badm.bench.records.comparisons import (
    Artifact,
    Comparison,
    Curve,
    Interval,
    MethodInfo,
    PairedTest,
    PerformanceProfile,
    ResultRow,
    ScoreNoise,
    TaskInfo,
    Trial,
)
from badm.bench.records.runs import NAN
from badm.bench.records.speeds import PARTS, MeasuredPart, Speeds, SpeedTarget, TaskSpeed

HOSTILE = (
    "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'> "
    "\"double\" 'single' <!-- <b>bold</b> & &amp; {{data}} $x^2$ ünïcödé 漢字 💥 \u2028 | *star*"
)

# Name, family, how fast (steps of a digits-like task) and how good (part of the best score).
METHODS = (
    ("badm", "badm", 55, 1.000),
    ("badm-kronecker", "badm", 40, 0.999),
    ("badm-diagonal", "badm", 95, 0.992),
    ("badm-printed", "badm", 900, 0.930),
    ("adam", "keras", 120, 0.985),
    ("nadam", "keras", 105, 0.986),
    ("rmsprop", "keras", 140, 0.980),
    ("adagrad", "keras", 260, 0.965),
    ("sgd-momentum", "keras", 190, 0.975),
    ("muon", "peer", 62, 0.996),
    ("soap", "peer", 48, 0.997),
    ("schedule-free", "peer", 110, 0.984),
    ("dladmm", "layer-wise", 300, 0.900),
    ("sgd", "keras", 700, 0.94),
    ("adamax", "keras", 150, 0.98),
    ("adamw", "torch", 118, 0.986),
    ("qhm", "torch", 180, 0.976),
    ("shampoo", "peer", 70, 0.99),
    ("lion", "peer", 130, 0.982),
    ("adan", "peer", 100, 0.987),
    ("aa-dladmm", "layer-wise", 250, 0.91),
    ("sigmoid-admm", "layer-wise", 320, 0.89),
    ("sisa", "peer", 90, 0.985),
    ("badm-spectral", "badm", 58, 0.998),
    ("badm-euclidean", "badm", 200, 0.97),
)

TASKS = (
    TaskInfo(
        "digits",
        "Handwritten digits of scikit-learn, a network of two layers",
        "cpu",
        "accuracy",
        "high",
        True,
        600,
        64,
        0.95,
        False,
        ["1,797 pictures of 8 × 8 pixels."],
    ),
    TaskInfo(
        "cgan-mnist",
        "A conditional GAN draws digits; two players take turns",
        "cpu",
        "kid",
        "low",
        False,
        600,
        64,
        0.12,
        False,
    ),
    TaskInfo(
        "mlm-pretrain",
        HOSTILE,
        "smoke",
        "loss",
        "low",
        False,
        600,
        32,
        None,
        True,
        ["A synthetic stand-in: words drawn at random.", HOSTILE],
    ),
)


def comparison(
    *,
    tasks: int = 3,
    methods: int = 13,
    seeds: int = 3,
    points: int = 40,
    protocol: str = "tuned",
    title: str = "BADM against twelve others on three tasks",
) -> Comparison:
    """A comparison with a miss, a diverged row, one that cannot and one that is missing."""
    facts = [_task(i) for i in range(tasks)]
    made = [_Made(task, i, methods, seeds, points, protocol) for i, task in enumerate(facts)]
    names = [name for name, *_ in METHODS[:methods]]
    taus = [round(1.1**i, 4) for i in range(30)]
    return Comparison(
        title=title,
        created="2026-03-14T15:09:26+00:00",
        protocol=protocol,  # type: ignore[arg-type]
        objective="score",
        schedule="cosine",
        reference="adam",
        trials=8 if protocol == "tuned" else 0,
        summary=[
            "badm-kronecker needs the fewest steps to the target, 0.41 times those of adam, and "
            "its test score is the best on 2 of 3 tasks.",
            "In seconds it is second to muon, since a step of it costs more.",
        ],
        tasks=facts,
        methods=[
            MethodInfo(n, f"{n}, as it is known", family) for n, family, *_ in METHODS[:methods]
        ],
        rows=[row for one in made for row in one.rows],
        curves=[curve for one in made for curve in one.curves],
        tried=[trial for one in made for trial in one.tried] if protocol == "tuned" else [],
        profile=PerformanceProfile(
            taus,
            {
                name: [min(1.0, max(0.0, _stairs(tau - METHODS[i][2] / 40 + 1))) for tau in taus]
                for i, name in enumerate(names)
            },
        ),
        artifacts=[artifact for one in made for artifact in one.artifacts],
        environment={
            "python": "3.11.9",
            "torch": "2.13.0+cpu",
            "cpu": "2 × a processor",
            "threads": 1,
            "commit": "01a895e",
            "packages": {"numpy": "2.4.6", "pytorch_optimizer": "4.1.0"},
        },
        notes=[
            "cgan-mnist: the run of rmsprop with seed 2 was damaged and has been redone.",
            HOSTILE,
        ],
    )


def speed_comparison() -> Comparison:
    """A comparison of the speed protocol, against adam; some methods never arrive, one is missing.

    A method needs as large a part of adam's budget as its steps are of adam's.
    """
    base = replace(comparison(), protocol="speed")
    (adam,) = (steps for name, _, steps, _ in METHODS if name == "adam")
    rows = [
        _speed(task, name, math.ceil(PARTS * steps / adam), family)
        for task in base.tasks
        for name, family, steps, _ in METHODS[: len(base.methods)]
    ]
    targets = [SpeedTarget(task.name, task.steps, _SPEED_TARGET) for task in base.tasks]
    speeds = Speeds("adam", "lr", targets, rows, over_tasks(rows, "adam", base.reference))
    return replace(base, speed=speeds)


_SPEED_TARGET = 0.5


def _speed(task: TaskInfo, method: str, eighths: int, family: str) -> TaskSpeed:
    if family == "layer-wise":
        return TaskSpeed(task.name, method, "missing", math.inf, math.inf, math.inf, NAN, NAN, [])
    better = 0.1 if task.best == "high" else -0.1
    parts = []
    for measured in sorted({PARTS, eighths - 1, eighths} & set(range(1, PARTS + 1))):
        reached = measured >= eighths
        score = _SPEED_TARGET + (better if reached else -better) * (method != "adam")
        part = measured / PARTS
        steps = round(part * task.steps)
        parts.append(MeasuredPart(part, steps, {}, [], [score] * 3, score, reached, part))
    part = eighths / PARTS if eighths <= PARTS else math.inf
    status = "reached" if eighths <= PARTS else "never"
    return TaskSpeed(
        task.name, method, status, part, part * task.steps, 1.5 * part, 1.5, 1.0, parts
    )


def _task(index: int) -> TaskInfo:
    base = TASKS[index % len(TASKS)]
    if index < len(TASKS):
        return base
    return TaskInfo(**{**vars(base), "name": f"{base.name}-{index}", "description": "One more"})


def _stairs(value: float) -> float:
    return math.floor(3 * value) / 3


class _Made:
    """All of one task."""

    def __init__(
        self, task: TaskInfo, index: int, methods: int, seeds: int, points: int, protocol: str
    ) -> None:
        self.task, self.seeds, self.points, self.protocol = task, seeds, points, protocol
        self.random = np.random.default_rng(index)
        self.rows: list[ResultRow] = []
        self.curves: list[Curve] = []
        self.tried: list[Trial] = []
        self.artifacts: list[Artifact] = []
        for number, (name, family, speed, quality) in enumerate(METHODS[:methods]):
            if family == "layer-wise":
                self.rows.append(
                    ResultRow(
                        task.name,
                        name,
                        "cannot",
                        "it trains dense layers one by one, and this model has a convolution",
                    )
                )
            elif name == "schedule-free" and task.name != "digits":
                self.rows.append(ResultRow(task.name, name, "missing", "it was not run"))
            else:
                self._trained(number, name, speed, quality)

    def _trained(self, number: int, name: str, speed: float, quality: float) -> None:
        task = self.task
        diverged = name == "rmsprop" and task.name != "mlm-pretrain"
        curves = [
            self._curve(name, seed, speed, quality, diverged and seed == 1)
            for seed in range(self.seeds)
        ]
        self.curves += curves
        lr = 10 ** (-3.5 + number % 4 / 2)
        row: dict[str, Any] = {
            "task": task.name,
            "method": name,
            "status": "diverged" if diverged else "finished",
            "message": "seed 1: the loss left the numbers at step 240" if diverged else "",
            "diverged": int(diverged),
            "setting": {"lr": lr, "beta": 0.9, "nesterov": number % 2 == 0},
            "searched": ["lr"],
            "at_edge": ["lr"] if name == "adagrad" else [],
            "trials": 8 if self.protocol == "tuned" else 0,
            "seeds": list(range(self.seeds)),
            "seconds_per_step": 0.002 + 0.001 * (number % 5),
            "peak_bytes": 410_000_000 + number,
            "state_bytes": 40_000 * (number % 4) * 9,
            "paper": round(quality * 0.98, 3) if task.name == "digits" and number < 9 else None,
        }
        if not diverged:
            row |= self._outcome(name, curves)
        self.rows.append(ResultRow(**row))
        if task.name != "mlm-pretrain":
            self._search(name, lr, quality)
        self._artifact(number, name)

    def _curve(self, name: str, seed: int, speed: float, quality: float, diverges: bool) -> Curve:
        task = self.task
        steps = np.unique(np.linspace(1, task.steps, self.points).astype(int))
        progress = 1 - np.exp(-steps / (speed * (1 + 0.06 * seed)))
        noise = self.random.normal(0, 1, len(steps))
        if task.best == "high":
            score = np.clip(0.1 + (0.978 * quality - 0.1) * progress + 0.004 * noise, 0, 1)
        else:
            worst, best = (1.0, 0.09) if task.score == "kid" else (6.0, 2.1)
            score = worst + (best / quality - worst) * progress + 0.01 * best * noise
        loss = np.exp(-4.5 * progress * quality + 0.05 * noise) * 2.3
        if diverges:
            score[len(steps) // 2 :] = np.nan
            loss[len(steps) // 2 :] = np.nan
        seconds = steps * (0.002 + 0.0005 * (speed % 7)) * (1 + 0.03 * seed)
        losses = {"model": loss.tolist()}
        if task.name.startswith("cgan"):
            losses = {"generator": (loss - 0.4).tolist(), "discriminator": loss.tolist()}
        return Curve(
            task.name,
            name,
            seed,
            steps.tolist(),
            seconds.tolist(),
            losses,
            steps[::2].tolist(),
            seconds[::2].tolist(),
            {task.score: score[::2].tolist(), "entropy": (2 * loss[::2]).tolist()},
        )

    def _outcome(self, name: str, curves: list[Curve]) -> dict[str, Any]:
        task = self.task
        last = [curve.validation[task.score][-1] for curve in curves]
        test = [value - 0.004 for value in last]
        outcome: dict[str, Any] = {
            "test": _interval(test),
            "validation": _interval(last),
            "train_loss": _interval([next(iter(c.losses.values()))[-1] for c in curves]),
        }
        p = min(1.0, 0.0004 * 3 ** len(name))
        if name != "adam":
            difference = round(outcome["test"].value - (0.95 if task.best == "high" else 0.1), 4)
            outcome["compared"] = PairedTest("adam", difference, p, test="paired t, Holm")
        rival = "badm" if name != "badm" else "muon"
        outcome["rival"] = PairedTest(rival, -0.002, p, test="paired t, Holm over all pairs")
        if task.percent:
            outcome["noise"] = ScoreNoise(0.004, 0.0151, 400)
        if task.target is not None:
            reached = [_reached(curve, task, task.target) for curve in curves]
            outcome["steps_to_target"] = _median([curve_steps for curve_steps, _ in reached])
            outcome["gradients_to_target"] = _median([curve_steps for curve_steps, _ in reached])
            outcome["seconds_to_target"] = _median([spent for _, spent in reached])
            ratio = NAN if math.inf in outcome["steps_to_target"].values else 0.43
            test = f"paired t on {'ranks' if math.isnan(ratio) else 'logarithms'}, Holm"
            outcome["steps_rival"] = PairedTest(rival, ratio, p, test=f"{test} over all pairs")
            if name != "adam":
                outcome["steps_compared"] = PairedTest("adam", ratio, p, test=test)
        return outcome

    def _search(self, name: str, lr: float, quality: float) -> None:
        if self.protocol != "tuned":
            return
        for index, exponent in enumerate(np.linspace(-2, 1.5, 8)):
            lost = index == 7 and name not in ("badm", "muon")
            miss = 0.06 * (exponent + 0.0) ** 2 * (1 if self.task.best == "high" else -2)
            self.tried.append(
                Trial(
                    self.task.name,
                    name,
                    index,
                    {"lr": lr * 10 ** float(exponent), "beta": 0.9},
                    "diverged" if lost else "finished",
                    None
                    if lost
                    else (0.97 * quality if self.task.best == "high" else 0.1 / quality) - miss,
                    None if lost else math.inf if index < 2 else 100.0 * index,
                )
            )

    def _artifact(self, number: int, name: str) -> None:
        task = self.task
        if task.name.startswith("cgan"):
            for step in (task.steps // 2, task.steps):
                picture = _picture(number, step == task.steps)
                self.artifacts.append(
                    Artifact(task.name, name, 0, step, "Digits drawn", picture=picture)
                )
        if task.name.startswith("mlm"):
            text = f"I have watched this [mask] and it was awesome\n{name}: movie, film, one"
            self.artifacts.append(
                Artifact(task.name, name, 0, task.steps, "A filled blank", text=text + HOSTILE[:40])
            )


def _reached(curve: Curve, task: TaskInfo, target: float) -> tuple[float, float]:
    scores = curve.validation[task.score]
    for step, seconds, score in zip(curve.evaluated, curve.evaluated_seconds, scores, strict=True):
        if score >= target if task.best == "high" else score <= target:
            return float(step), seconds
    return math.inf, math.inf


def _interval(values: list[float]) -> Interval:
    mean = float(np.mean(values))
    half = 2 * float(np.std(values)) + 0.002
    return Interval(mean, mean - half, mean + half, values)


def _median(values: list[float]) -> Interval:
    return Interval(sorted(values)[len(values) // 2], min(values), max(values), values)


def _picture(number: int, sharp: bool) -> str:
    """A PNG file of 56 × 28 grey pixels, as a data URL."""
    y, x = np.mgrid[0:28, 0:56]
    ring = np.hypot(y - 14, (x % 28) - 14) - 4 - number % 7
    grey = np.clip(255 - (90 if sharp else 25) * np.abs(ring), 0, 255).astype(np.uint8)
    raw = b"".join(b"\0" + row.tobytes() for row in grey)
    body = b"\x89PNG\r\n\x1a\n"
    for kind, content in (
        (b"IHDR", struct.pack(">IIBBBBB", 56, 28, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(raw)),
        (b"IEND", b""),
    ):
        checksum = zlib.crc32(kind + content)
        body += struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)
    return "data:image/png;base64," + base64.b64encode(body).decode()
