"""``badm.adapters.keras``: training with ``fit``, saving, grouping and bad input.

What trains holds on the JAX backend too: the last test runs a part of this file on that.
"""

from __future__ import annotations

import doctest
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import badm
from tests.helpers import ROOT

BACKEND = os.environ.get("BADM_KERAS_BACKEND", "torch")


@pytest.fixture(scope="module")
def adapter(keras: ModuleType) -> ModuleType:
    from badm.adapters import keras as module

    return module


@pytest.fixture
def model(keras: ModuleType) -> Callable[[], Any]:
    def make() -> Any:
        keras.backend.clear_session()
        keras.utils.set_random_seed(0)
        layers = keras.layers
        return keras.Sequential(
            [keras.Input((4,)), layers.Dense(8, activation="tanh"), layers.Dense(3)]
        )

    return make


def data() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    x = random.normal(size=(64, 4)).astype(np.float32)
    return x, x[:, :3] * 0.5


def weights(model: Any) -> list[np.ndarray]:
    return [np.array(w) for w in model.get_weights()]


def stepped(keras: ModuleType, optimizer: Any, first: Any, gradients: Any) -> np.ndarray:
    """Return a variable after steps with given gradients, as the trainer of the backend steps."""
    variable = keras.Variable(first, name="w")
    optimizer.build([variable])
    for gradient in gradients:
        given = [keras.ops.convert_to_tensor(gradient)]
        if BACKEND == "torch":
            with torch.no_grad():
                optimizer.apply(given, [variable])
            continue
        values = [v.value for v in optimizer.variables]
        (weight,), values = optimizer.stateless_apply(values, given, [variable.value])
        variable.assign(weight)
        for kept, value in zip(optimizer.variables, values, strict=True):
            kept.assign(value)
    return np.array(keras.ops.convert_to_numpy(variable))


def draws(count: int, shape: tuple[int, ...]) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.normal(size=shape).astype(np.float32) for _ in range(count)]


@pytest.mark.slow
def test_fit_trains_and_a_saved_model_goes_on_where_it_was(
    adapter: ModuleType, keras: ModuleType, model: Callable[[], Any], tmp_path: Path
) -> None:
    x, y = data()
    trained = model()
    schedule = keras.optimizers.schedules.CosineDecay(0.02, 40)
    trained.compile(optimizer=adapter.BADM(schedule, metric="kronecker", beta=0.8), loss="mse")
    losses = trained.fit(x, y, batch_size=16, epochs=6, shuffle=False, verbose=0).history["loss"]
    assert losses[-1] < losses[0] / 2
    trained.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is adapter.BADM
    assert (loaded.optimizer.metric, loaded.optimizer.beta) == ("kronecker", 0.8)
    for one in (trained, loaded):
        one.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    for a, b in zip(weights(loaded), weights(trained), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_config_makes_the_same_optimizer(adapter: ModuleType, keras: ModuleType) -> None:
    optimizer = adapter.BADM(
        0.02,
        0.8,
        metric="kronecker-spectral",
        beta2=0.9,
        eps=1e-6,
        weight_decay=0.1,
        labels={"head/*": "output layer"},
        output=("a", "b"),
        layouts={"einsum*": ((1, 2), (0,))},
        clipnorm=1.0,
    )
    saved = keras.optimizers.serialize(optimizer)
    again = keras.optimizers.deserialize(saved)
    assert again.get_config() == optimizer.get_config()
    assert again.get_config()["layouts"] == {"einsum*": [[1, 2], [0]]}


@pytest.mark.slow
def test_gradients_that_are_accumulated_make_the_step_of_their_mean(
    adapter: ModuleType, keras: ModuleType
) -> None:
    first, *gradients = draws(5, (4, 3))
    options = {"metric": "kronecker", "weight_decay": 0.1, "labels": None}
    accumulated = adapter.BADM(0.1, gradient_accumulation_steps=2, **options)
    means = [(a + b) / 2 for a, b in zip(gradients[::2], gradients[1::2], strict=True)]
    expected = stepped(keras, adapter.BADM(0.1, **options), first, means)
    found = stepped(keras, accumulated, first, gradients)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_mixed_precision_trains_with_state_in_float32(
    adapter: ModuleType, keras: ModuleType, model: Callable[[], Any]
) -> None:
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        trained = model()
    finally:
        keras.config.set_dtype_policy("float32")
    trained.compile(optimizer=adapter.BADM(0.02), loss="mse")
    x, y = data()
    losses = trained.fit(x, y, batch_size=16, epochs=5, verbose=0).history["loss"]
    assert losses[-1] < losses[0] / 2
    assert {v.dtype for v in trained.trainable_variables} == {"float32"}
    kinds = {v.dtype for v in trained.optimizer.variables if "dual" in v.path}
    assert kinds == {"float32"}


def test_a_loss_that_is_scaled_makes_the_same_steps(adapter: ModuleType, keras: ModuleType) -> None:
    first, *gradients = draws(4, (4, 3))
    inner = adapter.BADM(0.1, labels=None)
    scaled = keras.optimizers.LossScaleOptimizer(inner, initial_scale=8.0)
    found = stepped(keras, scaled, first, [8 * g for g in gradients])
    expected = stepped(keras, adapter.BADM(0.1, labels=None), first, gradients)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def decays(adapter: ModuleType, variables: list[Any], **options: Any) -> list[bool]:
    """Return which variables a step without gradients makes smaller."""
    exclude = options.pop("exclude", None)
    optimizer = adapter.BADM(0.1, weight_decay=0.5, **options)
    if exclude:
        optimizer.exclude_from_weight_decay(var_names=exclude)
    before = [np.array(v.numpy()) if BACKEND == "jax" else v.numpy().copy() for v in variables]
    with torch.no_grad():
        optimizer.apply([adapter.ops.zeros(v.shape) for v in variables], variables)
    return [not np.array_equal(v.numpy(), b) for v, b in zip(variables, before, strict=True)]


def test_decay_leaves_out_vectors_and_what_is_excluded(
    adapter: ModuleType, model: Callable[[], Any]
) -> None:
    def variables() -> list[Any]:
        one = model()
        for v in one.trainable_variables:
            v.assign(adapter.ops.ones(v.shape))
        return list(one.trainable_variables)

    assert decays(adapter, variables()) == [True, False, True, False]
    assert decays(adapter, variables(), labels=None) == [True, True, True, True]
    assert decays(adapter, variables(), exclude=["kernel"]) == [False, False, False, False]


def read(optimizer: Any, model: Any) -> dict[str, tuple[str, tuple[int, int] | None]]:
    """Return the metric and the matrix of every variable."""
    optimizer.build(model.trainable_variables)
    return {
        v.path: (r.metric, r.axes.matrix_shape(r.shape) if r.metric != "diagonal" else None)
        for v, r in zip(model.trainable_variables, optimizer._readings, strict=True)
    }


def test_layers_are_grouped_by_paths_as_modules_are(adapter: ModuleType, keras: ModuleType) -> None:
    keras.backend.clear_session()
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((12,)),
            layers.Embedding(20, 6),
            layers.Conv1D(8, 3),
            layers.LayerNormalization(),
            layers.GlobalMaxPooling1D(),
            layers.Dense(5),
            layers.Dense(4),
        ]
    )
    found = read(adapter.BADM(metric="kronecker"), model)
    assert {path.removeprefix("sequential/"): how for path, how in found.items()} == {
        "embedding/embeddings": ("diagonal", None),
        "conv1d/kernel": ("kronecker", (8, 18)),
        "conv1d/bias": ("diagonal", None),
        "layer_normalization/gamma": ("diagonal", None),
        "layer_normalization/beta": ("diagonal", None),
        "dense/kernel": ("kronecker", (5, 8)),
        "dense/bias": ("diagonal", None),
        "dense_1/kernel": ("diagonal", None),  # the output layer
        "dense_1/bias": ("diagonal", None),
    }
    spectral = read(adapter.BADM(), model)
    assert spectral["sequential/dense_1/kernel"] == ("spectral", (4, 5))
    told = read(adapter.BADM(metric="kronecker", output="dense"), model)
    assert told["sequential/dense/kernel"] == ("diagonal", None)
    assert told["sequential/dense_1/kernel"] == ("kronecker", (4, 5))
    labelled = read(adapter.BADM(labels={"conv1d/*": "vector"}), model)
    assert labelled["sequential/conv1d/kernel"] == ("diagonal", None)


def test_a_model_tells_which_axes_are_outputs(adapter: ModuleType, keras: ModuleType) -> None:
    keras.backend.clear_session()
    layers = keras.layers
    inputs = keras.Input((6, 6, 4))
    x = layers.DepthwiseConv2D(3, depth_multiplier=2, name="depths")(inputs)
    x = layers.Reshape((16, 8))(x)
    x = layers.MultiHeadAttention(2, 3, name="heads")(x, x)
    x = layers.EinsumDense("abc,cde->abde", (None, 2, 5), name="einsum")(x)
    model = keras.Model(inputs, x)
    found = read(adapter.BADM.for_model(model), model)
    matrices = {path: matrix for path, (metric, matrix) in found.items() if metric == "spectral"}
    assert matrices == {
        "depths/kernel": (8, 9),
        "heads/query/kernel": (6, 8),
        "heads/key/kernel": (6, 8),
        "heads/value/kernel": (6, 8),
        "heads/attention_output/kernel": (8, 6),
        "einsum/kernel": (10, 8),
    }
    by_paths = read(adapter.BADM(), model)
    assert by_paths["heads/query/kernel"] == ("spectral", (6, 8))
    assert by_paths["depths/kernel"] == ("spectral", (2, 36))
    again = adapter.BADM.from_config(adapter.BADM.for_model(model).get_config())
    assert read(again, model) == found


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("metric", ["diagonal", "spectral"])
def test_gradients_without_a_value_spoil_what_they_spoil_in_torch(
    adapter: ModuleType, keras: ModuleType, metric: str, bad: float
) -> None:
    first, gradient = draws(2, (4, 3))
    gradient[1, 2] = bad
    found = stepped(keras, adapter.BADM(0.1, metric=metric, labels=None), first, [gradient])
    p = nn.Parameter(torch.tensor(first.T.copy()))
    p.grad = torch.tensor(gradient.T.copy())
    badm.BADM([p], lr=0.1, metric=metric, foreach=False).step()
    np.testing.assert_array_equal(np.isfinite(found.T), torch.isfinite(p.detach()).numpy())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": "spectrel"}, r"metric must be one of euclidean, .*, got 'spectrel'"),
        ({"learning_rate": -1.0}, "learning_rate must be a finite number of at least 0, got -1.0"),
        ({"weight_decay": -0.1}, "weight_decay must be a finite number of at least 0, got -0.1"),
        ({"beta": 1.0}, r"beta must be in \[0, 1\), got 1.0"),
        ({"labels": "shapes"}, r"labels must be \"names\", None or a dictionary, got .shapes."),
        ({"labels": {"a": "kernel"}}, r"a label must be one of matrix, .*, got 'kernel'"),
    ],
)
def test_a_bad_argument_is_named_with_what_would_be_right(
    adapter: ModuleType, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        adapter.BADM(**options)


def test_what_fits_no_variable_is_refused_with_the_paths(
    adapter: ModuleType, keras: ModuleType, model: Callable[[], Any]
) -> None:
    variables = model().trainable_variables
    with pytest.raises(ValueError, match="labels has the pattern 'head', which matches none of"):
        adapter.BADM(labels={"head": "matrix"}).build(variables)
    with pytest.raises(
        ValueError, match="layouts must name each axis of 'sequential/dense/kernel' once"
    ):
        adapter.BADM(layouts={"dense/kernel": [[0], [0]]}).build(variables)
    with pytest.raises(ValueError, match="layouts has the pattern 'head', which matches none"):
        adapter.BADM(layouts={"head": [[1], [0]]}).build(variables)
    with pytest.raises(ValueError, match="output must name layers with a matrix, got 'head'"):
        adapter.BADM(output="head").build(variables)
    with pytest.raises(TypeError, match="must have a floating dtype, got complex64 at 'z'"):
        adapter.BADM().build([keras.Variable(np.ones(2, np.complex64), name="z")])
    with pytest.raises(ValueError, match="model must be built and have trainable variables"):
        adapter.BADM.for_model(keras.Sequential())


@pytest.mark.slow
def test_the_examples_of_docstrings_hold(adapter: ModuleType, keras: ModuleType) -> None:
    keras.backend.clear_session()
    results = doctest.testmod(adapter)
    assert results.attempted > 5
    assert results.failed == 0


@pytest.mark.slow
@pytest.mark.skipif(BACKEND != "torch", reason="is what this test runs")
def test_training_holds_on_jax() -> None:
    if find_spec("jax") is None:
        pytest.skip("needs JAX")
    chosen = "fit_trains or accumulated or mixed or decay or spoil"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, __file__],
        env={**os.environ, "BADM_KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]
