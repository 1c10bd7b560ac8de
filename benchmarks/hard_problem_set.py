"""Small problems that are known to be hard, each for one reason, with the loss that passes.

A problem is a module of a few parameters, a gradient for every step, exact or with noise of a seed,
and a loss without noise whose minimum is 0. Parameters are matrices wherever a method for matrices
would meet one, with shapes of a few rows and columns; two problems are vectors and one is an
embedding. The largest curvature is about 1, so that the learning rates of SGD are of the right
size, and distances are about 1, so that those of Adam are. What an optimizer has to learn is
away from 0, so that weight decay is of no help.

In the quadratics every direction has the same part in the first loss: flat ones are as far away as
steep ones are near. A method that descends the steep directions alone has gained little.

A new problem is one function and one line of ``PROBLEMS``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

ROWS, COLS = 8, 6


@dataclass(frozen=True)
class Posed:
    """A problem with the numbers of one seed.

    Attributes:
        module: What is trained.
        gradient: Called with the number of the step, from 1; sets the gradients of the module.
        loss: What is left to learn, without noise; its minimum is 0.
    """

    module: nn.Module
    gradient: Callable[[int], None]
    loss: Callable[[], float]


@dataclass(frozen=True)
class Problem:
    """A row of the table.

    Attributes:
        name: What people type and columns are called.
        sentence: What is hard about it.
        pose: Draws the numbers of a seed; called with the number of steps as well.
        steps: Length of a run.
        goal: The largest loss that passes, as a part of the first one.
    """

    name: str
    sentence: str
    pose: Callable[[Generator, int], Posed]
    steps: int = 500
    goal: float = 1e-3


class Weights(nn.Module):
    """Parameters without a layer around them, so that no matrix counts as an output layer."""

    def __init__(self, *tensors: Tensor) -> None:
        super().__init__()
        self.parts = nn.ParameterList(nn.Parameter(x.clone()) for x in tensors)


def _normal(generator: Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator)


def _signs(generator: Generator, *shape: int) -> Tensor:
    return _normal(generator, *shape).sign()


def _rotation(generator: Generator, n: int) -> Tensor:
    q, _ = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64))
    return q


def _spectrum(n: int, condition: float) -> Tensor:
    """Return curvatures from 1 down to ``1/condition``, in equal factors."""
    return torch.logspace(0, -math.log10(condition), n, dtype=torch.float64)


def _with_autograd(module: nn.Module, objective: Callable[[], Tensor]) -> Posed:
    def gradient(step: int) -> None:
        module.zero_grad()
        objective().backward()

    def loss() -> float:
        with torch.no_grad():
            return float(objective())

    return Posed(module, gradient, loss)


Noise = Callable[[Tensor], Tensor]  # of a gradient; returns what the optimizer sees


def _quadratic(
    target: Tensor, away: Tensor, curvature: Callable[[Tensor], Tensor], noise: Noise | None = None
) -> Posed:
    """Pose ``½⟨E, HE⟩`` with ``E = W − target``, which is ``away`` at the start."""
    module = Weights(target + away)
    (w,) = module.parameters()

    def gradient(step: int) -> None:
        g = curvature(w.detach() - target)
        w.grad = g if noise is None else noise(g)

    def loss() -> float:
        e = w.detach() - target
        return float(0.5 * (e.double() * curvature(e).double()).sum())

    return Posed(module, gradient, loss)


def _axis_aligned(condition: float, *shape: int) -> Callable[[Generator, int], Posed]:
    def pose(generator: Generator, steps: int) -> Posed:
        n = math.prod(shape)
        order = torch.randperm(n, generator=generator)
        curvatures = _spectrum(n, condition)[order].reshape(shape)
        away = _signs(generator, *shape) / (condition * curvatures).sqrt()
        c = curvatures.float()
        return _quadratic(_normal(generator, *shape), away.float(), lambda e: c * e)

    return pose


def _kronecker(condition: float, noise: float = 0.0) -> Callable[[Generator, int], Posed]:
    """Pose a curvature ``A ⊗ B`` of rows and columns, both rotated; noise has its covariance."""

    def pose(generator: Generator, steps: int) -> Posed:
        of_side = []
        for n in (ROWS, COLS):
            basis, curvatures = _rotation(generator, n), _spectrum(n, condition**0.5)
            of_side.append((basis, curvatures))
        (u, a), (v, b) = of_side
        away = _signs(generator, ROWS, COLS) / (condition * a[:, None] * b).sqrt()
        left, right = ((q * c @ q.T).float() for q, c in of_side)
        left_root, right_root = ((q * c.sqrt() @ q.T).float() for q, c in of_side)

        def noisy(g: Tensor) -> Tensor:
            return g + noise * (left_root @ _normal(generator, ROWS, COLS) @ right_root)

        return _quadratic(
            _normal(generator, ROWS, COLS),
            (u @ away @ v.T).float(),
            lambda e: left @ e @ right,
            noisy if noise else None,
        )

    return pose


def _dense(condition: float) -> Callable[[Generator, int], Posed]:
    """Pose a curvature whose axes mix all elements, so that rows and columns have none."""

    def pose(generator: Generator, steps: int) -> Posed:
        n = ROWS * COLS
        basis, curvatures = _rotation(generator, n), _spectrum(n, condition)
        away = basis @ (_signs(generator, n) / (condition * curvatures).sqrt())
        h = (basis * curvatures @ basis.T).float()
        return _quadratic(
            _normal(generator, ROWS, COLS),
            away.reshape(ROWS, COLS).float(),
            lambda e: (h @ e.flatten()).view_as(e),
        )

    return pose


def _plain(generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return a target, a start 1 away from it in every element, and curvatures of 0.1 to 1."""
    c = _spectrum(ROWS * COLS, 10.0)[torch.randperm(ROWS * COLS, generator=generator)]
    return (
        _normal(generator, ROWS, COLS),
        _signs(generator, ROWS, COLS),
        c.reshape(ROWS, COLS).float(),
    )


def _rosenbrock(start: Tensor) -> Callable[[Generator, int], Posed]:
    """Pose ``Σ (1 − xᵢ)² + 100(xᵢ₊₁ − xᵢ²)²``, divided by 1,000."""

    def pose(generator: Generator, steps: int) -> Posed:
        module = Weights(start + 0.05 * _normal(generator, *start.shape))
        (w,) = module.parameters()

        def objective() -> Tensor:
            x = w.flatten()
            return ((1 - x[:-1]).square() + 100 * (x[1:] - x[:-1].square()).square()).sum() / 1e3

        return _with_autograd(module, objective)

    return pose


def _saddle(generator: Generator, steps: int) -> Posed:
    """``½‖W − aV‖² + (a² − 1)²/80`` with ``a = ⟨V, W⟩``: at ``a = 0`` a slope of nearly nothing."""
    v = _normal(generator, ROWS, COLS)
    v /= v.norm()
    rest = _normal(generator, ROWS, COLS)
    rest -= (rest * v).sum() * v
    module = Weights(0.1 * rest / rest.norm() + 1e-6 * v)
    (w,) = module.parameters()

    def gradient(step: int) -> None:
        a = (v * w.detach()).sum()
        w.grad = w.detach() - a * v + (a**3 - a) / 20 * v

    def loss() -> float:
        a = (v * w.detach()).sum()
        return float(0.5 * (w.detach() - a * v).square().sum() + (a * a - 1).square() / 80)

    return Posed(module, gradient, loss)


def _deep_linear(generator: Generator, steps: int) -> Posed:
    """``½‖W₅W₄W₃W₂W₁ − T‖²``, every matrix a tenth of an orthogonal one."""
    n, layers = COLS, 5
    u, v = _rotation(generator, n), _rotation(generator, n)
    target = (u * torch.linspace(1.0, 0.2, n, dtype=torch.float64) @ v.T).float()
    module = Weights(*(0.1 * _rotation(generator, n).float() for _ in range(layers)))
    parts = list(module.parameters())

    def objective() -> Tensor:
        return 0.5 * (torch.linalg.multi_dot(parts) - target).square().sum()

    return _with_autograd(module, objective)


def _factorisation(generator: Generator, steps: int) -> Posed:
    """``½‖UVᵀ − M‖²`` with a ``M`` of rank 3, from nearly 0."""
    rank = 3
    u, v = _rotation(generator, ROWS)[:, :rank], _rotation(generator, COLS)[:, :rank]
    target = (u * torch.tensor([1.0, 0.5, 0.2], dtype=torch.float64) @ v.T).float()
    module = Weights(*(1e-2 * _normal(generator, n, rank) for n in (ROWS, COLS)))
    left, right = module.parameters()
    return _with_autograd(module, lambda: 0.5 * (left @ right.T - target).square().sum())


def _plateau(generator: Generator, steps: int) -> Posed:
    """``½Σ e²/(1 + e²)`` from a distance of 3 in every element, with noise."""
    target = _normal(generator, ROWS, COLS)
    module = Weights(target + 3 * _signs(generator, ROWS, COLS))
    (w,) = module.parameters()

    def gradient(step: int) -> None:
        e = w.detach() - target
        w.grad = e / (1 + e.square()).square() + 0.1 * _normal(generator, ROWS, COLS)

    def loss() -> float:
        squares = (w.detach() - target).double().square()
        return float(0.5 * (squares / (1 + squares)).sum())

    return Posed(module, gradient, loss)


def _rare(generator: Generator, steps: int) -> Posed:
    target, away, c = _plain(generator)

    def rarely(g: Tensor) -> Tensor:
        return g * float(torch.rand((), generator=generator) < 0.01)

    return _quadratic(target, away, lambda e: c * e, rarely)


def _embedding(generator: Generator, steps: int) -> Posed:
    """``½‖row − target‖²`` of one row at a step, drawn in proportion to 1/rank."""
    rows = 40
    target = _normal(generator, rows, COLS)
    drawn = torch.multinomial(1 / torch.arange(1.0, rows + 1), steps, True, generator=generator)
    module = nn.Embedding(rows, COLS, _weight=target + _signs(generator, rows, COLS))
    w = module.weight

    def gradient(step: int) -> None:
        row = int(drawn[step - 1])
        w.grad = torch.zeros_like(w)
        w.grad[row] = w.detach()[row] - target[row]

    return Posed(module, gradient, lambda: float(0.5 * (w.detach() - target).square().sum()))


def _heavy_tails(generator: Generator, steps: int) -> Posed:
    target, away, c = _plain(generator)

    def cauchy(g: Tensor) -> Tensor:
        return g + 0.05 * _normal(generator, ROWS, COLS) / _normal(generator, ROWS, COLS)

    return _quadratic(target, away, lambda e: c * e, cauchy)


def _scale_drop(generator: Generator, steps: int) -> Posed:
    """Halfway the optimum jumps, and from there gradients are 1e-4 of what they were."""
    target, away, c = _plain(generator)
    later = target + _signs(generator, ROWS, COLS)
    module = Weights(target + away)
    (w,) = module.parameters()

    def gradient(step: int) -> None:
        e = w.detach() - (target if step <= steps // 2 else later)
        w.grad = c * e if step <= steps // 2 else 1e-4 * c * e

    return Posed(module, gradient, lambda: float(0.5 * (c * (w.detach() - later) ** 2).sum()))


def _dead_column(generator: Generator, steps: int) -> Posed:
    """Least squares on batches of 4 samples, one of whose inputs is always 0."""
    deviations = _spectrum(COLS, 10.0).float()  # of the inputs; their squares are the curvatures
    dead = int(torch.randint(COLS, (), generator=generator))
    deviations[dead] = 0.0
    target = _normal(generator, ROWS, COLS)
    module = Weights(torch.zeros(ROWS, COLS))
    (w,) = module.parameters()

    def gradient(step: int) -> None:
        x = deviations * _normal(generator, 4, COLS)
        w.grad = (w.detach() - target) @ (x.T @ x) / 4

    def loss() -> float:
        squares = (w.detach() - target).square() * deviations.square()
        squares[:, dead] = w.detach()[:, dead].square()  # nothing was said about this column
        return float(0.5 * squares.sum())

    return Posed(module, gradient, loss)


def _moving(generator: Generator, steps: int) -> Posed:
    """The optimum goes around a circle once, and stands still for the last fifth."""
    target, away, c = _plain(generator)
    x, y = _signs(generator, ROWS, COLS), _signs(generator, ROWS, COLS)
    module = Weights(target + away)
    (w,) = module.parameters()

    def error(step: int) -> Tensor:
        angle = 2 * math.pi * min(1.0, step / (0.8 * steps))
        return w.detach() - target - (math.cos(angle) - 1) * x - math.sin(angle) * y

    def gradient(step: int) -> None:
        w.grad = c * error(step)

    return Posed(module, gradient, lambda: float(0.5 * (c * error(steps).square()).sum()))


def _parity(generator: Generator, steps: int) -> Posed:
    """A network of 8 hidden units learns the parity of three bits, from all 8 examples."""
    bits = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 3)
    labels = bits.prod(1, keepdim=True)
    module = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(0.5 * _normal(generator, *p.shape))
    return _with_autograd(module, lambda: (module(bits) - labels).square().mean())


def _layer_scales(generator: Generator, steps: int) -> Posed:
    """Two layers, one with gradients a millionth of the other's; each counts for half."""
    targets = [_normal(generator, ROWS, COLS) for _ in range(2)]
    module = Weights(*(x + _signs(generator, ROWS, COLS) for x in targets))
    parts = list(module.parameters())

    def gradient(step: int) -> None:
        for w, target, scale in zip(parts, targets, (1.0, 1e-6), strict=True):
            w.grad = scale * (w.detach() - target)

    def loss() -> float:
        return sum(
            float((w.detach() - target).square().sum())
            for w, target in zip(parts, targets, strict=True)
        )

    return Posed(module, gradient, loss)


PROBLEMS: dict[str, Problem] = {
    problem.name: problem
    for problem in (
        Problem(
            "axis-aligned 1e4",
            "A quadratic of condition 1e4 along the elements of a matrix.",
            _axis_aligned(1e4, ROWS, COLS),
        ),
        Problem(
            "axis-aligned 1e6",
            "A quadratic of condition 1e6 along the elements of a vector.",
            _axis_aligned(1e6, ROWS * COLS),
        ),
        Problem(
            "kronecker 1e4",
            "A quadratic of condition 1e4 along rotated axes of rows and columns.",
            _kronecker(1e4),
        ),
        Problem(
            "kronecker 1e6",
            "A quadratic of condition 1e6 along rotated axes of rows and columns.",
            _kronecker(1e6),
        ),
        Problem(
            "dense 1e2",
            "A quadratic of condition 1e2 along axes that mix all elements of a matrix.",
            _dense(1e2),
        ),
        Problem(
            "dense 1e4",
            "A quadratic of condition 1e4 along axes that mix all elements of a matrix.",
            _dense(1e4),
        ),
        Problem(
            "noisy ravine",
            "The kronecker quadratic of condition 1e3 with noise, the stronger the steeper.",
            _kronecker(1e3, noise=0.03),
            steps=1000,
            goal=0.01,
        ),
        Problem(
            "rosenbrock",
            "A curved valley of two numbers, from its far end.",
            _rosenbrock(torch.tensor([-1.2, 1.0])),
            steps=1000,
        ),
        Problem(
            "rosenbrock chain",
            "The same valley for 20 numbers in a row, laid out as a matrix.",
            _rosenbrock(torch.zeros(4, 5)),
            steps=1000,
        ),
        Problem(
            "saddle",
            "A start on the ridge of a saddle, but for 1e-6, with a curvature of 0.05 across it.",
            _saddle,
        ),
        Problem(
            "deep linear",
            "A product of five matrices, all of them small: gradients are 1e-4 at first.",
            _deep_linear,
        ),
        Problem(
            "factorisation",
            "A product of two thin matrices, from nearly 0, where the gradient is 0.",
            _factorisation,
        ),
        Problem(
            "noisy plateau",
            "A plateau whose slope is a third of the noise in the gradient.",
            _plateau,
            steps=1000,
            goal=0.01,
        ),
        Problem(
            "rare gradients",
            "Gradients that are 0 but for one step in a hundred.",
            _rare,
            steps=2000,
            goal=0.01,
        ),
        Problem(
            "embedding",
            "An embedding that gets a gradient for one row at a time, rare rows among them.",
            _embedding,
            steps=2000,
            goal=0.01,
        ),
        Problem(
            "heavy tails",
            "Noise of a Cauchy distribution, which has no variance.",
            _heavy_tails,
            steps=1000,
            goal=0.01,
        ),
        Problem(
            "scale drop",
            "Gradients that fall to 1e-4 of their scale halfway, as the optimum jumps.",
            _scale_drop,
            steps=1000,
        ),
        Problem(
            "dead column",
            "Small batches with an input that is always 0, whose weights must stay.",
            _dead_column,
        ),
        Problem(
            "moving optimum",
            "An optimum that circles for four fifths of the run.",
            _moving,
            steps=1000,
        ),
        Problem(
            "parity",
            "A network for the parity of three bits, which no smaller part of them hints at.",
            _parity,
        ),
        Problem(
            "layer scales",
            "Two layers with gradients of 1 and 1e-6, of which both must be learned.",
            _layer_scales,
        ),
    )
}
