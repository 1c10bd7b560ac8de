"""The same steps in torch, optax and Keras: cases, their gradients, and a program for each.

Run as a program with the name of a framework, it reads cases as JSON and prints what the weights
are after some steps. Keras reads its backend when it is imported, and JAX whether it has float64,
so each needs a process of its own.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import product
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

import badm
from badm.metrics import Metric
from badm.metrics.kronecker import Kronecker

METRICS = ("euclidean", "diagonal", "spectral", "kronecker", "kronecker-spectral")
SHAPES = ((6, 4), (12, 3, 2, 2), (4,))  # torch's: a layer, a convolution, a bias
WIDE = (3, 4, 3, 3)  # a convolution, as a matrix 3 × 36
STEPS = 100
SHOWN = (1, 2, 10, 50, 100)
LR = 3e-3

Weights = list[np.ndarray]


@dataclass(frozen=True)
class Case:
    metric: str
    dtype: str
    weight_decay: float
    scheduled: bool
    wide: bool = False  # also where rounding decides

    @property
    def name(self) -> str:
        schedule = "schedule" if self.scheduled else "constant"
        wide = ", wide" if self.wide else ""
        return f"{self.metric}, {self.dtype}, decay {self.weight_decay:g}, {schedule}{wide}"

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The parameters; no wide ones where rounding would decide on the steps.

        Few gradients leave directions of a long side unseen, and eigenvectors of nothing are
        rounding noise. In float32, torch's own loop and foreach can differ by 3e-4 then.
        """
        noise = self.metric.startswith("kronecker") and self.dtype != "float64"
        return SHAPES if noise and not self.wide else (*SHAPES, WIDE)

    @property
    def pull(self) -> float:
        """How much of the weight is in its gradient.

        In half precision none: the rounding of the gradient would be that of the framework.
        """
        return 0.3 if self.dtype in ("float32", "float64") else 0.0

    def lr(self, step: int) -> float:
        return _rate(step, min) if self.scheduled else LR


ALL = tuple(
    Case(*one)
    for one in product(
        METRICS, ("float64", "float32", "bfloat16", "float16"), (0.0, 0.1), (False, True)
    )
)
# A cross-section, for compilers take seconds for each.
QUICK = (
    *(Case(metric, "float64", 0.1, True) for metric in METRICS),
    Case("spectral", "float32", 0.0, False),
    Case("diagonal", "bfloat16", 0.1, False),
)
NOISY = tuple(Case(metric, "float32", 0.0, False, wide=True) for metric in METRICS[3:])


def _rate(step: Any, minimum: Callable[[Any, Any], Any]) -> Any:
    """Warm up for five steps, then fall to 0."""
    return LR * minimum((step + 1) / 5, (STEPS - step) / (STEPS - 5))


@cache
def stream(shapes: tuple[tuple[int, ...], ...]) -> tuple[Weights, list[Weights]]:
    """Draw first weights and gradients, whose rows and columns have scales of their own."""
    random = np.random.default_rng(0)

    def gradient(shape: tuple[int, ...]) -> np.ndarray:
        g = random.normal(size=(shape[0], math.prod(shape[1:])))
        rows, cols = (
            step ** np.arange(side) for step, side in zip((0.9, 0.97), g.shape, strict=True)
        )
        return (g * rows[:, None] * cols).reshape(shape)

    first = [random.normal(size=shape) for shape in shapes]
    return first, [[gradient(shape) for shape in shapes] for _ in range(STEPS)]


def outputs_last(x: Any) -> Any:
    """Permute torch's axes to those of Flax and Keras."""
    return x.transpose(*range(2, x.ndim), 1, 0) if x.ndim > 1 else x


def outputs_first(x: Any) -> Any:
    return x.transpose(x.ndim - 1, x.ndim - 2, *range(x.ndim - 2)) if x.ndim > 1 else x


def in_torch(case: Case, foreach: bool | None = None) -> list[Weights]:
    """Return the weights after each shown step with torch's BADM.

    Its bases are due by the place of a parameter, as in groups of ``parameter_groups`` and in the
    adapters; in a flat list of torch's they are due by the weights.
    """
    first, gradients = stream(case.shapes)
    dtype = getattr(torch, case.dtype)
    params = [torch.nn.Parameter(torch.tensor(w).to(dtype)) for w in first]
    optimizer = badm.BADM(
        params, lr=LR, metric=case.metric, weight_decay=case.weight_decay, foreach=foreach
    )
    shown = []
    for step, gradient in enumerate(gradients):
        optimizer.param_groups[0]["lr"] = case.lr(step)
        for p, g in zip(params, gradient, strict=True):
            p.grad = torch.tensor(g).to(dtype) + case.pull * p.detach()
        with patch.object(Kronecker, "place_of", Metric.place_of):
            optimizer.step()
        if step + 1 in SHOWN:
            shown.append([p.detach().double().clone().numpy() for p in params])
    return shown


def in_optax(case: Case) -> list[Weights]:
    import jax
    import jax.numpy as jnp
    import optax

    from badm.adapters.optax import badm as badm_of_optax

    first, gradients = stream(case.shapes)
    rate: Any = LR
    if case.scheduled:
        # A count divided is a float32, whatever the weights are.
        rate = lambda count: _rate(jnp.asarray(count, jnp.float64), jnp.minimum)  # noqa: E731
    optimizer = badm_of_optax(rate, metric=case.metric, weight_decay=case.weight_decay, labels=None)
    params = [jnp.asarray(outputs_last(w)).astype(case.dtype) for w in first]
    state = optimizer.init(params)

    @jax.jit
    def step(params: Any, state: Any, gradient: Any) -> Any:
        pulled = [g + case.pull * w for g, w in zip(gradient, params, strict=True)]
        updates, state = optimizer.update(pulled, state, params)
        return optax.apply_updates(params, updates), state

    shown = []
    for index, gradient in enumerate(gradients):
        cast = [jnp.asarray(outputs_last(g)).astype(case.dtype) for g in gradient]
        params, state = step(params, state, cast)
        if index + 1 in SHOWN:
            shown.append([outputs_first(np.asarray(w, np.float64)) for w in params])
    return shown


def in_keras(case: Case) -> list[Weights]:
    import keras
    from keras import ops

    from badm.adapters.keras import BADM

    half = case.dtype in ("bfloat16", "float16")
    keras.config.set_floatx("float32" if half else case.dtype)
    first, gradients = stream(case.shapes)
    rate: Any = _keras_schedule(keras) if case.scheduled else LR
    optimizer = BADM(rate, metric=case.metric, weight_decay=case.weight_decay, labels=None)
    params = [
        keras.Variable(outputs_last(w), dtype=case.dtype, name=f"w{i}") for i, w in enumerate(first)
    ]
    optimizer.build(params)
    step = _keras_step(keras, optimizer, params)
    shown = []
    for index, gradient in enumerate(gradients):
        cast = [ops.cast(np.ascontiguousarray(outputs_last(g)), case.dtype) for g in gradient]
        step([g + case.pull * ops.convert_to_tensor(w) for g, w in zip(cast, params, strict=True)])
        if index + 1 in SHOWN:
            wide = [ops.convert_to_numpy(ops.cast(w, "float64")) for w in params]
            shown.append([outputs_first(w.copy()) for w in wide])
    return shown


def _keras_schedule(keras: Any) -> Any:
    class Schedule(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
        def __call__(self, step: Any) -> Any:
            t = keras.ops.cast(step, keras.config.floatx())
            # Its minimum is a float32.
            return _rate(t, lambda a, b: keras.ops.where(a < b, a, b))

        def get_config(self) -> dict[str, Any]:
            return {}

    return Schedule()


def _keras_step(keras: Any, optimizer: Any, params: list[Any]) -> Callable[[Any], None]:
    """Return a function that applies gradients; on JAX a compiled one."""
    if keras.backend.backend() == "torch":

        def apply(gradients: Any) -> None:
            with torch.no_grad():
                optimizer.apply(gradients, params)

        return apply
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.function(lambda gradients: optimizer.apply(gradients, params))  # type: ignore[no-any-return]
    import jax

    stateless = jax.jit(optimizer.stateless_apply)

    def apply_in_jax(gradients: Any) -> None:
        values = [v.value for v in optimizer.variables]
        weights, values = stateless(values, gradients, [w.value for w in params])
        for variable, value in (
            *zip(params, weights, strict=True),
            *zip(optimizer.variables, values, strict=True),
        ):
            variable.assign(value)

    return apply_in_jax


def deviation(found: list[Weights], expected: list[Weights]) -> float:
    """Return the largest difference of a weight, relative to the largest weight of its tensor."""
    return max(
        float(np.abs(a - b).max() / np.abs(b).max())
        for one, other in zip(found, expected, strict=True)
        for a, b in zip(one, other, strict=True)
    )


PROGRAMS: dict[str, Callable[[Case], list[Weights]]] = {
    "optax": in_optax,
    "keras-torch": in_keras,
    "keras-jax": in_keras,
    "keras-tensorflow": in_keras,
}


PACKAGES = {
    "optax": ("jax", "optax"),
    "keras-torch": ("keras",),
    "keras-jax": ("jax", "keras"),
    "keras-tensorflow": ("keras", "tensorflow"),
}


def run(program: str, cases: Sequence[Case], home: str) -> dict[str, list[Weights]]:
    """Run cases in a process of their own; return the weights by the name of the case."""
    environment = {
        **os.environ,
        "KERAS_BACKEND": program.partition("-")[2] or "torch",
        "KERAS_HOME": home,
        "JAX_ENABLE_X64": "1",
        "JAX_PLATFORMS": "cpu",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.helpers.trajectories", program],
        input=json.dumps([asdict(case) for case in cases]),
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    return {
        name: [[np.array(w) for w in weights] for weights in shown] for name, shown in found.items()
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    steps_of = PROGRAMS[sys.argv[1]]
    found = {}
    for case in [Case(**fields) for fields in json.load(sys.stdin)]:
        found[case.name] = [[w.tolist() for w in weights] for weights in steps_of(case)]
    print(json.dumps(found))
