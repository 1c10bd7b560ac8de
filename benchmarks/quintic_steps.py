"""Solve for the coefficients in badm/metrics/orthogonal.py, and compare with Newton–Schulz.

Each step is the odd quintic ``a·s + b·s³ + c·s⁵`` that deviates least from 1 on the interval where
the step before has left the singular values, found by the exchange algorithm of Remez, and scaled
so that the interval it leaves is centred on 1.

    python benchmarks/quintic_steps.py            # 4 steps from [0.002, 1]
    python benchmarks/quintic_steps.py --low 0.001 --steps 5
"""

from __future__ import annotations

import argparse

import numpy as np

Quintic = tuple[float, float, float]

NEWTON_SCHULZ: list[Quintic] = [(3.4445, -4.7750, 2.0315)] * 5


def closest_to_one(low: float, high: float) -> Quintic:
    """Find the odd quintic whose largest error alternates in sign at four points."""
    inner = np.array([(3 * low + high) / 4, (low + 3 * high) / 4])
    error = np.inf
    for _ in range(100):
        points = np.array([low, *inner, high])
        system = np.stack([points, points**3, points**5, [1, -1, 1, -1]], axis=1)
        a, b, c, new_error = np.linalg.solve(system, np.ones(4))
        if abs(new_error - error) < 1e-14:
            break
        error = new_error
        # Where the derivative a + 3b·s² + 5c·s⁴ vanishes, the error is largest.
        root = np.sqrt(9 * b**2 - 20 * a * c)
        inner = np.sqrt((-3 * b + np.array([-root, root])) / (10 * c))
    return float(a), float(b), float(c)


def apply(steps: list[Quintic], s: np.ndarray) -> np.ndarray:
    for a, b, c in steps:
        s = a * s + b * s**3 + c * s**5
    return s


def solve(low: float, count: int) -> list[Quintic]:
    high, steps = 1.0, []
    for _ in range(count):
        quintic = closest_to_one(low, high)
        image = apply([quintic], np.linspace(low, high, 20_001))
        scale = float(2 / (image.min() + image.max()))
        a, b, c = quintic
        steps.append((scale * a, scale * b, scale * c))
        low, high = scale * image.min(), scale * image.max()
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--low", type=float, default=0.002, help="smallest singular value (default: 0.002)"
    )
    parser.add_argument(
        "--steps", type=int, default=4, help="number of quintic steps (default: %(default)s)"
    )
    arguments = parser.parse_args()
    steps = solve(arguments.low, arguments.steps)
    for quintic in steps:
        print(quintic)
    for name, chosen in (("these", steps), ("Newton–Schulz", NEWTON_SCHULZ)):
        for low in (0.0005, 0.001, 0.0015, 0.002, 0.005, 0.01):
            image = apply(chosen, np.geomspace(low, 1, 200_001))
            print(f"{name}: [{low:g}, 1] goes to [{image.min():.3f}, {image.max():.3f}]")


if __name__ == "__main__":
    main()
