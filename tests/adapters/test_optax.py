"""``badm.adapters.optax``: grouping, composition with optax, checkpoints and bad input."""

from __future__ import annotations

import doctest
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import badm

jax = pytest.importorskip("jax", reason='needs JAX: pip install -c constraints.txt "jax" "optax"')
jnp = jax.numpy
optax = pytest.importorskip("optax")

from badm.adapters import optax as adapter  # noqa: E402

enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64

FLAX = {
    "Conv_0": {"kernel": (3, 3, 2, 6), "bias": (6,)},
    "Embed_0": {"embedding": (9, 6)},
    "Dense_0": {"kernel": (6, 8), "bias": (8,)},
    "Dense_1": {"kernel": (8, 4), "bias": (4,)},
}


def is_shape(x: object) -> bool:
    return isinstance(x, tuple)


def drawn(shapes: Any, seed: int = 0) -> Any:
    """Return a tree of normal numbers, in float64 where JAX has it."""
    random = np.random.default_rng(seed)
    return jax.tree.map(
        lambda shape: jnp.asarray(random.normal(size=shape)), shapes, is_leaf=is_shape
    )


def trained(optimizer: Any, params: Any, steps: int = 4, shapes: Any = None) -> tuple[Any, Any]:
    """Return the weights after some steps with gradients of their own, and the state."""
    shapes = jax.tree.map(jnp.shape, params) if shapes is None else shapes
    state, update = optimizer.init(params), jax.jit(optimizer.update)
    for step in range(steps):
        updates, state = update(drawn(shapes, seed=step + 1), state, params)
        params = optax.apply_updates(params, updates)
    return params, state


def assert_close(a: Any, b: Any, rtol: float = 1e-4) -> None:
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=rtol * float(np.abs(y).max()))


class InTorch(nn.Module):
    """The layers of ``FLAX`` in torch, in the same order."""

    def __init__(self) -> None:
        super().__init__()
        self.Conv_0 = nn.Conv2d(2, 6, 3)
        self.Dense_0 = nn.Linear(6, 8)
        self.Dense_1 = nn.Linear(8, 4)
        self.Embed_0 = nn.Embedding(9, 6)


def in_torch(params: Any, metric: str, steps: int) -> dict[tuple[str, str], np.ndarray]:
    """Return the weights of ``trained`` after steps of ``BADM`` on torch's groups."""
    model = InTorch()
    named = {(name, key): getattr(getattr(model, name), key) for name, key in _keys(model)}
    for (name, key), p in named.items():
        p.data = torch.tensor(_to_torch(params[name], key))
    groups = badm.parameter_groups(model, metric=metric, weight_decay=0.1, output="Dense_1")
    optimizer = badm.BADM(groups, lr=1e-2)
    shapes = jax.tree.map(jnp.shape, params)
    for step in range(steps):
        gradient = drawn(shapes, seed=step + 1)
        for (name, key), p in named.items():
            p.grad = torch.tensor(_to_torch(gradient[name], key))
        optimizer.step()
    return {(name, key): p.detach().numpy() for (name, key), p in named.items()}


def _keys(model: nn.Module) -> Iterator[tuple[str, str]]:
    for name, _ in model.named_parameters():
        layer, _, key = name.partition(".")
        yield layer, key


def _to_torch(layer: Any, key: str) -> np.ndarray:
    if key == "bias":
        return np.array(layer["bias"])
    if "embedding" in layer:
        return np.array(layer["embedding"])
    kernel = np.array(layer["kernel"])
    axes = (1, 0) if kernel.ndim == 2 else (3, 2, 0, 1)
    return np.ascontiguousarray(kernel.transpose(axes))


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["spectral", "kronecker-spectral"])
def test_the_default_grouping_takes_the_steps_of_torch_on_a_module(metric: str) -> None:
    with enable_x64(True):
        params = drawn(FLAX)
        optimizer = adapter.badm(1e-2, metric=metric, weight_decay=0.1, output="Dense_1")
        found, _ = trained(optimizer, params, steps=4)
        for (name, key), expected in in_torch(params, metric, steps=4).items():
            assert expected.dtype == np.float64
            np.testing.assert_allclose(_to_torch(found[name], key), expected, rtol=0, atol=1e-12)


def test_labels_follow_from_names_as_groups_do_from_modules() -> None:
    block = {
        "LayerNorm_0": {"scale": (8,), "bias": (8,)},
        "attention": {
            "query": {"kernel": (8, 2, 4), "bias": (2, 4)},
            "out": {"kernel": (2, 4, 8), "bias": (8,)},
        },
        "Dense_0": {"kernel": (8, 1)},
    }
    tree = {
        "block_0": block,
        "block_1": block,
        "wte": {"embedding": (50, 8)},
        "pos_embedding": (1, 16, 8),
        "cls_token": (1, 1, 8),
        "ClassifierHead_0": {"Dense_0": {"kernel": (8, 8)}, "Dense_1": {"kernel": (8, 3)}},
    }
    shapes = jax.tree.map(jnp.zeros, tree, is_leaf=is_shape)
    labels = adapter.parameter_labels(shapes)
    assert labels["block_1"] == {
        "LayerNorm_0": {"scale": "vector", "bias": "vector"},
        "attention": {
            "query": {"kernel": "matrix", "bias": "vector"},
            "out": {"kernel": "matrix", "bias": "vector"},
        },
        "Dense_0": {"kernel": "matrix"},
    }
    assert labels["wte"] == {"embedding": "embedding"}
    assert (labels["pos_embedding"], labels["cls_token"]) == ("table", "table")
    head = labels["ClassifierHead_0"]
    assert (head["Dense_0"]["kernel"], head["Dense_1"]["kernel"]) == ("matrix", "output layer")


@pytest.mark.parametrize(
    ("names", "output"),
    [
        (["Dense_0", "Dense_2", "Dense_10"], "Dense_10"),
        (["Conv_0", "Conv_1", "Dense_0", "Dense_1"], "Dense_1"),
        (["decoder", "encoder", "out"], "out"),
        (["encoder", "lm_head"], "lm_head"),
        (["decoder", "encoder"], None),
    ],
)
def test_the_output_layer_is_named_like_one_or_has_the_last_number(
    names: list[str], output: str | None
) -> None:
    labels = adapter.parameter_labels({name: {"kernel": jnp.ones((3, 3))} for name in names})
    found = [name for name in names if labels[name]["kernel"] == "output layer"]
    assert found == ([] if output is None else [output])


def test_an_output_layer_that_no_name_tells_is_asked_for_where_it_counts() -> None:
    params = {name: {"kernel": jnp.ones((3, 3))} for name in ("decoder", "encoder")}
    with pytest.raises(ValueError, match="no name in the tree says which it is: give output"):
        adapter.badm(metric="kronecker").init(params)
    state = adapter.badm(metric="kronecker", output="decoder").init(params)[0]
    assert "left_basis" in state.bases["encoder"]["kernel"]
    assert state.bases["decoder"]["kernel"] == optax.MaskedNode()
    adapter.badm(metric="spectral").init(params)
    with pytest.raises(ValueError, match="which matches none of decoder/kernel, encoder/kernel"):
        adapter.parameter_labels(params, output="head")


@pytest.mark.slow
@pytest.mark.parametrize("key", ["query", "out"])
def test_kernels_of_an_attention_are_the_matrices_that_torch_has(key: str) -> None:
    shape = (6, 2, 4) if key == "query" else (2, 4, 6)
    flat = (6, 8) if key == "query" else (8, 6)
    heads, _ = trained(
        adapter.badm(), {key: {"kernel": drawn(shape)}}, shapes={key: {"kernel": shape}}
    )
    params = {"Dense_0": {"kernel": drawn(shape).reshape(flat)}}
    optimizer = adapter.badm()
    state, update = optimizer.init(params), jax.jit(optimizer.update)
    for step in range(4):
        gradient = {"Dense_0": {"kernel": drawn(shape, seed=step + 1).reshape(flat)}}
        updates, state = update(gradient, state, params)
        params = optax.apply_updates(params, updates)
    assert_close(heads[key]["kernel"].reshape(flat), params["Dense_0"]["kernel"])


@pytest.mark.slow
def test_a_layout_of_ones_own_decides_on_the_matrix() -> None:
    """A stack of gates (in, gate, out) as one matrix, with a function that says so."""
    shape, flat = (4, 3, 5), (4, 15)
    layout = lambda path, shape: ((1, 2), (0,)) if len(shape) == 3 else ((1,), (0,))  # noqa: E731
    optimizer = adapter.badm(labels=None, layout=layout)
    gates, _ = trained(optimizer, drawn(shape), shapes=shape)
    params = drawn(shape).reshape(flat)
    state, update = optimizer.init(params), jax.jit(optimizer.update)
    for step in range(4):
        updates, state = update(drawn(shape, seed=step + 1).reshape(flat), state, params)
        params = optax.apply_updates(params, updates)
    assert_close(gates.reshape(flat), params)


@pytest.mark.slow
def test_injected_hyperparameters_can_be_changed_and_are_not_compiled_in() -> None:
    params = {"kernel": drawn((6, 4))}
    optimizer = optax.inject_hyperparams(adapter.badm)(learning_rate=1e-2, weight_decay=0.1)
    state = optimizer.init(params)
    numbers = {"learning_rate", "beta", "eps", "weight_decay"}
    assert set(state.hyperparams) == numbers
    compiled = jax.jit(optimizer.update)
    gradient = drawn(jax.tree.map(jnp.shape, params), seed=1)
    first, _ = compiled(gradient, state, params)
    plain = adapter.badm(1e-2, weight_decay=0.1)
    assert_close(first, plain.update(gradient, plain.init(params), params)[0])
    state.hyperparams["learning_rate"] = 2 * state.hyperparams["learning_rate"]
    assert_close(compiled(gradient, state, params)[0], jax.tree.map(lambda x: 2 * x, first))
    assert compiled._cache_size() == 1


@pytest.mark.slow
def test_multi_transform_with_labels_is_the_default_grouping() -> None:
    params = drawn(FLAX)
    decayed = adapter.badm(1e-2, weight_decay=0.1, labels=None)
    vectors = adapter.badm(1e-2, metric="diagonal", labels=None)
    parts = {
        "matrix": decayed,
        "output layer": decayed,
        "embedding": adapter.badm(1e-2, metric="diagonal", weight_decay=0.1, labels=None),
        "vector": vectors,
    }
    by_hand = optax.multi_transform(parts, adapter.parameter_labels)
    found, _ = trained(by_hand, params, steps=3)
    expected, _ = trained(adapter.badm(1e-2, weight_decay=0.1), params, steps=3)
    assert_close(found, expected)


def test_a_mask_says_what_decays() -> None:
    params = {"a": jnp.full((2, 3), 2.0), "b": jnp.full((2, 3), 2.0)}
    optimizer = adapter.badm(0.1, weight_decay=0.5, labels=None, mask={"a": True, "b": False})
    zero = jax.tree.map(jnp.zeros_like, params)
    updates, _ = optimizer.update(zero, optimizer.init(params), params)
    np.testing.assert_allclose(updates["a"], -0.1, rtol=1e-6)
    assert not updates["b"].any()
    with pytest.raises(ValueError, match="weight_decay needs the parameters"):
        optimizer.update(zero, optimizer.init(params))


@pytest.mark.slow
def test_replicas_under_vmap_step_each_as_alone() -> None:
    optimizer = adapter.badm(1e-2, metric="kronecker-spectral", labels=None)
    params = drawn((3, 4, 6))
    state, alone = jax.vmap(optimizer.init)(params), [optimizer.init(w) for w in params]
    one = jax.jit(optimizer.update)
    many = jax.jit(jax.vmap(optimizer.update))
    for step in range(4):
        gradient = drawn((3, 4, 6), seed=step + 1)
        updates, state = many(gradient, state, params)
        pairs = [one(g, s, w) for g, s, w in zip(gradient, alone, params, strict=True)]
        assert_close(updates, jnp.stack([x for x, _ in pairs]))
        alone = [s for _, s in pairs]


SHARDED = """
import jax, numpy as np
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
import optax
from badm.adapters.optax import badm
assert len(jax.devices()) == 2
mesh = jax.make_mesh((2,), ("model",), **AXES)
random = np.random.default_rng(0)
draw = lambda: {"kernel": random.normal(size=(8, 6)), "bias": random.normal(size=(6,))}
place = {"kernel": NamedSharding(mesh, P("model", None)), "bias": NamedSharding(mesh, P())}
optimizer = badm(1e-2, metric="METRIC", weight_decay=0.1, output=())
put = lambda tree: {key: jax.device_put(jnp.asarray(x), place[key]) for key, x in tree.items()}
first = draw()
whole, sharded = {key: jnp.asarray(x) for key, x in first.items()}, put(first)
states = [optimizer.init(whole), optimizer.init(sharded)]
update = jax.jit(optimizer.update)
for _ in range(4):
    gradient = draw()
    given = {key: jnp.asarray(x) for key, x in gradient.items()}
    updates, states[0] = update(given, states[0], whole)
    whole = optax.apply_updates(whole, updates)
    updates, states[1] = update(put(gradient), states[1], sharded)
    sharded = jax.tree.map(lambda w, u, s: jax.device_put(w + u, s), sharded, updates, place)
assert len(sharded["kernel"].addressable_shards[0].data) == 4
for key in first:
    np.testing.assert_allclose(sharded[key], whole[key], rtol=0, atol=1e-5)
dual = states[1][0].dual["kernel"]
print("same", dual.sharding.is_equivalent_to(place["kernel"], dual.ndim))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("metric", "axes"),
    [
        ("spectral", "axis_types=(jax.sharding.AxisType.Explicit,)"),
        ("kronecker", "axis_types=(jax.sharding.AxisType.Auto,)"),
    ],
)
def test_sharded_parameters_step_as_whole_ones(metric: str, axes: str) -> None:
    """On two devices; the dual of a matrix stays sharded as the matrix is."""
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "JAX_PLATFORMS": "cpu",
    }
    program = SHARDED.replace("METRIC", metric).replace("**AXES", axes)
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split()[0] == "same"
    if metric == "spectral":  # the kronecker one keeps it in the basis, in blocks
        assert done.stdout.split()[1] == "True"


def test_specs_of_shardings_find_the_dual() -> None:
    params = {"Dense_0": {"kernel": jnp.ones((3, 2)), "bias": jnp.ones(2)}}
    optimizer = adapter.badm()
    specs = optax.tree_map_params(
        optimizer,
        lambda leaf: "as the parameter",
        optimizer.init(params),
        transform_non_params=lambda leaf: "replicated",
    )
    assert specs[0].dual["Dense_0"] == {"kernel": "as the parameter", "bias": "as the parameter"}
    assert specs[0].count == "replicated"


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["diagonal", "spectral", "kronecker"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_gradients_without_a_value_spoil_what_they_spoil_in_torch(metric: str, bad: float) -> None:
    """After two steps, for an infinite gradient spreads in the first one here, later there."""
    random = np.random.default_rng(0)
    first, gradient = (random.normal(size=(4, 3)).astype(np.float32) for _ in range(2))
    gradient[1, 2] = bad
    p = nn.Parameter(torch.tensor(first))
    torch_optimizer = badm.BADM([p], lr=0.1, metric=metric, foreach=False)
    optimizer = adapter.badm(0.1, metric=metric, labels=None, layout="output first")
    w, update = jnp.asarray(first), jax.jit(optimizer.update)
    state = optimizer.init(w)
    for _ in range(2):
        p.grad = torch.tensor(gradient)
        torch_optimizer.step()
        updates, state = update(jnp.asarray(gradient), state, w)
        w = optax.apply_updates(w, updates)
    np.testing.assert_array_equal(np.isfinite(w), torch.isfinite(p.detach()).numpy())
    assert not np.isfinite(w).all()


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["euclidean", "spectral"])
def test_complex_parameters_are_pairs_of_reals_as_in_torch(metric: str) -> None:
    random = np.random.default_rng(0)
    draws = [random.normal(size=(2, 4, 3)).astype(np.float32) for _ in range(4)]
    first, *gradients = [a + 1j * b for a, b in draws]
    p = nn.Parameter(torch.tensor(first))
    torch_optimizer = badm.BADM([p], lr=0.1, metric=metric, weight_decay=0.1)
    optimizer, w = adapter.badm(0.1, metric=metric, labels=None, weight_decay=0.1), first
    state = optimizer.init(w)
    for g in gradients:
        p.grad = torch.tensor(g)
        torch_optimizer.step()
        updates, state = optimizer.update(jnp.asarray(g), state, w)
        w = optax.apply_updates(w, updates)
    np.testing.assert_allclose(w, p.detach().numpy(), rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(3, 600), (2, 10_001)])
def test_long_sides_have_the_blocks_and_the_identity_that_torch_has(shape: tuple[int, int]) -> None:
    first, *gradients = np.random.default_rng(0).normal(size=(3, *shape))
    p = nn.Parameter(torch.tensor(first))
    torch_optimizer = badm.BADM([p], lr=1e-2, metric="kronecker", foreach=False)
    optimizer = adapter.badm(1e-2, metric="kronecker", labels=None, layout="output first")
    with enable_x64(True):
        w = jnp.asarray(first)
        state, update = optimizer.init(w), jax.jit(optimizer.update)
        for g in gradients:
            p.grad = torch.tensor(g)
            torch_optimizer.step()
            updates, state = update(jnp.asarray(g), state, w)
            w = optax.apply_updates(w, updates)
    sides = {key: value.shape for key, value in state[0].bases.items() if "basis" in key}
    of_torch = torch_optimizer.state[p]
    assert sides == {key: tuple(x.shape) for key, x in of_torch.items() if "basis" in key}
    np.testing.assert_allclose(w, p.detach().numpy(), rtol=0, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("through", ["pickle", "flax"])
def test_a_state_that_was_saved_goes_on_bit_for_bit(through: str) -> None:
    params = {"kernel": drawn((6, 4)), "bias": drawn((4,))}
    optimizer = adapter.badm(1e-2, metric="kronecker-spectral", output=())
    params, state = trained(optimizer, params, steps=2)
    if through == "pickle":
        loaded = pickle.loads(pickle.dumps(state))
    else:
        serialization = pytest.importorskip("flax.serialization")
        saved = serialization.to_bytes(state)
        loaded = serialization.from_bytes(optimizer.init(params), saved)
    gradient = drawn(jax.tree.map(jnp.shape, params), seed=7)
    update = jax.jit(optimizer.update)
    again, expected = (update(gradient, one, params)[0] for one in (loaded, state))
    for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_state_of_half_precision_is_in_float32() -> None:
    params = {"kernel": jnp.ones((3, 2), jnp.bfloat16)}
    optimizer = adapter.badm(metric="diagonal")
    state = optimizer.init(params)
    updates, state = optimizer.update(params, state, params)
    assert state[0].dual["kernel"].dtype == state[0].second_moment["kernel"].dtype == jnp.float32
    assert optax.apply_updates(params, updates)["kernel"].dtype == jnp.bfloat16


def test_a_learning_rate_of_zero_moves_nothing() -> None:
    w = jnp.ones((3, 2))
    optimizer = adapter.badm(0.0, weight_decay=0.1, labels=None)
    updates, _ = optimizer.update(w, optimizer.init(w), w)
    assert not updates.any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": "spectrel"}, "metric must be one of euclidean, .*, got 'spectrel'"),
        ({"learning_rate": -1.0}, "learning_rate must be a finite number of at least 0, got -1.0"),
        ({"weight_decay": -0.1}, "weight_decay must be a finite number of at least 0, got -0.1"),
        ({"eps": float("nan")}, "eps must be a finite number of at least 0, got nan"),
        ({"beta": 1.0}, r"beta must be in \[0, 1\), got 1.0"),
        ({"beta2": -0.1}, r"beta2 must be in \[0, 1\), got -0.1"),
        ({"layout": "torch"}, "layout must be one of output last, output first or a function"),
    ],
)
def test_a_bad_argument_is_named_with_what_would_be_right(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        adapter.badm(**options)


def test_a_bad_tree_is_refused_with_the_path() -> None:
    with pytest.raises(TypeError, match="floating dtype, got int32 at 'table/ids'"):
        adapter.badm().init({"table": {"ids": jnp.ones((2, 2), jnp.int32)}})
    with pytest.raises(ValueError, match=r"a label must be one of matrix, .*, got 'matrices'"):
        adapter.badm(labels={"a": "matrices"}).init({"a": jnp.ones((2, 2))})
    with pytest.raises(ValueError, match="labels must be one for each parameter, got 2 of 1"):
        adapter.badm(labels=["matrix", "matrix"]).init([jnp.ones((2, 2))])
    wrong = adapter.badm(layout=lambda path, shape: ((0,), (0,)))
    with pytest.raises(ValueError, match="layout must name each axis of 'a' once"):
        wrong.init({"a": jnp.ones((2, 2))})


@pytest.mark.slow
def test_the_examples_of_docstrings_hold() -> None:
    results = doctest.testmod(adapter)
    assert results.attempted > 5
    assert results.failed == 0
