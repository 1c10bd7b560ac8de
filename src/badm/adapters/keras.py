"""BADM as an optimizer of Keras 3, on its torch, JAX and TensorFlow backends.

It takes the same steps as :class:`badm.BADM`, in all its metrics, and is used like every optimizer
of Keras: ``model.compile(optimizer=BADM())``. Needs ``pip install "badm[keras]"``, and this module
imported before a saved model with it is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from badm.adapters.arrays import Array, Arrays, state_dtype
from badm.adapters.axes import Axes, Shape, output_last
from badm.adapters.directions import (
    Memories,
    Reading,
    check_metric,
    direction,
    entries,
    metric_for,
)
from badm.adapters.extras import extra
from badm.adapters.naming import DECAYED, KINDS, Output, kinds, matches, metric_of
from badm.groups.roles import Kind

with extra("keras", "keras"):
    import keras
    from keras import ops

__all__ = ["BADM"]

Layouts = Mapping[str, Sequence[Sequence[int]]]
Labels = str | Mapping[str, Kind] | None

_KERAS = Arrays(ops, ops.cast, ops.cond)


@keras.saving.register_keras_serializable(package="badm")
class BADM(keras.optimizers.Optimizer):  # type: ignore[misc]
    """Train a Keras model with batch ADMM; replaces Adam in ``model.compile``.

    By default it chooses metric and weight decay for each variable as
    :func:`badm.parameter_groups` does, by its path: matrices get ``metric``, embeddings and vectors
    the diagonal one, vectors no weight decay. What ``exclude_from_weight_decay`` names has none
    either. :meth:`for_model` looks at the layers too.

    Args:
        learning_rate: ``1/σ``, at least 0; a number or a schedule of Keras.
        beta: Memory of the dual, in [0, 1).
        metric: ``"spectral"``, ``"kronecker-spectral"``, ``"kronecker"``, ``"diagonal"`` or
            ``"euclidean"``.
        beta2: Memory of the second moment, in [0, 1). Default: the metric's own.
        eps: Added to the root of the second moment, at least 0.
        weight_decay: Decoupled weight decay, at least 0; ``None`` for none.
        labels: ``"names"``: what a variable is (matrix, embedding, output layer, table or vector)
            follows from its path. A dictionary from patterns of paths to these words changes it for
            some. ``None``: use ``metric`` for whatever has the shape of a matrix, and decay all.
        output: Patterns of the paths of output layers, ``()`` for none; only the kronecker metrics
            treat them apart. Default: layers named like one, or the last.
        layouts: By patterns of paths: the axes of a variable that are the rows of its matrix, and
            those that are its columns. Default: outputs last, as in Dense and Conv.
        name: Name of the optimizer.
        **options: What every optimizer of Keras takes, such as ``gradient_accumulation_steps``,
            ``clipnorm``, ``use_ema`` and ``loss_scale_factor``.

    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> model.compile(optimizer=BADM(0.01, weight_decay=0.1), loss="mse")
    >>> history = model.fit(ops.ones((8, 3)), ops.zeros((8, 1)), epochs=20, verbose=0)
    >>> history.history["loss"][-1] < history.history["loss"][0]
    True
    """

    def __init__(
        self,
        learning_rate: Any = 1e-2,
        beta: float = 0.9,
        *,
        metric: str = "spectral",
        beta2: float | None = None,
        eps: float = 1e-8,
        weight_decay: float | None = None,
        labels: Labels = "names",
        output: Output = None,
        layouts: Layouts | None = None,
        name: str = "badm",
        **options: Any,
    ) -> None:
        _check(learning_rate, beta, metric, beta2, eps, weight_decay, labels)
        if isinstance(learning_rate, int):
            learning_rate = float(learning_rate)
        super().__init__(
            learning_rate=learning_rate, weight_decay=weight_decay, name=name, **options
        )
        self.beta, self.metric, self.beta2, self.eps = beta, metric, beta2, eps
        self.labels, self.output, self.layouts = labels, output, layouts

    @classmethod
    def for_model(cls, model: Any, learning_rate: Any = 1e-2, **options: Any) -> BADM:
        """Create BADM with what the layers of a built model tell beyond the paths of variables.

        That is which variables are those of embeddings and normalisations, whatever their names,
        and which axes of the kernels of ``EinsumDense`` and depthwise convolutions are outputs.

        Args:
            model: The model; its variables must exist.
            learning_rate: As in :class:`BADM`.
            **options: Other arguments of :class:`BADM`; they come before what is found.

        >>> model = keras.Sequential([keras.Input((8, 8, 2)), keras.layers.DepthwiseConv2D(3)])
        >>> list(BADM.for_model(model).layouts.values())
        [[[2, 3], [0, 1]]]
        """
        if not model.trainable_variables:
            raise ValueError(f"model must be built and have trainable variables, got {model.name}")
        labels: dict[str, Kind] = {}
        layouts: dict[str, list[list[int]]] = {}
        for layer in model._flatten_layers():
            labels.update(_labels_of(layer))
            layouts.update(_layouts_of(layer))
        if options.get("labels", "names") == "names":
            options["labels"] = labels or "names"
        elif options["labels"] is not None:
            options["labels"] = {**labels, **options["labels"]}
        options["layouts"] = {**(options.get("layouts") or {}), **layouts}
        return cls(learning_rate, **options)

    def build(self, variables: Sequence[Any]) -> None:
        """Create the state of every variable."""
        if self.built:
            return
        super().build(variables)
        paths = list(_unique([getattr(v, "path", v.name) for v in variables]))
        shapes = {path: tuple(v.shape) for path, v in zip(paths, variables, strict=True)}
        found = self._kinds(shapes)
        self._readings = self._read(shapes, found, [v.dtype for v in variables])
        undecayed = [
            v for p, v in zip(paths, variables, strict=True) if found and found[p] not in DECAYED
        ]
        self._undecayed = {id(v) for v in undecayed}
        self._states = [
            self._new_state(v, reading)
            for v, reading in zip(variables, self._readings, strict=True)
        ]

    def update_step(self, gradient: Array, variable: Any, learning_rate: Array) -> None:
        """Step on one variable."""
        index = self._get_variable_index(variable)
        reading, state = self._readings[index], self._states[index]
        values = {key: ops.convert_to_tensor(v) for key, v in state.items()}
        step = values.pop("step") + 1
        memories = Memories(self.beta, self.beta2, self.eps)
        x, new = direction(_KERAS, reading, gradient, values, step, memories)
        for key, value in (*new.items(), ("step", step)):
            self.assign(state[key], value)
        self._descend(variable, learning_rate, x, reading.dtype)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments, for :meth:`from_config`."""
        names = ("beta", "metric", "beta2", "eps", "labels", "output", "layouts")
        return {**super().get_config(), **{name: _plain(getattr(self, name)) for name in names}}

    def _descend(self, variable: Any, learning_rate: Array, x: Array, dtype: str) -> None:
        """Compute ``w − lr·x`` in the precision of the state."""
        w = ops.cast(ops.convert_to_tensor(variable), dtype)
        w = w - ops.cast(learning_rate, dtype) * x
        self.assign(variable, ops.cast(w, variable.dtype))

    # Keras's own multiplies by a factor that is rounded to the dtype of the variable, and on torch
    # fails where no variable decays.
    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        if not self.weight_decay:
            return
        for variable in variables:
            if self._use_weight_decay(variable):
                dtype = self._readings[self._get_variable_index(variable)].dtype
                w = ops.cast(ops.convert_to_tensor(variable), dtype)
                self._descend(variable, self.learning_rate, self.weight_decay * w, dtype)

    def _use_weight_decay(self, variable: Any) -> bool:
        return id(variable) not in self._undecayed and bool(super()._use_weight_decay(variable))

    def _kinds(self, shapes: Mapping[str, Shape]) -> dict[str, Kind]:
        """Return what every variable is; nothing if that does not count."""
        if self.labels is None:
            return {}
        found = kinds(shapes, self.output, ordered=True)
        if not isinstance(self.labels, str):
            for pattern, kind in self.labels.items():
                found.update(dict.fromkeys(_matched("labels", pattern, shapes), kind))
        return found

    def _read(
        self, shapes: Mapping[str, Shape], found: Mapping[str, Kind], dtypes: Sequence[str]
    ) -> list[Reading]:
        for pattern in self.layouts or {}:
            _matched("layouts", pattern, shapes)
        places: dict[str, int] = {}
        readings = []
        for (path, shape), dtype in zip(shapes.items(), dtypes, strict=True):
            if dtype.startswith("complex") or dtype.startswith("int"):
                raise TypeError(f"variables must have a floating dtype, got {dtype} at {path!r}")
            asked = metric_of(self.metric, found[path]) if found else self.metric
            places[asked] = places.get(asked, -1) + 1
            axes = self._axes(path, shape) if len(shape) >= 2 else None
            used = metric_for(asked, shape, axes)
            no_axes = Axes((), ())
            readings.append(
                Reading(used, shape, axes or no_axes, places[asked], state_dtype(dtype))
            )
        return readings

    def _axes(self, path: str, shape: Shape) -> Axes:
        for pattern, (rows, cols) in (self.layouts or {}).items():
            if matches(path, pattern):
                if sorted((*rows, *cols)) != list(range(len(shape))):
                    raise ValueError(
                        f"layouts must name each axis of {path!r} once, of shape {shape}; got rows "
                        f"{list(rows)} and columns {list(cols)}"
                    )
                return Axes(tuple(rows), tuple(cols))
        if path.endswith("depthwise_kernel"):  # of a SeparableConv
            return _depthwise(len(shape))
        return output_last(path, shape)

    def _new_state(self, variable: Any, reading: Reading) -> dict[str, Any]:
        def add(key: str, shape: Shape, first: Any, dtype: str) -> Any:
            alike = shape == tuple(variable.shape)
            return self.add_variable(
                shape=shape,
                initializer=first,
                dtype=dtype,
                layout=getattr(variable, "_layout", None) if alike else None,
                name=f"{variable.path.replace('/', '_')}_{key}",
            )

        state = {
            key: add(key, shape, _identity if first == "identity" else first, reading.dtype)
            for key, (shape, first) in entries(reading).items()
        }
        return {**state, "step": add("step", (), "zeros", "int32")}


def _matched(argument: str, pattern: str, paths: Iterable[str]) -> list[str]:
    """Return the paths that a pattern matches; ``ValueError`` if there are none."""
    found = [path for path in paths if matches(path, pattern)]
    if not found:
        raise ValueError(
            f"{argument} has the pattern {pattern!r}, which matches none of the variables "
            f"{', '.join(paths)}"
        )
    return found


def _identity(shape: Shape, dtype: Any = None) -> Array:
    return ops.broadcast_to(ops.eye(shape[-1], dtype=dtype), shape)


def _labels_of(layer: Any) -> Iterator[tuple[str, Kind]]:
    """Yield path and kind of what a layer owns, where its class says more than the path."""
    layers = keras.layers
    norms = ("BatchNormalization", "GroupNormalization", "LayerNormalization", "RMSNormalization")
    kinds_of: dict[Kind, tuple[Any, ...]] = {
        "embedding": (layers.Embedding,),
        "vector": tuple(getattr(layers, name) for name in norms if hasattr(layers, name)),
    }
    for kind, classes in kinds_of.items():
        if isinstance(layer, classes):
            for variable in layer._trainable_variables:
                if len(variable.shape) >= 2 and variable.path.rpartition("/")[2] != "embeddings":
                    yield variable.path, kind


def _layouts_of(layer: Any) -> Iterator[tuple[str, list[list[int]]]]:
    """Yield path and axes of a kernel whose outputs are not in the last axis alone."""
    layers = keras.layers
    if isinstance(layer, (layers.DepthwiseConv1D, layers.DepthwiseConv2D)):
        yield layer.kernel.path, [list(axes) for axes in _depthwise(len(layer.kernel.shape))]
    if isinstance(layer, layers.EinsumDense):
        _, kernel, outputs = layer.equation.replace("->", ",").replace(" ", "").split(",")
        # A letter that the outputs lack is summed over: an input.
        rows = [i for i, letter in enumerate(kernel) if letter in outputs]
        if rows != [len(kernel) - 1]:
            yield layer.kernel.path, [rows, [i for i in range(len(kernel)) if i not in rows]]


def _depthwise(axes: int) -> Axes:
    """Return the axes of a kernel ``(..., in, multiplier)``; torch's is ``(out, 1, ...)``."""
    return Axes((axes - 2, axes - 1), tuple(range(axes - 2)))


def _unique(paths: Sequence[str]) -> Iterator[str]:
    """Yield paths with a number where one comes again, as those of bare variables do."""
    seen: dict[str, int] = {}
    for path in paths:
        seen[path] = seen.get(path, 0) + 1
        yield path if seen[path] == 1 else f"{path}#{seen[path]}"


def _plain(value: Any) -> Any:
    """Return an argument as JSON has it: Keras keeps what it wraps in classes of its own."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _check(
    learning_rate: Any,
    beta: float,
    metric: str,
    beta2: float | None,
    eps: float,
    weight_decay: float | None,
    labels: Labels,
) -> None:
    """Raise ``ValueError`` that names the argument, what it takes and what was given."""
    check_metric(metric)
    numbers = {"learning_rate": learning_rate, "eps": eps, "weight_decay": weight_decay}
    for name, value in numbers.items():
        if isinstance(value, (int, float)) and not 0 <= value < math.inf:
            raise ValueError(f"{name} must be a finite number of at least 0, got {value}")
    for name, memory in (("beta", beta), ("beta2", beta2)):
        if memory is not None and not 0 <= memory < 1:
            raise ValueError(f"{name} must be in [0, 1), got {memory}")
    if isinstance(labels, str) and labels != "names":
        raise ValueError(f'labels must be "names", None or a dictionary, got {labels!r}')
    for label in labels.values() if isinstance(labels, Mapping) else ():
        if label not in KINDS:
            raise ValueError(f"a label must be one of {', '.join(KINDS)}, got {label!r}")
