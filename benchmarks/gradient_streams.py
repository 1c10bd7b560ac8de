"""Adversarial streams of gradients: a table of them, and what must hold after each.

A stream is what one parameter gets as gradients, step by step, drawn from a seed and independent of
the weights. ``STREAMS`` crosses kinds, shapes, dtypes and scales; a new kind is one function and
one line of ``KINDS``. Beside the parameter of the stream sits a neighbour of the same shape with
ordinary gradients: where an optimizer stacks matrices, it must not notice its neighbour.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from badm import BADM, metrics, penalties
from badm.metrics import eigenbases
from badm.paper.algorithm1 import Algorithm1

Shape = tuple[int, ...]
Make = Callable[[list[nn.Parameter]], "Steps"]

PATHS: dict[str, dict[str, bool]] = {
    "loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}
ORACLE = "loop"

# BADM's alone, in the precisions of its linear algebra. It takes w_s − w from rounded points, so
# that its duals differ where steps are small beside the weights: it is not compared with the loop.
ALGORITHM1 = "algorithm 1"
ALGORITHM1_DTYPES = (torch.float32, torch.float64)

STEPS = 60
AFTER_SILENCE = 30  # steps that follow hundreds without a gradient, or precede them
SILENCE = 200
LARGE_STEPS = 24  # for 2 × 100,000: past two refreshes of a basis

# A scalar, vectors, rows, columns, square, wide and tall matrices, one whose long side the
# kronecker metric splits, kernels, and tensors without elements.
SHAPES: tuple[Shape, ...] = (
    (),
    (1,),
    (7,),
    (1, 33),
    (33, 1),
    (12, 12),
    (6, 20),
    (400, 3),
    (5, 4, 3, 3),
    (0, 5),
)
LARGE: Shape = (2, 100_000)

# Where the scale of a kind is free. The square of 1e30 overflows in float32 and bfloat16.
SCALES: dict[torch.dtype, tuple[float, ...]] = {
    torch.float32: (1e-30, 1.0, 1e30),
    torch.bfloat16: (1e-30, 1e30),
    torch.float64: (1e-100, 1e100),
}
# Where the kind itself sets the scale, seeds vary instead.
SEEDS = 2

# Above this a square overflows, and with it the second moment of Adam.
OVERFLOW = {
    torch.float32: torch.finfo(torch.float32).max ** 0.5,
    torch.bfloat16: torch.finfo(torch.bfloat16).max ** 0.5,
    torch.float64: torch.finfo(torch.float64).max ** 0.5,
}

# Largest difference between two paths, relative to how far the weights went plus their rounding.
# Rounding is 6e-8 in float32 and 1e-16 in float64, and a metric amplifies it where it divides by
# something small. A bfloat16 weight has 8 bits, and is rounded up on one path and down on another.
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-9, torch.bfloat16: 0.05}


@dataclass(frozen=True)
class Stream:
    """One row of the table; ``str`` is its name.

    >>> str(Stream("spike", (6, 20), torch.float32, 1e30, 0))
    'spike 6x20 float32 1e+30 seed 0'
    """

    kind: str
    shape: Shape
    dtype: torch.dtype
    scale: float
    seed: int

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape)) or "scalar"
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.kind} {shape} {dtype} {self.scale:g} seed {self.seed}"

    @property
    def steps(self) -> int:
        return LARGE_STEPS if self.shape == LARGE else KINDS[self.kind].steps

    def gradients(self) -> Iterator[Tensor | None]:
        """Yield the gradient of each step in the dtype of the parameter; None where it has none."""
        generator = torch.Generator().manual_seed(zlib.crc32(str(self).encode()))
        draw = functools.partial(torch.randn, self.shape, generator=generator, dtype=torch.float64)
        of_kind = KINDS[self.kind].gradients(draw, self)
        largest = torch.finfo(self.dtype).max / 2
        for _, g in zip(range(self.steps), of_kind, strict=False):
            yield None if g is None else g.clamp(-largest, largest).to(self.dtype)

    def paths(self, name: str) -> tuple[str, ...]:
        """Return the paths on which an optimizer can take the stream."""
        has_algorithm1 = name in metrics.names() and self.dtype in ALGORITHM1_DTYPES
        return (*PATHS, ALGORITHM1) if has_algorithm1 else tuple(PATHS)


Draw = Callable[[], Tensor]
Gradients = Callable[[Draw, Stream], Iterator[Tensor | None]]


@dataclass(frozen=True)
class Kind:
    """How the gradients of a stream come about.

    Attributes:
        gradients: Called with a source of normal tensors and the stream; yields without end.
        scaled: Whether the scale of the stream multiplies them; else the kind sets its own.
        steps: Length of the stream.
    """

    gradients: Gradients
    scaled: bool = True
    steps: int = STEPS


def _noise(draw: Draw, s: Stream) -> Iterator[Tensor | None]:
    while True:
        yield s.scale * draw()


def _zeros(draw: Draw, s: Stream) -> Iterator[Tensor | None]:
    while True:
        yield 0 * draw()


def _zeros_then_noise(draw: Draw, s: Stream) -> Iterator[Tensor | None]:
    for t in range(SILENCE + AFTER_SILENCE):
        yield (0.0 if t < SILENCE else s.scale) * draw()


def _noise_then_zeros(draw: Draw, s: Stream) -> Iterator[Tensor | None]:
    for t in range(AFTER_SILENCE + SILENCE):
        yield (s.scale if t < AFTER_SILENCE else 0.0) * draw()


def _spike(factor: float) -> Gradients:
    def gradients(draw: Draw, s: Stream) -> Iterator[Tensor | None]:
        for t in range(s.steps):
            yield s.scale * (factor if t == s.steps // 3 else 1.0) * draw()

    return gradients


def _first_step_spike(draw: Draw, s: Stream) -> Iterator[Tensor | None]:
    for t in range(s.steps):
        yield s.scale * (1e12 if t == 0 else 1.0) * draw()


def _bursts(draw: Draw, s: Stream) -> Iterator[Tensor | None]:
    for t in range(s.steps):
        yield s.scale * (1e4 if t % 15 < 3 else 1e-4) * draw()


def _rank_one(draw: Draw, s: Stream) -> Iterator[Tensor | None]:
    left, right = draw(), draw()
    if left.ndim >= 2:
        rows = left.flatten(1)[:, :1] if left.numel() else left.flatten(1)
        left = (rows * right.flatten(1)[:1]).reshape(s.shape) if left.numel() else left
    while True:
        yield s.scale * left * (draw().flatten()[:1].sum() if left.numel() else 1.0)


def _still_rows(draw: Draw, s: Stream) -> Iterator[Tensor | None]:
    while True:
        g = s.scale * draw()
        if g.ndim:
            g[::2] = 0.0
        yield g


def _still_columns(draw: Draw, s: Stream) -> Iterator[Tensor | None]:
    while True:
        g = s.scale * draw()
        if g.ndim:
            g[..., 1::2] = 0.0
        yield g


def _one_element(draw: Draw, s: Stream) -> Iterator[Tensor | None]:
    while True:
        g = draw()
        kept = g.flatten()[-1:].clone()
        g = torch.zeros_like(g)
        g.view(-1)[-1:] = s.scale * kept
        yield g


def _alternating(draw: Draw, s: Stream) -> Iterator[Tensor | None]:
    g = draw()
    for t in range(s.steps):
        yield s.scale * (-1) ** t * g


def _constant(draw: Draw, s: Stream) -> Iterator[Tensor | None]:
    g = draw()
    while True:
        yield s.scale * g


def _zeros_in_time(draw: Draw, s: Stream) -> Iterator[Tensor | None]:
    for t in range(s.steps):
        yield (s.scale if t % 10 == 0 else 0.0) * draw()


def _none_in_time(draw: Draw, s: Stream) -> Iterator[Tensor | None]:
    for t in range(s.steps):
        yield s.scale * draw() if t % 10 == 3 else None


def _powers(first: float, last: float) -> Gradients:
    """Scales from 10^first to 10^last, in equal factors."""

    def gradients(draw: Draw, s: Stream) -> Iterator[Tensor | None]:
        for t in range(s.steps):
            yield 10 ** (first + (last - first) * t / max(1, s.steps - 1)) * draw()

    return gradients


def _jumps(draw: Draw, s: Stream) -> Iterator[Tensor | None]:
    generator = torch.Generator().manual_seed(s.seed)
    while True:
        exponent = 60 * float(torch.rand((), generator=generator)) - 30
        yield 10**exponent * draw()


def _extremes(draw: Draw, s: Stream) -> Iterator[Tensor | None]:
    for t in range(s.steps):
        yield (1e30 if t % 2 else 1e-30) * draw()


def _mixed_elements(draw: Draw, s: Stream) -> Iterator[Tensor | None]:
    exponents = (10 * draw()).clamp(-30, 30)
    while True:
        yield 10**exponents * draw()


def _denormal(draw: Draw, s: Stream) -> Iterator[Tensor | None]:
    tiny = torch.finfo(s.dtype).tiny
    while True:
        yield 0.1 * tiny * draw()


KINDS: dict[str, Kind] = {
    "noise": Kind(_noise),
    "zeros": Kind(_zeros, scaled=False, steps=SILENCE),
    "zeros, then noise": Kind(_zeros_then_noise, steps=SILENCE + AFTER_SILENCE),
    "noise, then zeros": Kind(_noise_then_zeros, steps=AFTER_SILENCE + SILENCE),
    "spike of 1e6": Kind(_spike(1e6)),
    "spike of 1e28": Kind(_spike(1e28)),
    "spike at the first step": Kind(_first_step_spike),
    "bursts": Kind(_bursts),
    "rank one": Kind(_rank_one),
    "still rows": Kind(_still_rows),
    "still columns": Kind(_still_columns),
    "one element": Kind(_one_element),
    "alternating signs": Kind(_alternating),
    "constant": Kind(_constant),
    "zero but for each tenth step": Kind(_zeros_in_time),
    "None but for each tenth step": Kind(_none_in_time),
    "growing from 1e-30 to 1e30": Kind(_powers(-30, 30), scaled=False),
    "shrinking from 1e30 to 1e-30": Kind(_powers(30, -30), scaled=False),
    "jumps between 1e-30 and 1e30": Kind(_jumps, scaled=False),
    "1e-30 and 1e30 in turn": Kind(_extremes, scaled=False),
    "elements from 1e-30 to 1e30": Kind(_mixed_elements, scaled=False),
    "denormal": Kind(_denormal, scaled=False),
}
OF_LARGE = (
    "noise",
    "zeros",
    "spike of 1e28",
    "rank one",
    "still rows",
    "alternating signs",
    "1e-30 and 1e30 in turn",
    "elements from 1e-30 to 1e30",
)


def streams() -> list[Stream]:
    """Return all streams, each once.

    >>> len(streams()) >= 1000, len(set(map(str, streams()))) == len(streams())
    (True, True)
    """
    found = []
    for name, kind in KINDS.items():
        for shape in SHAPES:
            found += _of_kind(name, kind, shape)
    for name in OF_LARGE:
        found += [Stream(name, LARGE, dtype, 1.0, 0) for dtype in SCALES]
    return found


def _of_kind(name: str, kind: Kind, shape: Shape) -> Iterator[Stream]:
    for dtype, scales in SCALES.items():
        if kind.scaled:
            yield from (Stream(name, shape, dtype, scale, 0) for scale in scales)
        else:
            yield from (Stream(name, shape, dtype, 1.0, seed) for seed in range(SEEDS))


class Steps(Protocol):
    """What is driven through a stream: an optimizer, or what looks like one."""

    state: Any

    def step(self) -> Any: ...


class Algorithm1Steps:
    """Algorithm 1 of the paper with two sub-batches, both with the gradient of the stream."""

    def __init__(self, params: list[nn.Parameter], metric: str) -> None:
        self.params = params
        rho, sigma = penalties(BADM(params, metric=metric).param_groups[0])  # of the defaults
        # One each: a parameter without a gradient keeps its points.
        self.each = [Algorithm1([p.detach()], 2, rho, sigma, metric=metric) for p in params]

    def step(self) -> None:
        for p, algorithm in zip(self.params, self.each, strict=True):
            if p.grad is not None:
                algorithm.step([[p.grad], [p.grad]])

    @property
    def state(self) -> dict[nn.Parameter, dict[str, Tensor]]:
        return {
            p: {
                "local point": torch.stack([row[0] for row in algorithm.locals]),
                "dual": torch.stack([row[0] for row in algorithm.duals]),
                **algorithm._states[0],
            }
            for p, algorithm in zip(self.params, self.each, strict=True)
        }


def optimizers() -> dict[str, Callable[[str], Make]]:
    """Return every metric of BADM, and Adam for comparison; each makes an optimizer of a path."""

    def badm(metric: str, path: str) -> Make:
        if path == ALGORITHM1:
            return lambda params: Algorithm1Steps(params, metric)
        return lambda params: BADM(params, metric=metric, **PATHS[path])

    def adam(path: str) -> Make:
        return lambda params: torch.optim.Adam(params, **PATHS[path])

    made: dict[str, Callable[[str], Make]] = {
        name: functools.partial(badm, name) for name in metrics.names()
    }
    return {**made, "Adam": adam}


@dataclass(frozen=True)
class Outcome:
    """What became of a parameter and its neighbour.

    Attributes:
        failure: What went wrong first, as a short sentence; empty if nothing did.
        largest: Largest gradient of the stream.
        weights: Both parameters at the end, in float64.
        travelled: How far each of them went at most, in the largest of its elements.
    """

    failure: str
    largest: float = 0.0
    weights: tuple[Tensor, ...] = ()
    travelled: tuple[float, ...] = ()


@functools.lru_cache(maxsize=64)
def _ordinary(shape: Shape, dtype: torch.dtype, steps: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    return tuple(
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for _ in range(steps)
    )


@functools.lru_cache(maxsize=1)
def _gradients(stream: Stream) -> tuple[Tensor | None, ...]:
    """Draw them once for all optimizers and paths."""
    return tuple(stream.gradients())


def drive(stream: Stream, make: Make) -> Outcome:
    """Step through the stream. An exception or a weight that is not finite ends it.

    A state that is not finite is a failure too, but the stream goes on: the weights may fail later.
    """
    start = torch.Generator().manual_seed(0)
    first = torch.randn(stream.shape, generator=start, dtype=torch.float64).to(stream.dtype)
    params = [nn.Parameter(first.clone()) for _ in range(1 if stream.shape == LARGE else 2)]
    travelled = [0.0] * len(params)
    ordinary = _ordinary(stream.shape, stream.dtype, stream.steps) if len(params) > 1 else ()
    failure, largest = "", 0.0
    try:
        optimizer = make(params)
        for t, g in enumerate(_gradients(stream)):
            params[0].grad = g
            largest = max(largest, 0.0 if g is None else _largest(g))
            for p in params[1:]:
                p.grad = ordinary[t]
            optimizer.step()
            if t % 10 >= 8 or t == stream.steps - 1:  # two in a row, for those that go to and fro
                found = not_finite(params, optimizer)
                failure = found or failure
                if "weights" in found:
                    return Outcome(failure, largest)
                for i, p in enumerate(params):
                    travelled[i] = max(travelled[i], _largest(p.detach().double() - first))
    except Exception as error:  # whatever an optimizer raises is a finding
        return Outcome(f"{type(error).__name__}: {error}".splitlines()[0][:200], largest)
    weights = tuple(p.detach().double() for p in params)
    return Outcome(failure, largest, weights, tuple(travelled))


def not_finite(params: list[nn.Parameter], optimizer: Steps) -> str:
    """Say which tensor is not finite, or return an empty string."""
    state = optimizer.state
    for p, owner in zip(params, ("", "neighbour's "), strict=False):
        if not p.isfinite().all():
            return f"{owner}weights not finite"
        for key, value in state[p].items():
            if isinstance(value, Tensor) and not value.isfinite().all():
                return f"{owner}{key} not finite"
    return ""


def disagreement(stream: Stream, outcome: Outcome, oracle: Outcome) -> float:
    """Return the largest difference, relative to how far the weights went plus their rounding."""
    worst = 0.0
    for a, b, far in zip(outcome.weights, oracle.weights, oracle.travelled, strict=True):
        rounding = torch.finfo(stream.dtype).eps * _largest(b)
        scale = far + rounding
        difference = _largest(a - b)
        worst = max(worst, difference / scale if scale > 0 else math.copysign(difference, 1))
    return worst


def _largest(x: Tensor) -> float:
    return float(x.abs().max()) if x.numel() else 0.0


def bases_follow_rounding(name: str) -> bool:
    """Whether a metric keeps eigenbases, which rounding chooses where a gradient lacks full rank.

    Two paths then choose different ones, and both are right.

    >>> [name for name in metrics.names() if bases_follow_rounding(name)]
    ['kronecker', 'kronecker-spectral']
    """
    return name in metrics.names() and bool(
        metrics.find(name).optional_state_keys & eigenbases.KEYS
    )


@dataclass(frozen=True)
class Verdict:
    """What happened to one stream under one optimizer, on all paths.

    Attributes:
        failures: Paths that failed, each with the reason.
        overflow: Whether the square of the largest gradient would overflow.
        disagreement: By path, the disagreement with the loop, where both reached the end.
    """

    failures: dict[str, str]
    overflow: bool
    disagreement: dict[str, float]


def check_stream(stream: Stream, name: str) -> Verdict:
    """Drive one stream on all paths of an optimizer."""
    make_for = optimizers()[name]
    outcomes = {path: drive(stream, make_for(path)) for path in stream.paths(name)}
    oracle = outcomes[ORACLE]
    return Verdict(
        {path: o.failure for path, o in outcomes.items() if o.failure},
        max(o.largest for o in outcomes.values()) >= OVERFLOW[stream.dtype],
        {
            path: disagreement(stream, o, oracle)
            for path, o in outcomes.items()
            if path not in (ORACLE, ALGORITHM1) and o.weights and oracle.weights
        },
    )
