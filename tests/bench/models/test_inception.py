"""Inception-V3 against Keras's own, and weights from files of both kinds."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from badm.bench.models.inception import (
    InceptionError,
    InceptionFeatures,
    InceptionV3,
    load,
)
from badm.bench.tasks.scores.kid import feature_network, label

h5py = pytest.importorskip("h5py")


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    """A state dict with the names and shapes of torch's usual one, and made-up values."""
    generator = torch.Generator().manual_seed(0)
    made = {}
    for name, tensor in InceptionV3().state_dict().items():
        if name.endswith("num_batches_tracked"):
            made[name] = tensor
        elif name.endswith("conv.weight"):
            fan = tensor[0].numel()
            made[name] = torch.randn(tensor.shape, generator=generator) * (2 / fan) ** 0.5
        elif name.endswith("running_var"):
            made[name] = 0.5 + torch.rand(tensor.shape, generator=generator)
        else:
            made[name] = 0.1 * torch.randn(tensor.shape, generator=generator)
    return made


def keras_file(path: Path, weights: dict[str, Tensor], first: int = 1) -> Path:
    """What Keras publishes: a group for each layer, numbered from 1, names that end in ``:0``."""
    names = [name.removesuffix(".conv.weight") for name in weights if name.endswith("conv.weight")]
    with h5py.File(path, "w") as file:
        file["top_level_count"] = 3  # whatever else there may be
        for number, name in enumerate(names, start=first):
            conv, norm = f"conv2d_{number}", f"batch_normalization_{number}"
            kernel = weights[f"{name}.conv.weight"].permute(2, 3, 1, 0)
            file[f"{conv}/{conv}/kernel:0"] = kernel.numpy()
            for entry, of_torch in (
                ("beta", "bias"),
                ("moving_mean", "running_mean"),
                ("moving_variance", "running_var"),
            ):
                file[f"{norm}/{norm}/{entry}:0"] = weights[f"{name}.bn.{of_torch}"].numpy()
    return path


def without_scale(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k: torch.ones_like(v) if k.endswith("bn.weight") else v for k, v in weights.items()}


def network_with(weights: dict[str, Tensor]) -> InceptionV3:
    network = InceptionV3().eval()
    network.load_state_dict(weights)
    return network


# The network


@pytest.mark.slow
def test_features_are_those_of_keras(
    keras: ModuleType, tmp_path: Path, weights: dict[str, Tensor]
) -> None:
    """Its own network, random, saved in the format of the published file, with images resized."""
    from keras.src.legacy.saving.legacy_h5_format import save_weights_to_hdf5_group

    theirs = keras.applications.InceptionV3(
        include_top=False, weights=None, input_shape=(75, 75, 3), pooling="avg"
    )
    generator = np.random.default_rng(0)
    for layer in theirs.layers:
        if isinstance(layer, keras.layers.Conv2D):
            # Large enough that what comes out depends on the image, not on the offsets alone.
            (kernel,) = layer.get_weights()
            spread = (2 / np.prod(kernel.shape[:3])) ** 0.5
            layer.set_weights([spread * generator.normal(size=kernel.shape)])
        if isinstance(layer, keras.layers.BatchNormalization):
            beta, mean, variance = (w.shape for w in layer.get_weights())
            moved = 0.1 * generator.normal(size=beta), 0.1 * generator.normal(size=mean)
            layer.set_weights([*moved, generator.uniform(0.5, 1.5, size=variance)])
    file = tmp_path / "notop.h5"
    with h5py.File(file, "w") as opened:
        save_weights_to_hdf5_group(opened, theirs)

    images = torch.rand(3, 3, 40, 50, generator=torch.Generator().manual_seed(0))
    resized = keras.layers.Resizing(75, 75)(255 * images.permute(0, 2, 3, 1))
    expected = theirs(keras.applications.inception_v3.preprocess_input(resized), training=False)
    found = InceptionFeatures(file).features(images)
    assert found.shape == (3, 2048)
    torch.testing.assert_close(found, expected.detach(), rtol=1e-3, atol=1e-4)
    assert found.std(0).mean() > 5e-3  # by far more than the tolerance
    # They have no scales, we have no need of their moving averages among the parameters.
    scales = averages = 17_216
    ours = sum(p.numel() for p in InceptionV3().parameters())
    assert theirs.count_params() == ours - scales + 2 * averages


@pytest.mark.slow
def test_grey_images_are_repeated_in_all_colours(
    tmp_path: Path, weights: dict[str, Tensor]
) -> None:
    file = tmp_path / "weights.pt"
    torch.save(weights, file)
    network = InceptionFeatures(file)
    grey = torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    assert torch.equal(network.features(grey), network.features(grey.repeat(1, 3, 1, 1)))
    as_bytes = (255 * grey).round().to(torch.uint8)
    assert torch.equal(network.features(as_bytes), network.features(as_bytes.float() / 255))


# Files


@pytest.mark.slow
def test_a_state_dict_of_torch_is_loaded_with_what_else_it_holds(
    tmp_path: Path, weights: dict[str, Tensor]
) -> None:
    file = tmp_path / "inception_v3.pth"
    more = {"fc.weight": torch.zeros(1000, 2048), "AuxLogits.fc.bias": torch.zeros(1000)}
    torch.save({k: v for k, v in weights.items() if "num_batches" not in k} | more, file)
    network = InceptionV3().eval()
    load(network, file)
    x = torch.rand(1, 3, 75, 75, generator=torch.Generator().manual_seed(0))
    assert torch.equal(network(x), network_with(weights)(x))


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 1, 95])
def test_layers_of_keras_are_taken_in_the_order_of_their_numbers(
    first: int, tmp_path: Path, weights: dict[str, Tensor]
) -> None:
    file = keras_file(tmp_path / "notop.h5", weights, first)
    network = InceptionV3().eval()
    load(network, file)
    for name, tensor in without_scale(weights).items():
        if "num_batches" not in name:
            assert torch.equal(network.state_dict()[name], tensor), name


@pytest.mark.slow
def test_the_file_of_a_whole_model_and_one_with_scales_are_read_too(
    tmp_path: Path, weights: dict[str, Tensor]
) -> None:
    plain = keras_file(tmp_path / "plain.h5", weights)
    whole = tmp_path / "whole.h5"
    names = [name.removesuffix(".bn.weight") for name in weights if name.endswith("bn.weight")]
    with h5py.File(plain) as source, h5py.File(whole, "w") as target:
        for layer in source:
            if isinstance(source[layer], h5py.Group):
                source.copy(layer, target.require_group("model_weights"))
        for number, name in enumerate(names, start=1):
            norm = f"model_weights/batch_normalization_{number}"
            target[f"{norm}/gamma:0"] = weights[f"{name}.bn.weight"].numpy()
    network = InceptionV3().eval()
    load(network, whole)
    assert torch.equal(network.Conv2d_1a_3x3.bn.weight, weights["Conv2d_1a_3x3.bn.weight"])
    x = torch.rand(1, 3, 75, 75, generator=torch.Generator().manual_seed(0))
    assert torch.equal(network(x), network_with(weights)(x))


def _missing_layer(file: Any) -> None:
    del file["conv2d_94"]


def _missing_entry(file: Any) -> None:
    del file["batch_normalization_3/batch_normalization_3/beta:0"]


def _wrong_kernel(file: Any) -> None:
    del file["conv2d_2/conv2d_2/kernel:0"]
    file["conv2d_2/conv2d_2/kernel:0"] = np.zeros((3, 3, 32, 31), np.float32)


def _flat_kernel(file: Any) -> None:
    del file["conv2d_2/conv2d_2/kernel:0"]
    file["conv2d_2/conv2d_2/kernel:0"] = np.float32(1)


def _wrong_norm(file: Any) -> None:
    del file["batch_normalization_3/batch_normalization_3/moving_mean:0"]
    file["batch_normalization_3/batch_normalization_3/moving_mean:0"] = np.zeros(65, np.float32)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (_missing_layer, "must have 94 layers named conv2d, got 93"),
        (_missing_entry, "lacks batch_normalization_3/beta"),
        (_wrong_kernel, "conv2d_2/kernel of .* must be 3×3×32×32, got 3×3×32×31"),
        (_flat_kernel, "conv2d_2/kernel of .* must be 3×3×32×32, got one number"),
        (_wrong_norm, "batch_normalization_3/moving_mean of .* must be 64, got 65"),
    ],
)
def test_what_a_file_of_keras_lacks_is_named(
    spoil: Any, says: str, tmp_path: Path, weights: dict[str, Tensor]
) -> None:
    file = keras_file(tmp_path / "notop.h5", weights)
    with h5py.File(file, "r+") as opened:
        spoil(opened)
    with pytest.raises(InceptionError, match=says) as caught:
        load(InceptionV3(), file)
    assert str(file) in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"Mixed_6b.branch7x7_2.conv.weight": None}, "lacks Mixed_6b.branch7x7_2.conv.weight"),
        (
            {"Mixed_6b.branch7x7_2.conv.weight": torch.zeros(128, 128, 7, 1)},
            "Mixed_6b.branch7x7_2.conv.weight of .* must be 128×128×1×7, got 128×128×7×1",
        ),
        ({"Mixed_7c.branch_pool.bn.bias": "text"}, "lacks Mixed_7c.branch_pool.bn.bias"),
    ],
)
def test_what_a_state_dict_lacks_is_named(
    change: dict[str, Any], says: str, tmp_path: Path, weights: dict[str, Tensor]
) -> None:
    file = tmp_path / "weights.pt"
    torch.save({k: v for k, v in (weights | change).items() if v is not None}, file)
    with pytest.raises(InceptionError, match=says) as caught:
        load(InceptionV3(), file)
    assert str(file) in str(caught.value)


@pytest.mark.slow
def test_files_of_other_kinds_are_named(tmp_path: Path) -> None:
    absent, text, cut, listed = (tmp_path / name for name in ("no", "text", "cut.h5", "list.pt"))
    text.write_text("weights")
    cut.write_bytes(b"\x89HDF\r\n\x1a\n and no more")
    torch.save([torch.zeros(3)], listed)
    for file, says in (
        (absent, "cannot be read: no such file"),
        (text, "is neither HDF5 nor a state dict of torch"),
        (cut, "is not a valid HDF5 file"),
        (listed, "must hold a state dict of torch, got a list"),
    ):
        with pytest.raises(InceptionError, match=says) as caught:
            load(InceptionV3(), file)
        assert str(file) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_nothing_in_a_file_is_unpickled(tmp_path: Path) -> None:
    target = tmp_path / "ran"

    class Touch:
        def __reduce__(self) -> Any:
            return Path.touch, (target,)

    file = tmp_path / "weights.pt"
    torch.save({"Conv2d_1a_3x3.conv.weight": Touch()}, file)
    with pytest.raises(InceptionError, match="neither HDF5 nor a state dict"):
        load(InceptionV3(), file)
    assert not target.exists()


@pytest.mark.slow
def test_the_variable_makes_kid_one_over_inception(
    tmp_path: Path, weights: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "my-weights.pt"
    torch.save(weights, file)
    monkeypatch.setenv("BADM_INCEPTION", str(file))
    images = torch.rand(4, 1, 28, 28)
    before = torch.random.get_rng_state()
    network = feature_network(images, torch.zeros(4), 10)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert network.label == label() == "KID"
    assert network.features(images).shape == (4, network.num_features) == (4, 2048)
    assert "my-weights.pt" in network.note
    assert not any(p.requires_grad for p in network.parameters())
    monkeypatch.setenv("BADM_INCEPTION", str(tmp_path / "absent.h5"))
    with pytest.raises(InceptionError, match=r"absent\.h5 cannot be read"):
        feature_network(images, torch.zeros(4), 10)
