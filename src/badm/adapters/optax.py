"""BADM as a gradient transformation of optax, for JAX: Flax, Equinox, Haiku or plain trees.

It takes the same steps as :class:`badm.BADM`, in all its metrics, and composes as every part of
optax does: ``jax.jit``, ``jax.vmap``, sharded arrays, ``optax.inject_hyperparams``,
``optax.multi_transform``, ``optax.masked``. Needs ``pip install "badm[jax]"``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from badm.adapters.arrays import Array, Arrays, state_dtype
from badm.adapters.axes import Axes, Shape, output_first, output_last
from badm.adapters.directions import (
    Memories,
    Reading,
    check_metric,
    direction,
    entries,
    metric_for,
)
from badm.adapters.eigenbases import State
from badm.adapters.extras import extra
from badm.adapters.naming import DECAYED, KINDS, Output, kinds, metric_of

with extra("jax", "jax", "optax"):
    import jax
    import jax.numpy as jnp
    import optax

__all__ = ["BADMState", "badm", "parameter_labels"]

Schedule = Callable[[Array], Array]
Layout = str | Callable[[str, Shape], tuple[tuple[int, ...], tuple[int, ...]]]


def _whole(x: Array) -> Array:
    """Gather an array that is sharded over explicit axes of a mesh; others the compiler gathers."""
    sharding = jax.typeof(x).sharding
    if not any(sharding.spec):
        return x
    nowhere = jax.sharding.PartitionSpec(*[None] * x.ndim)
    return jax.sharding.reshard(x, jax.sharding.NamedSharding(sharding.mesh, nowhere))


def _sharded_like(x: Array, like: Array) -> Array:
    sharding = jax.typeof(like).sharding
    return jax.sharding.reshard(x, sharding) if any(sharding.spec) else x


_JAX = Arrays(jnp, lambda x, dtype: jnp.asarray(x).astype(dtype), jax.lax.cond, _whole)
_LAYOUTS = {"output last": output_last, "output first": output_first}


class BADMState(NamedTuple):
    """What :func:`badm` keeps between steps; a tree like the parameters in each field.

    A parameter whose metric does not use a field has an ``optax.MaskedNode`` there.

    Attributes:
        count: The steps taken.
        dual: ``m``, the mean of the gradients so far; of kronecker parameters in their bases.
        second_moment: ``v`` of the diagonal and kronecker metrics.
        peak: The largest entry of recent directions, of the spectral metric.
        bases: Covariances and eigenbases by key, of the kronecker metrics.

    >>> state = badm(0.1).init({"kernel": jnp.ones((3, 2))})
    >>> state[0].dual["kernel"].shape, state[0].second_moment["kernel"]
    ((3, 2), MaskedNode())
    """

    count: Array
    dual: Any
    second_moment: Any
    peak: Any
    bases: Any


def badm(
    learning_rate: float | Array | Schedule = 1e-2,
    beta: float | Array = 0.9,
    *,
    metric: str = "spectral",
    beta2: float | Array | None = None,
    eps: float | Array = 1e-8,
    weight_decay: float | Array = 0.0,
    mask: Any = None,
    labels: Any = "names",
    output: Output = None,
    layout: Layout = "output last",
) -> optax.GradientTransformationExtraArgs:
    """Make a gradient transformation that trains with batch ADMM, as :class:`badm.BADM` does.

    By default it chooses metric and weight decay for each parameter as
    :func:`badm.parameter_groups` does, by the names in the tree: matrices get ``metric``,
    embeddings and vectors the diagonal one, vectors no weight decay. Complex parameters are pairs
    of reals; as everywhere in optax, their gradients must be conjugated first.

    Args:
        learning_rate: ``1/σ``, at least 0; a number or a schedule of optax.
        beta: Memory of the dual, in [0, 1).
        metric: ``"spectral"``, ``"kronecker-spectral"``, ``"kronecker"``, ``"diagonal"`` or
            ``"euclidean"``.
        beta2: Memory of the second moment, in [0, 1). Default: the metric's own.
        eps: Added to the root of the second moment, at least 0.
        weight_decay: Decoupled weight decay, at least 0.
        mask: Which parameters decay, as in ``optax.adamw``: a tree of bools or a function that
            makes one. Default: as ``labels`` says, or all.
        labels: ``"names"``: see :func:`parameter_labels`; a tree such as it returns; or ``None`` to
            use ``metric`` for whatever has the shape of a matrix, with weight decay for all.
        output: Patterns of the paths of output layers; see :func:`parameter_labels`.
        layout: Which axes of a parameter are the rows of its matrix: ``"output last"`` as in Flax
            and Haiku, ``"output first"`` as in torch and Equinox, or a function of path and shape
            that returns the axes of the rows and those of the columns.

    >>> params = {"Dense_0": {"kernel": jnp.ones((3, 2)), "bias": jnp.ones(2)}}
    >>> optimizer = badm(0.1, weight_decay=0.01)
    >>> state = optimizer.init(params)
    >>> updates, state = optimizer.update(params, state, params)
    >>> params = optax.apply_updates(params, updates)
    """
    _check(learning_rate, beta, metric, beta2, eps, weight_decay)
    reader = _Reader(metric, labels, output, _axes_function(layout))
    return optax.chain(
        _scale_by_badm(reader, Memories(beta, beta2, eps)),
        _descend(learning_rate, weight_decay, reader.decays if mask is None else mask),
    )


def parameter_labels(params: Any, output: Output = None) -> Any:
    """Label each parameter with what it is: the rules of :func:`badm.parameter_groups`, by names.

    Labels are ``"matrix"``, ``"embedding"``, ``"output layer"``, ``"table"`` (of positions or
    tokens) and ``"vector"``. They can be given to :func:`badm`, changed or not, and to
    ``optax.multi_transform``. Only the kronecker metrics treat the output layer apart.

    Args:
        params: A tree of parameters, or of their shapes, with names such as Flax gives them.
        output: Patterns of the paths of output layers, such as ``"decoder/out*"``; ``()`` for a
            model without one. Default: layers named like one (``head``, ``classifier``, ``out``,
            ...), or the last where all are numbered; there may be none.

    >>> layer = {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}
    >>> parameter_labels({"Dense_0": layer, "Dense_1": layer})["Dense_1"]
    {'bias': 'vector', 'kernel': 'output layer'}
    """
    paths, leaves, tree = _with_paths(params)
    found = kinds(dict(zip(paths, map(jnp.shape, leaves), strict=True)), output, ordered=False)
    return tree.unflatten([found[path] for path in paths])


@dataclass(frozen=True)
class _Reader:
    """Which metric each parameter of a tree gets, and how it is read."""

    metric: str
    labels: Any
    output: Output
    axes: Callable[[str, Shape], Axes]

    def readings(self, params: Any) -> list[Reading]:
        """Return how each parameter is read, in the order of the leaves."""
        paths, leaves, _ = _with_paths(params)
        asked = list(self._asked(params))
        places: dict[str, int] = {}
        found = []
        for path, leaf, metric in zip(paths, leaves, asked, strict=True):
            places[metric] = places.get(metric, -1) + 1
            found.append(self._reading(path, leaf, metric, places[metric]))
        return found

    def decays(self, params: Any) -> Any:
        """Return a tree that is true where weight decay applies."""
        if self.labels is None:
            return jax.tree.map(lambda leaf: True, params)
        return jax.tree.map(lambda label: label in DECAYED, self._labelled(params))

    def _asked(self, params: Any) -> Iterator[str]:
        count = len(jax.tree.leaves(params))
        if self.labels is None:
            yield from (self.metric for _ in range(count))
            return
        labels = jax.tree.leaves(self._labelled(params))
        if len(labels) != count:
            raise ValueError(f"labels must be one for each parameter, got {len(labels)} of {count}")
        for label in labels:
            if label not in KINDS:
                raise ValueError(f"a label must be one of {', '.join(KINDS)}, got {label!r}")
            yield metric_of(self.metric, label)

    def _labelled(self, params: Any) -> Any:
        if callable(self.labels):
            return self.labels(params)
        if not isinstance(self.labels, str):
            return self.labels
        labels = parameter_labels(params, self.output)
        found = set(jax.tree.leaves(labels))
        if self.output is None and "matrix" in found and "output layer" not in found:
            self._refuse_to_guess(params)
        return labels

    def _refuse_to_guess(self, params: Any) -> None:
        """Raise where the metric treats the output layer apart and no name tells which it is."""
        if metric_of(self.metric, "output layer") == self.metric:
            return
        shown = [path for path in _with_paths(params)[0] if path.endswith("kernel")][-3:]
        raise ValueError(
            f"metric={self.metric!r} treats the output layer apart, and no name in the tree says "
            f"which it is: give output, a pattern such as {(shown or ['decoder/*'])[-1]!r}, or () "
            "for none"
        )

    def _reading(self, path: str, leaf: Any, metric: str, index: int) -> Reading:
        dtype, shape = jnp.result_type(leaf), jnp.shape(leaf)
        if not jnp.issubdtype(dtype, jnp.inexact):
            raise TypeError(f"parameters must have a floating dtype, got {dtype} at {path!r}")
        if jnp.issubdtype(dtype, jnp.complexfloating):
            # Pairs of reals, which are no matrices even if they look like one.
            real = jnp.finfo(dtype).dtype.name
            return Reading(metric_for(metric, (2,), None), (*shape, 2), Axes((), ()), index, real)
        axes = self.axes(path, shape) if len(shape) >= 2 else None
        used = metric_for(metric, shape, axes)
        return Reading(used, shape, axes or Axes((), ()), index, state_dtype(dtype.name))


def _scale_by_badm(reader: _Reader, memories: Memories) -> optax.GradientTransformation:
    """Turn gradients into directions ``Q⁻¹(2m⁺ − m)``."""

    def init(params: Any) -> BADMState:
        leaves, tree = jax.tree.flatten(params)
        readings = reader.readings(params)
        states = [_new_state(*one) for one in zip(leaves, readings, strict=True)]
        return _as_state(jnp.zeros((), jnp.int32), states, tree)

    def update(updates: Any, state: BADMState, params: Any = None) -> tuple[Any, BADMState]:
        gradients, tree = jax.tree.flatten(updates)
        readings = reader.readings(updates if params is None else params)
        step = optax.safe_increment(state.count)
        directions, states = [], []
        # On an accelerator products would have a few digits only, too few for bases.
        with jax.default_matmul_precision("float32"):
            for one in zip(readings, gradients, _of_each(state, tree), strict=True):
                x, new = _step(*one, step, memories)
                directions.append(x)
                states.append(new)
        return tree.unflatten(directions), _as_state(step, states, tree)

    return optax.GradientTransformation(init, update)


def _step(
    reading: Reading, g: Array, state: State, step: Array, memories: Memories
) -> tuple[Array, State]:
    if not jnp.iscomplexobj(g):
        x, new = direction(_JAX, reading, g, state, step, memories)
        return _sharded_like(x, g), new
    pairs = jnp.stack([g.real, g.imag], axis=-1)
    x, new = direction(_JAX, reading, pairs, state, step, memories)
    return jax.lax.complex(x[..., 0], x[..., 1]), new


def _new_state(leaf: Array, reading: Reading) -> State:
    new = {}
    for key, (shape, first) in entries(reading).items():
        if first == "identity":
            new[key] = jnp.broadcast_to(jnp.eye(shape[-1], dtype=reading.dtype), shape)
        elif shape == jnp.shape(leaf):
            new[key] = jnp.zeros_like(leaf, dtype=reading.dtype)  # sharded as the parameter is
        else:
            new[key] = jnp.zeros(shape, reading.dtype)
    return new


def _as_state(count: Array, states: list[State], tree: Any) -> BADMState:
    def field(key: str) -> Any:
        return tree.unflatten([state.get(key, optax.MaskedNode()) for state in states])

    plain = ("dual", "second_moment", "peak")
    bases = [
        {key: value for key, value in state.items() if key not in plain} or optax.MaskedNode()
        for state in states
    ]
    return BADMState(
        count, field("dual"), field("second_moment"), field("peak"), tree.unflatten(bases)
    )


def _of_each(state: BADMState, tree: Any) -> Iterator[State]:
    """Yield the state of each parameter, by key."""
    fields = [
        tree.flatten_up_to(field)
        for field in (state.dual, state.second_moment, state.peak, state.bases)
    ]
    for *values, bases in zip(*fields, strict=True):
        named = zip(("dual", "second_moment", "peak"), values, strict=True)
        kept = {key: x for key, x in named if not isinstance(x, optax.MaskedNode)}
        yield {**kept, **(bases if isinstance(bases, Mapping) else {})}


def _descend(
    learning_rate: float | Array | Schedule, weight_decay: float | Array, mask: Any
) -> optax.GradientTransformation:
    """Turn directions into what is added to the weights: the decay, then the step."""

    def init(params: Any) -> optax.ScaleByScheduleState:
        return optax.ScaleByScheduleState(count=jnp.zeros((), jnp.int32))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        lr = learning_rate(state.count) if callable(learning_rate) else learning_rate
        state = optax.ScaleByScheduleState(count=optax.safe_increment(state.count))
        if _is_number(weight_decay) and not weight_decay:
            return jax.tree.map(lambda x: -_like(lr, x) * x, updates), state
        if params is None:
            raise ValueError("weight_decay needs the parameters: update(gradients, state, params)")
        decays = jax.tree.broadcast(mask(updates) if callable(mask) else mask, updates)

        def added(x: Array, w: Array, decay: bool) -> Array:
            step = -_like(lr, x) * x
            return step + _decay(w, x.dtype, lr * weight_decay) if decay else step

        return jax.tree.map(added, updates, params, decays), state

    return optax.GradientTransformation(init, update)


def _decay(w: Array, dtype: Any, rate: float | Array) -> Array:
    """Return what decay adds to a weight.

    In half precision the decayed weight is rounded before the step, as in torch.
    """
    wide = jnp.asarray(w).astype(dtype)
    decayed = wide - _like(rate, wide) * wide
    return decayed.astype(jnp.result_type(w)).astype(dtype) - wide


def _like(number: float | Array, x: Array) -> Array:
    """Return a number in the dtype of what it scales, which decides on that of the result."""
    return jnp.asarray(number).astype(x.real.dtype)


def _with_paths(params: Any) -> tuple[list[str], list[Any], Any]:
    """Return the paths of a tree's leaves, as names with slashes, the leaves and the structure."""
    found, tree = jax.tree_util.tree_flatten_with_path(params)
    paths = [_as_path(keys) for keys, _ in found]
    return paths, [leaf for _, leaf in found], tree


def _as_path(keys: tuple[Any, ...]) -> str:
    names = [jax.tree_util.keystr((key,), simple=True) for key in keys]
    # A variable of Flax's nnx is a node of its own, with its value inside.
    return "/".join(names[:-1] if len(names) > 1 and names[-1] == "value" else names)


def _axes_function(layout: Layout) -> Callable[[str, Shape], Axes]:
    if isinstance(layout, str):
        if layout not in _LAYOUTS:
            raise ValueError(
                f"layout must be one of {', '.join(_LAYOUTS)} or a function, got {layout!r}"
            )
        return _LAYOUTS[layout]

    def checked(path: str, shape: Shape) -> Axes:
        axes = Axes(*(tuple(axes) for axes in layout(path, shape)))
        if sorted((*axes.rows, *axes.cols)) != list(range(len(shape))):
            raise ValueError(
                f"layout must name each axis of {path!r} once, of shape {shape}; got rows "
                f"{axes.rows} and columns {axes.cols}"
            )
        return axes

    return checked


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _check(
    learning_rate: Any, beta: Any, metric: Any, beta2: Any, eps: Any, weight_decay: Any
) -> None:
    """Raise ``ValueError`` for what cannot be; arrays, which may be traced, are not looked at."""
    check_metric(metric)
    for name, value in (
        ("learning_rate", learning_rate),
        ("eps", eps),
        ("weight_decay", weight_decay),
    ):
        if _is_number(value) and not 0 <= value < math.inf:
            raise ValueError(f"{name} must be a finite number of at least 0, got {value}")
    for name, value in (("beta", beta), ("beta2", beta2)):
        if _is_number(value) and not 0 <= value < 1:
            raise ValueError(f"{name} must be in [0, 1), got {value}")
